"""What a section is made of: prose, tables, figures, code, named facts, and measures, drawn as intervals on one scale.

>>> held = Measure("a", "It is exact", Interval(0.9, 0.8, 1.0), 0.5, controls={"chance": Control(0.2)})
>>> Measures([held]).marks(held)
[('span', 80.0, 20.0), ('from', 50.0, 0.0), ('control', 20.0, 0.0), ('dot', 90.0, 0.0)]
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

import numpy as np
import pandas as pd

from interp.results import palette
from interp.results.measure import UNTRAINED, VERDICTS, Control, Measure, claims, to_frame
from interp.stats.intervals import Interval
from interp.support import foreign
from interp.support.checks import checked, checked_fields, shown
from interp.support.errors import require, require_known, theirs
from interp.support.files import read_tables

if TYPE_CHECKING:
    from jinja2 import Environment

_SMALL = 1e-3  # an interval of numbers all smaller than this is shown in powers of ten


_LINK = f"\ue000{secrets.token_hex(8)}"
"""What stands before a link in prose and cells: nobody who writes a name can know it, and no page holds it."""


def link(text: str, target: str) -> str:
    """Words of :class:`Prose`, or of a cell, that lead to a section, ``#section``, or to a page below the folder.

    >>> Prose(f"See {link('the edges', '#edges')}.").kind
    'prose'
    """
    return f"{_LINK}{foreign.plain(text)}\ue001{foreign.plain(target)}\ue002"


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
    """Named facts: ``label -> value``."""

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
        require(
            hasattr(self.figure, "savefig"),
            f"figure must be a matplotlib.figure.Figure, got {shown(self.figure)}",
        )


def titled(number: str, text: str) -> str:
    """A caption that says in its end which of the paper's figures this is.

    >>> titled("8, top", "Regret.")
    'Regret. (Paper, figure 8, top.)'
    """
    return f"{text} (Paper, {'figures' if ' and ' in number else 'figure'} {number}.)"


def curves(
    said: Mapping[str, Any],
    frame: pd.DataFrame,
    of: str = "",
    data: pd.DataFrame | None = None,
    **words: Any,
) -> Figure:
    """Named curves as a figure: what a page says of them stands in a table of a TOML file.

    Args:
        said: ``title`` and ``caption``, which hold ``words``, ``{bands}`` and ``{ends}``, how the curves end in what
            ``ends`` names; ``paper``, the paper's figure; the rest is for
            :func:`interp.results.figures.curves` or, with panels
            ``by`` a column, for :func:`reports.panels.curves`.
        of: the panel whose ends the caption tells.
    """
    from interp.results import figures  # matplotlib is heavy
    from reports import panels

    texts = {key: text for key, text in said.items() if isinstance(text, str) and key != "caption"}
    how: dict[str, Any] = {
        **said,
        **{key: text.format(of=of, **words) for key, text in texts.items()},
    }
    title, caption, what, paper = (
        how.pop(key, "") for key in ("title", "caption", "ends", "paper")
    )
    told = frame[frame[how["by"]] == of] if of else frame
    ends = figures.ends(told, what, how.get("x", "round")) if what else ""
    text = caption.format(ends=ends, bands=figures.BANDS, **words)
    drawn = (panels.curves if "by" in how else figures.curves)(frame, **how)
    return Figure(drawn, title, titled(paper, text) if paper else text, data)


@dataclass(frozen=True)
@checked_fields
class Table:
    """A data frame as a table; the index is not shown, and an estimate with its bounds is one column.

    Args:
        frame: the rows; column names become headers, with spaces for underscores. Columns ``low`` and ``high`` belong
            to the one before them, ``X_low`` and ``X_high`` to ``X``.
        caption, collapsed: what the numbers are, and are not; whether the table is folded behind it.
        formats: column -> format spec (``".2%"``); other columns are formatted by :func:`number`.
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
        headers = []
        for name, dtype, (_, values) in zip(
            self.shown, self.shown.dtypes, self.shown.items(), strict=True
        ):
            intervals = len(values) and all(
                isinstance(value, Interval) or value is None for value in values
            )
            numeric = pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_bool_dtype(dtype)
            headers.append((str(name).replace("_", " "), bool(intervals or numeric)))
        return headers

    @property
    def rows(self) -> list[list[Any]]:
        """Cells as text, or as the measure whose word is shown."""
        specs = [self.formats.get(name) for name in self.shown.columns]
        return [
            list(map(cell, row, specs)) for row in self.shown.itertuples(index=False, name=None)
        ]


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
    bounds = {
        name: (f"{name}_low", f"{name}_high")
        for name in names
        if {f"{name}_low", f"{name}_high"} <= set(names)
    }
    if {"low", "high"} <= set(names) and names.index("low") > 0:
        bounds[names[names.index("low") - 1]] = ("low", "high")
    bounds = {
        name: pair for name, pair in bounds.items() if pd.api.types.is_numeric_dtype(frame[name])
    }
    whole = frame.drop(columns=[bound for pair in bounds.values() for bound in pair])
    for name, pair in bounds.items():
        triples = frame[[name, *pair]].astype(float).itertuples(index=False, name=None)
        whole[name] = pd.Series(
            [Interval(*triple) for triple in triples], dtype=object, index=frame.index
        )
    return whole


def pivoted(frame: pd.DataFrame, index: str, columns: str, values: str) -> pd.DataFrame:
    """A row for each value of ``index``, a column for each of ``columns``, both in the order in which they first come.

    >>> frame = pd.DataFrame({"of": ["b", "a"], "in": ["y", "x"], "value": [1.0, 2.0]})
    >>> pivoted(frame, "of", "in", "value").columns.tolist()
    ['of', 'y', 'x']
    """
    table = frame.pivot(index=index, columns=columns, values=values)[
        list(dict.fromkeys(frame[columns]))
    ]
    return table.loc[list(dict.fromkeys(frame[index]))].reset_index().rename_axis(columns=None)


def _csv_of(frame: pd.DataFrame) -> str:
    """A frame as CSV with six significant digits; an interval is three columns, a measure its word."""
    columns: dict[Any, Any] = {}
    for name in frame.columns:
        values = list(frame[name])
        if any(isinstance(value, Interval) for value in values):
            for end, key in (("", "estimate"), (" low", "low"), (" high", "high")):
                columns[f"{name}{end}"] = [getattr(value, key, None) for value in values]
        else:
            words = [value.verdict if isinstance(value, Measure) else value for value in values]
            linked = (
                f"{_LINK}([^\ue001]*)\ue001([^\ue002]*)\ue002"  # a link is its words and its target
            )
            columns[name] = [
                re.sub(linked, r"[\1](\2)", one) if isinstance(one, str) else one for one in words
            ]
    return foreign.csv(pd.DataFrame(columns), float_format="%.6g", lineterminator="\n")


def cell(value: object, spec: str | None = None) -> str | Measure:
    """A value as a reader wants it: numbers by ``spec`` or :func:`number`, truth as yes or no, absence as a dash.

    >>> [cell(-0.0001, ".2f"), cell(Interval(0.95412, 0.93899, 0.9661)), cell(Interval(1.0, 1.0, 1.0))]
    ['0.00', '0.954 [0.939, 0.966]', '1.000 [1.000, 1.000]']
    """
    if isinstance(value, Measure):
        return value
    if (
        value is None
        or value is pd.NA
        or (isinstance(value, float | np.floating) and math.isnan(value))
    ):
        return "–"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, Interval):
        return _interval(value, spec)
    if spec is not None and not isinstance(value, str):
        return _unsigned_zero(theirs(f"the format {spec!r}")(format)(value, spec))
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
    width = (
        value.high - value.low
    )  # so many decimals that it has two digits; three where there is none to speak of
    decimals = (
        int(np.clip(1 - math.floor(math.log10(width)), 0, 5)) if 1e-5 < width < math.inf else 3
    )
    spec = spec or f".{decimals}f"
    if not (math.isfinite(value.low) and math.isfinite(value.high)):
        return _unsigned_zero(format(value.estimate, spec))
    return "{} [{}, {}]".format(*(_unsigned_zero(format(x, spec)) for x in whole))


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


_PLAIN = "no claim rests on it"  # why the word of a number that is only shown is "not applicable"


def plain(name: str, number: Interval, controls: Mapping[str, float] | None = None) -> Measure:
    """A number between 0 and 1 that decides nothing, as a row of :class:`Measures`; NaN controls are not drawn."""
    beside = {key: Control(value) for key, value in (controls or {}).items()}
    return Measure(name, name, number, controls=beside, lacking=_PLAIN)


def colour(measure: Measure) -> str:
    """What a word looks like: "pass", "fail" where the claim is false and was meant to be true, or "neutral"."""
    return {"yes": "pass", "no": "fail" if measure.by_design else "neutral"}.get(
        measure.verdict, "neutral"
    )


def counts(measures: Sequence[Measure]) -> str:
    """How many claims have each word, such as "3 yes, 1 undecided"."""
    words = [one.verdict for one in measures]
    return ", ".join(f"{words.count(word)} {word}" for word in VERDICTS if word in words)


@dataclass(frozen=True)
@checked_fields
class Measures:
    """Measures as intervals on one scale from 0 to 1, with their words, and their table folded beneath.

    How a row is drawn: docs/method/pages.md. An amount, which has no such scale, stands as text. ``sections`` has for
    each measure the section that shows it, as (slug, title); none where this one does.
    """

    measures: Sequence[Measure]
    caption: str = ""
    sections: Sequence[tuple[str, str]] = ()
    kind: ClassVar[str] = "measures"

    @property
    def judged(self) -> bool:
        """Whether any row has a word."""
        return any(one.lacking != _PLAIN for one in self.measures)

    @property
    def kinds(self) -> set[str]:
        """What is drawn in any row, for the legend."""
        return {
            word for one in self.measures for kind, _, _ in self.marks(one) for word in kind.split()
        }

    @cached_property
    def table(self) -> Table:
        """The columns of :meth:`Measure.row`, without those that are empty in every row."""
        frame = to_frame(self.measures).assign(verdict=pd.Series(list(self.measures), dtype=object))
        if any(slug for slug, _ in self.sections):
            frame["see"] = [link(title, f"#{slug}") for slug, title in self.sections]
        empty = [
            name for name in frame if all(value == "" or value != value for value in frame[name])
        ]
        return Table(
            frame.drop(columns=empty), f"The numbers: {counts(self.measures)}", collapsed=True
        )

    @checked
    def marks(self, of: Measure) -> list[tuple[str, float, float]]:
        """(kind, where it begins, how wide it is), in percent of the scale; what lies beyond it stands at its end."""
        number, ends = of.number, [_percent(x) for x in (of.number.low, of.number.high)]
        if math.isnan(number.estimate) or not of.is_share:
            return []
        marks = [] if any(map(math.isnan, ends)) else [("span", ends[0], ends[1] - ends[0])]
        if not math.isnan(of.threshold):
            marks.append(("from" if of.side == "above" else "to", _percent(of.threshold), 0.0))
        points = [
            ("untrained" if name == UNTRAINED else "control", value)
            for name, value in self.controls(of).items()
        ]
        for kind, value in (*points, ("dot", number.estimate)):
            marks.append((kind + " beyond" * (not 0 <= value <= 1), _percent(value), 0.0))
        return marks

    @checked
    def controls(self, of: Measure) -> dict[str, float]:
        """The controls that are drawn: an untrained copy, and the strongest of the others."""
        others = replace(
            of, controls={name: one for name, one in of.controls.items() if name != UNTRAINED}
        )
        drawn = [name for name in (UNTRAINED, others.strongest) if name in of.controls]
        return {
            name: of.controls[name].number
            for name in drawn
            if not math.isnan(of.controls[name].number)
        }

    @checked
    def said(self, of: Measure) -> str:
        """A row as it is read out, or printed where nothing can be drawn."""
        if math.isnan(of.number.estimate):
            return of.reason
        least = "more than 0" if 0 < of.threshold < 1e-6 else f"at least {number(of.threshold)}"
        held = least if of.side == "above" else f"at most {number(of.threshold)}"
        parts = [f"{cell(of.number)} {of.unit}".strip(), *[held] * (not math.isnan(of.threshold))]
        return "; ".join(
            [*parts, *(f"{name}: {number(value)}" for name, value in self.controls(of).items())]
        )


def _percent(value: float) -> float:
    return value if math.isnan(value) else round(100 * min(max(value, 0.0), 1.0), 2)


TEMPLATES = Path(__file__).parent / "templates"
claim = claims(Path(__file__).with_name("claims.toml"))
"""The measure of a claim of a page: ``claim(key, number, ...)``."""
TEXTS = read_tables(Path(__file__).with_name("texts.toml"))
"""The longer texts of pages, by the file that shows them."""


def policy(scripts: Sequence[str]) -> str:
    """No request of any kind. Styles are inline because SVG needs them; scripts only by their hash."""
    digests = (
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts
    )
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    rest = "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src {allowed}; {rest}"


def stylesheet() -> str:
    """The style of every page, in light and dark."""
    css = "\n".join((TEMPLATES / name).read_text("utf-8") for name in ("page.css", "attention.css"))
    light, dark = palette.css_variables(dark=False), palette.css_variables(dark=True)
    return f":root {{ {light} }}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n{css}"


@cache
def environment() -> Environment:
    """The templates, with the filters that they use."""
    import jinja2
    from markupsafe import Markup, escape

    def prose(text: str) -> Markup:
        parts = re.split(f"({_LINK}[^\ue001]*\ue001[^\ue002]*\ue002)", text)
        return Markup("").join(
            linked(part) if i % 2 else worded(part) for i, part in enumerate(parts)
        )

    def worded(text: str) -> Markup:
        marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(foreign.plain(text))))
        return Markup(re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", marked))

    def linked(text: str) -> Markup:
        words, target = text.removeprefix(_LINK)[:-1].split("\ue001")
        within = re.fullmatch(r"#[\w-]+|(?:[\w.%~-]+/)*[\w.%~-]+\.html(?:#[\w-]+)?", target)
        return (
            Markup('<a href="{}">{}</a>').format(target, worded(words)) if within else worded(words)
        )

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda shown: (
            foreign.plain(shown)
            if isinstance(shown, str) and not isinstance(shown, Markup)
            else shown
        ),
    )
    environment.filters["prose"] = prose
    environment.filters["paragraphs"] = lambda text: [
        prose(part) for part in re.split(r"\n\s*\n", text.strip())
    ]
    environment.filters["cell"] = cell
    environment.filters["colour"] = colour
    environment.filters["short"] = lambda value: cell(value, ".3f")
    environment.filters["download"] = lambda frame: (
        "data:text/csv;charset=utf-8," + quote(_csv_of(frame), " ,:;/()[]")
    )
    environment.globals["identity"] = id
    return environment
