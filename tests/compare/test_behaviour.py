"""Behaviour of whole comparisons with a read-out that is fitted."""

from dataclasses import replace

import pytest

import interp
from circuits import compare
from circuits.compare import driver
from interp.tasks.reachability.algorithms import breadth_first
from lab.known import by_algorithm

pytestmark = pytest.mark.usefixtures("few_steps")


SMALL = compare.Budget(
    known=8, test=12, rounds=14, starts=2, horizon=3, battery=4, scored=12, edits=40, untrained=1
)


@pytest.mark.long
def test_a_read_out_is_fitted_whichever_of_the_two_says_its_algorithm(monkeypatch):
    """A search that spreads .6 of its answer over what it reached is the same search, once that is fitted."""
    monkeypatch.setattr(
        driver,
        "QUESTIONS",
        tuple(q for q in driver.QUESTIONS if q.key in ("algorithm", "behaviour")),
    )
    handwired = interp.load("reachability-handwired", n_nodes=10, n_edges=15)
    spread = by_algorithm.machine(breadth_first(0.6), handwired.layout)
    for pair in ((spread, handwired), (handwired, spread)):
        measure = compare.machines(*pair, budget=replace(SMALL, rounds=5, starts=1, horizon=1))[
            "behaviour"
        ]
        assert (measure.verdict, measure.condition) == ("yes", "with its read-out fitted")
        assert measure.note.startswith("spread 0.")
