"""Figures of probes: decoded against true values, and the map of a sweep.

Figures are made without pyplot, so that nothing depends on a display or a global state.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.figure import Figure
from numpy import ndarray as Array

from interp.errors import require, unknown_name

_MAX_LINES = 8
_MAX_POINTS = 4000


def decoded_figure(
    true: Float[Array, "episode round k"],
    decoded: Float[Array, "episode round k"],
    target: str,
    outputs: Sequence[str],
    episode: int = 0,
) -> Figure:
    """Left: true (solid) and decoded (dashed) trajectories of an episode; right: all values, with the identity line.

    The first eight outputs are drawn; of many points a regular subset.
    """
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    rounds = np.arange(decoded.shape[1]) + 1
    for k, name in enumerate(outputs[:_MAX_LINES]):
        (line,) = left.plot(rounds, true[episode, :, k], label=name, linewidth=1.5)
        left.plot(rounds, decoded[episode, :, k], "--", color=line.get_color(), linewidth=1.5)
    left.set(xlabel="round", ylabel=target, title=f"episode {episode}: true (solid), decoded (dashed)")
    left.legend(fontsize="small", frameon=False, ncols=2)
    step = max(1, true.size // _MAX_POINTS)
    right.scatter(true.reshape(-1)[::step], decoded.reshape(-1)[::step], s=4, alpha=0.3, linewidths=0)
    ends = [min(true.min(), decoded.min()), max(true.max(), decoded.max())]
    right.plot(ends, ends, color="black", linewidth=1)
    right.set(xlabel="true", ylabel="decoded", title="all episodes and rounds")
    return figure


def sweep_figure(frame: pd.DataFrame, target: str, value: str = "r2", window: tuple[int, int] | None = None) -> Figure:
    """A map of one target over a sweep: layers by positions, one panel per component; dots mark "represented".

    Raises:
        InputError: a target, column or window that the frame does not hold.
    """
    if target not in set(frame["target"]):
        raise unknown_name("swept target", target, frame["target"].unique(), limit=40)
    numbers = [name for name in frame.columns if pd.api.types.is_float_dtype(frame[name])]
    if value not in numbers:
        raise unknown_name("column", value, numbers, limit=20)
    windows = list(dict.fromkeys(zip(frame["start"], frame["stop"], strict=True)))
    window = windows[0] if window is None else window
    require(window in windows, f"window {window} was not swept; these were: {', '.join(map(str, windows))}")
    rows = frame[(frame["target"] == target) & (frame["start"] == window[0]) & (frame["stop"] == window[1])]
    panels = dict(list(rows.groupby("component", sort=False)))
    positions = list(dict.fromkeys(rows["position"]))
    figure = Figure(figsize=(2.2 + 0.42 * len(positions), 0.6 + 1.6 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (name, part) in zip(axes, panels.items(), strict=True):
        grid = part.pivot_table(index="layer", columns="position", values=value, sort=False)[positions]
        axis.imshow(grid.to_numpy(), vmin=0, vmax=1, aspect="auto", cmap="viridis")
        for _, row in part[part["represented"]].iterrows():
            axis.plot(positions.index(row["position"]), grid.index.get_loc(row["layer"]), "o", color="white", ms=3)
        axis.set_yticks(range(len(grid)), [f"layer {int(layer)}" for layer in grid.index], fontsize="small")
        axis.set_title(name, fontsize="medium", loc="left")
    axes[-1].set_xticks(range(len(positions)), positions, rotation=60, ha="right", fontsize="small")
    figure.suptitle(f"{target}, rounds {window[0] + 1} to {window[1]} (dots: represented)", fontsize="medium")
    figure.colorbar(axes[0].images[0], ax=list(axes), label=value.replace("_", " "), extend="min")
    return figure
