"""The training goal of the bandit task: models predict the player's choices."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.tasks.bandit.episodes import BanditEpisodes
from interp.training.config import read_goal_file
from interp.training.goal import TrainingGoal


def _targets(episodes: BanditEpisodes) -> NDArray[Any]:
    return np.eye(episodes.n_arms)[episodes.choices]


def goal() -> TrainingGoal:
    """Return the training goal of the bandit task (targets, presets and measures of progress):
    models predict the player's choices.
    """
    return TrainingGoal(_targets, **read_goal_file("bandit"))
