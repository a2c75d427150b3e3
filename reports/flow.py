"""A circuit as it runs: which position reads which, by which head, layer by layer.

Columns are the positions of a round, levels are the residual stream before and after each layer, and an arrow is a
head that moves something from one position to another. The arrows are measured (:func:`edges`): a head's attention,
where what it writes is not zero, so a head that is silent at a position draws nothing there. What an arrow does NOT
say: what is moved, and whether it matters; that is what patching is for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from numpy.typing import NDArray

from interp.checks import checked, require_columns
from interp.errors import require
from reports.palette import CYCLE, INK, LIGHT, PAPER
from reports.style import WIDTH, styled


@checked
def edges(
    patterns: Sequence[NDArray[np.floating]],
    writes: Sequence[NDArray[np.floating]],
    labels: Sequence[str],
    heads: Sequence[Sequence[str]],
    *,
    threshold: float = 0.05,
) -> pd.DataFrame:
    """The reads of one round that write something.

    Args:
        patterns: per layer ``[head, query, key]``.
        writes: per layer ``[head, query, key]``, the size of what each key contributes to the head's write (attention
            times the norm of the value's image).
        labels: of positions.
        heads: per layer, a name per head.
        threshold: smallest contribution drawn, as a share of the head's largest.

    Returns:
        Columns ``layer`` (from 1), ``head``, ``source``, ``target``, ``weight`` (the attention, at most 1 in size).
    """
    rows = []
    for layer, (pattern, write, names) in enumerate(zip(patterns, writes, heads, strict=True), start=1):
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


@checked
@styled
def flow(frame: pd.DataFrame, labels: Sequence[str], heads: Sequence[Mapping[str, str]]) -> Figure:
    """Draw the ``edges`` of a round.

    Args:
        frame: columns ``layer``, ``head``, ``source``, ``target``, ``weight``.
        labels: of positions, in order.
        heads: per layer, head name -> what the legend says of it; heads that draw no arrow are listed too.
    """
    require_columns("frame", frame, "layer", "head", "source", "target", "weight")
    n_layers = len(heads)
    colour = {name: CYCLE[i % len(CYCLE)] for names in heads for i, name in enumerate(names)}
    figure = Figure(figsize=(WIDTH, 1.0 + 1.25 * n_layers + 0.2 * (-(-len(colour) // 2))))
    axes = figure.subplots()
    _stream(axes, labels, n_layers, frame)
    column = {label: x for x, label in enumerate(labels)}
    records = frame.to_dict("records")
    for layer, names in enumerate(heads, start=1):
        for order, name in enumerate(names):
            reads = [r for r in records if r["layer"] == layer and r["head"] == name]
            spans = [((column[r["source"]], layer - 1), (column[r["target"]], layer)) for r in reads]
            for (start, end), read in zip(spans, reads, strict=True):
                axes.add_patch(_arrow(start, end, colour[name], read["weight"]))
            if spans:
                longest = max(spans, key=lambda span: abs(span[1][0] - span[0][0]))
                _label(axes, name, colour[name], *longest, height=_HEIGHTS[order % len(_HEIGHTS)])
    handles = [axes.plot([], [], color=colour[name], linewidth=2.5)[0] for name in colour]
    texts = [f"{name}  {text}".strip() for names in heads for name, text in names.items()]
    below = -0.55 / (1.25 * n_layers)
    axes.legend(handles, texts, loc="upper left", bbox_to_anchor=(-0.02, below), ncols=2, fontsize=8.5)
    return figure


def _stream(axes: Axes, labels: Sequence[str], n_layers: int, frame: pd.DataFrame) -> None:
    """The residual stream: a line per position, a node per level; nodes that are written are filled."""
    written = set(zip(frame["target"], frame["layer"], strict=True))
    for x, label in enumerate(labels):
        axes.plot([x, x], [0, n_layers], color=LIGHT["grey"], linewidth=0.8, alpha=0.4, zorder=0)
        for level in range(n_layers + 1):
            full = (label, level) in written
            axes.plot(
                x, level, "o", markersize=5, color=INK if full else LIGHT["grey"], alpha=1 if full else 0.5, zorder=4
            )
    axes.set_xticks(range(len(labels)), labels)
    axes.set_yticks(range(n_layers + 1), ["input", *(f"after layer {i}" for i in range(1, n_layers + 1))])
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.set(xlim=(-0.6, len(labels) - 0.4), ylim=(-0.25, n_layers + 0.25))


def _arrow(start: tuple[float, float], end: tuple[float, float], colour: str, weight: float) -> FancyArrowPatch:
    return FancyArrowPatch(
        start,
        end,
        arrowstyle="-|>,head_length=5,head_width=2.6",
        connectionstyle="arc3,rad=0" if start[0] != end[0] else "arc3,rad=0.35",
        shrinkA=3,
        shrinkB=4,
        color=colour,
        linewidth=1.6,
        alpha=0.35 + 0.6 * weight,
        zorder=2,
    )


def _label(
    axes: Axes, name: str, colour: str, start: tuple[float, float], end: tuple[float, float], height: float
) -> None:
    """The head's name, on its longest arrow; heads of one layer are named at different heights."""
    x = start[0] + height * (end[0] - start[0]) + (0.28 if start[0] == end[0] else 0)
    box = {"facecolor": PAPER, "edgecolor": "none", "pad": 1.2}
    axes.text(x, start[1] + height, name, color=colour, fontsize=8.5, ha="center", va="center", bbox=box, zorder=5)


_HEIGHTS = (0.38, 0.58, 0.48, 0.68)
