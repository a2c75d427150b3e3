"""How results look at a prompt and in a notebook: one line as text, their table as HTML.

    >>> from interp.tasks import experts
    >>> from interp.tasks.experts.regret import calibration
    >>> episodes = experts.sample(20, 30, 4, seed=0)
    >>> result = calibration(episodes.advice.mean(-1), episodes)
    >>> result
    Calibration(error=0.0775, chance=0.0211 [0.006667, 0.04419])
    >>> result._repr_html_().count("<tr")
    11

Tables are pandas' own HTML, of at most ``MOST_ROWS`` rows; all rows are in ``to_frame()``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from interp.statistics import Interval

if TYPE_CHECKING:
    import pandas as pd

    from interp.machine import Machine

MOST_ROWS, _MOST_FIELDS = 30, 6
"""Rows of a table, and fields of a line."""


_MEANT = {
    "pattern": "attention heads",
    "z": "attention heads",
    "embed": "token embeddings",
    "resid_pre": "residual stream",
    "resid_post": "layers",
}
"""What it means to lack a component of transformers."""


def lacks(machine: Machine, *keys: str) -> str:
    """What stands in the place of what a machine cannot show: which components it lacks; empty where it has all."""
    missing = dict.fromkeys(_MEANT.get(key, key) for key in keys if key not in machine.points)
    return f"not applicable: {machine.name} has no {' and no '.join(missing)}" if missing else ""


class Tabled:
    """A result with ``to_frame()``: mixed into the dataclasses of results.

    Its line names the fields that are words, numbers or intervals, and leaves arrays, tables and settings out.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__repr__" not in vars(cls):  # a dataclass writes its own where the class itself holds none
            cls.__repr__ = Tabled.__repr__  # type: ignore[method-assign]

    def to_frame(self) -> pd.DataFrame:
        """The result as a tidy table."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(list(self._told())[:_MOST_FIELDS])})"

    def _told(self) -> Iterator[str]:
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Interval):
                yield f"{field.name}={value}"
            elif isinstance(value, float | np.floating):
                yield f"{field.name}={float(value):.4g}"
            elif isinstance(value, int | str | np.integer) and value != "":
                yield f"{field.name}={value!r}"

    def _repr_html_(self) -> str:
        return table_html(repr(self), self.to_frame())


def table_html(caption: str, frame: pd.DataFrame) -> str:
    """A caption over a table, for a notebook; what does not fit is counted."""
    shown = frame.head(MOST_ROWS)
    more = f" The first {len(shown)} of {len(frame)} rows; all are in to_frame()." if len(frame) > len(shown) else ""
    table = shown.to_html(index=False, border=0, float_format="{:.4g}".format, na_rep="–")
    return f"<p>{escape(caption)}.{more}</p>\n{table}"
