"""The algorithms of prediction with expert advice as causal models of one round (paper, section 3.1).

Weighted Majority, ``gain`` = log gamma::

    P = sum_i softmax(log_weights)_i votes_i      match_i = [votes_i = label]      next = log_weights + gain match

The Bayes predictor with independent priors U[low, high], which a model trained on them should approach::

    log_odds_i = logit E[accuracy_i | counts_i, elapsed]      P = sigmoid(sum_i (2 votes_i - 1) log_odds_i)
    next_counts = counts + match                              next_elapsed = elapsed + 1

Raw log-weights grow with time, and a probe that knows the round alone decodes most of them: *centred* log-weights,
which the prediction depends on, do not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from interp.core.algorithm import (
    Algorithm,
    AlgorithmRecord,
    Equation,
    Values,
    maker,
    variable_table,
)
from interp.support.checks import checked
from interp.tasks.experts.episodes import ExpertEpisodes
from interp.tasks.experts.posterior import check_bounds, keep_uncertain, mean_accuracy, share

VARIABLES = variable_table(Path(__file__).with_name("variables.csv"), binary=lambda v: 2)


def _match(v: Values) -> NDArray[np.int64]:
    """Return which experts were right, 0 or 1."""
    is_right = v["votes"] == v["label"][..., None]
    return is_right.astype(np.int64)


def _centre(v: Values) -> NDArray[np.float64]:
    """Return the log-weights less their mean over experts."""
    log_weights = v["log_weights"]
    return np.asarray(log_weights - log_weights.mean(-1, keepdims=True))


def _log_odds(v: Values) -> NDArray[np.float64]:
    """Return the log-odds of the posterior mean accuracies: what each vote weighs."""
    accuracy = keep_uncertain(v["accuracies"])
    return np.log(accuracy) - np.log1p(-accuracy)


def _evidence(v: Values) -> NDArray[np.float64]:
    """Return what the votes say together, in log-odds of y = 1."""
    signs = 2 * v["votes"] - 1
    return (signs * v["log_odds"]).sum(-1)


def _leads(v: Values) -> NDArray[np.float64]:
    """Return who was right most often, 0 or 1."""
    counts = v["counts"]
    is_most = counts == counts.max(-1, keepdims=True)
    return is_most.astype(np.float64)


_COUNTED: dict[str, Equation | None] = {
    "counts": None,
    "match": _match,
    "next_counts": lambda v: v["counts"] + v["match"],
}
"""What counts how often each expert was right."""


def _zeros(episodes: ExpertEpisodes, key: str) -> NDArray[Any]:
    """Return what is carried into the first round; what counts is whole."""
    if key == "elapsed":
        return np.zeros(len(episodes), np.int64)
    kind = np.int64 if key == "counts" else np.float64
    return np.zeros((len(episodes), episodes.n_experts), kind)


_algorithm = maker(
    "experts",
    VARIABLES,
    {"votes": lambda episodes: episodes.advice, "label": lambda episodes: episodes.labels},
    zeros=_zeros,
    distribution=lambda v: np.stack([1 - v["prediction"], v["prediction"]], -1),
)


@checked
def weighted_majority(gain: float = 1.0) -> Algorithm:
    """Return Weighted Majority with log gamma = ``gain``."""
    equations: dict[str, Equation | None] = {
        "log_weights": None,
        "log_weights_centred": _centre,
        "weights": lambda v: special.softmax(v["log_weights"], axis=-1),
        "binding": lambda v: np.ones_like(v["votes"], np.float64),
        "prediction": lambda v: share(v["weights"], v["votes"]),
        "match": _match,
    }
    equations["next_log_weights"] = lambda v: v["log_weights"] + gain * v["match"]
    return _algorithm("weighted_majority", "Weighted Majority", equations, "log_weights", gain=gain)


@checked
def bayes(low: float = 0.3, high: float = 0.9) -> Algorithm:
    """Return the Bayes predictor for accuracies drawn independently from U[low, high] ("uniform" by
    default).
    """
    check_bounds((low, high))

    def accuracies(v: Values) -> NDArray[np.float64]:
        misses = v["elapsed"][..., None] - v["counts"]
        return mean_accuracy(v["counts"], misses, (low, high))

    equations: dict[str, Equation | None] = {
        "counts": None,
        "elapsed": None,
        "accuracies": accuracies,
        "log_odds": _log_odds,
        "evidence": _evidence,
        "prediction": lambda v: special.expit(v["evidence"]),
        **_COUNTED,
        "next_elapsed": lambda v: v["elapsed"] + 1,
    }
    return _algorithm("bayes", "Bayes predictor", equations, "log_odds", low=low, high=high)


def follow_the_leader() -> Algorithm:
    """Return what follows those who were right most often so far, a tie broken uniformly at random."""
    equations = {
        "counts": None,
        "leads": _leads,
        "prediction": lambda v: share(v["leads"], v["votes"]),
        **_COUNTED,
    }
    return _algorithm("follow_the_leader", "follow the leader", equations, "counts")


def majority_vote() -> Algorithm:
    """Return the share of all experts that say 1, whatever happened before."""
    equations = {"prediction": lambda v: v["votes"].mean(-1)}
    return _algorithm("majority_vote", "majority vote", equations)


def follow_previous_winners() -> Algorithm:
    """Return the majority of those who were right in the last round; if there are none, or a tie, that of all."""

    def prediction(v: Values) -> NDArray[Any]:
        votes, won = v["votes"], v["won"]
        recent = share(won, votes)
        is_open = (won.sum(-1) == 0) | (recent == 0.5)
        return np.where(is_open, votes.mean(-1), recent)

    equations: dict[str, Equation | None] = {
        "won": None,
        "prediction": prediction,
        "match": _match,
        "next_won": lambda v: v["match"].astype(np.float64),
    }
    return _algorithm("follow_previous_winners", "follow the previous winners", equations, "won")


def records() -> tuple[AlgorithmRecord, ...]:
    """List the algorithms of this task."""
    return (
        AlgorithmRecord("weighted_majority", "Weighted Majority", "WM", weighted_majority),
        AlgorithmRecord("bayes", "Bayes predictor", "Bayes", bayes),
        AlgorithmRecord("follow_the_leader", "follow the leader", "FTL", follow_the_leader),
        AlgorithmRecord("majority_vote", "majority vote", "majority", majority_vote),
    )
