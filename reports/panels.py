"""Small multiples: the same little picture for every head, regime or family, on shared axes with one legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from interp.results.figures import REFERENCE, WHOLE, band, colour_bar, name_ends, painted
from interp.results.palette import INK, LIGHT, looks
from interp.results.style import WIDTH, styled
from interp.support.checks import array_of, integer, require_columns
from interp.support.errors import require

_SMALL = 7.5  # points: the smallest text in a panel


@styled
def attention(
    patterns: Sequence[NDArray[Any]],
    labels: Sequence[str],
    heads: Sequence[Sequence[str]],
    *,
    columns: int = 8,
    width: float = WIDTH,
) -> Figure:
    """Every head's pattern in one round, layer after layer: rows attend to columns.

    Args:
        patterns, heads: per layer ``[head, query, key]``, and a name per head.
        labels: of positions; thinned out where panels are too small for all.
        columns: panels in a row, at most.
    """
    require(
        len(patterns) == len(heads), f"{len(patterns)} layers of patterns, names for {len(heads)}"
    )
    for pattern, names in zip(patterns, heads, strict=True):
        shape = np.shape(pattern)
        require(
            len(shape) == 3 and shape[0] == len(names),
            f"patterns are [head, query, key] of {len(names)} named heads, got shape {shape}",
        )
    integer("columns", columns, 1)
    rows = [
        (layer, start)
        for layer, names in enumerate(heads)
        for start in range(0, len(names), columns)
    ]
    columns = max(min(columns, len(names)) for names in heads)
    side = min((width - 1.2) / columns, 3.0)
    figure = Figure(figsize=(1.2 + side * columns, 0.6 + (side + 0.2) * len(rows)))
    grid = figure.subplots(len(rows), columns, squeeze=False)
    largest = max(float(np.abs(pattern).max(initial=0)) for pattern in patterns) or 1.0
    signed = any(bool((np.asarray(pattern) < 0).any()) for pattern in patterns)
    norm = Normalize(-largest if signed else 0, largest)
    step = max(1, int(np.ceil(len(labels) * (_SMALL + 1.5) / (72 * side * 0.9))))
    places = list(range(0, len(labels), step))
    image: Any = None
    for (layer, start), of_row in zip(rows, grid, strict=True):
        for offset, axes in enumerate(of_row):
            head = start + offset
            if head >= len(heads[layer]):
                axes.axis("off")
                continue
            image = painted(axes, patterns[layer][head], norm, "equal")
            axes.set_title(heads[layer][head], fontsize=8.5, pad=2)
            axes.tick_params(pad=1.5)
            axes.spines[:].set(visible=True, linewidth=0.5, edgecolor=LIGHT["grey"])
            left, below = (
                places if there else [] for there in (offset == 0, (layer, start) == rows[-1])
            )
            axes.set_yticks(left, [labels[i] for i in left], fontsize=_SMALL)
            axes.set_xticks(below, [labels[i] for i in below], fontsize=_SMALL, rotation=90)
    figure.supxlabel("position that is read", fontsize=9)
    figure.supylabel("position that reads", fontsize=9)
    colour_bar(figure, image, "weight", ax=grid, fraction=0.02, pad=0.01, aspect=30)
    return figure


@styled
def curves(
    frame: pd.DataFrame,
    *,
    by: str,
    ylabel: str,
    x: str = "round",
    columns: int = 3,
    height: float = 2.1,
    width: float = WIDTH,
    direct: bool = False,
) -> Figure:
    """Curves with bands in one panel per value of ``by``, on the same axes, with one legend below them all.

    Args:
        frame: tidy, with columns ``by``, ``x``, ``algorithm`` (the key that picks colour and dash) and ``mean``;
            ``name``, ``low`` and ``high`` where there are any. The first algorithm is drawn strongest.
        height, width: of a panel, and of the picture, in inches.
        direct: names at the ends of the curves, in every panel, instead of a legend.
    """
    require_columns("frame", frame, by, x, "algorithm", "mean")
    panels = list(dict.fromkeys(frame[by]))
    columns = min(columns, len(panels))
    n_rows = -(-len(panels) // columns)
    keys = list(dict.fromkeys(frame["algorithm"]))
    wide = round(width / 3)  # names in a row of the legend
    figure = Figure(figsize=(width, (height + 0.25) * n_rows + 0.35 + 0.22 * -(-len(keys) // wide)))
    grid = figure.subplots(n_rows, columns, squeeze=False, sharex=True, sharey=True)
    look = looks(keys)
    for i, axes in enumerate(grid.flat):
        if i >= len(panels):
            axes.axis("off")
            continue
        for key, part in frame[frame[by] == panels[i]].groupby("algorithm", sort=False):
            band(axes, part.sort_values(x), x, look[str(key)], keys.index(key))
        axes.set_title(fill(str(panels[i]), int(10 * width / columns)), fontsize=9)
        if x in WHOLE:
            axes.xaxis.set_major_locator(MaxNLocator(int(3.2 * width / columns), integer=True))
        axes.margins(x=0.01)
        axes.tick_params(labelbottom=i + columns >= len(panels))
    for axes in grid.flat[max(len(panels) - columns, 0) : len(panels)]:
        axes.set_xlabel(x.replace("_", " "))
    figure.supylabel(ylabel, fontsize=9.5)
    named = (
        frame.groupby("algorithm", sort=False)["name"].first()
        if "name" in frame
        else {key: key for key in keys}
    )
    if direct:
        for axes, panel in zip(grid.flat, panels, strict=False):
            name_ends(
                axes, frame[frame[by] == panel], x, {key: look[key].colour for key in keys}, _SMALL
            )
        return figure
    handles = [
        grid.flat[0].plot(
            [],
            [],
            color=look[key].colour,
            linestyle=look[key].dash,
            linewidth=2.4 if i == 0 else 1.5,
        )[0]
        for i, key in enumerate(keys)
    ]
    figure.legend(
        handles,
        [str(named[key]) for key in keys],
        loc="outside lower left",
        ncols=min(wide, len(keys)),
    )
    return figure


@styled
def beside(curves: pd.DataFrame, differences: pd.DataFrame, *, x: str, ylabel: str) -> Figure:
    """Curves of a model and what it is held against, and beside them how far they are apart.

    Both frames have columns ``dose``, ``algorithm`` (the key that picks colour and dash), ``name``, ``mean``, ``low``
    and ``high``; ``x`` is what the axis of doses says.
    """
    for name, frame in (("curves", curves), ("differences", differences)):
        require_columns(name, frame, "dose", "algorithm", "name", "mean", "low", "high")
    figure = Figure(figsize=(WIDTH, 3.7))
    left, right = figure.subplots(1, 2)
    look = looks(curves["algorithm"])
    for axes, frame in ((left, curves), (right, differences)):
        for order, (key, part) in enumerate(frame.groupby("algorithm", sort=False)):
            label = str(part["name"].iloc[0]) if axes is left else "_"
            band(axes, part.sort_values("dose"), "dose", look[str(key)], order, label)
        axes.set_xlabel(x)
        axes.margins(x=0.02)
    left.set(ylabel=ylabel, title="By dose")
    right.axhline(0, **REFERENCE)
    right.set(ylabel=f"{ylabel}, less the algorithm's", title="Difference from the algorithm")
    figure.legend(loc="outside lower left", ncols=3)
    return figure


@styled
def readings(true: ArrayLike, read: ArrayLike, *, label: str) -> Figure:
    """What a probe reads against what is true, with the identity, and how its residuals are spread.

    ``true`` and ``read`` are ``[point]``; at most 600 are drawn, evenly chosen, all are counted.
    """
    true, read = (
        np.ravel(array_of(what, values)) for what, values in (("true", true), ("read", read))
    )
    require(
        true.shape == read.shape and len(true) > 0,
        f"{len(true)} true values and {len(read)} read; give as many",
    )
    require(bool(np.isfinite([true, read]).all()), "true and read must be finite numbers")
    figure = Figure(figsize=(WIDTH, 3.3))
    left, right = figure.subplots(1, 2)
    drawn = np.linspace(0, len(true) - 1, min(len(true), 600)).astype(int)
    left.scatter(true[drawn], read[drawn], s=7, color=LIGHT["blue"], alpha=0.45, linewidths=0)
    ends = [float(true.min()), float(true.max())]
    left.plot(ends, ends, **REFERENCE)
    left.set(
        xlabel=f"true {label}", ylabel=f"{label} read by the probe", title="Each point is a round"
    )
    right.hist(read - true, bins=40, color=LIGHT["blue"], alpha=0.7)
    right.axvline(0, **REFERENCE)
    right.set(xlabel=f"residual of the {label}", ylabel="rounds", title="Residuals")
    return figure


@styled
def rates(frame: pd.DataFrame, true: Mapping[str, float]) -> Figure:
    """The learning rate and discount of every trajectory, one point each, a panel a source, the true pair a cross.

    ``frame`` has columns ``source``, ``alpha`` and ``gamma``; points outside the axes are counted in the title.
    """
    require_columns("frame", frame, "source", "alpha", "gamma")
    sources = list(dict.fromkeys(frame["source"]))
    figure = Figure(figsize=(WIDTH, 3.2))
    for axes, source in zip(
        figure.subplots(1, len(sources), sharey=True, squeeze=False)[0], sources, strict=True
    ):
        points = frame[frame["source"] == source].dropna()
        inside = points["alpha"].between(*_ALPHAS) & points["gamma"].between(*_GAMMAS)
        shown = points[inside]
        axes.scatter(
            shown["alpha"], shown["gamma"], s=14, color=LIGHT["blue"], alpha=0.6, linewidths=0
        )
        axes.plot(true["alpha"], true["gamma"], "+", color=INK, markersize=12)
        beyond = f", {int((~inside).sum())} beyond" if (~inside).any() else ""
        title = f"{source}: {len(points)} trajectories{beyond}"
        axes.set(xlim=_ALPHAS, ylim=_GAMMAS, xlabel="learning rate α", title=title)
    figure.axes[0].set_ylabel("discount γ")
    return figure


_ALPHAS, _GAMMAS = (-0.05, 0.3), (-1.0, 2.0)  # what is drawn of the rates of single trajectories
