"""The report on a model of reachability: parallel breadth-first search wired by hand, or a learned model."""

from __future__ import annotations

from typing import Any

import pandas as pd

from interp.evaluation import reachability as measured
from interp.evaluation.plan import MODEL
from interp.results.measure import Control, Measure
from reports.blocks import Measures, Prose, Table, claim, curves, plain
from reports.part import Context, Part
from reports.parts import learning
from reports.tasks import default_parts, prose

_PROSE = prose("reachability")

_FEW = 8  # episodes of a depth at least, for a verdict on it
_SHOWN = (
    MODEL,
    "breadth_first",
    "depth_limited_2",
    "depth_first",
    "more_ancestors",
    "cut",
    "frozen",
    "discrete",
)
"""What is drawn; the table holds all."""


def parts() -> tuple[Part, ...]:
    """Every part of the report, in page order."""
    return default_parts(
        said=_PROSE["parts"],
        replace=(learning.part("What it takes to learn", _PROSE["learned_by"]),),
        after={
            "state": [
                Part(
                    "answers",
                    "Answers by round and depth",
                    _compute,
                    _draw,
                    summary=_answer_measures,
                ),
                Part(
                    "moved",
                    "Nodes moved in the set",
                    _compute_moved,
                    _draw_moved,
                    summary=_moved_measures,
                ),
            ]
        },
    )


_Answers = tuple[pd.DataFrame, measured.Read, measured.Write]
"""Accuracy by regime, predictor, depth and round; how sets are read and written."""


def _compute(context: Context) -> _Answers:
    model, seed = context.model, context.seed
    read, write = measured.reading(model, seed, 8 * context.n_episodes)
    drawn = [
        measured.episodes_for(model, regime, context.n_episodes, seed)
        for regime in measured.REGIMES
    ]
    frames = [measured.answers(model, episodes, read, write, seed) for episodes in drawn]
    return pd.concat(frames, ignore_index=True), read, write


def _answer_measures(data: _Answers, context: Context) -> list[Measure]:
    frame = data[0]
    known = frame[(frame["regime"] == measured.REGIMES[0]) & (frame["n"] >= _FEW)]
    if known.empty:
        return []
    depth = known["depth"].max()
    at = frame[
        (frame["regime"] == measured.REGIMES[0])
        & (frame["depth"] == depth)
        & (frame["round"] == depth)
    ]
    scores = {row["key"]: measured.interval(row) for row in at.to_dict("records")}
    rivals = [key for key in _SHOWN if key in scores and key not in (MODEL, "breadth_first")]
    strongest = max(rivals, key=lambda key: scores[key].estimate)
    # Whether it answers right when all can be known, at the depth at which it does worst.
    last = known[known["round"] == known["round"].max()].sort_values("estimate", kind="stable")
    worst = last[last["key"] == MODEL].iloc[0]
    beside = last[
        (last["depth"] == worst["depth"]) & ~last["key"].isin((MODEL, "breadth_first"))
    ].tail(1)
    beaten = {
        rival["key"].replace("_", " "): Control(rival["estimate"])
        for rival in beside.to_dict("records")
    }
    best, known_by = (
        scores[strongest],
        {strongest.replace("_", " "): Control(scores[strongest].estimate)},
    )
    return [
        claim(
            "first round", scores[MODEL], {"depth": depth}, threshold=best.high, controls=known_by
        ),
        claim(
            "solves",
            measured.interval(worst),
            controls=beaten,
            about=f"depth {worst['depth']}, its worst",
        ),
    ]


def _draw(data: _Answers, context: Context) -> list[object]:
    frame = data[0]
    blocks: list[Any] = [Prose(_PROSE["answers"])]
    for regime, of in frame.groupby("regime", sort=False):
        depth = of["depth"].max()
        shown = of[(of["depth"] == depth) & of["key"].isin(_SHOWN)]
        shown = shown.rename(columns={"key": "algorithm", "estimate": "mean"})
        blocks.append(curves(_PROSE["curves"]["answers"], shown, regime=regime, depth=depth))
    last = frame[frame["round"] == frame.groupby("regime")["round"].transform("max")]
    table = last.pivot(index=["regime", "depth"], columns="key", values="estimate")[
        list(dict.fromkeys(last["key"]))
    ]
    shown = (
        table.rename(columns=lambda key: str(key).replace("_", " "))
        .rename_axis(columns=None)
        .reset_index()
    )
    blocks.append(Table(shown, "Accuracy in the last round"))
    return blocks


def _compute_moved(context: Context) -> tuple[pd.DataFrame, pd.DataFrame]:
    model, seed, (_, read, write) = context.model, context.seed, context.result("answers")
    episodes = measured.episodes_for(model, measured.REGIMES[0], context.n_episodes, seed)
    return measured.moved(model, episodes, read, write, seed), measured.exact_sets(
        model, episodes, read, seed
    )


def _moved_measures(data: tuple[pd.DataFrame, pd.DataFrame], context: Context) -> list[Measure]:
    later = data[0][data[0]["later"] == 1].set_index("move").to_dict("index")
    effect, control = (
        measured.interval(at, "model").complement
        for at in (later[measured.PARENT], later[measured.OTHER])
    )
    beside, search = (
        {"another node written": Control(control.estimate)},
        1 - later[measured.PARENT]["search"],
    )
    return [
        claim(
            "expands",
            effect,
            threshold=control.high,
            controls=beside,
            note=f"parallel search: {search:.2f}",
        )
    ]


def _draw_moved(data: tuple[pd.DataFrame, pd.DataFrame], context: Context) -> list[object]:
    moves, sets = data
    rows = []
    for row in moves.to_dict("records"):
        name = f"{row['move']}, {'a round later' if row['later'] else 'at once'}"
        rows.append(
            plain(name, measured.interval(row, "model"), {"parallel search": row["search"]})
        )
    apart = (moves["model"] - moves["search"]).abs().max()
    said = f"After a move, the target's share of the answer is at most {apart:.2f} from that of parallel search."
    return [
        Prose(_PROSE["moved"]),
        Measures(rows, said),
        Table(moves, "The same numbers", collapsed=True),
        Table(sets, "The share of sets that are decoded without an error in any node, by round"),
    ]
