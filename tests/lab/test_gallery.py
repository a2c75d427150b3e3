"""The gallery says of every machine what is right and why; rare lapses are as rare as they say."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import interp
from interp import tasks
from lab import known

QUESTIONS = {"behaviour", "state", "update", "circuit"}


FEW = {
    "experts": ("itself", "one round late"),
    "qlearning": (
        "itself",
        "two copies",
        "by algorithm",
        "optimistic start",
        "one round late",
        "written and never read",
    ),
    "reachability": ("itself", "by algorithm", "one round late", "holds only what is new", "ignores the last edge"),
}
"""Machines of each task that the default tests run."""
EVERY = {f"{task}: {key}": (task, key) for task in known.TASKS for key in known.gallery(task)}
SOME = [f"{task}: {key}" for task, keys in FEW.items() for key in keys]
SLOW = pytest.mark.slow(reason="one to three CPU seconds a machine, 123 machines")


@pytest.mark.parametrize("task", known.TASKS)
def test_every_specimen_says_what_is_right_and_why(task):
    """Half of each task's are not used to choose thresholds, and machines differ in every question."""
    machines = known.gallery(task)
    assert len(machines) >= 30 and all(key == one.key and one.task == task for key, one in machines.items())
    assert all(one.right.keys() <= QUESTIONS and len(one.why) > 10 for one in machines.values())
    assert {one.algorithm for one in machines.values()} <= {None, "", *tasks.get(task).rivals()}
    for held_out in (False, True):
        half = [one for one in machines.values() if one.held_out == held_out]
        assert 0.4 <= len(half) / len(machines) <= 0.6
        for question in QUESTIONS:
            words = Counter(one.right.get(question) for one in half)
            fewest = 3 if task == "experts" or question != "circuit" else 1
            assert min(words["same"], words["different"]) >= fewest, (question, held_out)


@pytest.mark.parametrize("name", [*SOME, *(pytest.param(name, marks=SLOW) for name in EVERY if name not in SOME)])
def test_machines_keep_the_contract(name):
    task, key = EVERY[name]
    interp.check_machine(known.gallery(task)[key].make())


def apart(task, key, batches):
    """The largest difference of the predictions of a machine and its reference."""
    reference, machine = known.reference(task), known.gallery(task)[key].make()
    return max(
        (interp.rollout(machine, some).predictions - interp.rollout(reference, some).predictions).abs().max().item()
        for some in batches
    )


@pytest.mark.parametrize("name", SOME)
def test_a_few_behave_as_they_should(name):
    task, key = EVERY[name]
    episodes = tasks.get(task).sample_for(known.reference(task), 12, tasks.get(task).at_most(14), seed=3)
    assert (apart(task, key, [episodes]) < 1e-6) == (known.gallery(task)[key].right["behaviour"] == "same")


@SLOW
@pytest.mark.parametrize("name", EVERY)
def test_all_behave_as_they_should(name):
    """On the episodes that tell algorithms apart."""
    task, key = EVERY[name]
    record, right = tasks.get(task), known.gallery(task)[key].right["behaviour"]
    sets = record.sets_for(known.reference(task).layout, 8, record.at_most(20), seed=5).values()
    assert right == "either" or (apart(task, key, [scored for _, scored in sets]) < 1e-6) == (right == "same")


@pytest.mark.parametrize(("key", "behaves"), [("inverted once in 240", True), ("unlearns once in 240", False)])
def test_a_rare_lapse_is_rare_and_happens(key, behaves):
    """By the rounds in which it says, or holds, another thing than the reference while both were alike before."""
    reference, machine = known.reference("experts"), known.gallery("experts")[key].make()
    episodes = tasks.of(reference).sample_for(reference, 400, 24, seed=7)
    plain, lapsed = (interp.rollout(model, episodes) for model in (reference, machine))
    if behaves:
        differs = (plain.predictions - lapsed.predictions).abs().numpy() > 0.01
        rate, expected = differs.mean(), 1 / 240
    else:
        apart = (reference.read_state(plain.latents) - machine.read_state(lapsed.latents)).abs().numpy().max(-1)
        rate, expected = (apart[:, -1] > 1e-6).mean(), 1 - (1 - 1 / 240) ** 24
    assert 0.6 * expected < rate < 1.4 * expected
    first = np.argmax(differs.any(0) if behaves else (apart > 1e-6).any(0))
    assert first <= 6


def test_an_unknown_task_is_refused_with_those_known():
    with pytest.raises(interp.InputError, match="experts"):
        known.gallery("expert")
    with pytest.raises(interp.InputError, match="experts"):
        known.reference("chess")
