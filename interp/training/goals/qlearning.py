"""What models of Q-learning are trained on: the greedy actions of a tabular learner.

Tied greedy actions (unvisited states) are not labels: each gets an equal share of the target, so that the loss has its
floor where the prediction is uniform over them. Presets of one CPU core, and of the paper (section F.2), which lacks
three things of it: dropout .1, a length of 10 to 50 rounds for each episode, and the checkpoint best in validation.
Its stages allow up to 3, 4 and 4 actions: the paper's "up to 2 + k in stage k" ends at 5, and its data hold 2 to 4.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from interp.evaluation.qlearning.agreement import agreement
from interp.tasks.qlearning.episodes import MDPEpisodes
from interp.training.config import shipped
from interp.training.goal import TrainingGoal


def _evaluate(policy: NDArray[Any], episodes: MDPEpisodes) -> dict[str, float]:
    """``cross_entropy``, its ``excess`` over the floor, and ``agreement`` on untied steps (NaN without any)."""
    result = agreement(policy, episodes, n_resamples=1)  # no interval is read
    names = {
        "cross_entropy": "cross_entropy",
        "excess": "cross_entropy_excess",
        "agreement": "untied",
    }
    return {name: result.numbers[quantity, "all"].estimate for name, quantity in names.items()}


def goal() -> TrainingGoal:
    """What ``interp train qlearning`` learns."""
    return TrainingGoal(
        targets=lambda of: (
            (ties := of.greedy_sets) / ties.sum(-1, keepdims=True)
        ),  # uniform over tied greedy actions
        drawn=("n_actions", "n_states"),
        # A held-out batch for each number of actions; its number of states is drawn.
        held_out=lambda bounds: tuple(
            {"n_actions": n} for n in range(bounds["n_actions"][0], bounds["n_actions"][1] + 1)
        ),
        evaluate=_evaluate,
        **shipped("qlearning"),
    )
