"""Machines whose right words are known (:mod:`lab.known`): a dozen at small size, all where slow tests run."""

from __future__ import annotations

import pytest

from circuits import compare
from lab import known
from lab.known import scores
from tests.compare.calibrate_algorithm import MACHINES, answer

SMALL = compare.Effort(known=16, test=12, rounds=20, starts=2, horizon=4, battery=2, scored=48, edits=240, untrained=1)
SOME = {
    "by algorithm": "behaviour state update algorithm",
    "handmade GRU": "behaviour state update algorithm",
    "negated and scaled": "behaviour state update circuit algorithm",
    "gain 1": "behaviour state update circuit algorithm",
    "Bayes, wrong prior": "behaviour state algorithm",
    "label stuck": "behaviour state update algorithm",
    "one round late, by algorithm": "behaviour update algorithm",
    "leaky 0.9": "behaviour update circuit",
    "last 5 rounds": "behaviour state update",
    "random cell": "behaviour state update algorithm",
}
"""Machines of expert advice, and what must be right about them at this size; nothing else may be wrong."""


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("key", SOME)
def test_some_known_machines_get_the_right_words_at_small_size(key):
    """Positive: machines that are the same. Negative: untrained, another vote, another memory, a lapse."""
    row = scores.score(known.gallery("experts")[key], known.reference("experts"), SMALL)
    marks = {question: row[f"{question}_mark"] for question in scores.SCORED}
    assert {question: marks[question] for question in SOME[key].split()} == dict.fromkeys(SOME[key].split(), "right")
    assert "wrong" not in marks.values(), row


EVERY = [(task, key) for task in known.TASKS for key in known.gallery(task)]


@pytest.mark.slow(reason="15 to 60 CPU seconds a machine; a dozen are compared by default, at small size")
@pytest.mark.parametrize(("task", "key"), EVERY, ids=[f"{task}: {key}" for task, key in EVERY])
def test_no_known_machine_gets_a_wrong_word(task, key):
    row = scores.score(known.gallery(task)[key], known.reference(task), compare.QUICK)
    assert not row["n_wrong"], row


@pytest.mark.slow(reason="5 to 15 CPU seconds a machine; test_algorithm asks machines of few families by default")
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: f"{machine.task}: {machine.name}")
def test_known_machines_get_their_algorithm(machine):
    part = answer(machine, n_episodes=16)
    assert machine.expected in (None, part.family or "")
