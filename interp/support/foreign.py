"""Make text from outside safe to show: model names, answers, error messages, file names.

A model's name, a server's reply or a trace may contain codes that control a terminal, marks that a
library parses as markup, or a spreadsheet formula. Harmless text is returned unchanged.

    >>> escape_invisible("a\\x1b[31mred"), escape_invisible("Grüße, 2 × 3")
    ('a\\\\x1b[31mred', 'Grüße, 2 × 3')
"""

from __future__ import annotations

import io
import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table
    from rich.text import Text

_UNSEEN = re.compile(
    "[\0-\b\v\f\x0e-\x1f\x7f-\x9f\u2028\u2029\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff"
    "\ufff9-\ufffc\ufffe\uffff\ud800-\udfff\ue000-\uf8ff\U000e0000-\U0010ffff]"
)
"""Characters that control a terminal, are invisible, change the direction of text, or are invalid
in XML or UTF-8.
"""
_FORMULA = re.compile(r"[=+\-@\t\r]")
_NUMBER = r"[+\-]?[\d.][\d.,]*(?:[eE][+\-]?\d+)?%?"
_NUMBERS = re.compile(rf"{_NUMBER}(?: (?:to|±) {_NUMBER})*(?: \[{_NUMBER}, {_NUMBER}\])?|-")
"""Texts that begin like a formula but are harmless: a number, an interval, or a lone dash for "no
value".
"""


def escape_invisible(text: object) -> str:
    """Return text that is safe to print: invisible characters are escaped as in Python's ``repr``.

    Line breaks and tabs stay as they are.

    >>> escape_invisible("ok\\r\\n"), escape_invisible("\\ud800"), escape_invisible("a\\u202eb")
    ('ok\\n', '\\\\ud800', 'a\\\\u202eb')
    """
    with_line_ends = str(text).replace("\r\n", "\n").replace("\r", "\\r")
    return _UNSEEN.sub(
        lambda character: character[0].encode("unicode_escape").decode(), with_line_ends
    )


def escape_line(text: object) -> str:
    """Return text that is safe to print, on one line: invisible characters are escaped, line breaks
    become ``\\n``, and tabs become spaces.
    """
    return escape_invisible(text).replace("\n", "\\n").replace("\t", " ")


def parse_json(text: str | bytes, **how: Any) -> Any:
    """Parse JSON from outside, such as a server's answer. Lone surrogates, which UTF-8 cannot
    encode, become question marks.

    Args:
        text: the JSON text.
        how: options of ``json.loads``.

    >>> parse_json('{"name": "a\\\\ud800", "n": 1}')
    {'name': 'a?', 'n': 1}
    """
    value = json.loads(text, **how)
    if "\\u" not in str(text):  # only an escape can be a lone surrogate
        return value
    # Written without escapes, lone surrogates cannot be encoded as UTF-8, and "replace" makes them
    # question marks.
    unescaped = json.dumps(value, ensure_ascii=False)
    return json.loads(unescaped.encode("utf-8", "replace"), **how)


def json_in(text: str | bytes, **how: Any) -> Any:
    """Parse ``text`` as :func:`parse_json` does, with the options ``how`` of ``json.loads``; return
    None if it is not valid JSON.
    """
    try:
        return parse_json(text, **how)
    except (ValueError, RecursionError):
        return None


def rich_text(text: object) -> Text:
    """Return text that rich prints literally: square brackets are not parsed as markup."""
    from rich.text import Text

    return Text(escape_invisible(text))


def rich_table(title: str, frame: pd.DataFrame) -> Table:
    """Return a data frame as a rich table for the terminal.

    Args:
        title: title above the table.
        frame: the rows; floats are shown with three significant digits.

    >>> rich_table("one", __import__("pandas").DataFrame({"a[b]": [0.5, "[/red]"]})).row_count
    2
    """
    from rich.table import Table

    table = Table(title=rich_text(title), title_justify="left")
    for name in frame.columns:
        table.add_column(rich_text(name), overflow="fold")  # a narrow terminal cuts no name
    for row in frame.itertuples(index=False, name=None):
        table.add_row(*map(_format_cell, row))
    return table


def _format_cell(value: Any) -> Text:
    return rich_text(f"{value:.3g}" if isinstance(value, float) else value)


def markup(text: object) -> str:
    """Return text escaped for use inside a string that rich parses as markup."""
    from rich.markup import escape

    return escape(escape_invisible(text))


def _escape_formula(cell: Any) -> Any:
    """Return a table cell that spreadsheets do not evaluate: text that looks like a formula gets a
    leading apostrophe.

    >>> [_escape_formula(text) for text in ("=1+1", "@sum", "-0.5 [-0.6, -0.4]", "wma-learned-additive", "-x")]
    ["'=1+1", "'@sum", '-0.5 [-0.6, -0.4]', 'wma-learned-additive', "'-x"]
    """
    if not isinstance(cell, str):
        return cell
    text = escape_invisible(cell)
    is_formula = _FORMULA.match(text) and not _NUMBERS.fullmatch(text)
    return f"'{text}" if is_formula else text


def csv(frame: pd.DataFrame, **options: Any) -> str:
    """Return a data frame as CSV text without its index. Headers and text cells that look like
    formulas are escaped, so that spreadsheets do not evaluate them.

    Args:
        frame: the data frame.
        options: options of pandas' ``to_csv``.
    """
    written = frame.copy(deep=False)
    for i, dtype in enumerate(frame.dtypes):
        if dtype.kind not in "OU":  # objects and texts: only they can hold a formula
            continue
        cells = frame.iloc[:, i].tolist()
        safe_cells = [_escape_formula(cell) for cell in cells]
        pairs = zip(safe_cells, cells, strict=True)
        # A column in which nothing was escaped is left alone, with its dtype.
        if any(safe is not cell and safe != cell for safe, cell in pairs):
            written.isetitem(i, safe_cells)
    written.columns = [_escape_formula(name) for name in frame.columns]
    return str(written.to_csv(index=False, **options))


def svg(figure: Any, **saving: Any) -> str:
    """Return a matplotlib figure as SVG text; equal figures give equal bytes.

    Names are drawn as plain text: dollar signs in them do not start a formula.

    Args:
        figure: the figure.
        saving: options of matplotlib's ``savefig``.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.StringIO()
    metadata = saving.pop("metadata", {"Date": None})
    engine, canvas = figure.get_layout_engine(), figure.canvas
    salt = matplotlib.rcParams["svg.hashsalt"] or "interp"
    # With a fixed salt, the ids within the SVG are the same in every run.
    settings = {
        "svg.hashsalt": salt,
        "figure.autolayout": False,
        "figure.constrained_layout.use": False,
    }
    with matplotlib.rc_context({**settings, **_escape_names(figure)}):
        try:
            # The layout is computed once here, and the engine removed: with it, `savefig` would draw
            # everything twice.
            if engine is not None:
                # The new canvas sets itself as the figure's, so that texts have the sizes of the SVG.
                FigureCanvasSVG(figure)
                engine.execute(figure)
                figure.set_layout_engine(None)
            figure.savefig(buffer, format="svg", metadata=metadata, **saving)
        finally:
            figure.set_layout_engine(engine)
            figure.set_canvas(canvas)
    return escape_invisible(buffer.getvalue())


def _escape_names(figure: Any) -> dict[str, Any]:
    """Escape the names in a figure, and return the matplotlib settings to draw it with.

    If a name contains a dollar sign, the settings turn off matplotlib's formulas. Otherwise
    formulas stay on, since matplotlib writes the numbers of a logarithmic axis as formulas.
    """
    from matplotlib.axis import Axis
    from matplotlib.text import Text
    from matplotlib.ticker import LogFormatter, LogFormatterSciNotation

    names = []
    artists = figure.findobj(Text)
    for artist in artists:
        text = artist.get_text()
        if text != escape_invisible(text):
            artist.set_text(escape_invisible(text))
        if "mathdefault" not in text:  # matplotlib's own formulas, as of tick labels, contain this
            names.append(text)
    axes = figure.findobj(Axis)
    for axis in axes:
        names += _list_tick_names(axis.get_major_formatter())
    if not any("$" in name for name in names):
        return {}
    for artist in artists:
        artist.set_parse_math(False)
    # Without formulas, powers such as $10^3$ would be drawn as written: plain numbers instead.
    for axis in axes:
        if isinstance(axis.get_major_formatter(), LogFormatterSciNotation):
            axis.set_major_formatter(LogFormatter())
    return {"text.parse_math": False}


def _list_tick_names(formatter: Any) -> list[str]:
    """Return a list of the tick labels of a matplotlib formatter that has fixed labels or
    categories.
    """
    names = [str(name) for name in getattr(formatter, "seq", ())]  # of a FixedFormatter
    # matplotlib names fixed ticks by a function with a bound argument {place: label}.
    function = getattr(formatter, "func", None)
    for argument in getattr(function, "args", ()):
        if isinstance(argument, dict):
            names += map(str, argument.values())
    return names
