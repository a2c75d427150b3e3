"""Measures on a page: what is drawn where, and how a word looks."""

from dataclasses import replace

import pytest

from interp.results.measure import UNTRAINED, Control, Measure
from interp.stats.intervals import Interval
from reports.blocks import Measures, colour, counts, make_unjudged

NAN = float("nan")


def measure(number: Interval, threshold: float = 0.5, **controls: float) -> Measure:
    return Measure(
        "m",
        "M",
        number,
        threshold,
        controls={name: Control(value) for name, value in controls.items()},
    )


def test_marks_stand_where_their_numbers_are() -> None:
    """In percent of the scale; what lies beyond it stands at its end and is pale; a threshold points to its side."""
    above = measure(
        Interval(0.6, 0.5, 0.9), 0.95, **{UNTRAINED: -2.0, "chance": 0.1, "random": 0.25}
    )
    below = replace(measure(Interval(1.2, NAN, NAN), 0.1, a=0.3, b=0.2), side="below")
    drawn = Measures([above, below, measure(Interval(NAN, NAN, NAN))])
    assert [drawn.list_marks(drawn_measure) for drawn_measure in drawn.measures] == [
        [
            ("span", 50.0, 40.0),
            ("from", 95.0, 0.0),
            ("untrained beyond", 0.0, 0.0),
            ("control", 25.0, 0.0),
            ("dot", 60.0, 0.0),
        ],
        [("to", 10.0, 0.0), ("control", 20.0, 0.0), ("dot beyond", 100.0, 0.0)],
        [],
    ]
    assert drawn.mark_kinds == {"span", "from", "to", "untrained", "control", "dot", "beyond"}
    assert (
        drawn.describe(above) == f"0.60 [0.50, 0.90]; at least 0.95; {UNTRAINED}: −2; random: 0.25"
    )


def test_an_amount_is_printed() -> None:
    """It has no scale from 0 to 1, so its number and threshold stand as text."""
    error = Measure(
        "e", "E", Interval(1e-16, 1e-16, 1e-16), 1e-12, "below", unit="error", is_share=False
    )
    assert Measures([error]).list_marks(error) == []
    assert Measures([error]).describe(error) == "1.0e−16 [1.0e−16, 1.0e−16] error; at most 1.0e−12"


@pytest.mark.parametrize(
    ("found", "verdict", "hue"),
    [
        (measure(Interval(0.9, 0.8, 1.0), chance=0.1), "yes", "pass"),
        (measure(Interval(0.1, 0.0, 0.2), chance=0.1), "no", "fail"),
        (replace(measure(Interval(0.1, 0.0, 0.2), chance=0.1), by_design=False), "no", "neutral"),
        (measure(Interval(0.9, 0.8, 1.0)), "undecided", "neutral"),
        (Measure("m", "M", lacking="it has no heads"), "not applicable", "neutral"),
    ],
)
def test_a_word_is_red_only_where_it_should_be_another(
    found: Measure, verdict: str, hue: str
) -> None:
    """What a model was made not to satisfy is false without alarm, and what is open is neither good nor bad."""
    assert (found.verdict, colour(found)) == (verdict, hue)
    assert counts([found, found]) == f"2 {verdict}"


def test_the_table_has_the_columns_that_say_something() -> None:
    """Every number of the plot, and none of a number that decides nothing: that has no word."""
    drawn = Measures([measure(Interval(0.9, 0.8, 1.0), chance=0.1)], sections=[("s", "S")])
    names = ["claim", "number", "threshold", "side", "control", "control_number", "verdict", "see"]
    assert list(drawn.table.displayed_frame.columns) == names
    shown = make_unjudged("a", Interval(0.5, 0.4, 0.6), {"b": 0.2})
    assert Measures([shown]).list_marks(shown)[-1] == ("dot", 50.0, 0.0)
    assert not Measures([shown]).has_verdicts
