"""Machines whose right verdict is known: a few small ones by default, all of the calibration where slow tests run."""

from __future__ import annotations

import pytest

import interp
from circuits import compare
from interp.model.transformer import untrained
from tests.compare.calibrate_algorithm import MACHINES, answer
from tests.compare.calibration import TASKS, rows

SMALL = compare.Effort(known=16, test=12, rounds=20, starts=2, horizon=4, battery=4, untrained=1)


def handwired(**options):
    return interp.load("wma-handwired", n_experts=2, **options)


@pytest.mark.parametrize(
    ("make", "behaviour", "rest"),
    [
        (handwired, "same", "same"),
        (lambda: handwired(log_gamma=1.0), "different", "same"),
        (lambda: untrained(handwired(), 100), "different", "different"),
    ],
    ids=["itself", "another gain", "untrained"],
)
def test_controls_get_their_verdicts(make, behaviour, rest):
    """Positive: the machine itself is the same in everything. Negative: untrained, it is the same in nothing."""
    verdicts = compare.run(make(), handwired(), effort=SMALL).verdicts
    words = {question: verdict.word for question, verdict in verdicts.items()}
    assert words == {"behaviour": behaviour, "state": rest, "update": rest, "circuit": rest}


KNOWN = [(task, machine.name) for task, (_, machines) in TASKS.items() for machine in machines()]


@pytest.mark.slow(reason="15 to 60 CPU seconds a machine")
@pytest.mark.parametrize(("task", "name"), KNOWN, ids=[f"{task}: {name}" for task, name in KNOWN])
def test_known_machines_get_their_verdicts(task, name):
    (row,) = rows(task, compare.QUICK, lambda machine: machine.name == name)
    assert row["missed"] == "", row


@pytest.mark.slow(reason="5 to 15 CPU seconds a machine; test_algorithm asks machines of few families by default")
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: f"{machine.task}: {machine.name}")
def test_known_machines_get_their_algorithm(machine):
    part = answer(machine, n_episodes=16)
    assert machine.expected in (None, part.family or "")
