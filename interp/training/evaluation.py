"""The numbers that training watches: held-out loss, and its excess over the best that the information allows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from interp.algorithms import experts as expert_algorithms
from interp.model.rollout import rollout
from interp.model.transformer import HookedLatentTransformer
from interp.tasks.experts import ExpertEpisodes
from interp.tasks.mdp import MDPEpisodes


def evaluate(
    model: HookedLatentTransformer, batches: Sequence[ExpertEpisodes | MDPEpisodes], commit: str
) -> dict[str, float]:
    """Means over episodes and rounds of all batches.

    Returns:
        experts: ``log_loss``, ``excess`` over the Bayes predictor of the regime's prior, ``accuracy``;
        Q-learning: ``cross_entropy``, ``excess`` over its floor, ``agreement`` on untied steps.
    """
    was_training = model.training
    model.eval()
    parts = []
    for episodes in batches:
        predictions = rollout(model, episodes, commit=commit).predictions.double().cpu().numpy()
        if isinstance(episodes, ExpertEpisodes):
            parts.append(_experts(predictions, episodes))
        else:
            parts.append(_qlearning(predictions, episodes))
    model.train(was_training)
    return {name: float(np.mean([part[name] for part in parts])) for name in parts[0]}


def _experts(predictions: np.ndarray, episodes: ExpertEpisodes) -> dict[str, float]:
    def log_loss(p: np.ndarray) -> float:
        p = np.clip(p, 1e-12, 1 - 1e-12)
        return float(-np.where(episodes.labels == 1, np.log(p), np.log1p(-p)).mean())

    bayes = expert_algorithms.bayes(episodes).predictions
    correct = (predictions > 0.5) == (episodes.labels == 1)
    return {
        "log_loss": log_loss(predictions),
        "excess": log_loss(predictions) - log_loss(bayes),
        "accuracy": float(correct.mean()),
    }


def _qlearning(policy: np.ndarray, episodes: MDPEpisodes) -> dict[str, float]:
    ties = episodes.greedy_sets
    n_tied = ties.sum(-1)
    cross_entropy = -(np.where(ties, np.log(np.clip(policy, 1e-12, None)), 0.0).sum(-1) / n_tied)
    untied = n_tied == 1
    agree = policy.argmax(-1) == episodes.greedy
    return {
        "cross_entropy": float(cross_entropy.mean()),
        "excess": float((cross_entropy - np.log(n_tied)).mean()),
        "agreement": float(agree[untied].mean()) if untied.any() else float("nan"),
    }
