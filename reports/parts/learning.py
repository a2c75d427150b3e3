"""The picture of `interp curves`: how fast training settings learn."""

from __future__ import annotations

import pandas as pd

from interp.training.runs import over_seeds
from reports.blocks import Figure, curves
from reports.texts import TEXTS


def draw(losses: pd.DataFrame, floor: str) -> Figure:
    """Draw excess loss over steps, one curve per setting: the mean over seeds, and their range as a
    band.

    Args:
        losses: table of losses.
        floor: name of the loss that is subtracted.
    """
    mean = over_seeds(losses).rename(columns={"setting": "algorithm"})
    return curves(TEXTS["learning"]["curves"], mean, floor=floor)
