"""What models of reachability are trained on: the nodes reached and the answer, round by round.

A round's target is the distribution of breadth-first search with a ``spread`` of 0.6: .4 of it lies on the candidate
that is reached, .6 evenly on all nodes reached. The first round has an empty latent and asks for nothing. Two other
targets ask for less: "answers", the candidate alone in every round, and "final answers", the candidate in the last.

A stage of the curriculum lasts until targets at its depth are answered, at most as long as it says. What weights start
from is in :mod:`~interp.tasks.reachability.starts`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.tasks.reachability.algorithms import breadth_first
from interp.tasks.reachability.episodes import ReachabilityEpisodes
from interp.tasks.reachability.scores import correct
from interp.tasks.reachability.starts import STARTS
from interp.training.config import Stage, TrainingConfig
from interp.training.goal import TrainingGoal

SPREAD = 0.6
"""Share of a round's target that lies on all nodes reached."""
KNOWN = 0.95
"""Accuracy at every depth so far that ends a stage."""


def deeper(steps: int, last: int, sizes: tuple[dict[str, int], ...] = ()) -> tuple[Stage, ...]:
    """A curriculum of depths 1 to 4: up to ``steps`` batches for each depth but the last, ``last`` for that.

    >>> [(stage.n_rounds, sorted(stage.until)) for stage in deeper(100, 500)]
    [(2, ['answered_1']), (3, ['answered_1', 'answered_2']), (4, ['answered_1', 'answered_2', 'answered_3']), (5, [])]
    """
    stages = []
    for depth in range(1, 5):
        until = {f"answered_{d}": KNOWN for d in range(1, depth + 1)} if depth < 4 else {}
        bounds = sizes[depth - 1] if depth <= len(sizes) else {}
        stages.append(Stage(depth + 1, steps if depth < 4 else last, bounds, until))
    return tuple(stages)


LAPTOP = TrainingConfig(
    task="reachability",
    sizes={"n_nodes": (16, 16), "n_edges": (24, 24)},
    stages=deeper(1000, 2500),
    batch_size=32,
    lr=2e-3,
    regimes=("matched",),
    n_layers=2,
    latent_update="add",
    write_map=True,
    muon_lr=3e-3,
    warmup_steps=50,
    decay="linear",
    mix=0.2,
    position_codes="label",
    start="matching, factored, apart, bound",
    eval_every=100,
    eval_episodes=128,
    eval_rounds=5,
)
PRESETS = {
    "laptop": LAPTOP,
    "prosqa": replace(
        LAPTOP,
        sizes={"n_nodes": (28, 28), "n_edges": (16, 54)},
        d_model=128,
        lr=1e-3,
        muon_lr=2e-3,
        stages=deeper(1500, 5000, ({"n_edges": 24}, {"n_edges": 36})),
    ),
}


def targets(episodes: ReachabilityEpisodes) -> NDArray[Any]:
    """What each round should predict, ``[episode, round, node]``; zeros in the first round, which weighs nothing."""
    return _searched(episodes, SPREAD)


def answers(episodes: ReachabilityEpisodes) -> NDArray[Any]:
    """The candidates alone: the one that is reached, halves where both or none are; zeros in the first round."""
    return _searched(episodes, 0.0)


def final_answers(episodes: ReachabilityEpisodes) -> NDArray[Any]:
    """:func:`answers` in the last round, zeros in all others."""
    wanted = answers(episodes)
    wanted[:, :-1] = 0.0
    return wanted


def _searched(episodes: ReachabilityEpisodes, spread: float) -> NDArray[Any]:
    wanted: NDArray[Any] = breadth_first(spread).run(episodes)["prediction"].copy()
    wanted[:, 0] = 0.0
    return wanted


def evaluate(predictions: NDArray[Any], episodes: ReachabilityEpisodes) -> dict[str, float]:
    """Loss, ``excess`` over the targets' entropy, accuracy from round d on, and by depth d.

    ``answered_d`` is the accuracy in round d, the first that can know; ``accuracy_d`` that in the last round.
    """
    wanted, tiny = targets(episodes)[:, 1:], np.finfo(np.float64).tiny
    loss = -(wanted * np.log(np.maximum(predictions[:, 1:], tiny))).sum(-1).mean()
    floor = -(wanted * np.log(np.maximum(wanted, tiny))).sum(-1).mean()
    right = correct(predictions, episodes)
    known = np.arange(episodes.n_rounds) >= episodes.depths[:, None]
    by_depth: dict[str, float] = {}
    for d in np.unique(episodes.depths):
        of = right[episodes.depths == d]
        by_depth |= {f"answered_{d}": float(of[:, d].mean()), f"accuracy_{d}": float(of[:, -1].mean())}
    return {
        "cross_entropy": float(loss),
        "excess": float(loss - floor),
        "accuracy": float(right[known].mean()),
        **by_depth,
    }


def goal() -> TrainingGoal:
    """What ``interp train reachability`` learns."""
    return TrainingGoal(
        targets=targets,
        other_targets={"answers": answers, "final answers": final_answers},
        presets=PRESETS,
        evaluate=evaluate,
        starts=STARTS,
        floor="breadth-first search",
        learns="reachability",
        limits=(
            "It names the nodes that its configuration counts, and no others.",
            "Each round was trained to say which nodes are reached: that its latent holds them is what it was asked "
            "for, not what it found by itself.",
            "A part of its prediction is spread over the nodes reached: compare the two candidates with each other.",
        ),
    )
