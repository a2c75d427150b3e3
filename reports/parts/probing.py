"""Probes: what a linear map can read from the latents, beside the controls that say what the score is worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

import probes
from probes import ProbeResult
from probes.controls import DESCRIPTIONS
from reports import figures
from reports.blocks import Figure, Prose, Table, Verdict
from reports.page import Section
from reports.part import Context, Part

KEY, TITLE = "probes", "Probes"
_TEXT = (
    "Linear probes, fitted on some episodes and scored on others. The controls repeat the fit where it cannot "
    "succeed by reading the state; a target counts as represented when the probe beats every control that counts by "
    "an interval that excludes zero, as not represented when this sample would have shown a tenth of what a control "
    "leaves, as undecided between these, and its score as uninformative when an untrained model comes within .05 of "
    "it. Intervals are of the score on new episodes of each probe, refitted on all episodes. A high score says that "
    "the latents carry the target in a form that a linear map can read; **it does not say that the model uses it**, "
    "which is what patching tests."
)
_PASSED = {"represented": True, "not represented": False, "undecided": None, "uninformative": None}


def part(targets: Sequence[str] = (), n_in_summary: int = 1) -> Part:
    """Probes of the latents after every round.

    Args:
        targets: variables to decode; those that the task names when there are none.
        n_in_summary: how many of them the summary shows.
    """

    def compute(context: Context) -> list[ProbeResult]:
        return probes.probe(context.model, context.episodes, targets or context.task.probed, seed=context.seed)

    def summary(results: list[ProbeResult], context: Context) -> dict[str, Any]:
        return {
            f"Probe: {result.target.key.replace('_', ' ')}": _represented(result) for result in results[:n_in_summary]
        }

    return Part(KEY, TITLE, compute, draw, lambda context: bool(targets or context.task.probed), summary)


def draw(results: Sequence[ProbeResult], context: Context) -> Section:
    """Scores of some probes with their controls: the verdicts, a picture, then the numbers."""
    scores = pd.concat([_scores(result) for result in results], ignore_index=True)
    metrics = " and ".join(dict.fromkeys(_metric(result) for result in results))
    caption = (
        f"{metrics} of each probe (blue) and of its controls (grey squares), with 95 % intervals. "
        "For R², 1 is perfect and 0 is what the mean gives. Scores below −0.25 are drawn there."
    )
    numbers = pd.concat([result.to_frame() for result in results], ignore_index=True).drop(
        columns=["represented", "verdict", "detectable"]
    )
    picture = figures.intervals(scores, xlabel=metrics, floor=-0.25)
    return Section(
        TITLE,
        [
            Prose(_TEXT),
            Table(_verdicts(results), "What is represented"),
            Figure(picture, "Probe scores beside their controls", caption),
            Table(numbers.dropna(axis="columns", how="all"), "Every output, metric and control", collapsed=True),
        ],
    )


def _represented(result: ProbeResult) -> Verdict:
    """A badge: a probe's score and, unless it is represented, the verdict."""
    beyond = "" if result.represented else f", {result.verdict}"
    return Verdict(_PASSED[result.verdict], f"{_metric(result)} {result.score.estimate:.3f}{beyond}")


def _metric(result: ProbeResult) -> str:
    return "R²" if result.metric == "r2" else result.metric


def _verdicts(results: Sequence[ProbeResult]) -> pd.DataFrame:
    rows = []
    for result in results:
        counted = [control for control in result.controls.values() if control.counted]
        strongest = max(counted, key=lambda control: control.score.estimate, default=None)
        rows.append(
            {
                "target": result.target.key.replace("_", " "),
                "score": result.score,
                "strongest control": None if strongest is None else DESCRIPTIONS.get(strongest.name, strongest.name),
                "its score": None if strongest is None else strongest.score,
                "would have shown": result.detectable,
                "verdict": Verdict(_PASSED[result.verdict], result.verdict),
            }
        )
    return pd.DataFrame(rows)


def _scores(result: ProbeResult) -> pd.DataFrame:
    """The probe and its controls as rows of ``figures.intervals``."""
    rows = [(result.target.key.replace("_", " "), result.score, False)]
    rows += [(DESCRIPTIONS.get(name, name), control.score, True) for name, control in result.controls.items()]
    return pd.DataFrame(
        [
            {"name": name, "estimate": score.estimate, "low": score.low, "high": score.high, "control": control}
            for name, score, control in rows
        ]
    )
