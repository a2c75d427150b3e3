"""One round as it ran, arrow by arrow.

:func:`flow` draws what was measured in one round, an arrow for a head that moves something from one
position to another, and does NOT show what is moved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from numpy.typing import NDArray

from interp.results.palette import CYCLE, INK, LIGHT, PAPER
from interp.results.style import WIDTH, styled
from interp.support.checks import checked, require_columns
from interp.support.errors import require


@checked
def find_writes(
    patterns: Sequence[NDArray[np.floating]],
    writes: Sequence[NDArray[np.floating]],
    labels: Sequence[str],
    heads: Sequence[Sequence[str]],
    *,
    threshold: float = 0.05,
) -> pd.DataFrame:
    """Find the reads of one round that write something.

    Args:
        patterns: attention, per layer ``[head, query, key]``.
        writes: per layer ``[head, query, key]``, how much a key contributes to what the head writes: attention times
            the norm of the value's image.
        labels: of the positions.
        heads: a name per head, per layer.
        threshold: smallest contribution that counts, as a share of the head's largest.

    Returns:
        A row a read: ``layer``, ``head``, ``source``, ``target`` and ``weight``.
    """
    counts = len(patterns), len(writes), len(heads)
    require(
        len(set(counts)) == 1,
        "patterns, writes and heads are of one number of layers, got {}, {} and {}".format(*counts),
    )
    rows = []
    for layer, (pattern, write, names) in enumerate(zip(patterns, writes, heads, strict=True)):
        shape = (len(names), len(labels), len(labels))
        require(
            pattern.shape == write.shape == shape,
            f"layer {layer}: pattern {pattern.shape} and write {write.shape} must be [head, query, key] for "
            f"{len(names)} heads and {len(labels)} positions",
        )
        sizes = np.abs(write)
        smallest = np.maximum(threshold * sizes.max(axis=(1, 2), initial=0), 1e-9)
        for h, query, key in np.argwhere(sizes >= smallest[:, None, None]):
            weight = float(np.clip(abs(pattern[h, query, key]), 0.15, 1))
            rows.append((layer, names[h], labels[key], labels[query], weight))
    return pd.DataFrame(rows, columns=["layer", "head", "source", "target", "weight"])


@styled
def flow(
    frame: pd.DataFrame,
    labels: Sequence[str],
    n_layers: int,
    legend: Mapping[str, str],
    *,
    width: float = WIDTH,
) -> Figure:
    """Draw reads of a round, a colour a group of them, paler where they weigh less.

    Args:
        frame: columns ``layer``, ``source``, ``target``, ``weight`` (0 to 1) and ``of``, the group
            of each read, which is named on its longest arrow in every layer.
        labels: of the positions.
        n_layers: of the model.
        legend: group -> its text in the legend; a group that draws no arrow is listed, too.
        width: of the figure, in inches.
    """
    require_columns("frame", frame, "layer", "source", "target", "weight", "of")
    colours = dict(zip(legend, cycle(_COLOURS), strict=False))
    longest = max(map(len, legend.values()), default=0)
    columns = 2 if longest < 7.5 * (width - 1) else 1
    n_rows = math.ceil(len(legend) / columns)
    figure, axes = _draw_stream(labels, n_layers, frame, width, 0.2 * n_rows)
    column = {label: x for x, label in enumerate(labels)}
    named: dict[Any, _Arrow] = {}
    for read in frame.to_dict("records"):
        layer, group = read["layer"], read["of"]
        arrow = _Arrow(
            start=(column[read["source"]], layer),
            end=(column[read["target"]], layer + 1),
            text=group,
            colour=colours[group],
        )
        arrow.draw(axes, alpha=0.35 + 0.6 * read["weight"])
        key = layer, group
        if key not in named or arrow.length > named[key].length:
            named[key] = arrow
    handles = [axes.plot([], [], color=hue, linewidth=2.5)[0] for hue in colours.values()]
    texts = list(legend.values())
    figure.legend(handles, texts, loc="outside lower left", ncols=columns, fontsize=8.5)
    _name_arrows(figure, axes, sorted(named.values(), key=lambda arrow: arrow.length))
    return figure


_Point = tuple[float, float]


@dataclass(frozen=True)
class _Arrow:
    """An arrow from what is read to where it is written, and its name."""

    start: _Point
    end: _Point
    text: str
    colour: str

    @property
    def length(self) -> float:
        """How many positions it passes."""
        return abs(self.end[0] - self.start[0])

    def draw(self, axes: Axes, alpha: float) -> None:
        """Draw it, bowed where a position reads itself.

        Args:
            axes: where.
            alpha: opacity.
        """
        bow = 0 if self.length else 0.35
        patch = FancyArrowPatch(
            self.start,
            self.end,
            color=self.colour,
            alpha=alpha,
            connectionstyle=f"arc3,rad={bow}",
            **_ARROW,
        )
        axes.add_patch(patch)

    def point(self, share: float, beside: float) -> _Point:
        """Return the point at a share of the way along the arrow, shifted upwards.

        Args:
            share: of the way along the arrow.
            beside: shift upwards, as a share of a layer's height.
        """
        bowed = 0 if self.length else 0.28
        x = self.start[0] + share * (self.end[0] - self.start[0]) + bowed
        return x, self.start[1] + share + beside


_COLOURS = (*CYCLE, INK)
_ARROW: dict[str, Any] = {
    "shrinkA": 3,
    "shrinkB": 4,
    "linewidth": 1.6,
    "clip_on": False,
    "arrowstyle": "-|>,head_length=5,head_width=2.6",
    "zorder": 2,
}
_COLUMN = 0.17  # inches that a position takes at least: a rotated label
_MANY = 40  # positions of which every second one is labelled


def _draw_stream(
    labels: Sequence[str], n_layers: int, frame: pd.DataFrame, width: float, below: float
) -> tuple[Figure, Axes]:
    """Draw the residual stream: a line for each position, a node for each level, filled if it was written.

    Args:
        labels: of the positions.
        n_layers: of the model.
        frame: the reads.
        width: of the figure, at least.
        below: inches of the legend.
    """
    every = 2 if len(labels) > _MANY else 1
    height = 0.7 + max(0.95 * n_layers, 2.0) + below
    needed = 1.2 + _COLUMN * len(labels) / every
    figure = Figure(figsize=(max(width, needed), height))
    axes = figure.subplots()
    written = set(zip(frame["target"], frame["layer"] + 1, strict=True))
    for x, label in enumerate(labels):
        axes.plot([x, x], [0, n_layers], color=LIGHT["grey"], linewidth=0.8, alpha=0.4, zorder=0)
        for level in range(n_layers + 1):
            look: dict[str, Any] = {"color": LIGHT["grey"], "alpha": 0.5}
            if (label, level) in written:
                look = {"color": INK}
            axes.plot(x, level, "o", markersize=5, zorder=4, **look)
    longest = max(map(len, labels))
    is_crowded = len(labels) * (1 + longest) > 13 * (width - 1.1)
    rotation = 90 if is_crowded else 0
    axes.set_xticks(range(0, len(labels), every), labels[::every], rotation=rotation)
    levels = ["input", *(f"after layer {i}" for i in range(n_layers))]
    axes.set_yticks(range(n_layers + 1), levels)
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.set(xlim=(-0.6, len(labels)), ylim=(-0.25, n_layers + 0.25))
    return figure, axes


def _name_arrows(figure: Figure, axes: Axes, arrows: Sequence[_Arrow]) -> None:
    """Write a name on every arrow, where no other stands: along it, or a little above or below it.

    Args:
        figure: that is drawn.
        axes: of the arrows.
        arrows: those that are named, in the order in which their names take their places.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # what is measured here stays where it is
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes: list[Any] = []
    for arrow in arrows:
        label = axes.text(
            *arrow.start,
            arrow.text,
            color=arrow.colour,
            fontsize=8.5,
            ha="center",
            va="center",
            zorder=5,
        )
        label.set_bbox({"facecolor": PAPER, "edgecolor": "none", "pad": 1.2})
        for beside, share in product(_BESIDE, _SHARES):
            label.set_position(arrow.point(share, beside))
            box = label.get_window_extent(renderer)
            if box.count_overlaps(boxes) == 0:
                break
        boxes.append(box)


_SHARES = (0.5, 0.4, 0.6, 0.3, 0.7, 0.22, 0.78)
_BESIDE = (0.0, 0.09, -0.09, 0.18, -0.18, 0.27, -0.27)
"""Where a label is tried: shares of the way along its arrow, and shares of a layer's height beside it."""
