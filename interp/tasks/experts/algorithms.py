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

from collections.abc import Mapping
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
from interp.tasks.experts.posterior import check_bounds, keep_uncertain, mean_accuracy, share

VARIABLES = variable_table(Path(__file__).with_name("variables.csv"), binary=lambda v: 2)


def _match(v: Values) -> NDArray[np.int64]:
    """Which experts were right."""
    return (v["votes"] == v["label"][..., None]).astype(np.int64)


_algorithm = maker(
    "experts",
    VARIABLES,
    {"votes": lambda episodes: episodes.advice, "label": lambda episodes: episodes.labels},
    # One zero for each expert, but of the rounds elapsed; what counts is whole.
    lambda episodes, key: np.zeros(
        (len(episodes), episodes.n_experts)[: 1 if key == "elapsed" else 2],
        np.int64 if key in ("counts", "elapsed") else np.float64,
    ),
    lambda v: np.stack([1 - v["prediction"], v["prediction"]], -1),
)


@checked
def weighted_majority(gain: float = 1.0) -> Algorithm:
    """Weighted Majority with log gamma = ``gain``."""
    equations: Mapping[str, Equation | None] = {
        "log_weights": None,
        "log_weights_centred": lambda v: (
            v["log_weights"] - v["log_weights"].mean(-1, keepdims=True)
        ),
        "weights": lambda v: special.softmax(v["log_weights"], axis=-1),
        "binding": lambda v: np.ones(v["votes"].shape),
        "prediction": lambda v: share(v["weights"], v["votes"]),
        "match": _match,
        "next_log_weights": lambda v: v["log_weights"] + gain * v["match"],
    }
    return _algorithm("weighted_majority", "Weighted Majority", equations, "log_weights", gain=gain)


@checked
def bayes(low: float = 0.3, high: float = 0.9) -> Algorithm:
    """The Bayes predictor for accuracies drawn from U[low, high], each on its own ("uniform" regime by default)."""
    check_bounds((low, high))

    def log_odds(v: Values) -> NDArray[np.float64]:
        accuracy = keep_uncertain(v["accuracies"])
        return np.log(accuracy) - np.log1p(-accuracy)

    equations: Mapping[str, Equation | None] = {
        "counts": None,
        "elapsed": None,
        "accuracies": lambda v: mean_accuracy(
            v["counts"], v["elapsed"][..., None] - v["counts"], (low, high)
        ),
        "log_odds": log_odds,
        "evidence": lambda v: ((2 * v["votes"] - 1) * v["log_odds"]).sum(-1),
        "prediction": lambda v: special.expit(v["evidence"]),
        "match": _match,
        "next_counts": lambda v: v["counts"] + v["match"],
        "next_elapsed": lambda v: v["elapsed"] + 1,
    }
    return _algorithm("bayes", "Bayes predictor", equations, "log_odds", low=low, high=high)


def follow_the_leader() -> Algorithm:
    """Follow those who were right most often so far, a tie broken uniformly at random."""
    equations: Mapping[str, Equation | None] = {
        "counts": None,
        "leads": lambda v: (v["counts"] == v["counts"].max(-1, keepdims=True)).astype(np.float64),
        "prediction": lambda v: share(v["leads"], v["votes"]),
        "match": _match,
        "next_counts": lambda v: v["counts"] + v["match"],
    }
    return _algorithm("follow_the_leader", "follow the leader", equations, "counts")


def majority_vote() -> Algorithm:
    """The share of all experts that say 1, whatever happened before."""
    return _algorithm(
        "majority_vote", "majority vote", {"prediction": lambda v: v["votes"].mean(-1)}
    )


def follow_previous_winners() -> Algorithm:
    """The majority of those who were right in the last round; if there are none, or a tie, the majority of all."""

    def prediction(v: Values) -> NDArray[Any]:
        everyone = share(np.ones(v["votes"].shape), v["votes"])
        recent = share(v["won"], v["votes"])
        return np.where((v["won"].sum(-1) == 0) | (recent == 0.5), everyone, recent)

    equations: Mapping[str, Equation | None] = {
        "won": None,
        "prediction": prediction,
        "match": _match,
        "next_won": lambda v: v["match"].astype(np.float64),
    }
    return _algorithm("follow_previous_winners", "follow the previous winners", equations, "won")


def records() -> tuple[AlgorithmRecord, ...]:
    """The algorithms of this task."""
    return (
        AlgorithmRecord("weighted_majority", "Weighted Majority", "WM", weighted_majority),
        AlgorithmRecord("bayes", "Bayes predictor", "Bayes", bayes),
        AlgorithmRecord("follow_the_leader", "follow the leader", "FTL", follow_the_leader),
        AlgorithmRecord("majority_vote", "majority vote", "majority", majority_vote),
    )
