"""What a section is made of: prose, tables, figures, code, summaries with verdicts.

Plain data; ``reports.page`` makes HTML of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from interp.errors import unknown_name
from interp.statistics import Interval


@dataclass(frozen=True)
class Verdict:
    """A judgement shown as a badge: ``passed`` True, False, or None where nothing is judged."""

    passed: bool | None
    text: str

    @property
    def kind(self) -> str:
        return {True: "pass", False: "fail", None: "neutral"}[self.passed]


@dataclass(frozen=True)
class Prose:
    """Paragraphs (separated by a blank line); ``code`` in backticks and **bold** are marked up, the rest is text.

    So are links to other pages below this one's folder, ``[text](folder/page.html)``.
    """

    text: str
    kind: ClassVar[str] = "prose"


@dataclass(frozen=True)
class Summary:
    """Named facts: ``label -> value``, where a value may be a :class:`Verdict`."""

    items: Mapping[str, Any]
    kind: ClassVar[str] = "summary"


@dataclass(frozen=True)
class Code:
    """A block of code or shell commands, with a caption above it."""

    text: str
    caption: str = ""
    kind: ClassVar[str] = "code"


@dataclass(frozen=True)
class Figure:
    """A picture (``matplotlib.figure.Figure``), its ``title`` for screen readers, and the caption under it."""

    figure: Any
    title: str
    caption: str = ""
    kind: ClassVar[str] = "figure"


@dataclass(frozen=True)
class Table:
    """A data frame as a table; the index is not shown.

    Args:
        frame: the rows; column names become headers, with spaces for underscores.
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
            if column not in self.frame.columns:
                raise unknown_name("column", column, map(str, self.frame.columns))

    @property
    def headers(self) -> list[tuple[str, bool]]:
        """(header, is numeric) for every column."""
        return [(str(name).replace("_", " "), self._numeric(i)) for i, name in enumerate(self.frame.columns)]

    @property
    def rows(self) -> list[list[Any]]:
        """Cells as text or :class:`Verdict`."""
        specs = [self.formats.get(name) for name in self.frame.columns]
        return [
            [cell(value, spec) for value, spec in zip(row, specs, strict=True)]
            for row in self.frame.itertuples(index=False, name=None)
        ]

    def _numeric(self, column: int) -> bool:
        dtype, values = self.frame.dtypes.iloc[column], self.frame.iloc[:, column]
        if len(values) and all(isinstance(value, Interval) or value is None for value in values):
            return True
        return pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_bool_dtype(dtype)


@dataclass(frozen=True)
class Group:
    """Blocks folded behind a title, for what only some readers want."""

    title: str
    blocks: Sequence[Any]
    kind: ClassVar[str] = "group"


@dataclass(frozen=True)
class NotComputed:
    """A visible box in place of what could not be computed: ``why``, and where it happened, folded."""

    why: str
    traceback: str
    kind: ClassVar[str] = "missing"


def cell(value: Any, spec: str | None = None) -> str | Verdict:
    """A value as a reader wants it: numbers by ``spec`` or :func:`number`, truth as yes or no, absence as a dash."""
    if isinstance(value, Verdict):
        return value
    if value is None or value is pd.NA or (isinstance(value, float | np.floating) and math.isnan(value)):
        return "–"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, Interval):
        return _interval(value, spec or ".3f")
    if spec is not None:
        return format(value, spec)
    if isinstance(value, int | float | np.integer | np.floating):
        return number(value)
    if isinstance(value, list | tuple):
        return ", ".join(str(cell(item)) for item in value)
    return str(value)


def _interval(value: Interval, spec: str) -> str:
    if not math.isfinite(value.estimate):
        return cell(value.estimate)  # type: ignore[return-value]
    parts = (format(x, spec).replace("-", "−") for x in (value.estimate, value.low, value.high))
    return "{} [{}, {}]".format(*parts)


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
