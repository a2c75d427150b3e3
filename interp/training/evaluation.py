"""The numbers that training watches: held-out loss, and its excess over the best that the information allows.

They are those of ``interp.algorithms``, without intervals: they show progress. What a model is worth is measured by
``interp.evaluation`` on fresh episodes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from interp.tasks.experts import regret
from interp.tasks.qlearning.agreement import agreement
from interp.tasks.experts.predictors import bayes
from interp.model.rollout import rollout
from interp.model.transformer import HookedLatentTransformer
from interp.tasks.experts import ExpertEpisodes
from interp.tasks.mdp import MDPEpisodes


def evaluate(
    model: HookedLatentTransformer, batches: Sequence[ExpertEpisodes | MDPEpisodes], commit: str
) -> dict[str, float]:
    """Means over episodes and rounds, averaged over the batches.

    Returns:
        experts: ``log_loss``, ``excess`` over the Bayes predictor of the regime's prior, ``accuracy``;
        Q-learning: ``cross_entropy``, ``excess`` over its floor, ``agreement`` on untied steps (NaN without any).
    """
    was_training = model.training
    model.eval()
    parts = []
    for episodes in batches:
        predictions = rollout(model, episodes, commit=commit).predictions.double().numpy(force=True)
        if isinstance(episodes, ExpertEpisodes):
            parts.append(_experts(predictions, episodes))
        else:
            parts.append(_qlearning(predictions, episodes))
    model.train(was_training)
    return {name: float(np.mean([part[name] for part in parts])) for name in parts[0]}


def _experts(predictions: np.ndarray, episodes: ExpertEpisodes) -> dict[str, float]:
    per_round = {
        "log_loss": regret.log_loss(predictions, episodes),
        "excess": regret.excess_log_loss(predictions, bayes(episodes).predictions, episodes),
        "accuracy": 1 - regret.mistakes(predictions, episodes),
    }
    return {name: float(values.mean()) for name, values in per_round.items()}


def _qlearning(policy: np.ndarray, episodes: MDPEpisodes) -> dict[str, float]:
    result = agreement(policy, episodes, n_resamples=1)  # no interval is read
    names = {"cross_entropy": "cross_entropy", "excess": "cross_entropy_excess", "agreement": "untied"}
    return {name: result.intervals[quantity, "all"].estimate for name, quantity in names.items()}
