"""What models of expert advice are trained on: the labels. Presets of one CPU core, and of the paper (section F.1)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.evaluation.experts import regret
from interp.tasks.experts.episodes import ExpertEpisodes
from interp.tasks.experts.predictors import bayes
from interp.training.config import Stage, TrainingConfig
from interp.training.goal import TrainingGoal

# fmt: off
_LAPTOP = TrainingConfig(
    task="experts", stages=(Stage(20, 1000), Stage(30, 600), Stage(50, 400), Stage(100, 200)), regimes=("uniform",),
    muon_lr=2e-3, window=25, precision="auto", warmup_steps=50, decay="linear", eval_every=100,
)
PRESETS = {
    "laptop": _LAPTOP,
    # With accuracies U[0, 1] alone the vote says nothing, and the run never leaves ln 2: the uniform regime starts it.
    # All experts at first: one that is not there while the others find room in the latent may never find any.
    "laptop-wide": replace(
        _LAPTOP, sizes={"n_experts": (2, 8)}, regimes=("uniform", "wide"), position_codes="label",
        stages=(Stage(20, 1000, {"n_experts": (8, 8)}), Stage(30, 500), Stage(50, 400), Stage(100, 200)),
    ),
    "paper": TrainingConfig(
        task="experts", regimes=("uniform",), dataset_episodes=3000,
        stages=tuple(Stage(5 * i if i <= 10 else 50 + 15 * (i - 10), 9000) for i in range(1, 14)),
        latent_update="replace", init_std=0.02, lr=1e-4, batch_size=32, patience=3, patience_from_stage=5,
    ),
}
# fmt: on


def targets(episodes: ExpertEpisodes) -> NDArray[Any]:
    """One-hot labels, ``[episode, round, 2]``."""
    return np.eye(2)[episodes.labels]


def evaluate(predictions: NDArray[Any], episodes: ExpertEpisodes) -> dict[str, float]:
    """``log_loss``, its ``excess`` over the Bayes predictor of the regime's prior, and ``accuracy``."""
    per_round = {
        "log_loss": regret.log_loss(predictions, episodes),
        "excess": regret.excess_log_loss(predictions, bayes(episodes).predictions, episodes),
        "accuracy": 1 - regret.mistakes(predictions, episodes),
    }
    return {name: float(values.mean()) for name, values in per_round.items()}


def goal() -> TrainingGoal:
    """What ``interp train experts`` learns."""
    return TrainingGoal(
        targets=targets,
        presets=PRESETS,
        evaluate=evaluate,
        floor="the Bayes predictor",
        learns="expert advice",
        limits=(
            "It predicts from how often each expert was right, under the prior that it was trained on; where "
            "accuracies lie outside it, or move, it is as wrong as that prior.",
            "It reads the numbers of experts that its configuration names, and no others.",
            "Its predictions are the only thing it was trained on; nothing in training asked for log-weights inside.",
        ),
        former={"wma": "{preset}", "wma-wide": "{preset}-wide"},
    )
