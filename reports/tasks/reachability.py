"""The report on a model of reachability: parallel breadth-first search wired by hand, or a learned model."""

from __future__ import annotations

from typing import Any

import pandas as pd

from interp.evaluation import reachability as measured
from interp.evaluation.plan import MODEL
from interp.results.measure import Control, Measure
from reports.blocks import Prose, Table, claim, curves
from reports.part import Context, Part
from reports.tasks import default_parts
from reports.tasks.texts import PROSE

_PROSE = PROSE["reachability"]

_FEWEST_EPISODES = 8
"""Episodes of a depth at least, for a verdict on it."""
_IN_FIGURE = (
    MODEL,
    "breadth_first",
    "depth_limited_2",
    "depth_first",
    "more_ancestors",
    "cut",
    "frozen",
    "discrete",
)
"""Keys of the predictors whose accuracy is a curve in the figure; the table has all predictors."""


def parts() -> tuple[Part, ...]:
    """Return all parts of a report on a model of reachability, in page order."""
    answers = Part(
        "answers", "Answers by round and depth", _compute, _draw, summary=_measure_answers
    )
    return default_parts(
        said=_PROSE["parts"],
        after={"state": [answers]},
    )


_Answers = tuple[pd.DataFrame, measured.Read, measured.Write]
"""Accuracy by regime, predictor, depth and round; functions that read and write the model's sets.
"""


def _compute(context: Context) -> _Answers:
    """Compute the accuracy of the model and of other predictors, in the episodes of every regime.

    Returns:
        The table of accuracies, a function that decodes the set of reached nodes from the latents,
        and one that changes this set in the latents.
    """
    model, seed = context.model, context.seed
    # They are fitted on other episodes, 8 times as many, unless they are exact.
    read, write = measured.make_reader_and_writer(model, seed, 8 * context.n_episodes)
    frames = []
    for regime in measured.REGIMES:
        episodes = measured.episodes_for(model, regime, context.n_episodes, seed)
        frames.append(measured.answers(model, episodes, read, write, seed))
    return pd.concat(frames, ignore_index=True), read, write


def _measure_answers(data: _Answers, context: Context) -> list[Measure]:
    """Make two measures of the model's accuracy for the page's overview:

    - for the deepest targets (farthest from the root), in the first round in which a search can
      reach them;
    - in the last round, for the depth at which the model is worst.

    Only the regime of training counts. Depths with few episodes are left out; without any others,
    there are no measures.

    Args:
        data: the table of accuracies, and two functions that are not used here.
        context: not used; every part's summary has this parameter.
    """
    frame, _, _ = data
    trained = frame[frame["regime"] == measured.REGIMES[0]]  # the regime of training
    judged = trained[trained["n"] >= _FEWEST_EPISODES]  # n: episodes with targets of this depth
    if judged.empty:
        return []
    depth = judged["depth"].max()
    # A search that goes one step deeper in every round finds these targets now, not before.
    first_possible = trained[(trained["depth"] == depth) & (trained["round"] == depth)]
    scores = {row["key"]: measured.read_interval(row) for row in first_possible.to_dict("records")}
    # The predictors of the figure that do not search in parallel: the model must exceed the interval
    # of the best one.
    rivals = [key for key in _IN_FIGURE if key in scores and key not in _PARALLEL_SEARCHES]
    best_key = max(rivals, key=lambda key: scores[key].estimate)
    best_rival = scores[best_key]
    knows = claim(
        "first round",
        scores[MODEL],
        {"depth": depth},
        threshold=best_rival.high,
        controls={best_key.replace("_", " "): Control(best_rival.estimate)},
    )
    last = judged[judged["round"] == judged["round"].max()]
    return [knows, _measure_last(last)]


def _measure_last(last: pd.DataFrame) -> Measure:
    """Return the measure of the model's accuracy in the last round, at the depth where it is
    lowest. The depth is the distance of the node that is asked about from the root.

    Args:
        last: the rows of the last round, one per predictor and depth.
    """
    ascending = last.sort_values("estimate", kind="stable")
    worst = ascending[ascending["key"] == MODEL].iloc[0]
    is_rival = (ascending["depth"] == worst["depth"]) & ~ascending["key"].isin(_PARALLEL_SEARCHES)
    controls = {}
    for rival in ascending[is_rival].tail(1).to_dict("records"):  # the strongest, if there is any
        controls[rival["key"].replace("_", " ")] = Control(rival["estimate"])
    depth = f"depth {worst['depth']}, its worst"
    return claim("solves", measured.read_interval(worst), controls=controls, about=depth)


_PARALLEL_SEARCHES = (MODEL, "breadth_first")
"""Predictors that should be right, and are therefore no controls."""


def _draw(data: _Answers, context: Context) -> list[object]:
    """Return the blocks of the page on answers: for every regime, curves of accuracy over rounds at
    the largest depth (distance of the target from the root); and a table of accuracy in the last
    round.

    Args:
        data: the table of accuracies, and two functions that are not used here.
        context: not used.
    """
    frame, _, _ = data
    blocks: list[Any] = [Prose(_PROSE["answers"])]
    for regime, rows in frame.groupby("regime", sort=False):
        depth = rows["depth"].max()
        shown = rows[(rows["depth"] == depth) & rows["key"].isin(_IN_FIGURE)]
        shown = shown.rename(columns={"key": "algorithm", "estimate": "mean"})
        blocks.append(curves(_PROSE["curves"]["answers"], shown, regime=regime, depth=depth))
    last = frame[frame["round"] == frame.groupby("regime")["round"].transform("max")]
    by_depth = last.pivot(index=["regime", "depth"], columns="key", values="estimate")
    table = by_depth[list(last["key"].unique())].rename_axis(columns=None).reset_index()
    table.columns = table.columns.str.replace("_", " ")
    blocks.append(Table(table, "Accuracy in the last round, by regime and depth"))
    return blocks
