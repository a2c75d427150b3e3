"""What models of Q-learning are trained on: the greedy actions of a tabular learner.

Tied greedy actions (unvisited states) are not labels: each gets an equal share of the target, so that the loss has its
floor where the prediction is uniform over them. Presets of one CPU core, and of the paper (section F.2), which lacks
three things of it: dropout .1, a length of 10 to 50 rounds for each episode, and the checkpoint best in validation.
Its stages allow 2, 3 and 4 actions: the paper's "up to 2 + k in stage k" would end at 5, and its data hold 2 to 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from interp.evaluation.qlearning.agreement import agreement
from interp.tasks.qlearning.episodes import MDPEpisodes
from interp.training.config import Stage, TrainingConfig
from interp.training.goal import Bounds, TrainingGoal

_SIZES = {"n_states": (2, 8), "n_actions": (2, 4)}
# fmt: off
_PRESETS = {
    "laptop": TrainingConfig(
        task="qlearning", sizes=_SIZES, regimes=("grid", "grid", "grid", "deterministic", "ladder"),
        # Few states first: where every entry of the table is visited often, values matter from the first rounds.
        stages=(
            Stage(15, 80, {"n_states": 2, "n_actions": 2}),
            Stage(15, 120, {"n_states": 4, "n_actions": 2}),
            Stage(15, 200, {"n_actions": 3}),
            *(Stage(20, 500), Stage(25, 1200), Stage(50, 600), Stage(100, 400)),
        ),
        d_model=128, d_mlp=512, write_map=True, position_codes="label",
        muon_lr=2e-3, warmup_steps=50, window=25, precision="auto", eval_every=100, eval_rounds=50,
    ),
    "paper": TrainingConfig(
        task="qlearning", sizes=_SIZES, regimes=("grid",), dataset_episodes=45_000,
        # 28 epochs of 704 batches, a third of them a stage.
        stages=tuple(Stage(50, 6571, {"n_actions": n}) for n in (2, 3, 4)), mix=0.0, commit="target",
        d_model=256, n_heads=8, d_mlp=1024, init_std=0.02, latent_update="replace",
        lr=1e-4, warmup_steps=500, window=10, precision="auto", eval_every=500, eval_rounds=50,
    ),
}
# fmt: on


def _targets(episodes: MDPEpisodes) -> NDArray[Any]:
    """Uniform over the tied greedy actions, ``[episode, round, action]``."""
    ties = episodes.greedy_sets
    return ties / ties.sum(-1, keepdims=True)


def _every_number_of_actions(bounds: Bounds) -> tuple[Mapping[str, int], ...]:
    """A held-out batch for each number of actions; its number of states is drawn."""
    low, high = bounds["n_actions"]
    return tuple({"n_actions": n} for n in range(low, high + 1))


def _evaluate(policy: NDArray[Any], episodes: MDPEpisodes) -> dict[str, float]:
    """``cross_entropy``, its ``excess`` over the floor, and ``agreement`` on untied steps (NaN without any)."""
    result = agreement(policy, episodes, n_resamples=1)  # no interval is read
    names = {"cross_entropy": "cross_entropy", "excess": "cross_entropy_excess", "agreement": "untied"}
    return {name: result.intervals[quantity, "all"].estimate for name, quantity in names.items()}


def goal() -> TrainingGoal:
    """What ``interp train qlearning`` learns."""
    return TrainingGoal(
        targets=_targets,
        presets=_PRESETS,
        drawn=("n_actions", "n_states"),
        held_out=_every_number_of_actions,
        evaluate=_evaluate,
        learns="imitation of tabular Q-learning",
        limits=(
            "It imitates a tabular learner's choices, mistakes included; it was never trained on reward.",
            "It reads the sizes that its configuration names, and was trained on rewards in [0, 1] and the lengths "
            "above.",
            "It is not the paper's recipe to the letter. That one has dropout .1, episodes of 10 to 50 rounds, each of "
            "a length of its own, and keeps the checkpoint with the best loss in validation. No preset does: no "
            "dropout, one length a stage, the last weights. The preset 'paper' has the paper's other settings.",
            "Decoded tables are linear read-outs: an effective rate says something only where the R2 is near 1 and "
            "the untrained model's answer differs.",
        ),
    )
