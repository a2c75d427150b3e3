"""Measures: claims about a model, each with the number that decides it and a verdict.

A claim is a sentence that could be false of a model. A measure adds the number with its 95 %
interval, the threshold, the side of the threshold on which the claim is true, and the *controls*. A
control is the same quantity, measured on something for which the claim should be false, such as an
untrained copy. The verdict is one of four:

- **yes**: the whole interval lies on the claim's side of the threshold, and far enough from every
  control that counts;
- **no**: the whole interval lies on the other side;
- **not applicable**: the model lacks what the claim is about;
- **undecided**: everything else, with the reason.

The full rule: docs/method/measures.md.

    >>> untrained = {"an untrained copy": Control(0.4)}
    >>> measure = Measure("state", "The latents hold the counts", Interval(0.98, 0.97, 0.99), 0.5, controls=untrained)
    >>> measure.verdict, replace(measure, controls={"an untrained copy": Control(0.97)}).verdict
    ('yes', 'undecided')
    >>> replace(measure, controls={"an untrained copy": Control(0.97)}).reason
    'an untrained copy comes too near (less than 3 times its odds)'

Verdicts are not corrected for the number of claims, and say nothing about other models than the
measured one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from interp.core.display import table_html
from interp.stats.intervals import NO_NUMBER, Interval
from interp.support.checks import check_type, checked_fields, format_value, require_real
from interp.support.errors import require, require_known
from interp.support.files import read_tables
from interp.support.foreign import escape_invisible

if TYPE_CHECKING:
    import pandas as pd

Verdict = Literal["yes", "no", "undecided", "not applicable"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
Side = Literal["above", "below"]

UNTRAINED = "an untrained copy"
"""Name of the control that measures untrained models of the same shape and takes the best."""
SPANS = "the interval spans the threshold"
BETWEEN = "the number lies between the thresholds of yes and no"
TOO_NEAR = "comes too near"
AS_WELL = "does as well"
NOT_RUN = "a control was not run"
FEW = "too few episodes"
NOTHING = "there is no number"
LITTLE_MEMORY = "predictions hardly depend on the memory"
MISREAD = "affine maps may misread the state"
_BY_DESIGN = "by design"
_REASONS = (
    SPANS,
    BETWEEN,
    TOO_NEAR,
    AS_WELL,
    NOT_RUN,
    FEW,
    NOTHING,
    LITTLE_MEMORY,
    MISREAD,
    _BY_DESIGN,
)
"""Every reason contains one of these, except for "not applicable", which says what is lacking."""

_CLEAR = 3.0
"""A number is clear of a control if its odds are at least this many times the control's odds."""
_ROUNDING = 1e-4
"""Shares closer to 0 or 1 are moved to this distance, because smaller differences mean nothing."""
_MOST_WORDS = 20
"""Most words of a result's first sentence."""
_MOST_DRAWN = 10
"""Most numbers of a table that a figure shows."""
_MOST_NUMBERS = 6
"""Most numbers of a table that a one-line summary shows."""


@dataclass(frozen=True)
class Control:
    """A control of a measure: the measured quantity of something for which the claim should be
    false, such as an untrained copy.

    Attributes:
        number: the control's value; NaN if the control was run but gave none, such as an untrained
            copy that overflows.
        counts: True if the verdict "yes" requires the model's number to be far from this control.
            They are far apart if the odds (for shares) or the numbers (for other amounts) differ by
            a factor of 3 (docs/method/measures.md). False if the control is only shown.
    """

    number: float
    counts: bool = True

    def __post_init__(self) -> None:
        """Refuse a ``number`` that is not a real number, and a ``counts`` that is not a boolean."""
        require_real("the number of a control", self.number)
        require(
            isinstance(self.counts, bool),
            f"counts of a control must be True or False, got {format_value(self.counts)}",
        )


def _is_clear(bound: float, control: float, side: Side = "above", is_share: bool = True) -> bool:
    """Return True if the end of an interval is far enough from a control, on the side where the
    claim is true: the larger odds are at least 3 times the smaller.

    The odds of a share x are x / (1 - x). For an amount, the amount itself is used in place of
    odds. Odds are compared because a difference of .05 is impossible near 1 and easy near 0. So
    .998 is not clear of .996, but 1.000 is; .6 is clear of .3, but .5 is not.

    Args:
        bound: the end of the interval that is nearer to the control.
        control: the control's number.
        side: "above" if the claim is true above its threshold, otherwise "below".
        is_share: True if the numbers are shares between 0 and 1, False if they are amounts.

    >>> _is_clear(0.998, 0.996), _is_clear(1.0, 0.996), _is_clear(0.6, 0.3), _is_clear(0.5, 0.3)
    (False, True, True, False)
    >>> _is_clear(0.01, 0.2, side="below"), _is_clear(2.0, 1.0, is_share=False), _is_clear(0.0, 0.0, is_share=False)
    (True, False, False)
    """
    model_size = _compute_odds(bound) if is_share else max(bound, 0.0)
    control_size = _compute_odds(control) if is_share else max(control, 0.0)
    if side == "above":
        larger, smaller = model_size, control_size
    else:
        larger, smaller = control_size, model_size
    return larger > smaller and larger >= _CLEAR * smaller


def _compute_odds(share: float) -> float:
    """Return the odds x / (1 - x) of a share x, after x is moved into [1e-4, 1 - 1e-4]."""
    inner = min(max(share, _ROUNDING), 1 - _ROUNDING)
    return inner / (1 - inner)


@dataclass(frozen=True)
@checked_fields
class Measure:
    """A claim about a model, with the number, the threshold and the controls from which its verdict
    follows.

    Attributes:
        key: name of the measure in Python and JSON, such as "state".
        claim: the claim: a sentence, without a full stop, that is true or false of a model.
        number: the measured value with its interval; NaN without a measurement.
        threshold: the verdict is "yes" if the whole interval is on that side of this number where
            the claim is true (``side``), and the controls are far enough from the number.
        side: "above" if the claim is true above the threshold, "below" if it is true below.
        no_threshold: the verdict is "no" if the whole interval is on that side of this number where
            the claim is false. None if it equals ``threshold``.
        unit: the unit of the number, such as "R2" or "share of rounds".
        is_share: True if the number is a share between 0 and 1. The number is then compared with
            the controls by odds, and the threshold is at most 1. The number itself may exceed 1,
            for example if an effect is larger than it should be. False if it is another amount,
            which is compared directly.
        controls: name of the control -> :class:`Control`: the same number for something of which
            the claim should be false.
        about: the part of the model, or the place in it, that was measured.
        condition: condition under which a "yes" holds, in words, such as "given the round number";
            empty for none.
        yes, no: phrases that follow the model's name in a summary if the verdict is "yes" or "no",
            such as "holds the counts" and "does not hold the counts".
        unless: verdict -> reason why this verdict must not be returned, such as {"yes": "a control
            was not run: ..."}. If the number leads to this verdict, the verdict is "undecided"
            instead, with this reason.
        lacking: what the model lacks, so that the claim does not apply to it; empty if the claim
            applies.
        by_design: False if the model was built such that the claim is false; a "no" then has the
            reason "by design". Otherwise True.
        needs_control: False if a "yes" is possible without any control. An example is a part of a
            compound claim (:func:`conjoin`), if the controls belong to another part.
        rests_on: names of the tables that the number was computed from.
        caution: what the verdict is not evidence of.
        note: further information for the reader.
    """

    key: str
    claim: str
    number: Interval = NO_NUMBER
    threshold: float = nan
    side: Side = "above"
    no_threshold: float | None = None
    unit: str = ""
    is_share: bool = True
    controls: Mapping[str, Control] = field(default_factory=dict)
    about: str = ""
    condition: str = ""
    yes: str = ""
    no: str = ""
    unless: Mapping[Verdict, str] = field(default_factory=dict)
    lacking: str = ""
    by_design: bool = True
    needs_control: bool = True
    rests_on: tuple[str, ...] = ()
    caution: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        """Refuse a number without a threshold, a share with a threshold above 1, and thresholds
        that contradict each other.
        """
        has_number = not isnan(self.number.estimate)
        if self.lacking or not has_number:
            return
        require(not isnan(self.threshold), f"{self.key}: a number needs a threshold")
        is_possible = not self.is_share or self.threshold <= 1
        require(
            is_possible,
            f"{self.key}: the threshold of a share is 1 at most, got {self.threshold:g}; give is_share=False for an "
            "amount",
        )
        self._check_no_threshold()

    def _check_no_threshold(self) -> None:
        """Refuse a ``no_threshold`` that lies beyond ``threshold``: a number between the two would
        be both "yes" and "no".
        """
        if self.no_threshold is None:
            return
        if self.side == "above":
            is_ordered, order = self.no_threshold <= self.threshold, "at most"
        else:
            is_ordered, order = self.no_threshold >= self.threshold, "at least"
        require(
            is_ordered,
            f"{self.key}: no_threshold must be {order} the threshold, {self.threshold:g}, so that no number is both "
            f"'yes' and 'no', got {self.no_threshold:g}",
        )

    @property
    def verdict(self) -> Verdict:
        """The verdict on :attr:`claim`: "yes", "no", "undecided" or "not applicable"."""
        verdict, _ = self._verdict_and_reason
        return verdict

    @property
    def reason(self) -> str:
        """The reason for the verdict, in words. For "undecided" it says why, and for "not
        applicable" what the model lacks. For "no" it is "by design" if the model was built such
        that the claim is false. Otherwise it is empty.
        """
        _, reason = self._verdict_and_reason
        return reason

    @property
    def _verdict_and_reason(self) -> tuple[Verdict, str]:
        """The final verdict and its reason, as (verdict, reason).

        The verdict that follows from the number (:attr:`_verdict_by_number`) becomes "undecided" if
        the field ``unless`` forbids it. A "no" gets the reason "by design" if ``by_design`` is
        False.
        """
        verdict, reason = self._verdict_by_number
        if verdict in self.unless:
            return "undecided", self.unless[verdict]
        if verdict == "no" and not self.by_design:
            return "no", _BY_DESIGN
        return verdict, reason

    @property
    def _verdict_by_number(self) -> tuple[Verdict, str]:
        """The verdict that follows from the number, its thresholds and its controls, and the reason
        for it, as (verdict, reason).

        The fields ``unless`` and ``by_design`` may still change this verdict
        (:attr:`_verdict_and_reason`).
        """
        low, high = self.number.low, self.number.high
        if self.lacking:
            return "not applicable", self.lacking
        if isnan(low) or isnan(high):
            return "undecided", NOTHING
        no_threshold = self.threshold if self.no_threshold is None else self.no_threshold
        if self.side == "above":
            is_on_yes_side = low >= self.threshold
            is_on_no_side = high < no_threshold
        else:
            is_on_yes_side = high <= self.threshold
            is_on_no_side = low > no_threshold
        if is_on_yes_side:
            reason = self._reason_against_yes
            return ("undecided", reason) if reason else ("yes", "")
        if is_on_no_side:
            return "no", ""
        # The threshold for "yes" is the upper one of the two if the claim is true above it.
        lower, upper = sorted((self.threshold, no_threshold))
        is_between = lower <= low and high <= upper
        return "undecided", BETWEEN if is_between else SPANS

    @property
    def _reason_against_yes(self) -> str:
        """Reason, in words, against the "yes" of a number on the claim's side of the threshold.
        Empty if the "yes" stands.

        Such a reason is that no control was run, that a control gave no number, or that the number
        is not clear of a control.
        """
        # Controls that a "yes" must beat.
        counted = {name: control for name, control in self.controls.items() if control.counts}
        if not counted:
            return NOT_RUN if self.needs_control else ""
        # The end of the interval that is nearer to the controls.
        near_end = self.number.low if self.side == "above" else self.number.high
        name = self.strongest
        # If none of these controls has a number, self.strongest is empty or a control that does not
        # count.
        if name in counted and not _is_clear(
            near_end, counted[name].number, side=self.side, is_share=self.is_share
        ):
            return f"{name} {TOO_NEAR} ({self._broken_rule})"
        for name, control in counted.items():
            if isnan(control.number):
                return f"{NOT_RUN}: {name} has no number"
        return ""

    @property
    def _broken_rule(self) -> str:
        """What is wrong with a number that is not clear of a control (:func:`_is_clear`), in words
        for :attr:`reason`, such as "less than 3 times its odds".
        """
        what = "its odds" if self.is_share else "its number"
        how = "less than 3 times" if self.side == "above" else "more than a third of"
        return f"{how} {what}"

    @property
    def strongest(self) -> str:
        """The name of the control that is hardest to beat: the one with the highest number, or with
        the lowest if the claim is true below its threshold. Empty if no control has a number.

        Only controls that a "yes" must beat (:attr:`Control.counts`) are compared. If there are
        none, all controls are compared.
        """
        numbers = {name: control.number for name, control in self.controls.items()}
        known = {name: number for name, number in numbers.items() if not isnan(number)}
        counted = {name: number for name, number in known.items() if self.controls[name].counts}
        candidates = counted or known
        hardest = max if self.side == "above" else min
        return hardest(candidates, key=candidates.__getitem__, default="")

    @property
    def phrase(self) -> str:
        """The phrase that follows the model's name in a summary. For the verdict "yes", it is the
        field ``yes`` with the ``condition``, and for "no" the field ``no``. Otherwise it is empty.
        """
        verdict = self.verdict
        if verdict == "no":
            return self.no
        if verdict != "yes":
            return ""
        if self.yes and self.condition:
            return f"{self.yes} ({self.condition})"
        return self.yes

    def row(self) -> dict[str, Any]:
        """Return the measure as one row of a table: name of a column -> value.

        The columns are:

        * claim, and about (the part of the model that was measured), in words;
        * condition: condition under which the claim holds, in words; empty for none;
        * number, with its interval low to high, and its unit;
        * threshold, and side: on which side of the threshold the claim is true, "above" or "below";
        * control, control_number: name and number of the control that is hardest to beat;
        * verdict ("yes", "no", "undecided" or "not applicable"), and the reason for it.
        """
        control = self.strongest
        number = self.number
        verdict, reason = self._verdict_and_reason
        return {
            "claim": self.claim,
            "about": self.about,
            "condition": self.condition,
            "number": number.estimate,
            "low": number.low,
            "high": number.high,
            "unit": self.unit,
            "threshold": self.threshold,
            "side": self.side,
            "control": control,
            "control_number": self.controls[control].number if control else nan,
            "verdict": verdict,
            "reason": reason,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the measure as a dictionary for JSON: name of a field -> its value. The field
        ``number`` becomes three entries, ``number``, ``low`` and ``high``. The verdict, its reason,
        and name and number of the strongest control are added (``verdict``, ``reason``,
        ``control``, ``control_number``).
        """
        row = self.row()
        other_fields = {name: value for name, value in vars(self).items() if name not in row}
        controls = self.controls.items()
        other_fields["controls"] = {name: dict(vars(control)) for name, control in controls}
        other_fields["unless"] = dict(self.unless)
        return {"key": self.key, **row, **other_fields}

    def __str__(self) -> str:
        text = self.claim
        if self.about:
            text += f" ({self.about})"
        text += f": {self.verdict}"
        remark = self.reason or self.condition
        if remark:
            text += f", {remark}"
        if isnan(self.number.estimate):
            return f"{text}."
        unit = f"{self.unit} " if self.unit else ""
        text += f". {unit}{self.number}, {self._threshold_in_words}"
        if self.strongest:
            text += f"; {self.strongest} {self.controls[self.strongest].number:.3g}"
        return f"{text}."

    @property
    def _threshold_in_words(self) -> str:
        """The threshold and its side, such as "at least 0.5"."""
        if self.side == "below":
            return f"at most {self.threshold:g}"
        if 0 < self.threshold < 1e-6:  # so small a threshold stands for "not 0"
            return "more than 0"
        return f"at least {self.threshold:g}"


def claims(tables: Path | Mapping[str, Mapping[str, Any]]) -> Callable[..., Measure]:
    """Return a function that makes measures (claims with their numbers). Fields that are the same
    in all measures of a claim, such as its text and threshold, are read from a table.

    Args:
        tables: key of a claim -> its fixed fields (field of :class:`Measure` -> value), such as
            ``{"state": {"claim": "The latents hold {what}", "threshold": 0.5}}``; or the path of a
            TOML file with one table per claim.

    Returns:
        A function ``claim(key, number, words, **changes)`` -> :class:`Measure`. ``key`` selects the
        claim. ``number`` is the measured :class:`Interval`. ``words``, such as
        ``{"what": "the counts"}``, fills the names in braces in the texts of the table. ``changes``
        are further fields, which override those of the table. If they contain ``lacking`` (the
        claim does not apply), only the text of the claim is read from the table.
    """
    fixed_fields = read_tables(tables) if isinstance(tables, Path) else tables

    def claim(
        key: str,
        number: Interval = NO_NUMBER,
        words: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> Measure:
        """Make the measure of the claim ``key`` from its fixed fields and the arguments."""
        fields_of_claim = fixed_fields[key]
        # Without a number, a measure has no threshold and no phrases.
        if "lacking" in changes:
            fields_of_claim = {"claim": fields_of_claim["claim"]}
        values: dict[str, Any] = {"key": key, "number": number}
        for name, value in fields_of_claim.items():
            values[name] = value.format(**words or {}) if isinstance(value, str) else value
        # A list if the table is a TOML file; the field is a tuple.
        values["rests_on"] = tuple(values.get("rests_on", ()))
        return Measure(**values | changes)

    return claim


def merge_copies(values: Iterable[float]) -> Control:
    """Return one control for several copies of a model, such as untrained ones: its number is the
    largest of ``values``, one per copy. NaN is left out; if all are NaN, the number is NaN.

    >>> merge_copies([0.2, float("nan"), 0.4])
    Control(number=0.4, counts=True)
    """
    known = []
    for value in check_type("values", values, Iterable[Any]):
        require_real("values", value)
        if not isnan(value):
            known.append(float(value))
    return Control(max(known, default=nan))


def conjoin(parts: Sequence[Measure], **changes: Any) -> Measure:
    """Return the measure of a claim that is true only if several parts are true. It is a copy of
    the part that decides the verdict.

    Parts with the verdict "no" decide before those with "undecided", then "not applicable", then
    "yes". Of parts with the same verdict, the first decides. The field ``about`` of the copy (what
    was measured) is that of the deciding part; if it is empty there, it is the claim of this part.

    >>> wide = Interval(0.9, 0.4, 1.0)
    >>> near = Measure("near", "Near", wide, 0.5, needs_control=False)
    >>> far = replace(near, claim="Far", number=Interval(0, 0, 0))
    >>> conjoin([near, far], key="both", claim="Near and far").verdict, conjoin([near, near]).reason
    ('no', 'the interval spans the threshold')

    Args:
        parts: the measures of the parts.
        **changes: fields to replace in the copy, such as the ``claim`` and ``key`` of the whole
            claim.
    """
    order: tuple[Verdict, ...] = ("no", "undecided", "not applicable", "yes")
    chosen = min(parts, key=lambda part: order.index(part.verdict))
    return replace(chosen, **{"about": chosen.about or chosen.claim, **changes})


def to_frame(measures: Iterable[Measure]) -> pd.DataFrame:
    """Return a table with one row per measure in ``measures``: its claim, number with interval,
    threshold, strongest control, verdict and reason (:meth:`Measure.row`).
    """
    import pandas as pd

    columns = list(Measure("", "").row())
    return pd.DataFrame([measure.row() for measure in measures], columns=columns)


def sentence(name: str, measures: Sequence[Measure], lead: str = "") -> str:
    """Summarise the verdicts on several claims about a model in a few sentences: what is true, what
    is false, and what is undecided.

    True and false claims are named by their phrases (:attr:`Measure.phrase`). The first sentence
    has as many phrases as fit into 20 words, at least one. A second sentence has the other phrases.
    The last sentence counts the undecided claims.

    Args:
        name: the model's name.
        measures: the measures, the most important first.
        lead: a sentence to begin with, which replaces the phrases of all claims with the verdict
            "yes"; "" for none.

    >>> yes, no = Interval(1, 1, 1), Interval(0, 0, 0)
    >>> measures = [Measure("a", "A", n, 0.5, needs_control=False, yes="adds", no="does not add") for n in (yes, no)]
    >>> sentence("m", measures)
    'm adds, but does not add.'
    """
    phrases = []
    for measure in measures:
        is_in_lead = lead and measure.verdict == "yes"
        phrase = (measure.verdict, measure.phrase)
        if measure.phrase and not is_in_lead and phrase not in phrases:
            phrases.append(phrase)
    first: list[tuple[Verdict, str]] = []  # (verdict, phrase) pairs of the first sentence
    second: list[tuple[Verdict, str]] = []  # those of the second sentence
    for phrase in phrases:
        n_words = len(_join_phrases(name, [*first, phrase]).split())
        if not first or n_words <= _MOST_WORDS:
            first.append(phrase)
        else:
            second.append(phrase)
    sentences = []
    if lead:
        sentences.append(lead.removesuffix("."))
    if first:
        sentences.append(_join_phrases("It" if lead else name, first))
    if second:
        has_yes = any(verdict == "yes" for verdict, _ in second)
        sentences.append(_join_phrases("It also" if has_yes else "It", second))
    undecided = [measure for measure in measures if measure.verdict == "undecided"]
    if undecided:
        sentences.append(_describe_undecided_claims(undecided, len(measures)))
    if not sentences:
        return f"{name}: no claim applies."
    return ". ".join(sentences) + "."


def _describe_undecided_claims(undecided: Sequence[Measure], n_measures: int) -> str:
    """Return a sentence, without a full stop, that names the undecided claim or the number of
    undecided claims. If all have the same reason, the sentence ends with it.

    Args:
        undecided: the undecided measures, at least one.
        n_measures: the number of all measures.
    """
    # "It is undecided whether it partly ..." would be ambiguous.
    predicate = undecided[0].yes.removeprefix("partly ")
    if len(undecided) == 1 and predicate:
        text = f"It is undecided whether it {predicate}"
    else:
        verb = "are" if len(undecided) > 1 else "is"
        text = f"{len(undecided)} of {n_measures} claims {verb} undecided"
    reasons = {measure.reason for measure in undecided}
    if len(reasons) == 1:
        text += f": {undecided[0].reason}"
    return text


def _join_phrases(name: str, phrases: Sequence[tuple[Verdict, str]]) -> str:
    """Join phrases to one clause: first those of verdict "yes", then "but" and those of verdict
    "no".

    Args:
        name: subject of the clause.
        phrases: pairs (verdict, phrase).
    """
    parts = []
    for wanted in ("yes", "no"):
        texts = [phrase for verdict, phrase in phrases if verdict == wanted]
        # "a and b and c" would be ambiguous.
        if any(" and " in text for text in texts):
            parts.append(", and ".join(texts))
        elif texts:
            parts.append(join_words(texts))
    return f"{name} {', but '.join(parts)}"


def join_words(words: Sequence[str]) -> str:
    """Join words to a string for a sentence, such as "a, b and c"."""
    if len(words) < 2:
        return "".join(words)
    before_last = ", ".join(words[:-1])
    return f"{before_last} and {words[-1]}"


def pick_number_column(frame: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    """Choose the column of a result's table that a summary or a figure shows, and sort the rows by
    it.

    The column is ``number``, ``estimate`` or ``mean``: the first of these that the table has.
    Without these, it is the first numeric column. If the first column of the table is ``name``, it
    must hold the name of each row's quantity, such as "R2". In this case, only rows with the same
    quantity as the first row are returned.

    >>> import pandas as pd
    >>> table = pd.DataFrame({"name": "R2", "site": ["z", "v"], "head": 1, "number": [0.9, 0.2]})
    >>> quantity, rows = pick_number_column(table)
    >>> rows["name"].tolist()
    ['v, head 1', 'z, head 1']

    Args:
        frame: the table. The interval of the column ``number`` is read from ``number_low`` and
            ``number_high`` or, without these, from ``low`` and ``high``.

    Returns:
        The pair (name of the quantity, table). Without a column ``name``, the quantity has the name
        of the chosen column. The returned table has the rows in ascending order of the number. Its
        columns ``estimate``, ``low`` and ``high`` are the number and its interval (NaN without
        one). Its column ``name`` is a name for the row, such as "z, head 1": the texts and integers
        in the columns before the number.
    """
    quantity = ""
    numeric = [str(name) for name in frame.select_dtypes("number")]
    if list(frame.columns[:1]) == ["name"] and len(frame):
        quantity = str(frame["name"].iloc[0])
        frame = frame[frame["name"] == quantity].drop(columns="name")
    candidates = ["number", "estimate", "mean", *numeric]
    column = next((name for name in candidates if name in frame), "number")
    quantity = quantity or column.replace("_", " ")
    low = f"{column}_low" if f"{column}_low" in frame else "low"
    high = f"{column}_high" if f"{column}_high" in frame else "high"
    # Columns that the table lacks are added, with NaN.
    columns = list(dict.fromkeys([*frame.columns, column, low, high]))
    frame = frame.reindex(columns=columns)
    before = frame.iloc[:, : columns.index(column)]
    names = [_name_row(row) or quantity for row in before.to_dict("records")]
    named = frame.assign(name=names, estimate=frame[column], low=frame[low], high=frame[high])
    return quantity, named.sort_values("estimate", kind="stable", ignore_index=True)


def _name_row(row: Mapping[Hashable, Any]) -> str:
    """Make a name for a row of a table from its texts and its integers, such as "z, head 1"."""
    words = []
    for key, value in row.items():
        if isinstance(value, int):
            words.append(f"{key} {value}")
        elif isinstance(value, str) and value:
            words.append(value)
    return ", ".join(words).replace("_", " ")


class Result:
    """Base class of the results of analyses. A result has a sentence with the finding
    (:attr:`sentence`), a table (:meth:`to_frame`) and a figure (:meth:`plot`).

    By default the sentence and the figure show the table's main numeric column
    (:func:`pick_number_column`).
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # @dataclass writes a __repr__ into a class that has none in its own namespace, even if it
        # inherits one. So the inherited one is stored in each class.
        cls.__repr__ = cls.__repr__  # type: ignore[method-assign]

    def to_frame(self) -> pd.DataFrame:
        """Return the result as a table; every subclass defines which."""
        raise NotImplementedError

    # A cached_property, since a dataclass that inherits from it may have a field of this name,
    # which a property would not let it set.
    @cached_property
    def sentence(self) -> str:
        """The finding in one sentence; by default, the lowest and the highest number of the table's
        main column.
        """
        quantity, rows = pick_number_column(self.to_frame())
        ascending = rows.dropna(subset="estimate").to_dict("records")
        ends = [ascending[0], ascending[-1]] if len(ascending) > 2 else ascending
        texts = []
        for row in ends:
            number = str(Interval(row["estimate"], row["low"], row["high"]))
            # A row without a name of its own has that of the quantity.
            texts.append(number if row["name"] == quantity else f"{number} ({row['name']})")
        return f"{quantity}: {' to '.join(texts) or 'none'}."

    def _draw(self, figures: Any) -> Any:
        """Draw the result's figure; by default the lowest numbers of the table with their
        intervals.

        Args:
            figures: the module :mod:`interp.results.figures`, which draws.
        """
        label, rows = pick_number_column(self.to_frame())
        if len(rows) > _MOST_DRAWN:
            label += f", the lowest {_MOST_DRAWN} of {len(rows)}"
        drawn = rows.dropna(subset="estimate").head(_MOST_DRAWN)
        return figures.intervals(drawn[["name", "estimate", "low", "high"]], xlabel=label)

    def plot(self) -> Any:
        """Draw the result and return matplotlib's figure."""
        from interp.results import figures  # matplotlib is heavy

        return self._draw(figures)

    def __repr__(self) -> str:
        return escape_invisible(self.sentence)

    def _repr_html_(self) -> str:
        return table_html(self.sentence.removesuffix("."), self.to_frame())


@dataclass(frozen=True, eq=False)
@checked_fields
class Scores(Result):
    """Result of an evaluation: numbers with intervals. Each number has a key of several parts.

    Attributes:
        by: column names for the parts of a key, such as ("regime", "key", "quantity").
        numbers: key -> number with its interval. A key is a tuple with one part per column of
            ``by``, such as ("uniform", "model", "accuracy").
        settings: the settings of the evaluation, such as sizes and seed.
        beside: key -> further cells of the table's row for this key, as a dictionary: name of a
            column -> value.

    >>> Scores(("key", "start"), {("model", 0): Interval(0.75, 0.7, 0.8)}).get("model", 0)
    Interval(estimate=0.75, low=0.7, high=0.8)
    """

    by: tuple[str, ...]
    numbers: dict[tuple[Any, ...], Interval]
    settings: dict[str, Any] = field(default_factory=dict, repr=False)
    beside: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Refuse a key that does not have one part for each column of ``by``."""
        for key in self.numbers:
            require(
                len(key) == len(self.by),
                f"a key has one part for each of the columns {', '.join(self.by)}, got {format_value(key)}",
            )

    def get(self, *key: Any) -> Interval:
        """Return the number with this key, as an :class:`Interval`. The parts of the key are
        separate arguments. An unknown key is an error.
        """
        by_name = {_join_key(parts): value for parts, value in self.numbers.items()}
        name = _join_key(key)
        require_known("result", name, by_name, limit=20)
        return by_name[name]

    @property
    def sentence(self) -> str:
        """The first 6 numbers as text, ``Scores(key=number, ...)``."""
        texts = [f"{_join_key(key)}={value}" for key, value in self.numbers.items()]
        return f"Scores({', '.join(texts[:_MOST_NUMBERS])})"

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per number. Its columns are those that :attr:`by` names (the
        parts of the number's key), ``estimate``, ``low`` and ``high`` (the number and its
        interval), and those that :attr:`beside` adds.
        """
        import pandas as pd

        rows = []
        for key, value in self.numbers.items():
            names = dict(zip(self.by, key, strict=True))
            rows.append({**names, **vars(value), **self.beside.get(key, {})})
        return pd.DataFrame(rows)


def _join_key(key: Iterable[Any]) -> str:
    """Return a key of :class:`Scores` as one text, such as "uniform/model/accuracy"."""
    return "/".join(map(str, key))


@checked_fields
class Measured(Result):
    """Base class of results that consist of measures: claims about one model, each with a number
    and a verdict (:class:`Measure`). Dataclasses that inherit from it have the fields ``model``
    (its name) and ``measures``.

    ``result[key]`` returns the measure with that key, and iterating over the result yields the
    measures. The result can also be drawn or converted to a table.
    """

    model: str
    measures: tuple[Measure, ...]

    def __getitem__(self, key: str) -> Measure:
        """Return the measure with this key; if several measures have it, the first."""
        keys = [measure.key for measure in self.measures]
        require_known("measure", key, keys, limit=20)
        return self.measures[keys.index(key)]

    def __iter__(self) -> Iterator[Measure]:
        return iter(self.measures)

    @property
    def sentence(self) -> str:
        """Summary of the verdicts on all claims, in a few sentences (:func:`sentence`)."""
        return sentence(self.model, self.measures)

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per measure: its claim, number with interval, threshold,
        strongest control, verdict and reason (:meth:`Measure.row`).
        """
        return to_frame(self.measures)

    def _draw(self, figures: Any) -> Any:
        """Draw the measures as intervals on one axis, each with its threshold and its strongest
        control.

        Args:
            figures: the module :mod:`interp.results.figures`, which draws.
        """
        return figures.draw_measures(self.measures)

    def __repr__(self) -> str:
        lines = [f"  {measure}" for measure in self.measures]
        return escape_invisible("\n".join([self.sentence, *lines]))
