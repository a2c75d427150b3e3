"""Steering: what a model does after a state is written into its latents, beside what the algorithm would do."""

from __future__ import annotations

from typing import cast

import pandas as pd

from interp.interventions import causal_tables
from interp.statistics import Interval
from reports import figures
from reports.blocks import Figure, Prose, Table, cell, number
from reports.findings import Finding, Word, judged
from reports.page import Section
from reports.part import Context, Part

TITLE = "Steering"
_TEXT = (
    "Doses of a state change are added to the latents that one round reads, and the prediction is compared with the "
    "algorithm's from the state so changed: by {how}. Random directions of equal norm, on the same latents, are the "
    "control. That a dose moves the prediction as it moves the algorithm's says that the model uses this direction for "
    "this state around these inputs; it is not evidence about large doses, which leave the range of states that occur."
)
_EXACT = "the one latent change that the circuit's readout sees"
_FITTED = "how latents vary with the state, by least squares"
SMALLEST = 0.02
"""The move of the algorithm's prediction below which steering shows nothing."""
_NAMES = {"model": "model", "algorithm": "algorithm", "random": "random directions"}


def part() -> Part:
    """Steering as the task's record says it."""
    return Part(
        "steering",
        TITLE,
        compute,
        draw,
        lambda context: bool(context.algorithms and context.task.steering is not None),
        summary,
    )


def compute(context: Context) -> pd.DataFrame:
    """The dose-response."""
    return causal_tables.steering_table(context.model, context.pairs[0], context.looked_at, context.seed)


def summary(frame: pd.DataFrame, context: Context) -> list[Finding]:
    """That the dose which moves the algorithm most moves the model as far, and random directions do not."""
    rest = frame["algorithm"].iloc[int(frame["dose"].abs().argmin())]
    most = frame.iloc[int((frame["algorithm"] - rest).abs().argmax())]
    error, random = Interval(*most[["mean_error", "mean_error_low", "mean_error_high"]]), most["random_mean_error"]
    word = {"pass": "fail", "fail": "pass", "cannot tell": "cannot tell"}[judged(error, random / 2)]
    if abs(most["algorithm"] - rest) < SMALLEST:
        word = "cannot tell"
    text = "A state written into the latents moves the prediction as it moves the algorithm's"
    evidence = f"at dose {number(most['dose'])}, {cell(error)} from the algorithm's"
    return [Finding(text, cast(Word, word), evidence, f"random directions as long: {cell(random, '.3f')}")]


def draw(frame: pd.DataFrame, context: Context) -> Section:
    """The dose-response, and how far it is from the algorithm's."""
    assert context.task.steering is not None
    record = context.task.steering()
    curves = [
        frame[["dose"]].assign(
            algorithm=key, name=name, mean=frame[key], low=frame[f"{key}_low"], high=frame[f"{key}_high"]
        )
        for key, name in _NAMES.items()
    ]
    drawn = figures.curves(pd.concat(curves), x="dose", xlabel=f"dose: {record.what}", ylabel=record.shows)
    rows = [
        {
            "dose": row["dose"],
            **{name: Interval(row[key], row[f"{key}_low"], row[f"{key}_high"]) for key, name in _NAMES.items()},
            "mean distance from the algorithm": row["mean_error"],
            "largest": row["max_error"],
            "of random directions, mean": row["random_mean_error"],
        }
        for row in frame.to_dict("records")
    ]
    moved = frame[frame["dose"] != 0]
    caption = (
        f"Mean {record.shows} by dose, with 95 % intervals over episodes. Mean distance from the algorithm over doses "
        f"other than 0: {moved['mean_error'].mean():.3f}; of random directions {moved['random_mean_error'].mean():.3f}."
    )
    return Section(
        TITLE,
        [
            Prose(_TEXT.format(how=_EXACT if context.handwired else _FITTED)),
            Figure(drawn, "Dose-response beside the algorithm's and random directions'", caption, frame),
            Table(pd.DataFrame(rows), "The same numbers", collapsed=True),
        ],
    )
