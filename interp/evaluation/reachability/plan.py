"""What models of reachability are worth: accuracy by round and depth, beside searches, heuristics and controls.

Accuracy counts an episode as right where the target is more probable than the negative, as half right on a tie. Before
round d nobody can know of a target d steps away; a model that searches in parallel jumps from one half to one at round
d, at every depth. The tables give that jump for the model, for the algorithms and heuristics that could imitate it, and
for the model whose latent is cut, frozen or exchanged.

Right answers say what was found, not how. Two tables ask whether the latent holds the set and whether it is used: the
share of sets that are decoded without an error, and the answers after nodes are moved in the set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from interp.evaluation.plan import MODEL, EvaluationPlan, Row, row
from interp.evaluation.reachability.frontier import (
    OTHER,
    PARENT,
    Read,
    Write,
    codec,
    controlled,
    exact,
    exact_sets,
    moved,
)
from interp.machine import Machine
from interp.model.rollout import rollout
from interp.statistics import Interval, mean_interval
from interp.tasks.reachability.algorithms import records
from interp.tasks.reachability.episodes import ReachabilityEpisodes
from interp.tasks.reachability.sampling import sample

REGIMES = ("matched", "prosqa")
"""Those whose answers exist: one candidate is reached, the other is not."""
_SETS = "sets"
"""The part of an evaluation beside the regimes."""
_N_FITTED, _FITTED_SEED = 256, 10_007
"""At most and by default so many episodes are what a learned model's sets are read by; their seed is this much beyond
the seed of the episodes that are studied."""


def _by_round(predictions: Any, episodes: ReachabilityEpisodes, key: str, seed: int = 0) -> pd.DataFrame:
    """Accuracy by depth and round, one row each, with a 95 % bootstrap interval; ``key`` names the predictor."""
    right = episodes.correct(np.asarray(predictions, dtype=np.float64))
    rows = []
    for depth in np.unique(episodes.depths):
        at = episodes.depths == depth
        predictor = {"regime": episodes.regime, "key": key, "depth": int(depth)}
        for t in range(episodes.n_rounds):
            rows.append({**predictor, "round": t, **vars(mean_interval(right[at, t], seed=seed)), "n": int(at.sum())})
    return pd.DataFrame(rows)


def reading(model: Machine, seed: int, n_episodes: int = _N_FITTED) -> tuple[Read, Write]:
    """How sets are read and written: a handwired transformer's own maps, others' fitted on matched graphs."""
    n_fitted = min(n_episodes, _N_FITTED)
    fitted = None if exact(model) else episodes_for(model, REGIMES[0], n_fitted, seed + _FITTED_SEED)
    return codec(model, fitted)


def answers(model: Machine, episodes: ReachabilityEpisodes, read: Read, write: Write, seed: int = 0) -> pd.DataFrame:
    """Accuracy by depth and round of the model, of every algorithm, and of the model with its latent taken away."""
    predicted = {MODEL: rollout(model, episodes).predictions.double().numpy(force=True)}
    for record in records():
        predicted[record.key] = record.make().run(episodes)["prediction"]
    for key, run in controlled(model, episodes, read, write, seed).items():
        predicted[key] = run.predictions.double().numpy(force=True)
    return pd.concat([_by_round(p, episodes, key, seed) for key, p in predicted.items()], ignore_index=True)


def episodes_for(model: Machine, regime: str, n_episodes: int, seed: int) -> ReachabilityEpisodes:
    """Episodes of a model's sizes, long enough for the deepest target and one round more."""
    layout = model.layout
    sizes = {"n_nodes": layout.n_nodes, "n_edges": layout.n_edges}
    drawn = sample(n_episodes, 5, **sizes, regime=regime, seed=seed)
    return drawn.with_rounds(int(drawn.depths.max()) + 2)


def _measure(model: Machine, part: str, n_episodes: int, seed: int) -> Any:
    """The answers in a regime, or the tables of sets by name."""
    read, write = reading(model, seed)
    if part in REGIMES:
        episodes = episodes_for(model, part, n_episodes, seed + REGIMES.index(part))
        return answers(model, episodes, read, write, seed)
    matched = episodes_for(model, REGIMES[0], n_episodes, seed)
    return {"moved": moved(model, matched, read, write, seed), "sets": exact_sets(model, matched, read, seed)}


def _tables(model: Machine, measured: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """All tables by name; "summary" holds the accuracy in the last round, a row a regime and depth."""
    frame = pd.concat([measured[regime] for regime in REGIMES], ignore_index=True)
    last = frame[frame["round"] == frame.groupby("regime")["round"].transform("max")]
    wide = last.pivot(index=["regime", "depth"], columns="key", values="estimate")[list(dict.fromkeys(last["key"]))]
    return {"summary": wide.rename_axis(columns=None).reset_index(), "by_round": frame, **measured[_SETS]}


def _headline(model: Machine, n_episodes: int, seed: int) -> list[Row]:
    """Accuracy at every depth on matched graphs, and a round too early; what a parent moved into the set does."""
    read, write = reading(model, seed)
    episodes = episodes_for(model, REGIMES[0], n_episodes, seed)
    frame = answers(model, episodes, read, write, seed)
    rows: list[Row] = []
    for depth in sorted(frame["depth"].unique()):
        of = frame[frame["depth"] == depth].set_index(["key", "round"])
        for t, what in ((depth, f"depth {depth}, round {depth}"), (depth - 1, f"depth {depth}, a round too early")):
            others = ("breadth_first", "more_ancestors", "cut")
            beside = ", ".join(f"{key} {of.loc[(key, t), 'estimate']:.2f}" for key in others)
            rows.append(row(f"accuracy, {what}", _interval(of.loc[(MODEL, t)], "estimate"), beside))
    after = moved(model, episodes, read, write, seed)
    for move in (PARENT, OTHER):
        value = after[(after["move"] == move) & (after["later"] == 1)].iloc[0]
        beside = f"search {value['search']:.2f}"
        rows.append(row(f"P(target), {move}, a round later", _interval(value, "model"), beside))
    return rows


def _interval(value: pd.Series, of: str) -> Interval:
    return Interval(float(value[of]), float(value["low"]), float(value["high"]))


def plan() -> EvaluationPlan:
    """What ``interp evaluate`` measures of a model of reachability."""
    return EvaluationPlan(lambda model: [*REGIMES, _SETS], _measure, _tables, _headline, min_episodes=16)
