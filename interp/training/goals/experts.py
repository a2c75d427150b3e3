"""The training goal of expert advice: models predict the labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.evaluation.experts import regret
from interp.tasks.experts.episodes import ExpertEpisodes
from interp.tasks.experts.predictors import bayes
from interp.training.config import read_goal_file
from interp.training.goal import TrainingGoal


def _targets(episodes: ExpertEpisodes) -> NDArray[Any]:
    return np.eye(2)[episodes.labels]


def _evaluate(predictions: NDArray[Any], episodes: ExpertEpisodes) -> dict[str, float]:
    """Return the numbers that show progress in training, means over rounds: ``log_loss``, its
    ``excess`` over the log loss of the Bayes predictor with the regime's prior, and ``accuracy``.

    Args:
        predictions: probability of label 1, ``[episode, round]``.
        episodes: the episodes with the true labels.
    """
    best = bayes(episodes).predictions
    log_loss = regret.log_loss(predictions, episodes)
    excess = regret.excess_log_loss(predictions, best, episodes)
    accuracy = 1 - regret.mistakes(predictions, episodes)
    per_round = {"log_loss": log_loss, "excess": excess, "accuracy": accuracy}
    return {name: float(values.mean()) for name, values in per_round.items()}


def goal() -> TrainingGoal:
    """Return the training goal of expert advice (targets, presets and measures of progress): models
    predict the labels.
    """
    return TrainingGoal(_targets, evaluate=_evaluate, **read_goal_file("experts"))
