"""Figures of probes: decoded against true values, and the map of a sweep.

Figures are made without pyplot, so that nothing depends on a display or a global state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from probes.result import Decoded

_MAX_LINES = 8
_MAX_POINTS = 4000


def decoded_figure(decoded: Decoded, episode: int = 0) -> Figure:
    """Left: true (solid) and decoded (dashed) trajectories of an episode; right: all values, with the identity line.

    The first eight outputs are drawn; of many points a regular subset.
    """
    assert decoded.true is not None
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    rounds = np.arange(decoded.values.shape[1]) + 1
    for k, name in enumerate(decoded.outputs[:_MAX_LINES]):
        (line,) = left.plot(rounds, decoded.true[episode, :, k], label=name, linewidth=1.5)
        left.plot(rounds, decoded.values[episode, :, k], "--", color=line.get_color(), linewidth=1.5)
    left.set(xlabel="round", ylabel=decoded.target, title=f"episode {episode}: true (solid), decoded (dashed)")
    left.legend(fontsize="small", frameon=False, ncols=2)
    true, values = decoded.true.reshape(-1), decoded.values.reshape(-1)
    step = max(1, len(true) // _MAX_POINTS)
    right.scatter(true[::step], values[::step], s=4, alpha=0.3, linewidths=0)
    ends = [min(true.min(), values.min()), max(true.max(), values.max())]
    right.plot(ends, ends, color="black", linewidth=1)
    right.set(xlabel="true", ylabel="decoded", title="all episodes and rounds")
    return figure
