"""The picture of `interp curves`: how fast training settings learn."""

from __future__ import annotations

import pandas as pd

from interp.training.runs import over_seeds
from reports.blocks import Figure, curves
from reports.texts import TEXTS


def draw(losses: pd.DataFrame, name_of_floor: str) -> Figure:
    """Draw a training loss over steps, one curve per training setting; the curve is the mean over
    seeds, and its band their range.

    Args:
        losses: one row per setting, seed and step, with the columns setting, seed, step and excess
            (the loss above the lowest possible one, in nats).
        name_of_floor: name of the lowest possible loss for the caption, such as "the Bayes
            predictor".
    """
    mean = over_seeds(losses).rename(columns={"setting": "algorithm"})
    return curves(TEXTS["learning"]["curves"], mean, floor=name_of_floor)
