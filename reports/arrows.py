"""One round as it ran, arrow by arrow.

:func:`flow` draws what was measured in one round, an arrow for a head that moves something from one position to
another, and does NOT say what is moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
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
def written(
    patterns: Sequence[NDArray[np.floating]],
    writes: Sequence[NDArray[np.floating]],
    labels: Sequence[str],
    heads: Sequence[Sequence[str]],
    *,
    threshold: float = 0.05,
) -> pd.DataFrame:
    """The reads of one round that write something: ``layer``, ``head``, ``source``, ``target``, ``weight``.

    Args:
        patterns, writes: per layer ``[head, query, key]``; a write is the size of what a key contributes to the head's
            (attention times the norm of the value's image).
        threshold: smallest contribution drawn, as a share of the head's largest.
    """
    require(
        len(patterns) == len(writes) == len(heads),
        f"patterns, writes and heads are of one number of layers, got {len(patterns)}, {len(writes)} and {len(heads)}",
    )
    rows = []
    for layer, (pattern, write, names) in enumerate(zip(patterns, writes, heads, strict=True)):
        require(
            pattern.shape == write.shape == (len(names), len(labels), len(labels)),
            f"layer {layer}: pattern {pattern.shape} and write {write.shape} must be [head, query, key] for "
            f"{len(names)} heads and {len(labels)} positions",
        )
        for h, name in enumerate(names):
            least = max(threshold * float(np.abs(write[h]).max(initial=0)), 1e-9)
            for query, key in np.argwhere(np.abs(write[h]) >= least):
                weight = float(np.clip(abs(pattern[h, query, key]), 0.15, 1))
                rows.append((layer, name, labels[key], labels[query], weight))
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
        frame: columns ``layer``, ``source``, ``target``, ``weight`` (0 to 1) and ``of``, the group of each read; a
            ``label`` for each arrow where there is one, else a group is named once, on its longest arrow.
        legend: group -> what the legend says of it; a group that draws no arrow is listed, too.
    """
    require_columns("frame", frame, "layer", "source", "target", "weight", "of")
    colour = {key: _COLOURS[i % len(_COLOURS)] for i, key in enumerate(legend)}
    columns = 2 if max(map(len, legend.values()), default=0) < 7.5 * (width - 1) else 1
    figure, axes = _stream(labels, n_layers, frame, width, 0.2 * -(-len(legend) // columns))
    column = {label: x for x, label in enumerate(labels)}
    named: dict[Any, tuple[float, str, str, _Span]] = {}
    for i, read in enumerate(frame.to_dict("records")):
        span = (
            (column[read["source"]], read["layer"]),
            (column[read["target"]], read["layer"] + 1),
        )
        bow, alpha = 0 if span[0][0] != span[1][0] else 0.35, 0.35 + 0.6 * read["weight"]
        look: dict[str, Any] = {
            "shrinkA": 3,
            "shrinkB": 4,
            "linewidth": 1.6,
            "alpha": alpha,
            "clip_on": False,
        }
        look |= {
            "arrowstyle": "-|>,head_length=5,head_width=2.6",
            "connectionstyle": f"arc3,rad={bow}",
            "zorder": 2,
        }
        axes.add_patch(FancyArrowPatch(*span, color=colour[read["of"]], **look))
        key = i if "label" in read else (read["layer"], read["of"])
        long = abs(span[1][0] - span[0][0])
        if key not in named or long > named[key][0]:
            named[key] = (long, read.get("label", read["of"]), colour[read["of"]], span)
    handles = [axes.plot([], [], color=hue, linewidth=2.5)[0] for hue in colour.values()]
    figure.legend(
        handles, list(legend.values()), loc="outside lower left", ncols=columns, fontsize=8.5
    )
    _name(figure, axes, sorted(named.values(), key=lambda one: one[0]))
    return figure


_COLOURS = (*CYCLE, INK)
_Point = tuple[float, float]
_Span = tuple[_Point, _Point]
_COLUMN = 0.17  # inches that a position takes at least: a rotated label
_MANY = 40  # positions of which every second one is labelled


def _stream(
    labels: Sequence[str], n_layers: int, frame: pd.DataFrame, width: float, below: float
) -> tuple[Figure, Axes]:
    """The residual stream: a line per position, a node per level, filled if written; ``below``: the legend's inches."""
    every = 1 + (len(labels) > _MANY)
    figure = Figure(
        figsize=(
            max(width, 1.2 + _COLUMN * len(labels) / every),
            0.7 + max(0.95 * n_layers, 2.0) + below,
        )
    )
    axes = figure.subplots()
    written = set(zip(frame["target"], frame["layer"] + 1, strict=True))
    for x, label in enumerate(labels):
        axes.plot([x, x], [0, n_layers], color=LIGHT["grey"], linewidth=0.8, alpha=0.4, zorder=0)
        for level in range(n_layers + 1):
            colour, alpha = (INK, 1.0) if (label, level) in written else (LIGHT["grey"], 0.5)
            axes.plot(x, level, "o", markersize=5, color=colour, alpha=alpha, zorder=4)
    crowded = len(labels) * (1 + max(map(len, labels))) > 13 * (width - 1.1)
    axes.set_xticks(range(0, len(labels), every), labels[::every], rotation=90 if crowded else 0)
    axes.set_yticks(range(n_layers + 1), ["input", *(f"after layer {i}" for i in range(n_layers))])
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.set(xlim=(-0.6, len(labels)), ylim=(-0.25, n_layers + 0.25))
    return figure, axes


def _name(figure: Figure, axes: Axes, named: Sequence[tuple[float, str, str, _Span]]) -> None:
    """A name on every arrow, where no other stands: along it, or a little above or below it."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # what is measured here stays where it is
    renderer = FigureCanvasAgg(figure).get_renderer()
    taken: list[Any] = []
    for _, text, colour, (start, end) in named:
        label = axes.text(
            *start, text, color=colour, fontsize=8.5, ha="center", va="center", zorder=5
        )
        label.set_bbox({"facecolor": PAPER, "edgecolor": "none", "pad": 1.2})
        for aside, along in product(_ASIDE, _ALONG):
            bowed = 0.28 if start[0] == end[0] else 0
            label.set_position(
                (start[0] + along * (end[0] - start[0]) + bowed, start[1] + along + aside)
            )
            box = label.get_window_extent(renderer)
            if not any(box.overlaps(other) for other in taken):
                break
        taken.append(box)


_ALONG = (0.5, 0.4, 0.6, 0.3, 0.7, 0.22, 0.78)
_ASIDE = (0.0, 0.09, -0.09, 0.18, -0.18, 0.27, -0.27)
"""Where a label is tried: shares of the way along its arrow, and shares of a layer's height beside it."""
