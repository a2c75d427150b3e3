"""One rule gives every word: which side the interval lies on, whether it is clear of every control, and why not."""

import json
from dataclasses import dataclass, replace
from math import isnan, nan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from interp.results.figures import draw_measures
from interp.results.measure import (
    AS_WELL,
    BETWEEN,
    FEW,
    LITTLE_MEMORY,
    MISREAD,
    NOT_RUN,
    NOTHING,
    SPANS,
    TOO_NEAR,
    UNTRAINED,
    VERDICTS,
    Control,
    Measure,
    Measured,
    Side,
    claims,
    conjoin,
    merge_copies,
    pick_number_column,
    sentence,
    to_frame,
)
from interp.results.measure import Result as AnyResult
from interp.stats.intervals import Interval
from interp.support.errors import InputError
from interp.support.files import json_values
from tests.cases import cases
from tests.refusals import refuses


@dataclass(frozen=True, repr=False)
class Result(Measured):
    """The least that a result is."""

    model: str
    measures: tuple[Measure, ...]


LOW = {UNTRAINED: Control(0.1)}
HELD = Measure(
    "state", "The latents hold the counts", Interval(0.9, 0.8, 0.95), 0.5, unit="R2", controls=LOW
)
RARE = replace(
    HELD,
    number=Interval(0.02, 0.01, 0.04),
    threshold=0.1,
    side="below",
    controls={UNTRAINED: Control(0.6)},
)


@pytest.mark.parametrize(
    ("number", "above", "below"),
    [
        ((0.9, 0.8, 0.95), "yes", "no"),
        ((0.2, 0.1, 0.3), "no", "yes"),
        ((0.6, 0.4, 0.8), "undecided", "undecided"),
        ((0.6, 0.5, 0.8), "yes", "undecided"),
        ((0.4, 0.3, 0.5), "undecided", "yes"),
    ],
)
def test_the_whole_interval_lies_on_one_side_of_the_threshold(
    number: tuple[float, ...], above: str, below: str
) -> None:
    free = replace(HELD, number=Interval(*number), needs_control=False, controls={})
    assert (free.verdict, replace(free, side="below").verdict) == (above, below)


def test_a_threshold_of_its_own_refutes_a_claim() -> None:
    between = replace(HELD, number=Interval(0.4, 0.35, 0.45), no_threshold=0.3)
    assert (between.verdict, replace(between, no_threshold=0.5).verdict) == ("undecided", "no")
    below = replace(RARE, number=Interval(0.2, 0.15, 0.25), no_threshold=0.3)
    assert (below.verdict, replace(below, no_threshold=0.1).verdict) == ("undecided", "no")


@pytest.mark.parametrize(
    ("side", "no_threshold", "low", "high", "reason"),
    [
        ("above", 0.3, 0.35, 0.45, BETWEEN),
        ("above", 0.3, 0.4, 0.4, BETWEEN),
        ("above", 0.3, 0.25, 0.45, SPANS),
        ("above", 0.3, 0.35, 0.55, SPANS),
        ("below", 0.7, 0.6, 0.6, BETWEEN),
        ("below", 0.7, 0.6, 0.75, SPANS),
        ("below", 0.7, 0.45, 0.6, SPANS),
        ("below", 0.7, 0.55, 0.7, BETWEEN),
        ("above", 0.3, 0.3, 0.45, BETWEEN),
    ],
)
def test_an_interval_between_two_thresholds_spans_none(
    side: Side, no_threshold: float, low: float, high: float, reason: str
) -> None:
    """The threshold of "yes" is .5 in all."""
    number = Interval((low + high) / 2, low, high)
    measure = replace(HELD, number=number, threshold=0.5, side=side, no_threshold=no_threshold)
    assert (measure.verdict, measure.reason) == ("undecided", reason)


def test_a_yes_is_clear_of_every_control_that_counts() -> None:
    near = {UNTRAINED: Control(0.1), "the inputs": Control(0.85)}
    assert HELD.verdict == "yes"
    assert RARE.verdict == "yes"
    assert (replace(HELD, controls=near).verdict, replace(HELD, controls=near).reason) == (
        "undecided",
        f"the inputs {TOO_NEAR} (less than 3 times its odds)",
    )
    assert (
        replace(HELD, controls={**near, "the inputs": Control(0.85, counts=False)}).verdict == "yes"
    )
    third = f"{UNTRAINED} {TOO_NEAR} (more than a third of its odds)"
    assert replace(RARE, controls={UNTRAINED: Control(0.1)}).reason == third
    assert replace(RARE, controls={UNTRAINED: Control(0.9)}).verdict == "yes"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        # The odds of .8 are 4: .6 (1.5) and .7 (2.33) are both more than a third of it, .7 the stronger.
        (
            {"controls": {"a": Control(0.6), "b": Control(0.7)}},
            "b comes too near (less than 3 times its odds)",
        ),
        (
            {"controls": {"a": Control(nan), "b": Control(0.7)}},
            "b comes too near (less than 3 times its odds)",
        ),
        ({"controls": {"a": Control(nan), "b": Control(0.5)}}, f"{NOT_RUN}: a has no number"),
        (
            {"controls": {"a": Control(nan), "b": Control(0.9, counts=False)}},
            f"{NOT_RUN}: a has no number",
        ),
        (
            {"controls": {"a": Control(0.3)}, "is_share": False},
            "a comes too near (less than 3 times its number)",
        ),
    ],
    ids=["strongest", "known before unknown", "unknown", "one that does not count", "amount"],
)
def test_the_strongest_control_that_is_not_cleared_is_named(changes, reason) -> None:
    assert replace(HELD, **changes).reason == reason


def test_the_near_end_of_the_interval_is_held_against_a_control() -> None:
    wide = replace(HELD, number=Interval(0.9, 0.55, 0.99), controls={UNTRAINED: Control(0.5)})
    assert wide.verdict == "undecided"
    assert replace(wide, number=Interval(0.9, 0.76, 0.99)).verdict == "yes"
    rare = replace(RARE, number=Interval(0.01, 0.0, 0.09), controls={UNTRAINED: Control(0.2)})
    assert rare.verdict == "undecided"
    assert replace(rare, number=Interval(0.01, 0.0, 0.02)).verdict == "yes"


def is_clear(number: float, control: float, side: Side = "above", is_share: bool = True) -> bool:
    """Whether a number at its threshold is far enough from a control."""
    measure = Measure(
        "a",
        "A",
        Interval(number, number, number),
        threshold=number,
        side=side,
        is_share=is_share,
        controls={UNTRAINED: Control(control)},
    )
    return measure.verdict == "yes"


def test_clear_is_three_times_the_odds_and_nothing_beyond_rounding() -> None:
    assert is_clear(0.75, 0.5)
    assert not is_clear(0.74, 0.5)
    assert is_clear(0.25, 0.5, "below")
    assert not is_clear(0.26, 0.5, "below")
    assert is_clear(0.75, 0.25, is_share=False)
    assert not is_clear(0.74, 0.25, is_share=False)
    assert not is_clear(1 - 1e-12, 1 - 1e-4)
    assert is_clear(1.0, 0.996)
    assert not is_clear(0.998, 0.996)
    assert is_clear(1.0, 3300 / 3301)
    assert not is_clear(1.0, 3400 / 3401)
    assert not is_clear(0.0, 0.0, is_share=False)
    assert not is_clear(0.0, 0.0, "below", is_share=False)
    assert is_clear(0.1, 0.0, is_share=False)
    assert is_clear(0.0, 0.1, "below", is_share=False)
    assert is_clear(0.5, -7.0)
    assert not is_clear(0.0, -7.0)
    assert is_clear(3.0, -1.0, is_share=False)


def test_no_is_said_without_controls_and_yes_is_not() -> None:
    bare = replace(HELD, controls={})
    assert (bare.verdict, bare.reason) == ("undecided", NOT_RUN)
    assert replace(bare, number=Interval(0.2, 0.1, 0.3)).verdict == "no"
    assert replace(bare, controls={"shown": Control(0.1, counts=False)}).verdict == "undecided"
    assert (
        replace(bare, controls={UNTRAINED: Control(nan)}).reason
        == f"{NOT_RUN}: {UNTRAINED} has no number"
    )
    assert replace(bare, needs_control=False).verdict == "yes"


def test_a_word_can_be_forbidden_and_a_claim_can_be_beside_the_point() -> None:
    few = replace(HELD, unless={"no": "too few episodes"})
    assert few.verdict == "yes"
    no = replace(few, number=Interval(0.2, 0.1, 0.3))
    assert (no.verdict, no.reason) == ("undecided", "too few episodes")
    assert (
        replace(HELD, lacking="no heads").verdict,
        replace(HELD, lacking="no heads").reason,
    ) == (
        "not applicable",
        "no heads",
    )
    assert (Measure("a", "A").verdict, Measure("a", "A").reason) == ("undecided", NOTHING)
    assert {
        replace(HELD, number=Interval(0.9, *ends)).reason
        for ends in ((nan, nan), (0.8, nan), (nan, 0.95))
    } == {NOTHING}


def test_what_is_false_by_design_says_so_beside_the_no_alone() -> None:
    no = replace(HELD, number=Interval(0.2, 0.1, 0.3))
    assert no.reason == ""
    by_design = replace(no, by_design=False)
    assert (by_design.verdict, by_design.reason) == ("no", "by design")
    assert replace(HELD, by_design=False).reason == ""


def test_the_strongest_control_comes_closest_to_the_claim() -> None:
    controls = {
        "a": Control(0.1),
        "b": Control(0.3),
        "c": Control(0.8, counts=False),
        "d": Control(nan),
    }
    assert replace(HELD, controls=controls).strongest == "b"
    assert replace(RARE, controls=controls).strongest == "a"
    assert replace(HELD, controls={"c": Control(0.8, counts=False)}).strongest == "c"
    assert replace(HELD, controls={}).strongest == ""
    unknown_first = replace(
        HELD, controls={"d": Control(nan, counts=False), "c": Control(0.8, counts=False)}
    )
    assert unknown_first.strongest == "c"
    assert replace(HELD, controls={"d": Control(nan)}).strongest == ""
    assert merge_copies([nan, 0.1, 0.3]).number == 0.3


def test_the_part_that_decides_is_the_first_no_then_the_first_undecided() -> None:
    yes, no = replace(HELD, claim="one"), replace(HELD, claim="two", number=Interval(0.1, 0.0, 0.2))
    spans = replace(HELD, claim="three", number=Interval(0.5, 0.3, 0.7))
    assert conjoin([yes, spans, no]).claim == "two"
    assert conjoin([yes, spans]).reason == SPANS
    assert conjoin([yes, replace(yes, claim="other")]).about == "one"
    assert conjoin([yes, no], key="all", claim="All of it").claim == "All of it"


def test_tables_and_json_have_one_form() -> None:
    frame = to_frame([HELD, replace(HELD, lacking="no heads")])
    columns = list(cases(__file__, "columns of every table of measures"))
    assert list(frame.columns) == columns
    assert list(to_frame([]).columns) == columns
    assert frame["verdict"].tolist() == ["yes", "not applicable"]
    assert frame["control_number"].tolist() == [0.1, 0.1]
    assert isinstance(frame, pd.DataFrame)
    assert frame[["number", "low", "high"]].iloc[0].tolist() == [
        0.9,
        0.8,
        0.95,
    ]
    record = json.loads(json.dumps(json_values(HELD.to_dict())))
    assert set(columns) < set(record)
    assert record["controls"] == {UNTRAINED: {"number": 0.1, "counts": True}}
    rest = {
        "key",
        "no_threshold",
        "is_share",
        "yes",
        "no",
        "unless",
        "lacking",
        "by_design",
        "needs_control",
        "caution",
    }
    assert set(record) == {*columns, *rest, "controls", "rests_on", "note"}


def test_a_measure_prints_its_word_its_reason_or_condition_and_its_number() -> None:
    number = "R2 0.9 [0.8, 0.95], at least 0.5; an untrained copy 0.1."
    assert str(HELD) == f"The latents hold the counts: yes. {number}"
    assert str(replace(HELD, about="h")) == f"The latents hold the counts (h): yes. {number}"
    assert (
        str(replace(HELD, condition="given t"))
        == f"The latents hold the counts: yes, given t. {number}"
    )
    bare = replace(HELD, condition="given t", controls={})
    assert (
        str(bare)
        == f"The latents hold the counts: undecided, {NOT_RUN}. R2 0.9 [0.8, 0.95], at least 0.5."
    )
    assert str(replace(HELD, number=Interval(0.9, nan, nan))).startswith(
        "The latents hold the counts: undecided"
    )
    assert "R2 0.9" in str(replace(HELD, number=Interval(0.9, nan, nan)))
    assert str(replace(HELD, lacking="no heads", number=Interval(nan, nan, nan))).endswith(
        "not applicable, no heads."
    )


def test_a_sentence_says_what_is_true_then_what_is_false_then_what_is_open() -> None:
    yes = replace(
        HELD,
        yes="holds the counts",
        no="does not hold the counts",
        condition="given the round number",
    )
    no = replace(
        HELD,
        number=Interval(0.1, 0, 0.2),
        yes="predicts alike",
        no="predicts otherwise",
        condition="never said",
    )
    spans = replace(HELD, number=Interval(0.5, 0.3, 0.7), yes="adds")
    assert (
        sentence("m", [yes, no])
        == "m holds the counts (given the round number), but predicts otherwise."
    )
    assert (
        sentence("m", [no, spans])
        == f"m predicts otherwise. It is undecided whether it adds: {SPANS}."
    )
    assert sentence("m", [replace(HELD, lacking="none")]) == "m: no claim applies."
    assert (
        sentence("m", [replace(spans, yes=""), spans]) == f"2 of 2 claims are undecided: {SPANS}."
    )
    assert sentence("m", [spans]) == f"It is undecided whether it adds: {SPANS}."
    measures = [
        replace(HELD, yes="holds a"),
        replace(HELD, yes="holds b"),
        spans,
        replace(spans, unless={"undecided": "other"}),
    ]
    assert sentence("m", measures) == "m holds a and holds b. 2 of 4 claims are undecided."
    assert (
        sentence("m", [yes, no], "It is the algorithm.")
        == "It is the algorithm. It predicts otherwise."
    )
    assert sentence("m", [yes, yes, spans, spans]).endswith(
        f" 2 of 4 claims are undecided: {SPANS}."
    )


@pytest.mark.parametrize(("extra", "fits"), [(0, True), (1, False)])
def test_a_first_sentence_has_at_most_twenty_words(extra: int, fits: bool) -> None:
    words = " ".join(["verdict"] * (16 + extra))
    first = sentence("m", [replace(HELD, yes="holds a"), replace(HELD, yes=words)])
    assert (first == f"m holds a and {words}.") is fits
    assert (first == f"m holds a. It also {words}.") is not fits
    assert sentence("m", [replace(HELD, yes=f"{words} {words}")]) == f"m {words} {words}."


def test_a_result_finds_a_measure_by_its_key() -> None:
    result = Result(
        "m", (HELD, RARE, replace(RARE, key="rare"), replace(RARE, key="rare", claim="second"))
    )
    assert result["rare"] is result.measures[2]
    assert result["state"] is HELD
    assert list(result) == list(result.measures)
    assert result.sentence in repr(result)
    assert "at least 0.5; an untrained copy 0.1" in repr(result)
    assert "<table" in result._repr_html_()
    assert len(result.to_frame()) == 4
    with pytest.raises(InputError, match="did you mean 'rare'"):
        result["rar"]


def test_a_number_needs_a_threshold_and_reasons_come_from_the_list() -> None:
    refuses("needs a threshold", Measure, "a", "A", Interval(1, nan, nan))
    assert {"yes", "no", "undecided", "not applicable"} == set(VERDICTS)
    reasons = (SPANS, BETWEEN, TOO_NEAR, AS_WELL, NOT_RUN, FEW, NOTHING, LITTLE_MEMORY, MISREAD)
    reasons += ("by design",)
    for measure in (
        HELD,
        RARE,
        replace(HELD, controls={}),
        replace(HELD, number=Interval(0.5, 0.3, 0.7)),
    ):
        assert measure.verdict == "yes" or any(reason in measure.reason for reason in reasons)


CONTRADICTIONS = {
    "side": ({"side": "abvoe"}, "side must be 'above' or 'below', got 'abvoe'"),
    "share": ({"threshold": 7.0}, "of a share is 1 at most, got 7; give is_share"),
    "no beyond yes": ({"no_threshold": 0.6}, "must be at most the threshold, 0.5, .* got 0.6"),
    "no below yes": ({"side": "below", "no_threshold": 0.4}, "must be at least the threshold"),
    "word": ({"unless": {"yess": "few"}}, "a mapping of 'yes' or 'no' or .*, got {'yess'"),
    "unless": ({"unless": ["yes"]}, "unless must be a mapping"),
    "number": ({"number": 0.9}, "number must be an Interval, got 0.9"),
    "threshold": ({"threshold": "0.5"}, "threshold must be a finite number, got '0.5'"),
    "control": (
        {"controls": {"x": 0.1}},
        "controls must be a mapping of a text to a Control, got {'x': 0.1}",
    ),
    "phrase": ({"yes": 3}, "yes must be a text, got 3"),
    "tables": ({"rests_on": "table"}, "rests_on must be a list"),
}


@pytest.mark.parametrize(("change", "sentence"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_a_measure_whose_fields_contradict_each_other_is_refused(
    change: dict[str, Any], sentence: str
) -> None:
    refuses(sentence, replace, HELD, **change)


def test_an_amount_has_any_threshold_and_a_share_of_what_should_be_may_exceed_one() -> None:
    assert replace(HELD, threshold=7.0, is_share=False).verdict == "no"
    assert replace(HELD, number=Interval(1.5, 1.2, 1.8)).verdict == "yes"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        pytest.param((None,), "the number of a control must be a number, got None", id="number"),
        pytest.param((0.5, "no"), "counts of a control must be True or False", id="counts"),
    ],
)
def test_a_control_is_a_number_and_a_truth_value(values: tuple[Any, ...], sentence: str) -> None:
    refuses(sentence, Control, *values)


def test_claims_of_a_table_or_a_file_are_filled_in_and_lack_all_but_their_sentence(
    tmp_path: Path,
) -> None:
    table = {
        "holds": {
            "claim": "It holds the {what}",
            "threshold": 0.5,
            "rests_on": ["probes"],
            "unit": "R2",
        }
    }
    (tmp_path / "claims.toml").write_text(
        '[holds]\nclaim = "It holds the {what}"\nthreshold = 0.5\nrests_on = ["probes"]\nunit = "R2"\n'
    )
    for claim in (claims(table), claims(tmp_path / "claims.toml")):
        filled = claim("holds", Interval(0.8, 0.7, 0.9), {"what": "counts"})
        assert (filled.claim, filled.threshold, filled.rests_on, filled.unit) == (
            "It holds the counts",
            0.5,
            ("probes",),
            "R2",
        )
        none = claim("holds", words={"what": "counts"}, lacking="it has no state")
        assert (none.claim, none.verdict, none.reason) == (
            "It holds the counts",
            "not applicable",
            "it has no state",
        )
        assert none.rests_on == ()
        assert isnan(none.threshold)
    assert claims({"plain": {"claim": "It is"}})("plain").claim == "It is"


def test_the_picture_has_a_row_for_each_share() -> None:
    axes = draw_measures([HELD, RARE, Measure("a", "A"), replace(HELD, is_share=False)]).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "The latents hold the counts: yes"
    ] * 2
    assert axes.lines[0].get_xdata().tolist() == [0.8, 0.95]


class _Heads(AnyResult):
    """A result whose table is given."""

    def __init__(self, **columns: Any) -> None:
        self.table = pd.DataFrame(columns)

    def to_frame(self) -> pd.DataFrame:
        return self.table


NAMED = {
    "name": ["R2", "R2", "R2", "rank", "rank"],
    "site": ["z", "attn_out", "v", "z", "v"],
    "head": [1, 2, 0, 1, 0],
    "number": [0.9, 0.5, 0.2, 4.0, 7.0],
    "number_low": [0.8, 0.4, 0.1, nan, nan],
    "number_high": [1.0, 0.6, 0.3, nan, nan],
    "low": 0.0,
    "high": 2.0,
}


def test_the_numbers_of_a_table_are_those_of_its_first_quantity_in_order() -> None:
    """Rows are named by texts and integers before the number; the number's own bounds come first."""
    quantity, rows = pick_number_column(pd.DataFrame(NAMED))
    assert quantity == "R2"
    assert rows["name"].tolist() == ["v, head 0", "attn out, head 2", "z, head 1"]
    assert rows["estimate"].tolist() == [0.2, 0.5, 0.9]
    assert rows["low"].tolist() == [0.1, 0.4, 0.8]
    assert rows["high"].tolist() == [0.3, 0.6, 1.0]


@pytest.mark.parametrize(
    ("columns", "quantity", "names", "bounds"),
    [
        ({"loss": [2.0], "mean": [1.0], "low": [0.5], "high": [3.0]}, "mean", ["mean"], (0.5, 3.0)),
        ({"site": ["z"], "log_loss": [1.0]}, "log loss", ["z"], (nan, nan)),
        ({"site": [""], "share": [1.0], "name": ["x"]}, "share", ["share"], (nan, nan)),
    ],
    ids=["known column", "first numeric column", "name is not the first column"],
)
def test_a_table_without_a_name_is_called_by_its_column(columns, quantity, names, bounds) -> None:
    found_quantity, rows = pick_number_column(pd.DataFrame(columns))
    assert found_quantity == quantity
    assert rows["name"].tolist() == names
    assert rows["estimate"].tolist() == [1.0]
    assert np.array_equal(rows[["low", "high"]].iloc[0], bounds, equal_nan=True)


@pytest.mark.parametrize(
    ("losses", "sentence"),
    [
        ([3.0, 1.0, 2.0, nan], "loss: 1 [nan, nan] (b) to 3 [nan, nan] (a)."),
        ([3.0, 1.0, nan, nan], "loss: 1 [nan, nan] (b) to 3 [nan, nan] (a)."),
        ([3.0, nan, nan, nan], "loss: 3 [nan, nan] (a)."),
        ([nan, nan, nan, nan], "loss: none."),
    ],
    ids=["three", "two", "one", "none"],
)
def test_a_result_says_its_lowest_and_its_highest_number(losses, sentence) -> None:
    assert _Heads(site=list("abcd"), loss=losses).sentence == sentence


def test_a_row_without_a_name_is_not_named_in_the_sentence() -> None:
    assert _Heads(loss=[1.0], low=[0.5], high=[2.0]).sentence == "loss: 1 [0.5, 2]."


@pytest.mark.parametrize(("n", "label"), [(10, "loss"), (11, "loss, the lowest 10 of 11")])
def test_a_figure_shows_the_ten_lowest_numbers(n: int, label: str) -> None:
    axis = _Heads(site=[f"s{i}" for i in range(n)], loss=np.arange(n, 0.0, -1)).plot().axes[0]
    assert axis.get_xlabel() == label
    assert len(axis.get_yticklabels()) == 10


def test_a_table_of_one_named_row_is_read() -> None:
    assert _Heads(name=["R2"], number=[0.5]).sentence == "R2: 0.5 [nan, nan]."


@pytest.mark.parametrize(
    ("threshold", "words"),
    [(1e-7, "more than 0"), (1e-6, "at least 1e-06"), (0.0, "at least 0")],
)
def test_a_threshold_near_zero_is_said_as_more_than_zero(threshold: float, words: str) -> None:
    assert f", {words}" in str(replace(HELD, threshold=threshold))
