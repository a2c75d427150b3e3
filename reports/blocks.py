"""Blocks of a report's section: texts, tables, figures, code, named facts, and measures.

>>> exact = Measure("a", "It is exact", Interval(0.9, 0.8, 1.0), 0.5, controls={"chance": Control(0.2)})
>>> Measures([exact]).list_marks(exact)
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
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from interp.results import palette
from interp.results.measure import UNTRAINED, VERDICTS, Control, Measure, claims, to_frame
from interp.stats.intervals import Interval
from interp.support import foreign
from interp.support.checks import checked, checked_fields, format_value
from interp.support.errors import convert_errors, require, require_known
from reports.claims import CLAIMS

if TYPE_CHECKING:
    from jinja2 import Environment

_FIXED_POINT_FROM = 1e-3
"""An interval of numbers that are all smaller than this is shown in powers of ten."""

_LINK = f"\ue000{secrets.token_hex(8)}"
"""Marks a link in prose and table cells. It is random, so that text from outside cannot contain it.
"""
_LINK_PATTERN = f"{_LINK}([^\ue001]*)\ue001([^\ue002]*)\ue002"
"""Matches what :func:`link` returns; its groups are the words and the target."""


def link(text: str, target: str) -> str:
    """Return a text that is shown as a link in :class:`Prose` or in a table cell.

    Args:
        text: the words that are shown.
        target: a section of the page, such as ``#section``, or another page in or below the folder.

    >>> Prose(f"See {link('the edges', '#edges')}.").kind
    'prose'
    """
    return f"{_LINK}{foreign.escape_invisible(text)}\ue001{foreign.escape_invisible(target)}\ue002"


@dataclass(frozen=True)
@checked_fields
class Prose:
    """Paragraphs of text, separated by blank lines.

    Code in backticks, **bold** and links made by :func:`link` are formatted; any other markup is
    shown as plain text.
    """

    text: str
    kind: ClassVar[str] = "prose"


@dataclass(frozen=True)
@checked_fields
class Summary:
    """A block with a list of named facts.

    Attributes:
        items: name of a fact -> its value, such as ``{"episodes": 64, "seed": 0}``.
    """

    items: Mapping[str, Any]
    kind: ClassVar[str] = "summary"


@dataclass(frozen=True)
@checked_fields
class Code:
    """A block of code or shell commands.

    Attributes:
        text: the code.
        caption: text above it.
    """

    text: str
    caption: str = ""
    kind: ClassVar[str] = "code"


@dataclass(frozen=True)
@checked_fields
class Figure:
    """A picture with its caption.

    Attributes:
        figure: a ``matplotlib.figure.Figure``.
        title: description for screen readers.
        caption: text under the picture.
        data: the drawn data, for download; None for no download.
    """

    figure: Any
    title: str
    caption: str = ""
    data: pd.DataFrame | None = None
    kind: ClassVar[str] = "figure"

    def __post_init__(self) -> None:
        """Refuse a ``figure`` that is no matplotlib figure."""
        require(
            hasattr(self.figure, "savefig"),
            f"figure must be a matplotlib.figure.Figure, got {format_value(self.figure)}",
        )


def add_figure_number(number: str, text: str) -> str:
    """Add to a caption which figure of the paper it corresponds to.

    Args:
        number: number of the paper's figure, or of several, such as "1 and 7, left".
        text: the caption.

    >>> add_figure_number("8, top", "Regret.")
    'Regret. (Paper, figure 8, top.)'
    """
    noun = "figures" if " and " in number else "figure"
    return f"{text} (Paper, {noun} {number}.)"


def curves(
    record: Mapping[str, Any],
    frame: pd.DataFrame,
    data: pd.DataFrame | None = None,
    **words: Any,
) -> Figure:
    """Draw one curve per algorithm, in one panel or in several, as a block with title and caption.

    The record decides what is written and how it is drawn::

        {
            "title": "Regret",
            "caption": "{ends} Means over {n} episodes. {bands}",
            "ends": "regret",  # what "{ends}" calls the quantity
            "paper": "1 and 7, left",  # the paper's figures, named at the end of the caption
            "ylabel": "regret",  # this and all further keys are options of the drawing function
        }

    In the caption, "{ends}" becomes a sentence with the final values of the curves, such as "At the
    end, regret: 0.50 of a, 2.00 of b.", and "{bands}" a sentence on what the bands mean. If the
    record has the key "by", which names a column of ``frame``, there is one panel for each value in
    this column (:func:`reports.panels.curves`). Otherwise there is one panel
    (:func:`interp.results.figures.curves`).

    Args:
        record: the texts and options, such as one of :mod:`reports.texts`. "caption", "ends" and
            "paper" may be missing.
        frame: one row per point of a curve, with the columns round (or the one that the key "x"
            names), algorithm (key of the curve) and mean (its height); optionally name (shown in
            place of the key), and low and high (a band).
        data: table that a reader can download; None for no download.
        **words: what replaces other names in braces in the record's texts, such as ``n=64`` for
            "{n}".
    """
    from interp.results import figures  # matplotlib is heavy
    from reports import panels

    options = dict(record)
    caption = options.pop("caption", "")  # formatted last: it needs the ends of the curves
    for key, value in options.items():
        if isinstance(value, str):
            options[key] = value.format(**words)
    title = options.pop("title", "")
    quantity = options.pop("ends", "")
    paper = options.pop("paper", "")
    ends = ""
    if quantity:
        ends = figures.describe_curves(frame, quantity, options.get("x", "round"))
    text = caption.format(ends=ends, bands=figures.NOTE_ON_BANDS, **words)
    if paper:
        text = add_figure_number(paper, text)
    # What is left are options of the drawing function.
    draw = panels.curves if "by" in options else figures.curves
    return Figure(draw(frame, **options), title, text, data)


@dataclass(frozen=True)
@checked_fields
class Table:
    """A data frame shown as a table, without its index; an estimate and its bounds are shown in one
    column.

    Args:
        frame: the rows. Column names become headers, with spaces for underscores. Columns ``low``
            and ``high`` are the bounds of the column before them; ``X_low`` and ``X_high`` are the
            bounds of the column ``X``.
        caption: what the numbers are.
        formats: name of a column -> format of its numbers, such as ``".2%"``; other columns are
            formatted by :func:`format_number`.
        collapsed: True if the table is folded behind its caption.
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
    def displayed_frame(self) -> pd.DataFrame:
        """The frame as it is displayed: the columns of an estimate and its two bounds become one
        column.
        """
        return join_intervals(self.frame)

    @property
    def headers(self) -> list[tuple[str, bool]]:
        """For every column, a pair: its header, and True if it contains numbers."""
        headers = []
        for name, values in self.displayed_frame.items():
            is_number = is_numeric_dtype(values) and not is_bool_dtype(values)
            is_interval = len(values) > 0 and all(isinstance(x, Interval | None) for x in values)
            headers.append((str(name).replace("_", " "), is_number or is_interval))
        return headers

    @property
    def rows(self) -> list[list[Any]]:
        """The cells of the table, as a list per row. Values are formatted as text; only a measure
        stays an object, because the page shows its verdict as a badge.
        """
        formats = [self.formats.get(name) for name in self.displayed_frame.columns]
        rows = self.displayed_frame.itertuples(index=False, name=None)
        return [list(map(cell, row, formats)) for row in rows]


@dataclass(frozen=True)
@checked_fields
class NotComputed:
    """A visible box in place of a result that could not be computed.

    Attributes:
        why: the reason.
        traceback: the traceback of the exception, which is shown folded.
    """

    why: str
    traceback: str
    kind: ClassVar[str] = "missing"


def join_intervals(frame: pd.DataFrame) -> pd.DataFrame:
    """Replace the three columns of an estimate and its bounds by one column of intervals, which has
    the estimate's name.

    The bounds of a numeric column ``X`` are the columns ``low`` and ``high`` if ``low`` comes
    directly after ``X``. Otherwise they are ``X_low`` and ``X_high``. A column without bounds stays
    as it is.

    >>> frame = pd.DataFrame({"mean": [0.5], "low": [0.4], "high": [0.6]})
    >>> join_intervals(frame)["mean"].map(str).tolist()
    ['0.5 [0.4, 0.6]']
    """
    names = list(frame.columns)
    joined = frame.copy()
    for name, next_name in zip(names, [*names[1:], ""], strict=True):
        bounds = ["low", "high"] if next_name == "low" else [f"{name}_low", f"{name}_high"]
        if set(bounds) <= set(names) and is_numeric_dtype(frame[name]):
            rows = frame[[name, *bounds]].astype(float).to_numpy()  # [row, 3]: estimate, low, high
            intervals = [Interval(*row) for row in rows.tolist()]
            joined[name] = pd.Series(intervals, dtype=object, index=frame.index)
            joined = joined.drop(columns=bounds)
    return joined


def drop_empty_columns(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table without the columns in which every cell is NaN, None or ""."""
    is_empty = frame.isna() | frame.isin([""])
    return frame.loc[:, ~is_empty.all()]


def _format_csv(frame: pd.DataFrame) -> str:
    """Return a data frame as CSV text, with six significant digits.

    A column of intervals becomes three columns, and a measure is written as its verdict.
    """
    columns: dict[str, list[Any]] = {}
    for name, values in frame.items():
        if any(isinstance(value, Interval) for value in values):
            # A missing interval has none of the three numbers.
            for suffix, attribute in (("", "estimate"), (" low", "low"), (" high", "high")):
                columns[f"{name}{suffix}"] = [getattr(value, attribute, None) for value in values]
        else:
            columns[str(name)] = [_write_value(value) for value in values]
    return foreign.csv(pd.DataFrame(columns), float_format="%.6g", lineterminator="\n")


def _write_value(value: Any) -> Any:
    """Return a cell's value as it is written to CSV: the verdict of a measure, a link as
    ``[text](target)``, other values unchanged.
    """
    if isinstance(value, Measure):
        return value.verdict
    if isinstance(value, str):
        return re.sub(_LINK_PATTERN, r"[\1](\2)", value)
    return value


_YES_OR_NO = {True: "yes", False: "no"}


def cell(value: object, spec: str | None = None) -> str | Measure:
    """Format the value of a table cell for a reader.

    Booleans become yes or no, and missing values a dash. A measure is returned unchanged, since the
    page shows its verdict.

    Args:
        value: the value.
        spec: format of numbers, such as ".2f"; :func:`format_number` formats them when None.

    >>> [cell(-0.0001, ".2f"), cell(Interval(0.95412, 0.93899, 0.9661)), cell(Interval(1.0, 1.0, 1.0))]
    ['0.00', '0.954 [0.939, 0.966]', '1.000 [1.000, 1.000]']
    """
    if isinstance(value, Measure):
        return value
    if isinstance(value, Interval):
        return _write_interval(value, spec)
    if isinstance(value, list | tuple):
        return ", ".join(str(cell(item)) for item in value)
    if pd.isna(value):  # type: ignore[call-overload]
        return "–"
    if isinstance(value, bool | np.bool_):
        return _YES_OR_NO[bool(value)]
    if spec is not None and not isinstance(value, str):
        return _format_sign(convert_errors(f"the format {spec!r}")(format)(value, spec))
    if isinstance(value, int | float | np.integer | np.floating):
        return format_number(value)
    return str(value)


def _write_interval(value: Interval, spec: str | None) -> str:
    """Format an estimate and its bounds, such as "0.954 [0.939, 0.966]"; the estimate alone if the
    interval is infinitely wide.

    Args:
        value: the interval.
        spec: Python format of the three numbers. None gives them as many decimals (0 to 5) as show
            two significant digits of the interval's width, or powers of ten if all are below .001.
    """
    if not math.isfinite(value.estimate):
        return str(cell(value.estimate))
    numbers = [value.estimate, value.low, value.high]
    width = value.high - value.low
    decimals = 3
    if 1e-5 < width < math.inf:
        # The first digit of the width is at 10^floor(log10(width)): one more decimal, 0 to 5 in all.
        decimals = min(max(1 - math.floor(math.log10(width)), 0), 5)
    # Numbers so small that fixed decimals would show only zeros.
    if spec is None and 0 < max(map(abs, numbers)) < _FIXED_POINT_FROM:
        texts = [format_number(x) for x in numbers]
    else:
        texts = [_format_sign(format(x, spec or f".{decimals}f")) for x in numbers]
    estimate, low, high = texts
    if not math.isfinite(width):
        return estimate
    return f"{estimate} [{low}, {high}]"


def _format_sign(text: str) -> str:
    """Return a formatted number with minus signs in place of hyphens, and without the sign if it is
    rounded to 0, such as "-0.00" or "-0.0%".
    """
    return re.sub(r"^-(?=[0.,]*%?$)", "", text).replace("-", "−")


def format_number(value: float | np.number[Any]) -> str:
    """Format the number ``value`` as text, with four significant digits and thousands separators.

    Very small and very large numbers are written as powers of ten.

    >>> [format_number(x) for x in (0.0, 12, 123456, 0.78912, -3.2e-13, 25.0)]
    ['0', '12', '123,456', '0.7891', '−3.2e−13', '25']
    """
    if isinstance(value, int | np.integer):
        return f"{int(value):,}".replace("-", "−")
    value = float(value)
    size = abs(value)
    if math.isinf(value):
        text = "∞" if value > 0 else "-∞"
    elif value == 0 or 1e-3 <= size < 9999.5:  # from 9999.5 on, four digits round to 1e+04
        text = f"{value:,.4g}"
    elif 1 < size < 1e6:  # 9999.5 or more: all digits before the decimal point
        text = f"{value:,.0f}"
    else:
        # Without the plus sign and a leading 0 of the exponent.
        text = re.sub(r"e\+?(-?)0?", r"e\1", f"{value:.1e}")
    return text.replace("-", "−")


_NOT_A_CLAIM = "no claim depends on it"
"""Reason of the verdict "not applicable" of a number that is shown without a claim."""


def make_unjudged(
    name: str, number: Interval, controls: Mapping[str, float] | None = None
) -> Measure:
    """Make a measure for a number that is not a claim, without threshold and verdict. The block
    :class:`Measures` can then draw the number, from 0 to 1, with its controls.

    Args:
        name: what the number is.
        number: the number with its interval.
        controls: name of a control -> its number; NaN is not drawn.
    """
    drawn = {key: Control(value) for key, value in (controls or {}).items()}
    return Measure(key=name, claim=name, number=number, controls=drawn, lacking=_NOT_A_CLAIM)


def colour(measure: Measure) -> str:
    """Return the style (CSS class) in which a measure's verdict is shown: "pass" for a "yes",
    "fail" for a "no" about a claim that should be true by design, otherwise "neutral".
    """
    if measure.verdict == "yes":
        return "pass"
    is_failure = measure.verdict == "no" and measure.by_design
    return "fail" if is_failure else "neutral"


def counts(measures: Sequence[Measure]) -> str:
    """Count the verdicts of measures, as text such as "3 yes, 1 undecided"."""
    words = [measure.verdict for measure in measures]
    return ", ".join(f"{words.count(word)} {word}" for word in VERDICTS if word in words)


@dataclass(frozen=True)
@checked_fields
class Measures:
    """A block that draws measures (claims with a number, a threshold and a verdict). Each row has
    the interval of one measure on a scale from 0 to 1; a folded table of all measures follows.

    A number that is not a share (from 0 to 1) is shown as text. docs/method/pages.md explains the
    drawing.

    Attributes:
        measures: the measures.
        caption: text under the rows.
        sections: for each measure, the section of the page that its row links to, as (slug,
            title). Empty for no links: the section in which this block stands explains them.
    """

    measures: Sequence[Measure]
    caption: str = ""
    sections: Sequence[tuple[str, str]] = ()
    kind: ClassVar[str] = "measures"

    @property
    def has_verdicts(self) -> bool:
        """True if at least one of the measures has a verdict."""
        return any(measure.lacking != _NOT_A_CLAIM for measure in self.measures)

    @property
    def mark_kinds(self) -> set[str]:
        """The kinds of marks that are drawn in the rows, such as "dot" or "control", for the
        legend.
        """
        kinds: set[str] = set()
        for measure in self.measures:
            for kind, _, _ in self.list_marks(measure):
                kinds.update(kind.split())  # "dot beyond" is a dot, and beyond the axis
        return kinds

    @cached_property
    def table(self) -> Table:
        """Table with one row per measure, such as its claim, number, threshold and verdict
        (:meth:`Measure.row`). Columns that are empty in all rows are left out.
        """
        measures = self.measures
        frame = to_frame(measures)
        # The cells are the measures, not words: the page shows the verdict of a measure as a badge.
        frame["verdict"] = pd.Series(list(measures), dtype=object)
        if any(slug for slug, _ in self.sections):  # "" for a measure without a section
            frame["see"] = [link(title, f"#{slug}") for slug, title in self.sections]
        caption = f"The numbers: {counts(measures)}"
        return Table(drop_empty_columns(frame), caption, collapsed=True)

    @checked
    def list_marks(self, measure: Measure) -> list[tuple[str, float, float]]:
        """List the marks that draw a measure, as (kind, start, width); empty if its number is not a
        share, or NaN.

        The kinds are "span" (the interval), "from" or "to" (the threshold, for a number that must
        be above or below it), "untrained" and "control" (controls), and "dot" (the number). Start
        and width are in percent of the scale from 0 to 1. A point beyond the scale is drawn at its
        end, and its kind has "beyond" added, as in "dot beyond".
        """
        number = measure.number
        if math.isnan(number.estimate) or not measure.is_share:
            return []
        marks = []  # in the order of drawing: the number covers all others
        low, high = _convert_percent(number.low), _convert_percent(number.high)
        if not math.isnan(low + high):
            marks.append(("span", low, high - low))
        if not math.isnan(measure.threshold):
            kind = "from" if measure.side == "above" else "to"
            marks.append((kind, _convert_percent(measure.threshold), 0.0))
        points = []
        for name, value in self.find_drawn_controls(measure).items():
            points.append(("untrained" if name == UNTRAINED else "control", value))
        points.append(("dot", number.estimate))
        for kind, value in points:
            placed_kind = kind if 0 <= value <= 1 else f"{kind} beyond"
            marks.append((placed_kind, _convert_percent(value), 0.0))
        return marks

    @checked
    def find_drawn_controls(self, measure: Measure) -> dict[str, float]:
        """Return the controls of a measure that the block draws, as a mapping from the name of a
        control to its value. These are the untrained copy and the strongest other control, without
        those whose value is NaN.
        """
        others = dict(measure.controls)
        untrained = others.pop(UNTRAINED, Control(math.nan))
        drawn = {}
        if not math.isnan(untrained.number):
            drawn[UNTRAINED] = untrained.number
        strongest = replace(measure, controls=others).strongest
        if strongest:  # "" if no other control has a number
            drawn[strongest] = others[strongest].number
        return drawn

    @checked
    def describe(self, measure: Measure) -> str:
        """Return a measure's number, threshold and controls as text. It is for screen readers, and
        is shown in place of marks if the number is no share, and so has no place on the scale from
        0 to 1.
        """
        if math.isnan(measure.number.estimate):
            return measure.reason
        parts = [f"{cell(measure.number)} {measure.unit}".strip()]
        threshold = measure.threshold
        if not math.isnan(threshold):
            is_above = measure.side == "above"
            if is_above and 0 < threshold < 1e-6:  # so small a threshold stands for "not 0"
                parts.append("more than 0")
            else:
                side = "at least" if is_above else "at most"
                parts.append(f"{side} {format_number(threshold)}")
        for name, value in self.find_drawn_controls(measure).items():
            parts.append(f"{name}: {format_number(value)}")
        return "; ".join(parts)


def _convert_percent(value: float) -> float:
    """Convert a share, such as 0.25, to percent (25.0), clipped to 0 ... 100; NaN stays NaN."""
    return round(100 * float(np.clip(value, 0, 1)), 2)


TEMPLATES = Path(__file__).parent / "templates"
claim = claims(CLAIMS)
"""Make the measure of a claim from :data:`~reports.claims.CLAIMS`: ``claim(key, number, ...)``."""


def policy(scripts: Sequence[str]) -> str:
    """Return the content security policy of a page that contains these scripts.

    It forbids all requests and all other scripts, and allows inline styles, which SVG needs.
    """
    digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
    hashes = [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]
    allowed = " ".join(hashes) or "'none'"
    rest = "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src {allowed}; {rest}"


def stylesheet() -> str:
    """Return the CSS of every page, with light and dark colours."""
    css = "\n".join((TEMPLATES / name).read_text("utf-8") for name in ("page.css", "attention.css"))
    light, dark = palette.css_variables(dark=False), palette.css_variables(dark=True)
    return f":root {{ {light} }}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n{css}"


@cache
def environment() -> Environment:
    """Return the Jinja environment that renders the page templates, with the filters that they use."""
    import jinja2
    from markupsafe import Markup, escape

    def mark_up(text: str) -> Markup:
        """Return a text as HTML, with code in backticks and words between ** in bold."""
        escaped = str(escape(foreign.escape_invisible(text)))
        marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped)
        return Markup(re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", marked))

    def write_link(words: str, target: str) -> Markup:
        """Return a link as HTML; only the words if the target is neither a section of the page nor a
        page in or below its folder.
        """
        is_local = re.fullmatch(r"#[\w-]+|(?:[\w.%~-]+/)*[\w.%~-]+\.html(?:#[\w-]+)?", target)
        if not is_local:
            return mark_up(words)
        return Markup('<a href="{}">{}</a>').format(target, mark_up(words))

    def prose(text: str) -> Markup:
        """Return a text as HTML, with the links that :func:`link` marked."""
        # The text before the first link; then of each link its words, its target and what follows.
        first, *pieces = re.split(_LINK_PATTERN, text)
        marked = mark_up(first)
        for words, target, following in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
            marked += write_link(words, target) + mark_up(following)
        return marked

    def paragraphs(text: str) -> list[Markup]:
        return [prose(part) for part in re.split(r"\n\s*\n", text.strip())]

    def finalize(value: Any) -> Any:
        """Escape invisible characters in a value that a template writes. Markup is HTML, in which
        they are escaped already.
        """
        if isinstance(value, str) and not isinstance(value, Markup):
            return foreign.escape_invisible(value)
        return value

    def download(frame: pd.DataFrame) -> str:
        """Return a table as a data URL, from which a reader can download it as CSV."""
        return "data:text/csv;charset=utf-8," + quote(_format_csv(frame), " ,:;/()[]")

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=finalize,
    )
    filters = (prose, paragraphs, cell, colour, download)
    environment.filters |= {function.__name__: function for function in filters}
    environment.filters["short"] = lambda value: cell(value, ".3f")
    environment.globals["identity"] = id  # templates find the data of a block by its id
    return environment
