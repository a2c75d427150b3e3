"""What a section is made of: prose, tables, figures, code, named facts, badges; and findings, claims with verdicts.

Plain data; ``reports.page`` makes HTML of them. A finding is a claim that could be false of a model, worded so that
"pass" says it is true. "fail" says that it is false, "cannot tell" that this sample decides neither way, and
"uninformative" that a control does as well, so that the evidence says nothing about this model. A part of a report
returns its findings (``Part.summary``), and a page opens with the table of them.

    >>> Finding("It is exact", judged(Interval(0.9, 0.8, 1.0), 0.5), "0.900", "chance 0.5").word
    'pass'
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import pandas as pd

from interp import foreign
from interp.checks import checked_fields
from interp.errors import require, require_known
from interp.kinds import shown
from interp.statistics import Interval
from reports.measured import IntervalPlot, Measured, Row

_SMALL = 1e-3
"""An interval of numbers all smaller than this is shown in powers of ten."""


LINK = f"\ue000{secrets.token_hex(8)}"
"""What stands before a link in prose and cells: nobody who writes a name can know it, and no page holds it."""


def link(text: str, target: str) -> str:
    """Words of :class:`Prose`, or of a cell, that lead to a section, ``#section``, or to a page below the folder.

    >>> Prose(f"See {link('the edges', '#edges')}.").kind
    'prose'
    """
    return f"{LINK}{foreign.plain(text)}\ue001{foreign.plain(target)}\ue002"


@dataclass(frozen=True)
@checked_fields
class Verdict:
    """A judgement shown as a badge: ``passed`` True, False, or None where nothing is judged."""

    passed: bool | None
    text: str

    @property
    def kind(self) -> str:
        """How the page colours it: "pass", "fail" or "neutral"."""
        return {True: "pass", False: "fail", None: "neutral"}[self.passed]


@dataclass(frozen=True)
@checked_fields
class Prose:
    """Paragraphs (separated by a blank line); ``code`` in backticks and **bold** are marked up, the rest is text.

    So are links that :func:`link` makes; a name that reads like one is text.
    """

    text: str
    kind: ClassVar[str] = "prose"


@dataclass(frozen=True)
@checked_fields
class Summary:
    """Named facts: ``label -> value``, where a value may be a :class:`Verdict`."""

    items: Mapping[str, Any]
    kind: ClassVar[str] = "summary"


@dataclass(frozen=True)
@checked_fields
class Code:
    """A block of code or shell commands, with a caption above it."""

    text: str
    caption: str = ""
    kind: ClassVar[str] = "code"


@dataclass(frozen=True)
@checked_fields
class Figure:
    """A picture (``matplotlib.figure.Figure``), its ``title`` for screen readers, and the caption under it.

    ``data`` is what it draws, where a reader may want to draw it in another way.
    """

    figure: Any
    title: str
    caption: str = ""
    data: pd.DataFrame | None = None
    kind: ClassVar[str] = "figure"

    def __post_init__(self) -> None:
        drawn = hasattr(self.figure, "savefig")
        require(drawn, f"figure must be a matplotlib.figure.Figure, got {shown(self.figure)}")


@dataclass(frozen=True)
@checked_fields
class Table:
    """A data frame as a table; the index is not shown, and an estimate with its bounds is one column.

    Args:
        frame: the rows; column names become headers, with spaces for underscores. Columns ``low`` and ``high`` belong
            to the one before them, ``X_low`` and ``X_high`` to ``X``.
        caption: what the numbers are and, where it matters, what they are not.
        formats: column -> format spec (``".2%"``); other columns are formatted by :func:`number`.
        collapsed: fold it behind its caption (long tables).
    """

    frame: pd.DataFrame
    caption: str = ""
    formats: Mapping[str, str] = field(default_factory=dict)
    collapsed: bool = False
    kind: ClassVar[str] = "table"

    def __post_init__(self) -> None:
        for column in self.formats:
            require_known("column", column, [str(name) for name in self.frame.columns])

    @cached_property
    def shown(self) -> pd.DataFrame:
        """The frame as it is shown: with intervals for their three columns."""
        return joined(self.frame)

    @property
    def headers(self) -> list[tuple[str, bool]]:
        """(header, is numeric) for every column."""
        return [(str(name).replace("_", " "), self._numeric(i)) for i, name in enumerate(self.shown.columns)]

    @property
    def rows(self) -> list[list[Any]]:
        """Cells as text or :class:`Verdict`."""
        specs = [self.formats.get(name) for name in self.shown.columns]
        return [list(map(cell, row, specs)) for row in self.shown.itertuples(index=False, name=None)]

    def _numeric(self, column: int) -> bool:
        dtype, values = self.shown.dtypes.iloc[column], self.shown.iloc[:, column]
        if len(values) and all(isinstance(value, Interval) or value is None for value in values):
            return True
        return pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_bool_dtype(dtype)


@dataclass(frozen=True)
@checked_fields
class NotComputed:
    """A visible box in place of what could not be computed: ``why``, and where it happened, folded."""

    why: str
    traceback: str
    kind: ClassVar[str] = "missing"


def joined(frame: pd.DataFrame) -> pd.DataFrame:
    """A frame in which each estimate with its bounds is one column of intervals, named as the estimate was.

    >>> joined(pd.DataFrame({"mean": [0.5], "low": [0.4], "high": [0.6]}))["mean"].map(str).tolist()
    ['0.5 [0.4, 0.6]']
    """
    names = list(frame.columns)
    bounds = {name: (f"{name}_low", f"{name}_high") for name in names if {f"{name}_low", f"{name}_high"} <= set(names)}
    if {"low", "high"} <= set(names) and names.index("low") > 0:
        bounds[names[names.index("low") - 1]] = ("low", "high")
    bounds = {name: pair for name, pair in bounds.items() if pd.api.types.is_numeric_dtype(frame[name])}
    whole = frame.drop(columns=[bound for pair in bounds.values() for bound in pair])
    for name, pair in bounds.items():
        triples = frame[[name, *pair]].astype(float).itertuples(index=False, name=None)
        whole[name] = pd.Series([Interval(*triple) for triple in triples], dtype=object, index=frame.index)
    return whole


def pivoted(frame: pd.DataFrame, index: str, columns: str, values: str) -> pd.DataFrame:
    """A row for each value of ``index``, a column for each of ``columns``, both in the order in which they first come.

    >>> frame = pd.DataFrame({"of": ["b", "a"], "in": ["y", "x"], "value": [1.0, 2.0]})
    >>> pivoted(frame, "of", "in", "value").columns.tolist()
    ['of', 'y', 'x']
    """
    table = frame.pivot(index=index, columns=columns, values=values)[list(dict.fromkeys(frame[columns]))]
    return table.loc[list(dict.fromkeys(frame[index]))].reset_index().rename_axis(columns=None)


def badges(passed: Iterable[Any], yes: str = "pass", no: str = "fail") -> pd.Series[Any]:
    """A column of badges, one for each truth."""
    return pd.Series([Verdict(bool(one), yes if one else no) for one in passed], dtype=object)


def csv_of(frame: pd.DataFrame) -> str:
    """A frame as CSV with six significant digits; an interval is three columns, a verdict its text."""
    columns: dict[Any, Any] = {}
    for name in frame.columns:
        values = list(frame[name])
        if any(isinstance(value, Interval) for value in values):
            for end, key in (("", "estimate"), (" low", "low"), (" high", "high")):
                columns[f"{name}{end}"] = [getattr(value, key, None) for value in values]
        else:
            columns[name] = [value.text if isinstance(value, Verdict) else _unlinked(value) for value in values]
    return foreign.csv(pd.DataFrame(columns), float_format="%.6g", lineterminator="\n")


def _unlinked(value: Any) -> Any:
    """A cell of a CSV file, in which a link is its words and its target."""
    if not isinstance(value, str):
        return value
    return re.sub(f"{LINK}([^\ue001]*)\ue001([^\ue002]*)\ue002", r"[\1](\2)", value)


def cell(value: Any, spec: str | None = None) -> str | Verdict:
    """A value as a reader wants it: numbers by ``spec`` or :func:`number`, truth as yes or no, absence as a dash.

    No number is shown as a negative zero, and an interval has the digits that its width leaves it.

    >>> [cell(-0.0001, ".2f"), cell(Interval(0.95412, 0.93899, 0.9661)), cell(Interval(1.0, 1.0, 1.0))]
    ['0.00', '0.954 [0.939, 0.966]', '1.000 [1.000, 1.000]']
    """
    if isinstance(value, Verdict):
        return value
    if value is None or value is pd.NA or (isinstance(value, float | np.floating) and math.isnan(value)):
        return "–"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, Interval):
        return _interval(value, spec)
    if spec is not None and not isinstance(value, str):
        return _unsigned_zero(format(value, spec))
    if isinstance(value, int | float | np.integer | np.floating):
        return number(value)
    if isinstance(value, list | tuple):
        return ", ".join(str(cell(item)) for item in value)
    return str(value)


def _interval(value: Interval, spec: str | None) -> str:
    if not math.isfinite(value.estimate):
        return cell(value.estimate)  # type: ignore[return-value]
    whole = (value.estimate, value.low, value.high)
    if spec is None and 0 < max(map(abs, whole)) < _SMALL:
        return "{} [{}, {}]".format(*map(number, whole))
    spec = spec or f".{_decimals(value.high - value.low)}f"
    if not (math.isfinite(value.low) and math.isfinite(value.high)):
        return _unsigned_zero(format(value.estimate, spec))
    return "{} [{}, {}]".format(*(_unsigned_zero(format(x, spec)) for x in whole))


def _decimals(width: float) -> int:
    """So many decimals that the width has two digits; three where there is none to speak of."""
    return int(np.clip(1 - math.floor(math.log10(width)), 0, 5)) if 1e-5 < width < math.inf else 3


def _unsigned_zero(text: str) -> str:
    """A formatted number with a minus sign of its own length, and none before a zero."""
    return re.sub(r"^-(?=[0.,]*%?$)", "", text).replace("-", "−")


def number(value: float | np.number[Any]) -> str:
    """Four significant digits; thousands separated; powers of ten for the very small and very large.

    >>> [number(x) for x in (0.0, 12, 123456, 0.78912, -3.2e-13, 25.0)]
    ['0', '12', '123,456', '0.7891', '−3.2e−13', '25']
    """
    if isinstance(value, int | np.integer):
        return f"{int(value):,}".replace("-", "−")
    value = float(value)
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        text = f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    else:
        text = f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    return text.replace("-", "−")


Word = Literal["pass", "fail", "cannot tell", "uninformative"]
_NEAR = 0.05
"""A control that comes this close to a score makes it uninformative."""
WORDS: tuple[Word, ...] = get_args(Word)


@dataclass(frozen=True)
@checked_fields
class Finding:
    """One line of the table: a claim that could be false of the model, how it came out, and what decided it.

    ``control`` is the strongest of what it was held against, empty where the evidence needs none; ``expected`` says
    whether the model was made to satisfy the claim, so that a "fail" is drawn as a fault. ``measured`` is the number
    behind it where that has a scale from 0 to 1, and ``says`` what a page's first sentence says of the model: the verb
    where it passes, the verb where it fails, and what follows either, such as ("holds", "does not hold", "the votes").
    ``badge`` stands in the place of the word.
    """

    claim: str
    word: Word
    evidence: str
    control: str = ""
    expected: bool = True
    measured: Measured | None = None
    says: tuple[str, str, str] = ("", "", "")
    badge: str = ""

    @property
    def verdict(self) -> Verdict:
        """The badge."""
        passed = {"pass": True, "fail": False if self.expected else None}.get(self.word)
        return Verdict(passed, self.badge or ("not so" if self.word == "fail" and not self.expected else self.word))


@dataclass(frozen=True)
@checked_fields
class Findings:
    """The table, a block of a section: findings, each with the section that it comes from as (slug, title)."""

    rows: Sequence[tuple[Finding, tuple[str, str]]]
    kind: ClassVar[str] = "findings"

    @property
    def frame(self) -> pd.DataFrame:
        """The same as data."""
        columns = ("claim", "evidence", "control", "word")
        rows = [[*(getattr(finding, name) for name in columns), title] for finding, (_, title) in self.rows]
        return pd.DataFrame(rows, columns=["claim", "evidence", "strongest control", "verdict", "see"])

    @property
    def plot(self) -> IntervalPlot:
        """The findings as an interval plot, with this table beneath it."""
        rows = [
            Row(finding.claim, finding.measured, finding.verdict, f"#{slug}" if slug else "", finding.evidence)
            for finding, (slug, _) in self.rows
        ]
        return IntervalPlot(rows, f"{self.counts}. {_MEANT}", beneath=self)

    def sentence(self, name: str) -> str:
        """What the findings say of the model ``name``: what it does, what it does not, and how much is open."""
        does, does_not = (_clauses(self.rows, i, word) for i, word in enumerate(("pass", "fail")))
        left = sum(finding.word not in ("pass", "fail") for finding, _ in self.rows)
        sentences = []
        if does:
            sentences.append(f"{name} {listed(does)}" + (f", but {listed(does_not)}" if does_not else ""))
        elif does_not:
            sentences.append(f"{name} {listed(does_not)}")
        if left or not sentences:
            sentences.append(f"{left} of {len(self.rows)} claims {'is' if left == 1 else 'are'} left open")
        return " ".join(f"{sentence}." for sentence in sentences)

    @property
    def counts(self) -> str:
        """How many came out in each way, such as "3 pass, 1 cannot tell"."""
        words = [finding.word for finding, _ in self.rows]
        return ", ".join(f"{words.count(word)} {word}" for word in WORDS if word in words)


def told(measured: Measured) -> str:
    """A row of an interval plot as it is read out.

    >>> told(Measured(Interval(0.6, 0.5, 0.7), above=0.95, controls={"untrained": -2.0}))
    '0.60 [0.50, 0.70]; holds from 0.95 up; untrained −2'
    """
    parts = [str(cell(measured.value))]
    if measured.above is not None:
        parts.append(f"holds from {number(measured.above)} up")
    if measured.below is not None:
        parts.append(f"holds up to {number(measured.below)}")
    return "; ".join(parts + [f"{name} {number(value)}" for name, value in measured.shown.items()])


_MEANT = (
    "Cannot tell: this sample decides neither way. Uninformative: a control does as well, so the evidence says "
    "nothing. Not so: false of it, and nobody made it so."
)


def _clauses(rows: Sequence[tuple[Finding, tuple[str, str]]], which: int, word: str) -> list[str]:
    """What findings that came out as ``word`` say; those of one verb are said together."""
    by_verb: dict[str, list[str]] = {}
    for finding, _ in rows:
        if finding.word == word and (verb := finding.says[which]):
            by_verb.setdefault(verb, []).append(finding.says[2])
    return [f"{verb} {listed(what, 3)}".strip() for verb, what in by_verb.items()]


def listed(words: Sequence[str], most: int = 99) -> str:
    """Different words as a sentence lists them: at most so many, the last of them how many more there are.

    >>> listed(["a", ""]), listed(["a", "b", "b", "c"]), listed(["a", "b", "c", "d"], 3)
    ('a', 'a, b and c', 'a, b and 2 more')
    """
    each = list(dict.fromkeys(filter(None, words)))
    each = each if len(each) <= most else [*each[: most - 1], f"{len(each) - most + 1} more"]
    return " and ".join(filter(None, [", ".join(each[:-1]), *each[-1:]]))


def judged(value: Interval, above: float, control: float = math.nan) -> Word:
    """Whether a number is above a bound, by its whole interval; without one, or astride the bound, nobody can tell.

    A number that is not false, and at most .05 above what a control reaches, is uninformative.
    """
    if value.high < above:
        return "fail"
    if control >= value.estimate - _NEAR:
        return "uninformative"
    return "pass" if value.low > above else "cannot tell"
