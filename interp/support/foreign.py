"""The one place through which text that others wrote passes before it is shown: names, answers, errors, file names.

A model's name, what a server says and what a trace holds may carry codes that a terminal obeys, marks that a library
reads as markup, or the beginning of a spreadsheet's formula. Honest text comes out as it went in.

    >>> plain("a\\x1b[31mred"), plain("Grüße, 2 × 3")
    ('a\\\\x1b[31mred', 'Grüße, 2 × 3')
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table
    from rich.text import Text

_UNSEEN = re.compile(
    "[\0-\b\v\f\x0e-\x1f\x7f-\x9f\u2028\u2029\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff"
    "\ufff9-\ufffc\ufffe\uffff\ud800-\udfff\ue000-\uf8ff\U000e0000-\U0010ffff]"
)
"""What a terminal obeys, XML forbids, UTF-8 cannot say, turns the order of what stands beside it, or is not seen.
"""
_FORMULA = re.compile(r"[=+\-@\t\r]")
_NUMBER = r"[+\-]?[\d.][\d.,]*(?:[eE][+\-]?\d+)?%?"
_NUMBERS = re.compile(rf"{_NUMBER}(?: (?:to|±) {_NUMBER})*(?: \[{_NUMBER}, {_NUMBER}\])?|-")
"""What begins like a formula and is none: a number, an interval, a dash that stands for nothing."""


def plain(text: object) -> str:
    """Text that does nothing but be read; line ends and tabs stay, what cannot be seen is written as Python writes it.

    >>> plain("ok\\r\\n"), plain("\\ud800"), plain("a\\u202eb")
    ('ok\\n', '\\\\ud800', 'a\\\\u202eb')
    """
    return _UNSEEN.sub(
        lambda found: found[0].encode("unicode_escape").decode(),
        str(text).replace("\r\n", "\n").replace("\r", "\\r"),
    )


def one_line(text: object) -> str:
    """:func:`plain`, in one line."""
    return plain(text).replace("\n", "\\n").replace("\t", " ")


def loaded(text: str | bytes, **how: Any) -> Any:
    """JSON that others wrote, as values; halves of characters, which no text can hold, become question marks.

    >>> loaded('{"name": "a\\\\ud800", "n": 1}')
    {'name': 'a?', 'n': 1}
    """
    value = json.loads(text, **how)
    if (b"\\u" if isinstance(text, bytes) else "\\u") in text:  # type: ignore[operator]
        value = _whole(value)
    return value


def _whole(value: Any) -> Any:
    if isinstance(value, dict):
        return {_whole(key): _whole(held) for key, held in value.items()}
    if isinstance(value, list):
        return [_whole(held) for held in value]
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def rich_text(text: object) -> Text:
    """Text that rich prints as it is, whatever stands in square brackets."""
    from rich.text import Text

    return Text(plain(text))


def rich_table(
    title: str, frame: pd.DataFrame, title_justify: Any = "center", **columns: Sequence[Any]
) -> Table:
    """A frame for a terminal: ``columns`` holds a list for each argument of ``add_column`` (``header``, ``justify``).

    >>> rich_table("one", __import__("pandas").DataFrame({"a[b]": [0.5, "[/red]"]})).row_count
    2
    """
    from rich.table import Table

    table = Table(title=rich_text(title), title_justify=title_justify)
    for i, name in enumerate(frame.columns):
        own = {key: values[i] for key, values in columns.items()}
        table.add_column(
            rich_text(own.pop("header", name)), overflow="fold", **own
        )  # a narrow terminal cuts no name
    for row in frame.itertuples(index=False, name=None):
        table.add_row(
            *(rich_text(f"{value:.3g}" if isinstance(value, float) else value) for value in row)
        )
    return table


def markup(text: object) -> str:
    """Text inside what rich reads as markup."""
    from rich.markup import escape

    return escape(plain(text))


def _no_formula(cell: Any) -> Any:
    """A cell of a table that spreadsheets open: text that would be computed there gets an apostrophe.

    >>> [_no_formula(text) for text in ("=1+1", "@sum", "-0.5 [-0.6, -0.4]", "wma-learned", "-x")]
    ["'=1+1", "'@sum", '-0.5 [-0.6, -0.4]', 'wma-learned', "'-x"]
    """
    if not isinstance(cell, str):
        return cell
    text = plain(cell)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBERS.fullmatch(text) else text


def csv(frame: pd.DataFrame, **options: Any) -> str:
    """A frame as CSV without its index: every cell and header that is text passes :func:`_no_formula`."""

    own = frame.copy(deep=False)
    for i, dtype in enumerate(frame.dtypes):
        if dtype.kind in "OU":
            given = frame.iloc[:, i].tolist()
            cells = list(map(_no_formula, given))
            if any(
                one is not other and one != other for one, other in zip(cells, given, strict=True)
            ):
                own.isetitem(i, cells)
    own.columns = list(map(_no_formula, frame.columns))
    return str(own.to_csv(index=False, **options))


def svg(figure: Any, **saving: Any) -> str:
    """A figure of matplotlib as SVG, the same bytes each time; names in it are text, never formulas of its own."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.StringIO()
    metadata = saving.pop("metadata", {"Date": None})
    engine, canvas = figure.get_layout_engine(), figure.canvas
    salt = matplotlib.rcParams["svg.hashsalt"] or "interp"
    settings = {
        "svg.hashsalt": salt,
        "figure.autolayout": False,
        "figure.constrained_layout.use": False,
    }
    with matplotlib.rc_context({**settings, **_as_text(figure)}):
        try:
            if (
                engine is not None
            ):  # done once, and taken off: matplotlib would draw all once more for it
                FigureCanvasSVG(figure)  # becomes the figure's: sizes of texts are those of the SVG
                engine.execute(figure)
                figure.set_layout_engine(None)
            figure.savefig(buffer, format="svg", metadata=metadata, **saving)
        finally:
            figure.set_layout_engine(engine)
            figure.set_canvas(canvas)
    return plain(buffer.getvalue())


def _as_text(figure: Any) -> dict[str, Any]:
    """Make names in a figure plain; settings under which dollars are no formula, where a name holds one.

    matplotlib writes the numbers of a logarithmic axis as formulas, so that these are read where no name needs it.
    """
    from matplotlib.text import Text
    from matplotlib.ticker import LogFormatter, LogFormatterSciNotation

    written = figure.findobj(Text)
    for one in written:
        if one.get_text() != plain(one.get_text()):
            one.set_text(plain(one.get_text()))
    axes = [axis for one in figure.axes for axis in (one.xaxis, one.yaxis)]
    said = [one.get_text() for one in written if "mathdefault" not in one.get_text()]
    for axis in axes:
        formatter = axis.get_major_formatter()
        said += map(str, getattr(formatter, "seq", ()))
        for held in getattr(getattr(formatter, "func", None), "args", ()):
            said += map(str, held.values()) if isinstance(held, dict) else ()
    if not any("$" in text for text in said):
        return {}
    for one in written:
        one.set_parse_math(False)
    for axis in axes:
        if isinstance(axis.get_major_formatter(), LogFormatterSciNotation):
            axis.set_major_formatter(LogFormatter())
    return {"text.parse_math": False}
