"""Small multiples: one panel per head, regime or family, with shared axes and one legend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from interp.results.figures import colour_bar, draw_cells, draw_curve, write_names_at_ends
from interp.results.palette import LIGHT, choose_line_styles
from interp.results.style import WIDTH, in_house_style
from interp.support.checks import require_columns
from interp.support.errors import require

_MOST_HEADS_IN_ROW = 8
_SMALLEST_TEXT = 7.5
"""Size of the smallest text in a panel, in points."""


@in_house_style
def attention(
    patterns: Sequence[NDArray[Any]],
    labels: Sequence[str],
    heads: Sequence[Sequence[str]],
) -> Figure:
    """Draw the attention pattern of every head in one round, layer by layer.

    In each panel, rows are the positions that attend (queries), and columns the positions that are
    attended to (keys).

    Args:
        patterns: ``[head, query, key]`` for each layer.
        labels: labels of the positions; only some are printed on small panels.
        heads: for each layer, a name per head.
    """
    n_patterns = [len(pattern) for pattern in patterns]
    n_names = [len(names) for names in heads]
    require(
        sum(n_names) > 0 and n_patterns == n_names,
        f"a pattern and a name for each head of each layer, got {n_patterns} patterns and {n_names} names",
    )
    columns = min(_MOST_HEADS_IN_ROW, max(n_names))
    rows: list[list[tuple[NDArray[Any], str]]] = []  # (pattern, name) of each panel in the row
    for pattern, names in zip(patterns, heads, strict=True):
        panels = list(zip(pattern, names, strict=True))
        rows += [panels[start : start + columns] for start in range(0, len(panels), columns)]
    side = min((WIDTH - 1.2) / columns, 3.0)
    figure = Figure(figsize=(1.2 + side * columns, 0.6 + (side + 0.2) * len(rows)))
    grid = figure.subplots(len(rows), columns, squeeze=False, sharex=True, sharey=True)
    norm = _make_scale([np.asarray(pattern) for pattern in patterns])
    # A label needs 1.5 points more than its text. The cells fill 0.9 of a panel's side, and an inch
    # has 72 points. If not all labels fit, only every second, third, ... is printed.
    room = 72 * side * 0.9
    step = max(1, math.ceil(len(labels) * (_SMALLEST_TEXT + 1.5) / room))
    places = range(0, len(labels), step)
    printed_labels = labels[::step]
    for axes_of_row, row in zip(grid, rows, strict=True):
        for axes, (pattern, name) in zip(axes_of_row, row, strict=False):
            image = draw_cells(axes, pattern, norm, aspect="equal")
            axes.set_title(name, fontsize=8.5, pad=2)
            axes.tick_params(pad=1.5)
            axes.spines[:].set(visible=True, linewidth=0.5, edgecolor=LIGHT["grey"])
            axes.set_yticks(places, printed_labels, fontsize=_SMALLEST_TEXT)
            axes.set_xticks(places, printed_labels, fontsize=_SMALLEST_TEXT, rotation=90)
        for axes in axes_of_row[len(row) :]:
            axes.axis("off")
    figure.supxlabel("position that is read", fontsize=9)
    figure.supylabel("position that reads", fontsize=9)
    colour_bar(figure, image, "weight", ax=grid, fraction=0.02, pad=0.01, aspect=30)
    return figure


def _make_scale(patterns: Sequence[NDArray[Any]]) -> Normalize:
    """Return the colour scale of all panels: from 0 to the largest weight, or symmetric around 0 if
    some weights are negative.
    """
    # If all weights are 0, the scale ends at 1, since it must not have the length 0.
    largest = max(float(np.abs(pattern).max(initial=0)) for pattern in patterns) or 1.0
    is_signed = any((pattern < 0).any() for pattern in patterns)
    return Normalize(-largest if is_signed else 0, largest)


@in_house_style
def curves(
    frame: pd.DataFrame,
    *,
    by: str,
    ylabel: str,
    columns: int = 3,
    height: float = 2.1,
    width: float = WIDTH,
    direct: bool = False,
) -> Figure:
    """Draw curves with bands over rounds, one panel per value of a column, with shared axes and one
    legend.

    Args:
        frame: one row per point of a curve: the column that ``by`` names, ``round``, ``algorithm``
            (key of the curve, which determines colour and dash pattern) and ``mean`` (its height);
            optionally ``name`` (for the legend), and ``low`` and ``high`` (a band). The first
            algorithm gets the thickest line.
        by: name of the column that has a panel for each value.
        ylabel: label of the vertical axis.
        columns: maximum number of panels in a row.
        height: height of a panel, in inches.
        width: width of the picture, in inches.
        direct: True writes names at the ends of the curves instead of a legend.
    """
    require_columns("frame", frame, by, "round", "algorithm", "mean")
    panels = list(frame[by].unique())
    columns = min(columns, len(panels))
    n_rows = math.ceil(len(panels) / columns)
    keys = list(frame["algorithm"].unique())
    names_in_row = round(width / 3)  # of the legend, 3 inches each
    legend_height = 0.35 + 0.22 * math.ceil(len(keys) / names_in_row)
    figure = Figure(figsize=(width, (height + 0.25) * n_rows + legend_height))
    grid = figure.subplots(n_rows, columns, squeeze=False, sharex=True, sharey=True).flatten()
    look = choose_line_styles(keys)
    colours = {key: look[key].colour for key in keys}
    panel_width = width / columns  # inches
    for i, (axes, panel) in enumerate(zip(grid, panels, strict=False)):
        rows = frame[frame[by] == panel]
        for key, curve in rows.groupby("algorithm", sort=False):
            draw_curve(
                axes, curve.sort_values("round"), "round", look[str(key)], order=keys.index(key)
            )
        # About 10 characters and 3 ticks fit into an inch.
        axes.set_title(fill(str(panel), int(10 * panel_width)), fontsize=9)
        axes.xaxis.set_major_locator(MaxNLocator(int(3.2 * panel_width), integer=True))
        axes.margins(x=0.01)
        is_lowest = i + columns >= len(panels)  # no panel stands below it
        axes.tick_params(labelbottom=is_lowest)
        if is_lowest:
            axes.set_xlabel("round")
        if direct:
            write_names_at_ends(axes, rows, "round", colours, size=_SMALLEST_TEXT)
    for axes in grid[len(panels) :]:
        axes.axis("off")
    figure.supylabel(ylabel, fontsize=9.5)
    if not direct:
        named_rows = frame.assign(name=frame.get("name", frame["algorithm"]))
        names = named_rows.groupby("algorithm", sort=False)["name"].first().tolist()
        handles = []
        for key in keys:
            # An empty curve, for the legend: the first panel may lack some algorithms.
            handles += grid[0].plot([], color=look[key].colour, linestyle=look[key].dash)
        handles[0].set_linewidth(2.4)  # about as in the panels
        n_names = min(names_in_row, len(keys))
        figure.legend(handles, names, loc="outside lower left", ncols=n_names)
    return figure
