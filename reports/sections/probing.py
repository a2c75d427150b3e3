"""Probes: what a linear map can read from the latents, beside the controls that say what the score is worth."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from interp.statistics import Interval
from probes import ProbeResult, Score
from probes.controls import DESCRIPTIONS
from reports import figures
from reports.blocks import Figure, Prose, Table, Verdict
from reports.page import Section

_TEXT = (
    "Linear probes, fitted on some episodes and scored on others. The controls repeat the fit where it cannot "
    "succeed by reading the state; a target counts as represented when the probe beats every control that counts by "
    "an interval that excludes zero. A high score says that the latents carry the target in a form that a linear "
    "map can read; **it does not say that the model uses it**, which is what patching tests."
)


def probes(results: Sequence[ProbeResult]) -> Section:
    """Scores of some probes with their controls: a picture, the verdicts, then the numbers."""
    scores = pd.concat([_scores(result) for result in results], ignore_index=True)
    metrics = " and ".join(dict.fromkeys("R²" if result.metric == "r2" else result.metric for result in results))
    caption = (
        f"{metrics} of each probe (blue) and of its controls (grey squares), with 95 % intervals over episodes. "
        "For R², 1 is perfect and 0 is what the mean gives. Scores below −0.25 are drawn there."
    )
    numbers = pd.concat([result.to_frame() for result in results], ignore_index=True).drop(columns="represented")
    return Section(
        "Probes",
        [
            Prose(_TEXT),
            Table(_verdicts(results), "What is represented"),
            Figure(
                figures.intervals(scores, xlabel=metrics, floor=-0.25), "Probe scores beside their controls", caption
            ),
            Table(numbers.dropna(axis="columns", how="all"), "Every output, metric and control", collapsed=True),
        ],
    )


def _verdicts(results: Sequence[ProbeResult]) -> pd.DataFrame:
    rows = []
    for result in results:
        counted = [control for control in result.controls.values() if control.counted]
        strongest = max(counted, key=lambda control: control.score.estimate, default=None)
        rows.append(
            {
                "target": result.target.key.replace("_", " "),
                "score": _interval(result.score),
                "strongest control": None if strongest is None else DESCRIPTIONS.get(strongest.name, strongest.name),
                "its score": None if strongest is None else _interval(strongest.score),
                "verdict": Verdict(result.represented, "represented" if result.represented else "not represented"),
            }
        )
    return pd.DataFrame(rows)


def _interval(score: Score) -> Interval:
    return Interval(score.estimate, score.low, score.high)


def _scores(result: ProbeResult) -> pd.DataFrame:
    """The probe and its controls as rows of ``figures.intervals``."""
    target = result.target.key.replace("_", " ")
    rows = [(target, result.score, False)]
    rows += [(f"{DESCRIPTIONS.get(name, name)}", control.score, True) for name, control in result.controls.items()]
    return pd.DataFrame(
        [
            {"name": name, "estimate": score.estimate, "low": score.low, "high": score.high, "control": control}
            for name, score, control in rows
        ]
    )
