"""A measure is a claim about a model, the number that decides it, and one of four words: the one currency of results.

A claim is a sentence that could be false of a model. Beside it stand the number with its 95 % interval, the threshold
with the side on which the claim is true, and the *controls*: the same quantity of something of which the claim should
not be true. The word is **yes** where the whole interval lies on the right side and is clear of every control that
counts, **no** where all of it lies on the wrong side, **not applicable** where the machine lacks what the claim is
about, and **undecided**, with the reason, elsewhere. The rule: docs/method/measures.md.

    >>> untrained = {"an untrained copy": Control(0.4)}
    >>> held = Measure("state", "The latents hold the counts", Interval(0.98, 0.97, 0.99), 0.5, controls=untrained)
    >>> held.verdict, replace(held, controls={"an untrained copy": Control(0.97)}).verdict
    ('yes', 'undecided')
    >>> replace(held, controls={"an untrained copy": Control(0.97)}).reason
    'an untrained copy comes too near (less than 3 times its odds)'

What a word is NOT: corrected for the number of claims, or about any other model than the one that was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from interp.core.display import table_html
from interp.stats.intervals import NO_NUMBER, Interval
from interp.support.errors import require, require_known
from interp.support.files import read_tables
from interp.support.foreign import plain

if TYPE_CHECKING:
    import pandas as pd

Verdict = Literal["yes", "no", "undecided", "not applicable"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
Side = Literal["above", "below"]

UNTRAINED = "an untrained copy"
"""The control that puts fresh models of the same shape in the model's place; the best of them stands for all."""
SPANS = "the interval spans the threshold"
TOO_NEAR = "comes too near"
AS_WELL = "does as well"
NOT_RUN = "a control was not run"
FEW = "too few episodes"
NOTHING = "there is no number"
_BY_DESIGN = "by design"
_REASONS = (SPANS, TOO_NEAR, AS_WELL, NOT_RUN, FEW, NOTHING, _BY_DESIGN)
"""Every reason for a word contains one of these, but for "not applicable", whose reason says what is lacking."""

_CLEAR = 3.0  # a number is clear of a control where its odds are three times those of the control
_ROUNDING = 1e-4
"""Shares closer to 0 or 1 than this are taken for it: whether 1e-12 or 1e-9 is left says nothing about a model."""
_MOST_WORDS = 20  # words of a first sentence, at most
_MOST_DRAWN, _MOST_NUMBERS = 10, 6  # numbers of a table in a picture, and of a line


@dataclass(frozen=True)
class Control:
    """The number of what should not show the claim; ``counts`` says whether a "yes" must be clear of it.

    ``number`` is NaN where the control was run and has no number, such as an untrained copy that overflows.
    """

    number: float
    counts: bool = True


def _is_clear(bound: float, control: float, side: Side = "above", is_share: bool = True) -> bool:
    """Whether the near end of an interval is clear of a control: its odds are :data:`_CLEAR` times the control's.

    The odds of a share x are x / (1 - x), what is reached over what is missed; those of an amount are the amount. Near
    1 a difference of .05 cannot be reached and near 0 it is easy; three times the odds mean the same everywhere:
    .998 is not clear of .996, 1.000 is; .6 is clear of .3, .5 is not.

    >>> _is_clear(0.998, 0.996), _is_clear(1.0, 0.996), _is_clear(0.6, 0.3), _is_clear(0.5, 0.3)
    (False, True, True, False)
    >>> _is_clear(0.01, 0.2, side="below"), _is_clear(2.0, 1.0, is_share=False), _is_clear(0.0, 0.0, is_share=False)
    (True, False, False)
    """
    mine, its = max(bound, 0.0), max(control, 0.0)
    if is_share:
        shares = (min(max(x, _ROUNDING), 1 - _ROUNDING) for x in (bound, control))
        mine, its = (share / (1 - share) for share in shares)
    near, far = (its, mine) if side == "above" else (mine, its)
    return far > near and far >= _CLEAR * near


@dataclass(frozen=True)
class Measure:
    """A claim about a model and what decides it.

    Attributes:
        key: names the measure in Python and JSON, such as "state".
        claim: a sentence, without a full stop, that could be false of a model.
        number: what was measured; NaN where nothing could be.
        threshold: what the whole interval must lie ``side`` of for a "yes".
        no_threshold: what the whole interval must lie on the other side of for a "no"; the threshold itself when None.
        unit: what the number is, such as "R2" or "share of rounds".
        is_share: whether the number is a share, 1 at most, rather than an amount (:func:`_is_clear`).
        controls: name -> the same number of what should not show it.
        about: the part of the machine, or the place, that the number is of.
        condition: what must be given beside the model for the claim, such as "given the round number".
        yes, no: what a sentence whose subject is the model says, such as "holds the counts".
        unless: what forbids a word whatever the number says: {"yes": "a control was not run: ..."}.
        lacking: what the machine has not got, so that the claim does not apply to it.
        by_design: False where the model was made for the claim to be false of it.
        needs_control: False for a part of a claim whose controls stand beside the whole (:func:`decisive`).
        rests_on: names of the tables that hold what the number was made from.
        caution: what the word is not evidence of.
        note: what else a reader must know.
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
        whole = bool(self.lacking) or isnan(self.number.estimate) or not isnan(self.threshold)
        require(whole, f"{self.key}: a number needs a threshold")

    @property
    def verdict(self) -> Verdict:
        """Yes, no, undecided or not applicable."""
        return self._judged[0]

    @property
    def reason(self) -> str:
        """Why it is undecided or not applicable; "by design" beside a "no" that the model was made for."""
        return self._judged[1]

    @property
    def _judged(self) -> tuple[Verdict, str]:
        low, high = self.number.low, self.number.high
        no_threshold = self.threshold if self.no_threshold is None else self.no_threshold
        word: Verdict = "undecided"
        reason = SPANS
        if self.lacking:
            word, reason = "not applicable", self.lacking
        elif isnan(low) or isnan(high):
            reason = NOTHING
        elif low >= self.threshold if self.side == "above" else high <= self.threshold:
            reason = self._doubt
            word = "undecided" if reason else "yes"
        elif high < no_threshold if self.side == "above" else low > no_threshold:
            word, reason = "no", ""
        if word in self.unless:
            word, reason = "undecided", self.unless[word]
        return word, reason if word != "no" or self.by_design else _BY_DESIGN

    @property
    def _doubt(self) -> str:
        """Why a number on the right side is no "yes": the strongest control that is not cleared.

        Empty where the number is clear of every control that counts.
        """
        counted = {name: control for name, control in self.controls.items() if control.counts}
        if not counted:
            return NOT_RUN if self.needs_control else ""
        bound = self.number.low if self.side == "above" else self.number.high
        strongest = counted.get(self.strongest)
        if strongest and not _is_clear(bound, strongest.number, self.side, self.is_share):
            return f"{self.strongest} {TOO_NEAR} ({self._rule_of_clear})"
        for name, control in counted.items():
            if isnan(control.number):
                return f"{NOT_RUN}: {name} has no number"
        return ""

    @property
    def _rule_of_clear(self) -> str:
        """How a number that is not clear of a control stands to it (:func:`_is_clear`)."""
        what = "its odds" if self.is_share else "its number"
        return (
            f"less than 3 times {what}" if self.side == "above" else f"more than a third of {what}"
        )

    @property
    def strongest(self) -> str:
        """The control that comes closest to the claim, of those that count where any does; empty where none was run."""
        known = {name: of for name, of in self.controls.items() if not isnan(of.number)}
        counted = {name: of for name, of in known.items() if of.counts} or known
        return (max if self.side == "above" else min)(
            counted, key=lambda name: counted[name].number, default=""
        )

    @property
    def phrase(self) -> str:
        """What a sentence about the model says of it, with the condition; empty where it is neither "yes" nor "no"."""
        said = {"yes": self.yes, "no": self.no}.get(self.verdict, "")
        return (
            f"{said} ({self.condition})"
            if said and self.condition and self.verdict == "yes"
            else said
        )

    def row(self) -> dict[str, Any]:
        """The measure as a row of a table: the columns that every table of measures has."""
        control = self.strongest
        return {
            "claim": self.claim,
            "about": self.about,
            "condition": self.condition,
            "number": self.number.estimate,
            "low": self.number.low,
            "high": self.number.high,
            "unit": self.unit,
            "threshold": self.threshold,
            "side": self.side,
            "control": control,
            "control_number": self.controls[control].number if control else nan,
            "verdict": self.verdict,
            "reason": self.reason,
        }

    def to_dict(self) -> dict[str, Any]:
        """JSON values: the row, with the key, every control, and all else that the measure was made of."""
        row = self.row()
        controls = {
            name: {"number": of.number, "counts": of.counts} for name, of in self.controls.items()
        }
        rest = {
            field.name: getattr(self, field.name) for field in fields(self) if field.name not in row
        }
        return {"key": self.key, **row, **rest, "controls": controls, "unless": dict(self.unless)}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Measure:
        """The measure of which :meth:`to_dict` gave ``record``; a number that JSON has as null is NaN.

        >>> held = Measure("a", "A", Interval(1, 1, 1), 0.5, controls={"chance": Control(0.2)}, unless={"no": "why"})
        >>> Measure.from_dict(held.to_dict()) == held
        True
        """

        def known(value: float | None) -> float:
            return nan if value is None else value

        own = {field.name: record[field.name] for field in fields(cls)}
        controls = {
            name: Control(known(of["number"]), of["counts"])
            for name, of in record["controls"].items()
        }
        number = Interval(*(known(record[name]) for name in ("number", "low", "high")))
        more = {"threshold": known(record["threshold"]), "rests_on": tuple(record["rests_on"])}
        return cls(**own | {"number": number, "controls": controls, **more})

    def __str__(self) -> str:
        about = f" ({self.about})" if self.about else ""
        why = f", {self.reason}" if self.reason else f", {self.condition}" if self.condition else ""
        text = f"{self.claim}{about}: {self.verdict}{why}."
        if isnan(self.number.estimate):
            return text
        least = "more than 0" if 0 < self.threshold < 1e-6 else f"at least {self.threshold:g}"
        held = least if self.side == "above" else f"at most {self.threshold:g}"
        control = (
            f"; {self.strongest} {self.controls[self.strongest].number:.3g}"
            if self.strongest
            else ""
        )
        return f"{text} {self.unit} {self.number}, {held}{control}.".replace(".  ", ". ")


def claims(tables: Path | Mapping[str, Mapping[str, Any]]) -> Callable[..., Measure]:
    """What is fixed of claims, a table each (of a TOML file), as a function that makes their measures.

    What it returns is called as ``claim(key, number, threshold, ..., **changes)``; what stands in braces in a text of
    a table is filled from ``words``. Of a claim that does not apply (``lacking=``) only its sentence is fixed.
    """
    fixed = read_tables(tables) if isinstance(tables, Path) else tables

    def claim(
        key: str,
        number: Interval = NO_NUMBER,
        words: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> Measure:
        own = {"claim": fixed[key]["claim"]} if "lacking" in changes else fixed[key]
        known: dict[str, Any] = {
            k: x.format(**words or {}) if isinstance(x, str) else x for k, x in own.items()
        }
        known["rests_on"] = tuple(known.get("rests_on", ()))
        return Measure(**{"key": key, "number": number, **known, **changes})

    return claim


def best_of(values: Iterable[float], side: Side = "above") -> Control:
    """The control of several copies: the one that comes closest to the claim; NaN where none has a number.

    >>> best_of([0.2, float("nan"), 0.4]), best_of([0.2, 0.4], side="below")
    (Control(number=0.4, counts=True), Control(number=0.2, counts=True))
    """
    known = [float(value) for value in values if not isnan(value)]
    return Control((max if side == "above" else min)(known, default=nan))


def decisive(parts: Sequence[Measure], **changes: Any) -> Measure:
    """The part that decides a claim that is true where all of its parts are: a "no" before an "undecided" one.

    Where all parts are "yes" the first stands for them. ``changes`` are fields of the whole, such as its claim; the
    part's own claim becomes what the measure is ``about``.

    >>> wide = Interval(0.9, 0.4, 1.0)
    >>> near = Measure("near", "Near", wide, 0.5, needs_control=False)
    >>> far = replace(near, claim="Far", number=Interval(0, 0, 0))
    >>> decisive([near, far], key="both", claim="Near and far").verdict, decisive([near, near]).reason
    ('no', 'the interval spans the threshold')
    """
    order: tuple[Verdict, ...] = ("no", "undecided", "not applicable", "yes")
    chosen = min(parts, key=lambda part: order.index(part.verdict))
    return replace(chosen, **{"about": chosen.about or chosen.claim, **changes})


def to_frame(measures: Iterable[Measure]) -> pd.DataFrame:
    """A row a measure; the columns are those of :meth:`Measure.row`."""
    import pandas as pd

    return pd.DataFrame([one.row() for one in measures], columns=list(Measure("", "").row()))


def sentence(name: str, measures: Sequence[Measure], lead: str = "") -> str:
    """What measures say of the model ``name``, the most important first: what is true of it, what is not, what is open.

    The first sentence has :data:`_MOST_WORDS` words at most, or one phrase; the second holds the phrases that are left.
    A ``lead``, a sentence that sums up what is true, stands in the place of the first; what is not true follows.

    >>> yes, no = Interval(1, 1, 1), Interval(0, 0, 0)
    >>> measures = [Measure("a", "A", n, 0.5, needs_control=False, yes="adds", no="does not add") for n in (yes, no)]
    >>> sentence("m", measures)
    'm adds, but does not add.'
    """
    phrases = dict.fromkeys(
        (m.verdict, m.phrase) for m in measures if m.phrase and not (lead and m.verdict == "yes")
    )
    first: list[tuple[Verdict, str]] = []
    for phrase in phrases:
        if not first or len(_clause(name, [*first, phrase]).split()) <= _MOST_WORDS:
            first.append(phrase)
    sentences = [
        *[lead.removesuffix(".")] * bool(lead),
        *[_clause("It" if lead else name, first)] * bool(first),
    ]
    if more := [phrase for phrase in phrases if phrase not in first]:
        sentences.append(_clause("It also" if "yes" in dict(more) else "It", more))
    if undecided := [one for one in measures if one.verdict == "undecided"]:
        asked = next((one.yes.removeprefix("partly ") for one in undecided if one.yes), "")
        are, such = ("are", "such as ") if len(undecided) > 1 else ("is", "")
        told = f"{len(undecided)} of {len(measures)} claims {are} undecided{',' * bool(asked)}"
        named = f" {such}whether it {asked}" if asked else ""
        why = f": {undecided[0].reason}" if len({one.reason for one in undecided}) == 1 else ""
        sentences.append(f"{told if len(measures) > 1 else 'It is undecided'}{named}{why}")
    return " ".join(f"{one}." for one in sentences) or f"{name}: no claim applies."


def _clause(name: str, phrases: Sequence[tuple[Verdict, str]]) -> str:
    said = ([phrase for word, phrase in phrases if word == asked] for asked in ("yes", "no"))
    joined = [listed(of) if " and " not in "".join(of) else ", and ".join(of) for of in said]
    return f"{name} {', but '.join(filter(None, joined))}"


def listed(words: Sequence[str]) -> str:
    """Words as a sentence lists them."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def numbered(frame: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    """What the first numbers of a table are called, and its rows that have them, the lowest first.

    The columns ``estimate``, ``low`` and ``high`` hold the number and its interval, ``name`` the words and the counts
    that stand before it in the row.

    >>> import pandas as pd
    >>> numbered(pd.DataFrame({"name": "R2", "site": ["z", "v"], "head": 1, "number": [0.9, 0.2]}))[1]["name"].tolist()
    ['v, head 1', 'z, head 1']
    """
    what, numeric = "", list(map(str, frame.select_dtypes("number")))
    if list(frame.columns[:1]) == ["name"] and len(frame):
        what = str(frame["name"].iloc[0])
        frame = frame[frame["name"] == what].drop(columns="name")
    column = next(
        (one for one in ("number", "estimate", "mean", *numeric) if one in frame), "number"
    )
    what = what or column.replace("_", " ")
    low, high = (
        f"{column}_{end}" if f"{column}_{end}" in frame else end for end in ("low", "high")
    )
    frame = frame.reindex(columns=[*dict.fromkeys([*frame.columns, column, low, high])])
    names = []
    for row in frame.iloc[:, : list(frame.columns).index(column)].to_dict("records"):
        words = [
            f"{key} {value}" if isinstance(value, int) else value for key, value in row.items()
        ]
        names.append(
            ", ".join(word.replace("_", " ") for word in words if isinstance(word, str) and word)
            or what
        )
    known = frame.assign(name=names, estimate=frame[column], low=frame[low], high=frame[high])
    return what, known.sort_values("estimate", kind="stable", ignore_index=True)


class Result:
    """A result: what it found in a sentence, a table, and a picture; mixed into the dataclasses of results.

    Unless a class says more, the sentence and the picture are of the first numbers of its table (:func:`numbered`).
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.__repr__ = cls.__repr__  # type: ignore[method-assign]  # a dataclass writes its own where a class holds none

    def to_frame(self) -> pd.DataFrame:
        """The result as a tidy table."""
        raise NotImplementedError

    @cached_property  # and no property, which a dataclass could not hold a field of this name over
    def sentence(self) -> str:
        """Where the lowest and the highest of its numbers are."""
        what, rows = numbered(self.to_frame())
        known = rows.dropna(subset="estimate").to_dict("records")
        ends = [
            (Interval(row["estimate"], row["low"], row["high"]), row["name"])
            for row in known[:1] + known[1:][-1:]
        ]
        named = [f"{number} ({name})" if name != what else str(number) for number, name in ends]
        return f"{what}: {' to '.join(named) or 'none'}."

    def _draw(self, figures: Any) -> Any:
        """The picture, by the functions of :mod:`interp.results.figures`."""
        what, rows = numbered(self.to_frame())
        few = f", the lowest {_MOST_DRAWN} of {len(rows)}" * (len(rows) > _MOST_DRAWN)
        drawn = rows.dropna(subset="estimate").head(_MOST_DRAWN)
        return figures.intervals(drawn[["name", "estimate", "low", "high"]], xlabel=what + few)

    def plot(self) -> Any:
        """The picture."""
        from interp.results import figures  # matplotlib is heavy

        return self._draw(figures)

    def __repr__(self) -> str:
        return plain(self.sentence)

    def _repr_html_(self) -> str:
        return table_html(self.sentence.removesuffix("."), self.to_frame())


@dataclass(frozen=True, eq=False)
class Scores(Result):
    """Numbers with intervals by what names them: what an evaluation measured.

    Attributes:
        by: the columns that the parts of a key fill, such as ("regime", "key", "quantity").
        numbers: by key.
        beside: further columns of a key's row.
        settings: what it was measured on and with.

    >>> Scores(("key", "start"), {("model", 0): Interval(0.75, 0.7, 0.8)}).get("model", 0)
    Interval(estimate=0.75, low=0.7, high=0.8)
    """

    by: tuple[str, ...]
    numbers: dict[tuple[Any, ...], Interval]
    settings: dict[str, Any] = field(default_factory=dict, repr=False)
    beside: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict, repr=False)

    def get(self, *key: Any) -> Interval:
        """One number."""
        named = {"/".join(map(str, known)): value for known, value in self.numbers.items()}
        asked = "/".join(map(str, key))
        require_known("result", asked, named, limit=20)
        return named[asked]

    @property
    def sentence(self) -> str:
        """The first numbers."""
        named = ["/".join(map(str, key)) + f"={value}" for key, value in self.numbers.items()]
        return f"Scores({', '.join(named[:_MOST_NUMBERS])})"

    def to_frame(self) -> pd.DataFrame:
        """One row per number."""
        import pandas as pd

        rows = [
            {**dict(zip(self.by, key, strict=True)), **vars(value), **self.beside.get(key, {})}
            for key, value in self.numbers.items()
        ]
        return pd.DataFrame(rows)


class Measured(Result):
    """A result made of measures: mixed into the dataclasses of results, which have ``model`` and ``measures``.

    It is looked at by the key of a measure, tabled, drawn, written as JSON, and shown at a prompt by what it found.
    """

    model: str
    measures: tuple[Measure, ...]

    def __getitem__(self, key: str) -> Measure:
        """The measure of a key, the first where several parts of the machine have one."""
        require_known(
            "measure", key, list(dict.fromkeys(one.key for one in self.measures)), limit=20
        )
        return next(one for one in self.measures if one.key == key)

    def __iter__(self) -> Iterator[Measure]:
        return iter(self.measures)

    @property
    def sentence(self) -> str:
        """What the measures say together."""
        return sentence(self.model, self.measures)

    def to_frame(self) -> pd.DataFrame:
        """A row a measure."""
        return to_frame(self.measures)

    def _draw(self, figures: Any) -> Any:
        """The measures as intervals on one axis, each beside its threshold and its strongest control."""
        return figures.measured(self.measures)

    def __repr__(self) -> str:
        return plain("\n".join([self.sentence, *(f"  {one}" for one in self.measures)]))
