"""What models of choosing among arms are trained on: the player's choices."""

from __future__ import annotations

import numpy as np

from interp.training.config import shipped
from interp.training.goal import TrainingGoal


def goal() -> TrainingGoal:
    """What ``interp train bandit`` learns."""
    return TrainingGoal(
        targets=lambda episodes: np.eye(episodes.n_arms)[episodes.choices], **shipped("bandit")
    )
