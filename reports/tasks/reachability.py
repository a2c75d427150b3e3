"""The report on a model of reachability: parallel breadth-first search wired by hand, or a learned model."""

from __future__ import annotations

from typing import Any

import pandas as pd

from interp.evaluation import reachability as measured
from interp.evaluation.plan import MODEL
from interp.results.measure import Control, Measure
from reports.blocks import Measures, Prose, Table, claim, curves, pivoted, plain
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
    """Return every part of the report, in page order."""
    answers = Part(
        "answers", "Answers by round and depth", _compute, _draw, summary=_measure_answers
    )
    node_moves = Part(
        "moved", "Nodes moved in the set", _compute_moved, _draw_moved, summary=_measure_moved
    )
    return default_parts(
        said=_PROSE["parts"],
        replace=(learning.part("What it takes to learn", _PROSE["learned_by"]),),
        after={"state": [answers, node_moves]},
    )


_Answers = tuple[pd.DataFrame, measured.Read, measured.Write]
"""Accuracy by regime, predictor, depth and round; how sets are read and written."""


def _compute(context: Context) -> _Answers:
    """Compute the answers in the episodes of every regime."""
    model, seed = context.model, context.seed
    read, write = measured.reading(model, seed, 8 * context.n_episodes)
    frames = []
    for regime in measured.REGIMES:
        episodes = measured.episodes_for(model, regime, context.n_episodes, seed)
        frames.append(measured.answers(model, episodes, read, write, seed))
    return pd.concat(frames, ignore_index=True), read, write


def _measure_answers(data: _Answers, context: Context) -> list[Measure]:
    """Measure whether it finds the farthest targets as soon as it can, and whether it answers right
    in the end.
    """
    frame = data[0]
    trained = frame[frame["regime"] == measured.REGIMES[0]]
    known = trained[trained["n"] >= _FEW]
    if known.empty:
        return []
    depth = known["depth"].max()
    first = trained[(trained["depth"] == depth) & (trained["round"] == depth)]
    scores = {row["key"]: measured.interval(row) for row in first.to_dict("records")}
    rivals = {key: scores[key] for key in _SHOWN if key in scores and key not in _SEARCHES}
    strongest = max(rivals, key=lambda key: rivals[key].estimate)
    best = rivals[strongest]
    knows = claim(
        "first round",
        scores[MODEL],
        {"depth": depth},
        threshold=best.high,
        controls={strongest.replace("_", " "): Control(best.estimate)},
    )
    return [knows, _measure_last(known[known["round"] == known["round"].max()])]


def _measure_last(last: pd.DataFrame) -> Measure:
    """Measure whether it answers right when all can be known, at the depth at which it does
    worst.
    """
    last = last.sort_values("estimate", kind="stable")
    worst = last[last["key"] == MODEL].iloc[0]
    rivals = last[(last["depth"] == worst["depth"]) & ~last["key"].isin(_SEARCHES)]
    controls = {}
    for rival in rivals.tail(1).to_dict("records"):
        controls[rival["key"].replace("_", " ")] = Control(rival["estimate"])
    depth = f"depth {worst['depth']}, its worst"
    return claim("solves", measured.interval(worst), controls=controls, about=depth)


_SEARCHES = (MODEL, "breadth_first")
"""What should answer right: no controls of it."""


def _draw(data: _Answers, context: Context) -> list[object]:
    """Draw the accuracy over rounds at the largest depth of every regime, and tabulate that of the last round."""
    frame = data[0]
    blocks: list[Any] = [Prose(_PROSE["answers"])]
    for regime, of_regime in frame.groupby("regime", sort=False):
        depth = of_regime["depth"].max()
        shown = of_regime[(of_regime["depth"] == depth) & of_regime["key"].isin(_SHOWN)]
        shown = shown.rename(columns={"key": "algorithm", "estimate": "mean"})
        blocks.append(curves(_PROSE["curves"]["answers"], shown, regime=regime, depth=depth))
    last = frame[frame["round"] == frame.groupby("regime")["round"].transform("max")]
    table = pivoted(last, ["regime", "depth"], "key", "estimate").sort_values(["regime", "depth"])
    table.columns = table.columns.str.replace("_", " ")
    blocks.append(Table(table, "Accuracy in the last round"))
    return blocks


_Moved = tuple[pd.DataFrame, pd.DataFrame]
"""The answers after nodes were moved, and the share of sets that are decoded without an error."""


def _compute_moved(context: Context) -> _Moved:
    """Move nodes in the sets that are read."""
    model, seed = context.model, context.seed
    _, read, write = context.result("answers")
    episodes = measured.episodes_for(model, measured.REGIMES[0], context.n_episodes, seed)
    moves = measured.moved(model, episodes, read, write, seed)
    return moves, measured.exact_sets(model, episodes, read, seed)


def _measure_moved(data: _Moved, context: Context) -> list[Measure]:
    """Measure whether a parent that is written into the set counts a round later."""
    moves = data[0]
    later = moves[moves["later"] == 1].set_index("move").to_dict("index")
    parent = later[measured.PARENT]
    effect = measured.interval(parent, "model").complement
    control = measured.interval(later[measured.OTHER], "model").complement
    return [
        claim(
            "expands",
            effect,
            threshold=control.high,
            controls={"another node written": Control(control.estimate)},
            note=f"parallel search: {1 - parent['search']:.2f}",
        )
    ]


def _draw_moved(data: _Moved, context: Context) -> list[object]:
    """Show the answers after every move, and those of parallel search."""
    moves, sets = data
    rows = []
    for row in moves.to_dict("records"):
        when = "a round later" if row["later"] else "at once"
        controls = {"parallel search": row["search"]}
        rows.append(plain(f"{row['move']}, {when}", measured.interval(row, "model"), controls))
    largest = (moves["model"] - moves["search"]).abs().max()
    caption = f"After a move, the target's share of the answer is at most {largest:.2f} from that of parallel search."
    exact = "The share of sets that are decoded without an error in any node, by round"
    return [
        Prose(_PROSE["moved"]),
        Measures(rows, caption),
        Table(moves, "The same numbers", collapsed=True),
        Table(sets, exact),
    ]
