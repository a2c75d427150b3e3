"""The training goal of Q-learning: models predict the greedy actions of a tabular learner.

If several actions are tied, as in unvisited states, each gets an equal share of the target. The
loss is then lowest for a uniform prediction over them.

There are presets for one CPU core, and one that follows the paper (section F.2). The paper also has
a dropout of .1, draws a length of 10 to 50 rounds for each episode, and selects the checkpoint that
is best in validation; the preset has none of these. Its three stages allow up to 3, 4 and 4
actions. The paper says "up to 2 + k in stage k", which would end at 5, but its data have 2 to 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from interp.evaluation.qlearning.agreement import agreement
from interp.tasks.qlearning.episodes import MDPEpisodes
from interp.training.config import read_goal_file
from interp.training.goal import TrainingGoal

_QUANTITIES = {
    "cross_entropy": "cross_entropy",
    "excess": "cross_entropy_excess",
    "agreement": "untied",
}
"""Progress number -> the quantity of :func:`~interp.evaluation.qlearning.agreement.agreement`."""


def _targets(episodes: MDPEpisodes) -> NDArray[Any]:
    """Return the training targets, ``[episode, round, action]``: in each round, the uniform
    distribution over the actions with the largest Q-value.
    """
    is_greedy = episodes.greedy_sets
    targets: NDArray[Any] = is_greedy / is_greedy.sum(-1, keepdims=True)
    return targets


def _evaluate(policy: NDArray[Any], episodes: MDPEpisodes) -> dict[str, float]:
    """Return the numbers that show progress in training: ``cross_entropy``, its ``excess`` over the
    lowest possible one, and ``agreement``, the share of rounds without ties in which the greedy
    action is chosen (NaN if there are none).

    Args:
        policy: predicted probabilities of actions, ``[episode, round, action]``.
        episodes: the episodes with the greedy actions.
    """
    numbers = agreement(policy, episodes, n_resamples=1).numbers  # no interval is read
    return {name: numbers[quantity, "all"].estimate for name, quantity in _QUANTITIES.items()}


def _list_held_out_sizes(bounds: Mapping[str, tuple[int, int]]) -> tuple[Mapping[str, int], ...]:
    """Return the sizes that each evaluation batch fixes: one batch per number of actions. The
    number of states is drawn.

    Args:
        bounds: name of a size -> its smallest and largest value.
    """
    fewest, most_actions = bounds["n_actions"]
    return tuple({"n_actions": n} for n in range(fewest, most_actions + 1))


def goal() -> TrainingGoal:
    """Return the training goal of Q-learning (targets, presets and measures of progress): models
    predict the greedy actions of a tabular learner.
    """
    return TrainingGoal(
        _targets,
        drawn=("n_actions", "n_states"),
        held_out=_list_held_out_sizes,
        evaluate=_evaluate,
        **read_goal_file("qlearning"),
    )
