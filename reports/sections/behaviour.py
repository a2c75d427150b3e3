"""What a model does: the state it holds over time beside the algorithm's, and its calibration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from interp.tasks.experts.calibration import Calibration
from reports import figures
from reports.blocks import Figure, Prose, number
from reports.page import Section


def state_over_time(
    state: ArrayLike, reference: ArrayLike, labels: Sequence[str], *, title: str, ylabel: str, text: str, shown: str
) -> Section:
    """What a model holds after every round, drawn on what the algorithm holds, with the difference beside it.

    Args:
        state, reference: ``[step, series]`` of one episode.
        title: of the section ("Weights over time").
        shown: what is drawn, for the caption ("the log-weights of episode 0").
    """
    drawn = figures.trajectories(state, reference, labels, ylabel=ylabel)
    largest = float(np.abs(np.asarray(state) - np.asarray(reference)).max())
    apart = "they are equal in every bit" if largest == 0 else f"their absolute difference is at most {number(largest)}"
    caption = f"{shown}: the transformer's (thin) on the algorithm's (wide and pale); {apart}."
    return Section(title, [Prose(text), Figure(drawn, f"{title}, transformer and algorithm", caption)])


def calibration(result: Calibration, *, name: str) -> Section:
    """Whether the predicted probabilities are the frequencies that came true."""
    drawn = figures.calibration(result.to_frame(), name=name)
    caption = (
        "Every round of every episode, binned by P(y = 1), with 95 % intervals over episodes; below, the share of "
        f"rounds in each bin. Expected calibration error {result.error:.3f}; a perfectly calibrated predictor would "
        f"show {result.chance.estimate:.3f} [{result.chance.low:.3f}, {result.chance.high:.3f}] by chance."
    )
    return Section("Calibration", [Figure(drawn, "Predicted probability against frequency", caption)])
