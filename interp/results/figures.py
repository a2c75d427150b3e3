"""Figures that several reports share: functions that take arrays or data frames and return a
``matplotlib.figure.Figure``.

The functions use no pyplot and change no state outside the call. An algorithm has the same colour
in every figure (``interp.results.palette``); reference lines have the page's text colour. The
functions only draw: the numbers of a model are computed by the callers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from textwrap import fill, wrap
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap, Normalize, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from interp.results.palette import CYCLE, INK, LIGHT, LIGHT_TEXT, PAPER, Look, choose_line_styles
from interp.results.style import WIDTH, in_house_style
from interp.stats.intervals import bootstrap_mean
from interp.support.checks import format_value, require_columns
from interp.support.errors import require

_REFERENCE_LINE: dict[str, Any] = {"color": INK, "linewidth": 0.9, "linestyle": (0, (2, 2))}
"""Line style of references that were not measured, such as the identity or a perfect score."""
_WHOLE_NUMBER_COLUMNS = ("round", "step", "layer")
"""Columns that count in whole numbers; their axes have ticks at integers only."""


@in_house_style
def trajectories(
    values: ArrayLike,
    reference: ArrayLike,
    labels: Sequence[str],
    *,
    ylabel: str,
    width: float = WIDTH,
) -> Figure:
    """Draw a model's state over time on top of the algorithm's state. A second panel, at the right,
    shows their absolute difference.

    Args:
        values: the model's state, ``[step, series]``; step 0 is before the first round.
        reference: the algorithm's state, in the same shape, drawn as wide pale lines.
        labels: one name per series (a number of the state, such as the weight of one expert). If
            there are more series than colours, only those with the largest variation of
            ``reference`` over steps are coloured and named.
        ylabel: label of the left panel's y-axis.
        width: width of the figure in inches.
    """
    values = np.asarray(values, dtype=np.float64)
    reference = np.asarray(reference, dtype=np.float64)
    has_all_labels = values.ndim == 2 and values.shape[1] == len(labels)
    require(
        values.shape == reference.shape and has_all_labels,
        f"values {values.shape} and reference {reference.shape} must both be [step, series] with {len(labels)} series",
    )
    figure = Figure(figsize=(width, 3.4))
    value_axes, gap_axes = figure.subplots(1, 2, width_ratios=(1.55, 1))
    colours = _pick_colours(reference)
    gap = np.abs(values - reference)  # [step, series]
    others = [i for i in range(len(labels)) if i not in colours]
    # The others are so thin that they do not hide the named ones. Their lines: one per column.
    thin: dict[str, Any] = {"color": LIGHT["grey"], "linewidth": 0.6, "alpha": 0.35}
    value_axes.plot(values[:, others], **thin)
    gap_axes.plot(gap[:, others], **thin)
    pale: dict[str, Any] = {"linewidth": 5, "alpha": 0.28}
    for i, colour in sorted(colours.items()):
        value_axes.plot(reference[:, i], color=colour, **pale)
        value_axes.plot(values[:, i], color=colour, label=labels[i])
        gap_axes.plot(gap[:, i], color=colour)
    # Empty lines, for the legend: one per kind of line, whatever the number of series.
    if others:
        value_axes.plot([], color=LIGHT["grey"], linewidth=0.6, label=f"{len(others)} others")
    value_axes.plot([], color=INK, label="algorithm", **pale)
    value_axes.plot([], color=INK, label="model")
    handles, names = value_axes.get_legend_handles_labels()
    if len(handles) <= 14:  # a longer legend would be as high as the panels
        n_columns = min(len(handles), int(width / 1.6))
        figure.legend(handles, names, loc="outside lower left", ncols=n_columns, columnspacing=1.2)
    value_axes.set(xlabel="round", ylabel=ylabel, title="Model on algorithm")
    gap_axes.set(xlabel="round", ylabel="|difference|", title="Difference")
    _scale_difference(gap_axes, largest=float(np.nanmax(gap, initial=0)))
    for axes, n_ticks in ((value_axes, 9), (gap_axes, 5)):
        axes.margins(x=0.01)
        axes.xaxis.set_major_locator(MaxNLocator(n_ticks, integer=True))
    return figure


def _pick_colours(reference: NDArray[np.float64]) -> dict[int, str]:
    """Choose colours for the series (entries of the state) that :func:`trajectories` draws. Return
    {index of the series: colour}.

    If there are more series than colours, only those with the largest standard deviation over time
    get a colour.

    Args:
        reference: the algorithm's state, ``[step, series]``.
    """
    n_series = reference.shape[1]
    if n_series <= len(CYCLE):
        return dict(enumerate(CYCLE[:n_series]))
    # Grey is for the series without a colour of their own.
    hues = [colour for colour in CYCLE if colour != LIGHT["grey"]]
    most_varying_first = np.argsort(-np.nanstd(reference, 0), kind="stable").tolist()
    return dict(zip(most_varying_first, hues, strict=False))  # zip ends with the hues


def _scale_difference(axes: Axes, largest: float) -> None:
    """Set the y-axis of the difference panel in :func:`trajectories` to a log scale of three
    decades that also includes 0. If the largest difference is 0, write a note into the panel
    instead.

    Args:
        axes: axes of the panel.
        largest: the largest difference that is drawn.
    """
    if largest == 0:
        axes.set(ylim=(-0.05, 1), yticks=[0])
        text = "exactly 0 at every step"
        axes.annotate(text, (0.5, 0.5), xycoords="axes fraction", ha="center", color=INK)
        return
    top = 10.0 ** np.ceil(np.log10(largest))  # the next power of ten
    # Linear from 0 to the lowest decade, logarithmic from there.
    axes.set_yscale("symlog", linthresh=top * 1e-3, linscale=0.3)
    axes.set_ylim(0, top * 1.3)
    decades = top * 10.0 ** np.arange(-3, 1)
    names = [f"{tick:.3g}" for tick in decades]
    axes.set_yticks([0, *decades], ["0", *names])
    axes.minorticks_off()


def tabulate_by_round(
    key: str,
    name: str,
    values: Float[np.ndarray, "episode round"],
    seed: int,
    participants: Any = None,
) -> pd.DataFrame:
    """Return the table of one curve, which :func:`curves` draws: the mean over episodes in every
    round, with a 95 % bootstrap interval.

    Args:
        key: key of the algorithm; it determines colour and dash.
        name: name for the legend.
        values: the quantity to average, one number per episode and round.
        seed: seed of the bootstrap.
        participants: name or number of each episode's participant; None if the bootstrap resamples
            episodes instead of participants.

    Returns:
        One row per round, counted from 0, with columns ``algorithm``, ``name``, ``round``,
        ``mean``, ``low`` and ``high``.
    """
    mean, low, high = bootstrap_mean(values, seed=seed, participants=participants)
    rounds = np.arange(len(mean))
    return pd.DataFrame(
        {"algorithm": key, "name": name, "round": rounds, "mean": mean, "low": low, "high": high}
    )


@in_house_style
def curves(
    frame: pd.DataFrame,
    *,
    x: str = "round",
    xlabel: str | None = None,
    ylabel: str,
    log_x: bool = False,
    log_y: bool = False,
    reference: Mapping[str, float] | None = None,
    width: float = WIDTH,
) -> Figure:
    """Draw one curve per algorithm and write its name at its right end.

    Examples are regret over rounds, loss over training steps, or error against temperature.

    Args:
        frame: table with one row per algorithm and point of its curve. Its columns are
            ``algorithm`` (a key, which determines the colour), the column that ``x`` names, and
            ``mean`` (the height of the curve). Optional columns are ``name`` (written at the curve;
            by default the key), and ``low`` and ``high``, which are drawn as a band around the
            first two curves. The first algorithm has the thickest line.
        x: name of the column for the horizontal axis.
        xlabel: label of the horizontal axis; by default the name of the column.
        ylabel: label of the vertical axis.
        log_x, log_y: True for a logarithmic horizontal or vertical axis.
        reference: horizontal reference lines: name -> value, such as ``{"chance": 0.5}``.
        width: width of the figure in inches; up to 4.5 fits a phone without scrolling.
    """
    require_columns("frame", frame, x, "algorithm", "mean")
    figure = Figure(figsize=(width, min(3.9, 0.7 * width)))
    axes = figure.subplots()
    look = choose_line_styles(frame["algorithm"])
    for order, (key, part) in enumerate(frame.groupby("algorithm", sort=False)):
        draw_curve(axes, part.sort_values(x), x, look[str(key)], order=order, label=str(key))
    for name, value in (reference or {}).items():
        axes.axhline(value, **_REFERENCE_LINE)
        axes.annotate(
            name,
            (1, value),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            fontsize=8.5,
        )
    axes.set(xlabel=xlabel or x.replace("_", " "), ylabel=ylabel)
    if log_x:
        axes.set_xscale("log")
    elif x in _WHOLE_NUMBER_COLUMNS:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if log_y:
        axes.set_yscale("log")
    elif not (frame["mean"] > 0).all():
        axes.axhline(0, color=INK, linewidth=0.7)
    axes.margins(x=0.01)
    write_names_at_ends(axes, frame, x, {key: curve.colour for key, curve in look.items()})
    return figure


_N_BANDS = 2
"""Number of curves of a figure that have a band: more bands would hide each other."""
NOTE_ON_BANDS = "Bands: 95 % over episodes, of the first two."


def draw_curve(
    axes: Axes, part: pd.DataFrame, x: str, look: Look, *, order: int, label: str = ""
) -> None:
    """Draw one curve, and shade its interval if the table has an interval and the curve is among
    the first two.

    Args:
        axes: the axes to draw on.
        part: the curve's rows: columns ``x`` and ``mean``, and optionally ``low`` and ``high`` for
            the band.
        x: name of the column for the horizontal axis.
        look: colour and dash of the line.
        order: index of the curve in the figure; curve 0 has the thickest line.
        label: name of the curve in a legend; empty for none.
    """
    options: dict[str, Any] = {"color": look.colour, "linestyle": look.dash, "label": label}
    if len(part) <= 25:  # more markers would hide the line
        options |= {"marker": "o", "markersize": 3.5}
    if order == 0:
        # Thick, but below the others (their zorder is 2), so that it hides none of them.
        options |= {"linewidth": 2.8, "zorder": 1.9}
    axes.plot(part[x], part["mean"], **options)
    has_interval = {"low", "high"} <= set(part.columns) and part["low"].notna().any()
    if order < _N_BANDS and has_interval:
        axes.fill_between(
            part[x], part["low"], part["high"], color=look.colour, alpha=0.13, linewidth=0
        )


def _select_last(frame: pd.DataFrame, x: str) -> pd.DataFrame:
    """Return the last point of every algorithm's curve, in the order in which the algorithms first
    appear in the table.

    Args:
        frame: the table of the curves, as in :func:`curves`.
        x: name of the column for the horizontal axis.

    Returns:
        One row per algorithm, with columns ``key``, ``name`` and ``mean``.
    """
    last = frame.sort_values(x, kind="stable").groupby("algorithm", sort=False).last()
    keys = list(dict.fromkeys(frame["algorithm"]))
    last = last.loc[keys].rename_axis("key").reset_index()
    names = last["name"] if "name" in last else last["key"].astype(str).str.replace("_", " ")
    return last.assign(name=names.astype(str))[["key", "name", "mean"]]


def write_names_at_ends(
    axes: Axes, frame: pd.DataFrame, x: str, colours: Mapping[str, str], size: float = 8.5
) -> None:
    """Write every curve's name at its right end, in the curve's colour. Shift names vertically so
    that they do not overlap.

    Args:
        axes: axes on which the curves are already drawn.
        frame: the table of the curves, as in :func:`curves`: one row per algorithm and point.
        x: name of the column for the horizontal axis.
        colours: key of each algorithm -> the colour of its curve.
        size: font size in points.
    """
    last = _select_last(frame, x).dropna(subset="mean")
    # Heights of the ends of the curves, as shares of the panel's height.
    to_shares = axes.transData + axes.transAxes.inverted()
    _, right_end = axes.get_xlim()
    points = [(right_end, value) for value in last["mean"]]
    heights = to_shares.transform(np.reshape(points, (-1, 2)))[:, 1]
    from_below = np.argsort(heights, kind="stable")
    # A line of text is 1.25 times the font size high, in points of 1/72 inch. Below name i there
    # must be room for i lines.
    panel_inches = axes.get_window_extent().height / axes.figure.dpi
    offsets = np.arange(len(heights)) * 1.25 * size / 72 / panel_inches
    # Names do not overlap if their heights minus these offsets never fall from one to the next. The
    # nearest such sequence above the given heights is their running maximum, the nearest one below
    # is their running minimum from the end, and the mean of both is another one between them.
    shifted = heights[from_below] - offsets
    above = np.maximum.accumulate(shifted)
    below = np.minimum.accumulate(shifted[::-1])[::-1]
    places = (above + below) / 2 + offsets
    for place, row in zip(places, last.iloc[from_below].to_dict("records"), strict=True):
        look: dict[str, Any] = {"color": colours[row["key"]], "fontsize": size, "va": "center"}
        axes.text(1.01, place, row["name"], transform=axes.transAxes, **look)


def describe_curves(frame: pd.DataFrame, what: str, x: str = "round") -> str:
    """Describe a figure of curves in a sentence, for readers who cannot see it. The sentence has
    the last value of the first curve, and the lowest and the highest last value of the other
    curves.

    Args:
        frame: table with one row per algorithm and point of its curve, with columns ``algorithm``,
            ``mean`` (the height of the curve), the one that ``x`` names, and optionally ``name``.
        what: name of the plotted quantity, in words.
        x: name of the column for the horizontal axis.

    >>> describe_curves(pd.DataFrame({"algorithm": ["a", "b", "c"], "round": 9, "mean": [0.5, 2.0, 1.0]}), "regret")
    'At the end, regret: 0.50 of a, 1.00 of c, 2.00 of b.'
    """
    first, *others = _select_last(frame, x).dropna(subset="mean").to_dict("records")
    others.sort(key=lambda row: float(row["mean"]))
    # Of the other curves, the lowest and the highest.
    ends = [others[0], others[-1]] if len(others) > 2 else others
    texts = []
    for row in [first, *ends]:
        form = ".2f" if abs(row["mean"]) >= 0.05 else ".2g"
        texts.append(f"{row['mean']:{form}} of {row['name']}")
    return f"At the end, {what}: {', '.join(texts)}."


@in_house_style
def heatmaps(
    grids: Mapping[str, pd.DataFrame],
    *,
    label: str,
    xlabel: str = "",
    ylabel: str = "",
    limit: float | None = None,
    lowest: float | None = None,
    width: float = WIDTH,
) -> Figure:
    """Draw tables as heat maps, one below the other, with the same columns and the same colour
    scale. Small tables also show their numbers.

    Args:
        grids: title of a heat map -> its table. A table's index and columns name the rows and
            columns of its heat map. Cells with NaN are grey, and cells with 0 have the page's
            colour.
        label: name of the quantity in the cells, which is written on the colour bar.
        xlabel: label below the last heat map.
        ylabel: label at the left of each heat map.
        limit: number that has the strongest colour; by default the largest magnitude in any table.
        lowest: number at which the colours begin; by default 0, or ``-limit`` if any number is
            negative.
        width: width of the figure in inches.
    """
    frames = list(grids.values())
    require(frames, "give at least one grid")
    columns = [str(name) for name in frames[0].columns]
    require(columns, "there is nothing to draw: the grids have no columns")
    has_same_columns = all([str(name) for name in frame.columns] == columns for frame in frames)
    require(has_same_columns, "grids that stand below each other must have the same columns")
    all_numbers = np.concatenate([frame.to_numpy(dtype=np.float64) for frame in frames])
    if not limit:
        limit = float(np.nanmax(np.abs(all_numbers), initial=0)) or 1.0
    if lowest is None:
        lowest = -limit if (all_numbers < 0).any() else 0.0
    n_rows = [max(len(frame), 1) for frame in frames]
    inches = 0.9 + 0.28 * sum(n_rows) + 0.3 * len(frames)
    figure = Figure(figsize=(width, float(np.clip(inches, 1.7, 12))))
    panels = figure.subplots(len(frames), 1, squeeze=False, sharex=True, height_ratios=n_rows)[:, 0]
    column_width = (width - 1.4) / len(columns)
    longest = max(map(len, columns)) * _CHARACTER_WIDTH
    # Long names are rotated. With more columns than this, _name_ticks leaves out names instead.
    is_rotated = longest > column_width and len(columns) <= _MOST_TICKS
    for axes, (title, frame) in zip(panels, grids.items(), strict=True):
        grid = frame.to_numpy(dtype=np.float64)
        image = draw_cells(axes, grid, Normalize(lowest, limit))
        axes.set_title(title, fontsize=9)
        axes.set(ylabel=ylabel)
        _name_ticks(axes.xaxis, columns)
        _name_ticks(axes.yaxis, [str(name) for name in frame.index])
        if is_rotated:
            for tick in axes.get_xticklabels():
                tick.set(rotation=45, ha="right", rotation_mode="anchor")
        if grid.size <= 400 and len(columns) <= 20:
            _write_cells(axes, grid, limit)
    panels[-1].set(xlabel=xlabel)
    bar = colour_bar(figure, image, label, ax=list(panels), fraction=0.03, pad=0.015)
    bar.locator = MaxNLocator(4)
    return figure


_MOST_TICKS = 40
"""Most names on one axis."""
_CHARACTER_WIDTH = 0.085
"""Width of one character of a tick label, in inches."""


def _name_ticks(axis: Any, names: Sequence[str]) -> None:
    """Place a named tick at 0, 1, 2, ... on an axis; of more than 40 names, write only every
    second, third, ...

    Args:
        axis: matplotlib's x-axis or y-axis.
        names: one name per tick.
    """
    step = max(1, math.ceil(len(names) / _MOST_TICKS))
    axis.set_ticks(range(0, len(names), step), names[::step])


def _write_cells(axes: Axes, grid: NDArray[np.float64], limit: float) -> None:
    """Write the numbers of a heat map into its cells, except numbers that are nearly 0 compared
    with ``limit``.

    Args:
        axes: axes on which the heat map is already drawn.
        grid: the numbers, ``[row, column]``.
        limit: number that has the strongest colour.
    """
    for (row, column), value in np.ndenumerate(grid):
        size = abs(value)
        if not np.isfinite(value) or size < 0.005 * limit:
            continue
        ink = LIGHT_TEXT if size > 0.85 * limit else INK  # light on a dark cell
        text = f"{value:.2f}" if size < 10 else f"{value:.0f}"
        text = text.replace("-", "−")
        axes.text(column, row, text, ha="center", va="center", color=ink, fontsize=8)


def draw_cells(axes: Axes, grid: NDArray[np.float64], norm: Normalize, aspect: str = "auto") -> Any:
    """Draw an array as a heat map in which 0 is transparent and NaN is grey, without tick marks,
    grid lines or frame.

    Args:
        axes: the axes to draw on.
        grid: the numbers, ``[row, column]``.
        norm: matplotlib's normalisation, which maps numbers to [0, 1] for the colour map; a
            negative ``vmin`` selects the diverging colour map.
        aspect: aspect ratio of a cell, as for matplotlib's ``imshow``.

    Returns:
        The image that ``imshow`` returns.
    """
    cmap = DIVERGING if (norm.vmin or 0) < 0 else SEQUENTIAL
    image = axes.imshow(grid, cmap=cmap, norm=norm, aspect=aspect, interpolation="none")  # type: ignore[arg-type]
    axes.grid(False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return image


def colour_bar(figure: Figure, image: Any, label: str, **where: Any) -> Any:
    """Draw a colour bar in the house style and return it.

    Args:
        figure: the figure that holds the image.
        image: the image with the colours that the bar explains.
        label: the quantity shown by the colours.
        **where: further arguments of matplotlib's ``Figure.colorbar``, such as ``ax``.
    """
    bar = figure.colorbar(image, **where)
    bar.outline.set(linewidth=0.6, edgecolor=LIGHT["grey"])
    bar.set_label(label)
    return bar


def _make_colour_map(negative: str | None, positive: str) -> Colormap:
    """Make a colour map whose colours are the more transparent, the nearer a number is to 0. The
    page, light or dark, is visible at 0. NaN is a pale grey.

    Args:
        negative: hue of -1, where the map then begins; None for a map that begins at 0.
        positive: hue of 1, where the map ends.
    """
    # From -1 to 1, or from 0 to 1; an odd number of levels has one at 0.
    levels = np.linspace(-1 if negative else 0, 1, 257)
    colours = []
    for level in levels:
        hue = negative if negative and level < 0 else positive
        colours.append(to_rgba(LIGHT[hue], alpha=abs(level)))
    colour_map = ListedColormap(colours, f"{negative}-{positive}")
    return colour_map.with_extremes(bad=to_rgba(LIGHT["grey"], alpha=0.3))


SEQUENTIAL = _make_colour_map(None, "blue")
DIVERGING = _make_colour_map("vermilion", "blue")


@in_house_style
def intervals(
    frame: pd.DataFrame,
    *,
    xlabel: str,
    floor: float | None = None,
    reference: Mapping[str, float] | None = None,
) -> Figure:
    """Draw estimates with their intervals, one per row, such as the scores of probes and of their
    controls. Controls are grey.

    Args:
        frame: table with columns ``name`` and ``estimate``. Optional columns are ``low`` and
            ``high``, the interval's bounds or NaN, and ``control``, True for the rows of controls.
        xlabel: label of the horizontal axis.
        floor: smallest value to draw. A smaller estimate is drawn at this value, and its text shows
            the true number. None for no such limit.
        reference: vertical reference lines: name -> value, such as ``{"chance": 0.5}``.
    """
    require_columns("frame", frame, "name", "estimate")
    names = [fill(str(name), 52, max_lines=2, placeholder=" ...") for name in frame["name"]]
    n_lines = len("\n".join(names).splitlines())
    figure = Figure(figsize=(WIDTH, 0.95 + 0.13 * len(frame) + 0.14 * n_lines))
    axes = figure.subplots()
    places = np.arange(len(frame))[::-1]  # the first row stands highest
    axes.set_yticks(places, names)
    lowest = -np.inf if floor is None else floor
    tick_labels = axes.get_yticklabels()
    for place, row, label in zip(places, frame.to_dict("records"), tick_labels, strict=True):
        if row.get("control"):
            marker: dict[str, Any] = {"marker": "s", "color": LIGHT["grey"], "markersize": 5}
            label.set(fontweight="normal", fontsize=8.5)
        else:
            marker = {"marker": "o", "color": LIGHT["blue"], "markersize": 7}
            label.set(fontweight="bold", fontsize=9.5)
        numbers = [row.get("low", np.nan), row["estimate"], row.get("high", np.nan)]
        low, estimate, high = np.maximum(numbers, lowest)
        if np.isfinite(low) and np.isfinite(high):
            axes.plot([low, high], [place, place], color=marker["color"], linewidth=3, alpha=0.45)
        axes.plot(estimate, place, linestyle="none", **marker)
        # The number stands 7 points to the right of the mark or of the interval's end.
        text = f"{row['estimate']:.3f}".replace("-", "−")
        end = (np.nanmax([estimate, high]), place)
        axes.annotate(text, end, (7, 0), textcoords="offset points", va="center", fontsize=8.5)
    for name, value in (reference or {}).items():
        axes.axvline(value, **_REFERENCE_LINE)
        axes.annotate(
            name,
            (value, 1),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="bottom",
            fontsize=8.5,
        )
    axes.set(xlabel=xlabel, ylim=(-0.6, len(frame) - 0.4))
    axes.margins(x=0.08)
    axes.grid(False, axis="y")
    axes.axvline(0, color=INK, linewidth=0.7)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure


@in_house_style
def draw_measures(measures: Sequence[Any]) -> Figure:
    """Draw measures (claims about a model, each decided by a number), one per row: the number with
    its interval, the threshold and the strongest control. Measures without a number are left out.

    If the number of any measure is a share between 0 and 1, only such measures are drawn. Otherwise
    the numbers are amounts, which are drawn on a logarithmic axis that begins at 1e-17. Numbers
    outside the axis are drawn at its end.

    Args:
        measures: instances of :class:`interp.results.measure.Measure`.
    """
    for measure in measures:
        require(
            hasattr(measure, "number") and hasattr(measure, "threshold"),
            f"measures must be a list of Measure, got {format_value(measure)} in it",
        )
    numbered = [measure for measure in measures if not np.isnan(measure.number.estimate)]
    shares = [measure for measure in numbered if measure.is_share]
    rows = shares or numbered
    names = []
    for measure in rows:
        subject = f" ({measure.about})" if measure.about else ""
        names.append(fill(f"{measure.claim}{subject}: {measure.verdict}", 52))
    n_lines = len("\n".join(names).splitlines())
    figure = Figure(figsize=(WIDTH, 1.0 + 0.22 * n_lines + 0.14 * len(rows)))
    axes = figure.subplots()
    lowest, highest = (0.0, 1.0) if shares else (1e-17, np.inf)
    for i, measure in enumerate(rows):
        number = measure.number
        bounds = [number.low, number.estimate, number.high]
        low, estimate, high = np.clip(bounds, lowest, highest)
        axes.plot([low, high], [i, i], color=LIGHT["blue"], linewidth=3, alpha=0.45)
        axes.plot(estimate, i, "o", color=LIGHT["blue"], markersize=7)
        threshold = max(measure.threshold, lowest)
        axes.plot([threshold, threshold], [i - 0.3, i + 0.3], color=LIGHT["vermilion"])
        if measure.strongest:
            control = np.clip(measure.controls[measure.strongest].number, lowest, highest)
            axes.plot(control, i, "D", markerfacecolor="none", markeredgecolor=LIGHT["grey"])
    if shares:
        axes.set_xlim(-0.02, 1.02)
    else:
        axes.set_xscale("log")
    axes.set_ylim(max(len(rows), 1) - 0.5, -0.5)  # the first row stands highest
    axes.set_xlabel("dot: number, line: threshold, diamond: control")
    axes.set_yticks(range(len(rows)), names, fontsize=8.5)
    return figure


_PORT_COLOURS = {
    "query": LIGHT["blue"],
    "key": LIGHT["amber"],
    "value": LIGHT["green"],
    "residual": LIGHT["grey"],
}
"""Colour of an arrow, by the input of its target that it enters."""
_BOX = {"boxstyle": "round,pad=0.35", "facecolor": PAPER}
_HALF_CHARACTER = 0.036
"""Half the width of a character in a box, in inches."""


@in_house_style
def draw_wiring(
    layers: Sequence[Sequence[str]], edges: pd.DataFrame, *, width: float = WIDTH
) -> Figure:
    """Draw the heads of a circuit in one column per layer, the circuit's outputs ("exits") at the
    right, and an arrow for every edge. The colour of an arrow shows which input of its target it
    enters: query, key, value or residual stream.

    Args:
        layers: for each layer, the names of its heads and groups of neurons.
        edges: table with one row per edge. Its columns are ``source`` and ``target`` (names from
            ``layers``) and ``port``, the input of the target: "query", "key", "value" or
            "residual". A target that is not in ``layers`` is an exit, such as "prediction" or
            "update".
        width: width of the figure in inches.
    """
    require_columns("edges", edges, "source", "target", "port")
    heads = [name for layer in layers for name in layer]
    exits = [name for name in dict.fromkeys(edges["target"]) if name not in heads]
    for name in edges["source"]:
        require(
            name in heads,
            f"an edge starts at {name!r}, which is not one of the heads {', '.join(heads)}",
        )
    columns = [*layers, exits]
    titles = [*(f"layer {i}" for i in range(len(layers))), "exits"]
    tallest = max(map(len, columns))
    top = tallest / 2
    places: dict[str, tuple[int, float]] = {}  # column, and height from the middle
    for x, column in enumerate(columns):
        middle = (len(column) - 1) / 2
        places |= {name: (x, middle - i) for i, name in enumerate(column)}
    # Half the width of a character, with the distance of two columns as the unit.
    half_character = len(columns) * _HALF_CHARACTER / width
    line_length = int(0.45 / half_character)  # so that a box takes 0.9 of a column
    # The lines of text in a box; the space in "step 1.2" cannot be broken.
    lines = {name: wrap(name.replace("step ", "step\xa0"), line_length) for name in places}
    half_widths = {name: half_character * max(map(len, lines[name])) for name in places}
    n_lines = max(map(len, lines.values()))
    figure = Figure(figsize=(width, 1.1 + (0.35 + 0.15 * n_lines) * tallest))
    axes = figure.subplots()
    for edge in edges.to_dict("records"):
        source, target = edge["source"], edge["target"]
        (x0, y0), (x1, y1) = places[source], places[target]
        # From the right end of one box to the left end of the other.
        start, end = (x0 + half_widths[source], y0), (x1 - half_widths[target], y1)
        _draw_arrow(axes, start, end, _PORT_COLOURS[edge["port"]], is_far=x1 - x0 > 1)
    centred: dict[str, Any] = {"ha": "center", "va": "center", "size": 9, "zorder": 3}
    for name, (x, y) in places.items():
        ink, weight = (INK, "bold") if name in exits else (LIGHT["grey"], "normal")
        text = "\n".join(lines[name])
        axes.text(x, y, text, weight=weight, bbox=_BOX | {"edgecolor": ink}, **centred)
    above: dict[str, Any] = {"ha": "center", "va": "bottom", "color": LIGHT["grey"], "size": 8.5}
    for x, title in enumerate(titles):
        axes.text(x, top + 0.45, title, **above)
    axes.set(xlim=(-0.45, len(columns) - 0.55), ylim=(-top - 0.35, top + 0.75))
    axes.axis("off")
    handles = []  # empty lines, for the legend
    ports = set(edges["port"])
    for port, hue in _PORT_COLOURS.items():
        if port in ports:
            handles += axes.plot([], color=hue, linewidth=2, label=f"read by {port}")
    n_columns = round(width / 2.4)
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=n_columns)
    return figure


def _draw_arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str, is_far: bool
) -> None:
    """Draw an arrow that is bent away from the middle of the picture.

    Args:
        axes: the axes to draw on.
        start, end: points (x, y); the middle of the picture is at y = 0.
        colour: colour of the arrow.
        is_far: True for a strong bend, past the boxes of the layers in between.
    """
    (_, y0), (_, y1) = start, end
    # Arrows point to the right. A positive bend curves them downwards, which is away from the middle
    # (y = 0) in the lower half of the picture.
    direction = 1 if y0 + y1 <= 0 else -1
    bend = direction * (0.25 if is_far else 0.04)
    arrow = FancyArrowPatch(
        start,
        end,
        color=colour,
        arrowstyle="-|>,head_length=5,head_width=2.5",
        connectionstyle=f"arc3,rad={bend}",
        shrinkA=5,
        shrinkB=5,
        linewidth=1.5,
        zorder=2,
    )
    axes.add_patch(arrow)
