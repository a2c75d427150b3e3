"""The wiring of a circuit: which head reads what another wrote, and through which of its ports.

Drawn from a circuit's table of edges, a claim about a construction (or a hypothesis about a learned model), where
``reports.flow`` draws what was measured in one round.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from interp.checks import checked, require_columns
from interp.errors import require
from reports.palette import INK, LIGHT, PAPER
from reports.style import WIDTH, styled

PORTS = {"query": LIGHT["blue"], "key": LIGHT["amber"], "value": LIGHT["green"], "residual": LIGHT["grey"]}
_CHARACTER = 0.036
"""Inches: half the width of a character in a box."""


@checked
@styled
def wiring(layers: Sequence[Sequence[str]], edges: pd.DataFrame) -> Figure:
    """Heads in columns by layer, exits at the right, an arrow for every edge, coloured by the port that reads.

    Args:
        layers: names of the heads (and groups of neurons), layer by layer.
        edges: columns ``source``, ``target``, ``port``; a target that is no head is an exit ("prediction", "update").
    """
    require_columns("edges", edges, "source", "target", "port")
    heads = [name for layer in layers for name in layer]
    exits = [name for name in dict.fromkeys(edges["target"]) if name not in heads]
    for name in edges["source"]:
        require(name in heads, f"an edge starts at {name!r}, which is not one of the heads {', '.join(heads)}")
    columns = [*layers, exits]
    tallest = max(len(column) for column in columns)
    place = {
        name: (float(x), (len(column) - 1) / 2 - y) for x, column in enumerate(columns) for y, name in enumerate(column)
    }
    figure = Figure(figsize=(WIDTH, 1.1 + 0.5 * tallest))
    axes = figure.subplots()
    for edge in edges.to_dict("records"):
        (x0, y0), (x1, y1) = place[edge["source"]], place[edge["target"]]
        half = len(columns) * _CHARACTER / WIDTH
        start, end = (x0 + half * len(edge["source"]), y0), (x1 - half * len(edge["target"]), y1)
        axes.add_patch(_arrow(start, end, PORTS[edge["port"]], skips=x1 - x0 > 1))
    for name, (x, y) in place.items():
        _box(axes, name, x, y, is_exit=name in exits)
    for x in range(len(columns)):
        title = f"layer {x + 1}" if x < len(layers) else "exits"
        axes.text(x, tallest / 2 + 0.45, title, ha="center", va="bottom", color=LIGHT["grey"], fontsize=8.5)
    axes.set(xlim=(-0.45, len(columns) - 0.55), ylim=(-tallest / 2 - 0.35, tallest / 2 + 0.75))
    axes.axis("off")
    ports = [port for port in PORTS if port in set(edges["port"])]
    handles = [axes.plot([], [], color=PORTS[port], linewidth=2)[0] for port in ports]
    axes.legend(handles, [f"read by {port}" for port in ports], loc="upper center", bbox_to_anchor=(0.5, 0), ncols=4)
    return figure


def _box(axes: Axes, name: str, x: float, y: float, is_exit: bool) -> None:
    box = {"boxstyle": "round,pad=0.35", "facecolor": PAPER, "edgecolor": INK if is_exit else LIGHT["grey"]}
    weight = "bold" if is_exit else "normal"
    axes.text(x, y, name, ha="center", va="center", fontsize=9, fontweight=weight, bbox=box, zorder=3)


def _arrow(start: tuple[float, float], end: tuple[float, float], colour: str, skips: bool) -> FancyArrowPatch:
    """From the right side of a box to the left side of another, bowed past the boxes of layers in between."""
    bow = 0.25 if skips else 0.04
    return FancyArrowPatch(
        start,
        end,
        arrowstyle="-|>,head_length=5,head_width=2.5",
        connectionstyle=f"arc3,rad={bow if start[1] + end[1] <= 0 else -bow}",
        color=colour,
        linewidth=1.5,
        zorder=2,
        shrinkA=5,
        shrinkB=5,
    )
