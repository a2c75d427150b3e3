"""How fast settings learn: the picture of `interp curves`."""

from __future__ import annotations

import pandas as pd

from interp.training.runs import over_seeds
from reports.blocks import Figure, curves
from reports.texts import TEXTS


def draw(losses: pd.DataFrame, floor: str) -> Figure:
    """Draw the excess loss over steps, a curve a setting: the mean of its seeds, and a band from lowest to highest."""
    mean = over_seeds(losses).rename(columns={"setting": "algorithm"})
    return curves(TEXTS["learning"]["curves"], mean, floor=floor)
