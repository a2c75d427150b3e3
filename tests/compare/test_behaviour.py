"""Behaviour of whole comparisons: the same either way, and with a read-out that is fitted."""

from __future__ import annotations

from dataclasses import replace

import pytest

import interp
from circuits import compare
from circuits.compare import driver
from interp.tasks.reachability.algorithms import breadth_first
from lab.known import by_algorithm

pytestmark = pytest.mark.usefixtures("few_steps")


def only(monkeypatch, *keys):
    monkeypatch.setattr(driver, "QUESTIONS", tuple(q for q in driver.QUESTIONS if q.key in keys))


SMALL = compare.Effort(known=8, test=12, rounds=14, starts=2, horizon=3, battery=4, scored=12, edits=200, untrained=1)


def test_behaviour_is_symmetric(monkeypatch):
    """Weighted Majority of gain .5 against .35 was the same, and .35 against .5 was not."""
    only(monkeypatch, "algorithm", "behaviour")
    louder, quieter = (interp.load("wma-handwired", n_experts=4, log_gamma=gain) for gain in (0.5, 0.35))
    there, back = (compare.run(*pair, effort=SMALL) for pair in ((louder, quieter), (quieter, louder)))
    one, other = there["behaviour"], back["behaviour"]
    assert 0.8 < one.number.estimate < 0.99
    assert (one.word, one.about, one.threshold) == (other.word, other.about, other.threshold)
    assert vars(one.number) == pytest.approx(vars(other.number), abs=1e-9)


def test_a_read_out_is_fitted_whichever_of_the_two_says_its_algorithm(monkeypatch):
    """A search that spreads .6 of its answer over what it reached is the same search, once that is fitted."""
    only(monkeypatch, "algorithm", "behaviour")
    handwired = interp.load("reachability-handwired", n_nodes=16, n_edges=24)
    spread = by_algorithm.machine(breadth_first(0.6), handwired.layout)
    for pair in ((spread, handwired), (handwired, spread)):
        measure = compare.run(*pair, effort=replace(SMALL, rounds=5, starts=1, horizon=1))["behaviour"]
        assert (measure.word, measure.condition) == ("yes", "with its read-out fitted")
        assert measure.note.startswith("spread 0.")
