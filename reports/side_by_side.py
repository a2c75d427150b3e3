"""Two machines side by side: their parts joined by lines that say how alike they are.

The picture shows verdicts and computes nothing: a solid line joins parts that are the same, a broken one parts that are
different, a dotted one parts of which nothing was decided; a part that was not compared is joined by none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from interp.checks import require_columns
from interp.errors import require_known
from interp.palette import INK, LIGHT, PAPER
from interp.style import WIDTH, styled

PARTS = {
    "behaviour": "predictions",
    "circuit": "heads",
    "update": "update",
    "state": "state carried",
}
"""Question of a comparison -> the part of a machine that it is about, from the top."""
_LOOKS: dict[str, tuple[str, Any]] = {
    "same": (LIGHT["green"], "-"),
    "different": (LIGHT["vermilion"], (0, (2.2, 1.6))),
    "undecided": (LIGHT["grey"], (0, (1, 1.6))),
    "not applicable": (LIGHT["grey"], ""),
}
"""Word of a verdict -> colour and dash of its line."""
_WIDTH, _LEFT, _RIGHT, _HALF, _HIGH = 5.1, 0.9, 4.2, 0.7, 0.66
"""Inches: of the picture, narrow enough for a phone; where the machines stand; half of a part, and its height."""


@styled
def machines(model: str, reference: str, answers: Mapping[str, tuple[str, str]]) -> Figure:
    """Draw the parts of two machines, joined.

    Args:
        answers: question (a key of :data:`PARTS`) -> its word, and a few words that stand beside it on the line.

    >>> drawn = machines("a", "b", {"state": ("same", ".998"), "behaviour": ("different", ".57")})
    >>> len(drawn.axes)
    1
    """
    for question, (word, _) in answers.items():
        require_known("question", question, PARTS)
        require_known("verdict", word, _LOOKS)
    asked = [question for question in PARTS if question in answers]
    figure = Figure(figsize=(_WIDTH, 0.5 + 0.45 * len(asked)))
    axes = figure.subplots()
    top = float(len(asked))
    text: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9.5}
    for x, name in ((_LEFT, model), (_RIGHT, reference)):
        _box(axes, x, (top - 1) / 2, 2 * _HALF + 0.24, top + 0.15, edge=LIGHT["grey"])
        axes.text(x, top - 0.22, name, ha="center", va="bottom", fontsize=10, fontweight="bold", color=INK)
    for i, question in enumerate(asked):
        y, (word, beside) = top - 1 - i, answers[question]
        colour, dash = _LOOKS[word]
        if dash:
            axes.plot([_LEFT + _HALF, _RIGHT - _HALF], [y, y], color=colour, linestyle=dash, linewidth=2.4, zorder=1)
        said = axes.text(_WIDTH / 2, y, f"{word} {beside}".strip(), color=colour, fontweight="bold", **text)
        said.set_bbox({"facecolor": PAPER, "edgecolor": "none", "pad": 2})
        for x in (_LEFT, _RIGHT):
            _box(axes, x, y, 2 * _HALF, _HIGH, edge=colour)
            axes.text(x, y, PARTS[question], color=INK, **text)
    axes.set(xlim=(0, _WIDTH), ylim=(-0.66, top + 0.08))
    axes.axis("off")
    return figure


def _box(axes: Axes, x: float, y: float, width: float, height: float, edge: str) -> None:
    corner = (x - width / 2, y - height / 2)
    look: dict[str, Any] = {"boxstyle": "round,pad=0,rounding_size=0.08", "facecolor": "none", "linewidth": 1.1}
    axes.add_patch(FancyBboxPatch(corner, width, height, edgecolor=edge, **look))


@styled
def verdicts(frame: pd.DataFrame) -> Figure:
    """Verdicts on several models, a panel a question: each number with its interval beside the threshold.

    ``frame`` has columns ``model``, ``question``, ``verdict``, ``value``, ``low``, ``high`` and ``threshold``; numbers
    that do not exist are NaN.
    """
    require_columns("frame", frame, "model", "question", "verdict", "value", "low", "high", "threshold")
    models = list(dict.fromkeys(frame["model"]))
    asked = [question for question in PARTS if question in set(frame["question"])]
    figure = Figure(figsize=(WIDTH, 0.95 + 0.36 * len(models)))
    for axes, question in zip(figure.subplots(1, len(asked), sharey=True, squeeze=False)[0], asked, strict=True):
        for row in frame[frame["question"] == question].to_dict("records"):
            y, (colour, _) = len(models) - 1 - models.index(row["model"]), _LOOKS[row["verdict"]]
            if np.isfinite(row["low"]):
                axes.plot([row["low"], row["high"]], [y, y], color=colour, linewidth=4, alpha=0.45)
            axes.plot(row["value"], y, "o" if row["verdict"] == "same" else "D", color=colour, markersize=6)
            side = "left" if row["value"] < 0.5 else "right"
            beside = (row["value"] + (0.06 if side == "left" else -0.06), y + 0.3)
            axes.annotate(row["verdict"], beside, ha=side, va="center", fontsize=8, color=colour)
            if np.isfinite(row["threshold"]):
                axes.plot([row["threshold"]] * 2, [y - 0.3, y + 0.3], color=INK, linewidth=1)
        axes.set(xlim=(-0.05, 1.05), ylim=(-0.6, len(models) - 0.3), title=PARTS[question])
        axes.set_xticks([0, 0.5, 1], ["0", ".5", "1"])
        axes.set_yticks(range(len(models)), models[::-1])
        axes.tick_params(axis="y", length=0)
        axes.grid(False, axis="y")
    ticks = ", the tick what it is held against" if frame["threshold"].notna().any() else ""
    figure.supxlabel(f"how alike (1: the same); a bar is the 95 % interval{ticks}", fontsize=8.5)
    return figure
