"""Probes: what a linear map can read from the latents, beside the controls that say what the score is worth."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from probes import ProbeResult
from reports import figures
from reports.blocks import Figure, Prose, Table
from reports.page import Section

_TEXT = (
    "Ridge probes, fitted on some episodes and scored on others, with 95 % intervals over episodes. The controls repeat the "
    "fit where it cannot succeed by reading the state. A high score says that the latents carry the target in a form that a "
    "linear map can read; **it does not say that the model uses it**, which is what patching tests."
)


def probes(results: Sequence[ProbeResult], *, text: str = _TEXT) -> Section:
    """Scores of some probes with their controls: a picture, then the numbers, then one score per output."""
    scores = pd.concat([scores_of(result) for result in results], ignore_index=True)
    caption = "R² of each probe (blue) and of its controls (grey), with 95 % intervals. 1 is perfect, 0 is the mean."
    outputs = pd.concat([result.to_frame() for result in results], ignore_index=True)
    return Section(
        "Probes",
        [
            Prose(text),
            Figure(figures.intervals(scores, xlabel="R²"), "Probe scores beside their controls", caption),
            Table(outputs.dropna(axis="columns", how="all"), "Every output of every probe", collapsed=True),
        ],
    )


def scores_of(result: ProbeResult) -> pd.DataFrame:
    """The probe and its controls as rows of ``figures.intervals``."""
    target = result.target.replace("_", " ")
    rows = [(f"{target}: probe", result.score, False)]
    rows += [(f"{target}: {name.replace('_', ' ')}", control.score, True) for name, control in result.controls.items()]
    return pd.DataFrame(
        [
            {"name": name, "estimate": score.estimate, "low": score.low, "high": score.high, "control": control}
            for name, score, control in rows
        ]
    )
