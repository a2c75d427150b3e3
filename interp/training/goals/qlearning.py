"""What models of Q-learning are trained on: the greedy actions of a tabular learner.

Tied greedy actions (unvisited states) are not labels: each gets an equal share of the target, so that the loss has its
floor where the prediction is uniform over them. Presets of one CPU core, and of the paper (section F.2), which lacks
three things of it: dropout .1, a length of 10 to 50 rounds for each episode, and the checkpoint best in validation.
Its stages allow up to 3, 4 and 4 actions: the paper's "up to 2 + k in stage k" ends at 5, and its data hold 2 to 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from interp.evaluation.qlearning.agreement import agreement
from interp.tasks.qlearning.episodes import MDPEpisodes
from interp.training.config import shipped
from interp.training.goal import TrainingGoal

_QUANTITIES = {
    "cross_entropy": "cross_entropy",
    "excess": "cross_entropy_excess",
    "agreement": "untied",
}
"""What training calls the numbers of an agreement."""


def _targets(episodes: MDPEpisodes) -> NDArray[Any]:
    """Return the uniform distribution over tied greedy actions."""
    is_greedy = episodes.greedy_sets
    targets: NDArray[Any] = is_greedy / is_greedy.sum(-1, keepdims=True)
    return targets


def _evaluate(policy: NDArray[Any], episodes: MDPEpisodes) -> dict[str, float]:
    """Return ``cross_entropy``, its ``excess`` over the floor, and ``agreement`` on untied steps (NaN without any)."""
    numbers = agreement(policy, episodes, n_resamples=1).numbers  # no interval is read
    return {name: numbers[quantity, "all"].estimate for name, quantity in _QUANTITIES.items()}


def _held_out(bounds: Mapping[str, tuple[int, int]]) -> tuple[Mapping[str, int], ...]:
    """Return the sizes of an evaluation batch for each number of actions; its number of states is
    drawn.
    """
    fewest, most_actions = bounds["n_actions"]
    return tuple({"n_actions": n} for n in range(fewest, most_actions + 1))


def goal() -> TrainingGoal:
    """Return what ``interp train qlearning`` learns."""
    return TrainingGoal(
        _targets,
        drawn=("n_actions", "n_states"),
        held_out=_held_out,
        evaluate=_evaluate,
        **shipped("qlearning"),
    )
