"""The interval plot: what is drawn where, and what a page's first sentence says of its findings."""

from __future__ import annotations

import pytest

from interp.errors import InputError
from interp.statistics import Interval
from reports.blocks import Finding, Findings
from reports.measured import IntervalPlot, Measured, Row

NAN = float("nan")


def test_marks_stand_where_their_numbers_are() -> None:
    """In percent of the scale; what lies beyond it stands at its end and says so; a bound points to its side."""
    measured = Measured(
        Interval(0.6, 0.5, 0.9), 0.95, controls={"an untrained copy": -2.0, "chance": 0.1, "random": 0.25}
    )
    assert measured.marks == [
        ("span", 50.0, 40.0),
        ("from", 95.0, 0.0),
        ("untrained beyond", 0.0, 0.0),
        ("control", 25.0, 0.0),
        ("dot", 60.0, 0.0),
    ]
    low = Measured(Interval(1.2, NAN, NAN), below=0.1, controls={"a": 0.3, "b": 0.2})
    assert low.marks == [("to", 10.0, 0.0), ("control", 20.0, 0.0), ("dot beyond", 100.0, 0.0)]
    assert IntervalPlot([Row("x", low), Row("y", None)]).kinds == {"to", "control", "dot", "beyond"}


def test_one_threshold_decides() -> None:
    with pytest.raises(InputError, match="one threshold"):
        Measured(Interval(0.5, 0.4, 0.6), 0.1, 0.2)


def test_the_sentence_says_what_came_out_and_what_is_open() -> None:
    """A claim that failed is never said as one that passed; what one verb says is said together."""
    says = ("holds", "does not hold")
    found = [
        Finding("A", "pass", "1", says=(*says, "the votes")),
        Finding("B", "fail", "0", says=("is exact", "is not exact", "")),
        Finding("C", "pass", "1", says=(*says, "the weights")),
        Finding("D", "uninformative", "1", says=("flies", "does not fly", "")),
    ]
    whole = Findings([(finding, ("", "")) for finding in found])
    assert whole.sentence("m") == ("m holds the votes and the weights, but is not exact. 1 of 4 claims is left open.")
    assert Findings(whole.rows[1:2]).sentence("m") == "m is not exact."
    assert Findings(whole.rows[3:]).sentence("m") == "1 of 1 claims is left open."
