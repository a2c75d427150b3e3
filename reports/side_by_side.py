"""Two machines side by side: their parts joined by lines that say how alike they are.

The picture shows measures and computes nothing: a solid line joins parts that are the same, a broken one parts that are
different, a dotted one parts of which nothing was decided; a part that does not apply is joined by none.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from interp.measure import Measure, Word
from interp.palette import INK, LIGHT, PAPER
from interp.style import styled

PARTS = {"behaviour": "predictions", "circuit": "heads", "update": "update", "state": "state carried"}
"""Key of a comparison's measure -> the part of a machine that it is about, from the top."""
LOOKS: dict[Word, tuple[str, Any]] = {
    "yes": (LIGHT["green"], "-"),
    "no": (LIGHT["vermilion"], (0, (2.2, 1.6))),
    "undecided": (LIGHT["grey"], (0, (1, 1.6))),
    "not applicable": (LIGHT["grey"], ""),
}
"""Word -> colour and dash of its line."""
_WIDTH, _LEFT, _RIGHT, _HALF, _HIGH = 6.2, 0.9, 5.3, 0.7, 0.66
"""Inches: of the picture, narrow enough for a phone; where the machines stand; half of a part, and its height."""


@styled
def machines(model: str, reference: str, measures: Sequence[Measure]) -> Figure:
    """Draw the parts of two machines, joined by the measures whose keys are in :data:`PARTS`.

    >>> from interp.statistics import Interval
    >>> state = Measure("state", "Holds the same state", Interval(1, 1, 1), 0.95, needs_control=False)
    >>> len(machines("a", "b", [state]).axes)
    1
    """
    of = {one.key: one for one in measures}
    drawn = [key for key in PARTS if key in of]
    figure = Figure(figsize=(_WIDTH, 0.5 + 0.62 * len(drawn)))
    axes = figure.subplots()
    top = float(len(drawn))
    text: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9.5}
    for x, name in ((_LEFT, model), (_RIGHT, reference)):
        _box(axes, x, (top - 1) / 2, 2 * _HALF + 0.24, top + 0.15, edge=LIGHT["grey"])
        axes.text(x, top - 0.22, name, ha="center", va="bottom", fontsize=10, fontweight="bold", color=INK)
    axes.text(_WIDTH / 2, top - 0.22, "the same?", ha="center", va="bottom", fontsize=9, color=LIGHT["grey"])
    for i, key in enumerate(drawn):
        y, one = top - 1 - i, of[key]
        colour, dash = LOOKS[one.word]
        if dash:
            axes.plot([_LEFT + _HALF, _RIGHT - _HALF], [y, y], color=colour, linestyle=dash, linewidth=2.4, zorder=1)
        number = "" if isnan(one.number.estimate) else f" {one.number.estimate:.3f}".replace(" 0.", " .")
        word = axes.text(_WIDTH / 2, y, f"{one.word}{number}", color=colour, **text)
        word.set_bbox({"facecolor": PAPER, "edgecolor": "none", "pad": 2})
        word.set_fontweight("bold")
        beside = one.condition or (one.unit if number else "")
        axes.text(_WIDTH / 2, y - 0.27, beside, color=LIGHT["grey"], **{**text, "fontsize": 8})
        for x in (_LEFT, _RIGHT):
            _box(axes, x, y, 2 * _HALF, _HIGH, edge=colour)
            axes.text(x, y, PARTS[key], color=INK, **text)
    axes.set(xlim=(0, _WIDTH), ylim=(-0.66, top + 0.08))
    axes.axis("off")
    return figure


def _box(axes: Axes, x: float, y: float, width: float, height: float, edge: str) -> None:
    corner = (x - width / 2, y - height / 2)
    look: dict[str, Any] = {"boxstyle": "round,pad=0,rounding_size=0.08", "facecolor": "none", "linewidth": 1.1}
    axes.add_patch(FancyBboxPatch(corner, width, height, edgecolor=edge, **look))
