"""The house style of every figure: one set of matplotlib settings, in force only while a figure is drawn or saved."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import matplotlib
from matplotlib.figure import Figure

from reports.palette import INK, LIGHT

WIDTH = 9.6
"""Inches: the width of a page's column."""

STYLE: dict[str, Any] = {
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.edgecolor": LIGHT["grey"],
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": LIGHT["grey"],
    "grid.alpha": 0.22,
    "grid.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.color": LIGHT["grey"],
    "ytick.color": LIGHT["grey"],
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.5,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}

Draw = TypeVar("Draw", bound=Callable[..., Figure])


def house_style(**more: Any) -> Any:
    """A context in which matplotlib has this style (and ``more``), whatever the caller has set; restored at its end."""
    return matplotlib.rc_context({**matplotlib.rcParamsDefault, "backend": "agg", **STYLE, **more})


def styled(draw: Draw) -> Draw:
    """Draw in the house style."""

    @wraps(draw)
    def inner(*args: Any, **kwargs: Any) -> Figure:
        with house_style():
            return draw(*args, **kwargs)

    return inner  # type: ignore[return-value]
