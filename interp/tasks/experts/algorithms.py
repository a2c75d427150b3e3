"""Algorithms for prediction with expert advice, as causal models of one round (paper, section 3.1).

Weighted Majority, with ``gain`` = log gamma::

    P = sum_i softmax(log_weights)_i votes_i
    match_i = [votes_i = label]
    next_log_weights = log_weights + gain match

The Bayes predictor for independent accuracies with prior U[low, high], which a model trained on
such experts should approach::

    log_odds_i = logit E[accuracy_i | counts_i, elapsed]
    P = sigmoid(sum_i (2 votes_i - 1) log_odds_i)
    next_counts = counts + match
    next_elapsed = elapsed + 1

Here P is the predicted probability of label 1, ``votes_i`` is the advice of expert i, 0 or 1, and
``match_i`` is 1 if this advice was right.

Raw log-weights grow with time, so a probe that knows only the round's index can predict most of
their variance. This is not so for *centred* log-weights, on which the prediction depends.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from interp.core.algorithm import (
    CARRIED,
    Algorithm,
    AlgorithmRecord,
    Equation,
    Values,
    algorithm_builder,
    variable_table,
)
from interp.support.checks import checked
from interp.tasks.experts.episodes import ExpertEpisodes
from interp.tasks.experts.posterior import (
    check_bounds,
    clip_accuracies,
    compute_vote_share,
    mean_accuracy,
)

VARIABLES = variable_table(Path(__file__).with_name("variables.csv"), binary=lambda v: 2)


def _mark_right(v: Values) -> NDArray[np.int64]:
    """Return 1 for every expert that was right in this round and 0 for the others,
    ``[..., expert]``.

    Args:
        v: values of the round's variables, by key.
    """
    is_right = v["votes"] == v["label"][..., None]
    return is_right.astype(np.int64)


def _centre_log_weights(v: Values) -> NDArray[np.float64]:
    """Return the log-weights minus their mean over experts, ``[..., expert]``.

    Args:
        v: values of the round's variables, by key.
    """
    log_weights = v["log_weights"]
    centred: NDArray[np.float64] = log_weights - log_weights.mean(-1, keepdims=True)
    return centred


def count_misses(v: Values) -> NDArray[Any]:
    """Return how often each expert was wrong before this round, ``[..., expert]``.

    Args:
        v: values of the round's variables, by key.
    """
    return v["elapsed"][..., None] - v["counts"]


def _compute_log_odds(v: Values) -> NDArray[np.float64]:
    """Return the log-odds of the experts' posterior mean accuracies, ``[..., expert]``. They are
    the weights of the experts' votes.

    Args:
        v: values of the round's variables, by key.
    """
    accuracy = clip_accuracies(v["accuracies"])
    return np.log(accuracy) - np.log1p(-accuracy)


def _compute_evidence(v: Values) -> NDArray[np.float64]:
    """Return the log-odds of label 1, ``[...]``: the sum over experts of the vote, +1 or -1, times
    the expert's log-odds.

    Args:
        v: values of the round's variables, by key.
    """
    signs = 2 * v["votes"] - 1
    return (signs * v["log_odds"]).sum(-1)


def _mark_leaders(v: Values) -> NDArray[np.float64]:
    """Return 1 for every expert whose number of correct votes so far is the largest, and 0 for the
    others, ``[..., expert]``.

    Args:
        v: values of the round's variables, by key.
    """
    counts = v["counts"]
    is_most = counts == counts.max(-1, keepdims=True)
    return is_most.astype(float)


_COUNTING: dict[str, Equation | None] = {
    "counts": CARRIED,
    "match": _mark_right,
    "next_counts": lambda v: v["counts"] + v["match"],
}
"""Equations that count how often each expert was right."""


def _zeros(episodes: ExpertEpisodes, key: str) -> NDArray[Any]:
    """Return zeros as the initial values of a state variable: ``[episode]`` for "elapsed",
    ``[episode, expert]`` for all others.

    Args:
        episodes: the episodes.
        key: key of the state variable.
    """
    if key == "elapsed":
        return np.zeros(len(episodes), np.int64)
    dtype = np.int64 if key == "counts" else float
    return np.zeros((len(episodes), episodes.n_experts), dtype)


_make_algorithm = algorithm_builder(
    "experts",
    VARIABLES,
    {"votes": lambda episodes: episodes.advice, "label": lambda episodes: episodes.labels},
    zeros=_zeros,
    distribution=lambda v: np.stack([1 - v["prediction"], v["prediction"]], -1),
)


@checked
def weighted_majority(gain: float = 1.0) -> Algorithm:
    """Return Weighted Majority, which predicts label 1 with the share of all weight that experts
    with advice 1 have. An expert's weight is the exponential of its log-weight, which begins at 0.

    Args:
        gain: log gamma, the amount by which an expert's log-weight grows in a round in which the
            expert is right.
    """
    equations: dict[str, Equation | None] = {
        "log_weights": CARRIED,
        "log_weights_centred": _centre_log_weights,
        "weights": lambda v: special.softmax(v["log_weights"], axis=-1),
        # 1 if a vote is attributed to its expert. Only a transformer must compute this.
        "binding": lambda v: np.ones_like(v["votes"], float),
        "prediction": lambda v: compute_vote_share(v["weights"], v["votes"]),
        "match": _mark_right,
    }
    # "match" is 1 for experts who were right in the round, and 0 for the others.
    equations["next_log_weights"] = lambda v: v["log_weights"] + gain * v["match"]
    return _make_algorithm(
        "weighted_majority", "Weighted Majority", equations, memory="log_weights", gain=gain
    )


@checked
def bayes(low: float = 0.3, high: float = 0.9) -> Algorithm:
    """Return the Bayes predictor for experts with accuracies that are drawn independently from
    U[low, high]. It predicts the posterior probability of label 1.

    The default bounds are those of the regime "uniform".

    Args:
        low, high: bounds of the prior of an accuracy, in [0, 1].
    """
    check_bounds((low, high))

    def accuracies(v: Values) -> NDArray[np.float64]:
        """Return the expected accuracy of each expert, ``[..., expert]``: the mean of its posterior
        distribution, after the rounds so far.

        Args:
            v: values of the round's variables, by key.
        """
        return mean_accuracy(v["counts"], count_misses(v), (low, high))

    equations: dict[str, Equation | None] = {
        "counts": CARRIED,
        "elapsed": CARRIED,
        "accuracies": accuracies,
        "log_odds": _compute_log_odds,
        "evidence": _compute_evidence,
        "prediction": lambda v: special.expit(v["evidence"]),
        **_COUNTING,
        "next_elapsed": lambda v: v["elapsed"] + 1,
    }
    return _make_algorithm(
        "bayes", "Bayes predictor", equations, memory="log_odds", low=low, high=high
    )


def follow_the_leader() -> Algorithm:
    """Return follow the leader: it predicts the label advised by the expert who was right most
    often so far.

    If several experts were right equally often, the predicted probability of label 1 is the share
    of these experts who advise 1.
    """
    equations = {
        "counts": CARRIED,
        "leads": _mark_leaders,
        "prediction": lambda v: compute_vote_share(v["leads"], v["votes"]),
        **_COUNTING,
    }
    return _make_algorithm("follow_the_leader", "follow the leader", equations, memory="counts")


def majority_vote() -> Algorithm:
    """Return the majority vote, an algorithm without memory: its predicted probability of label 1
    is the share of experts who advise 1.
    """
    equations = {"prediction": lambda v: v["votes"].mean(-1)}
    return _make_algorithm("majority_vote", "majority vote", equations)


def follow_previous_winners() -> Algorithm:
    """Return the algorithm that uses only the previous winners, the experts who were right in the
    previous round. Its predicted probability of label 1 is the share of these experts who advise 1.

    If no expert was right, or if the previous winners are split evenly, the prediction is the share
    of all experts who advise 1.
    """

    def prediction(v: Values) -> NDArray[Any]:
        """Return the predicted probability of label 1, ``[...]``.

        Args:
            v: values of the round's variables, by key.
        """
        votes, won = v["votes"], v["won"]  # won: 1 for experts who were right in the last round
        share_of_winners = compute_vote_share(won, votes)
        is_undecided = (won.sum(-1) == 0) | (share_of_winners == 0.5)
        return np.where(is_undecided, votes.mean(-1), share_of_winners)

    equations: dict[str, Equation | None] = {
        "won": CARRIED,
        "prediction": prediction,
        "match": _mark_right,
        "next_won": lambda v: v["match"].astype(float),
    }
    return _make_algorithm(
        "follow_previous_winners", "follow the previous winners", equations, memory="won"
    )


def records() -> tuple[AlgorithmRecord, ...]:
    """Return the task's algorithms, each as an :class:`AlgorithmRecord` (its names, and a function
    that makes it).

    The algorithms are in order of preference: if several have a variable of the same name, the first
    one defines it.
    """
    # Key, name in sentences, name in legends, and function.
    return (
        AlgorithmRecord("weighted_majority", "Weighted Majority", "WM", weighted_majority),
        AlgorithmRecord("bayes", "Bayes predictor", "Bayes", bayes),
        AlgorithmRecord("follow_the_leader", "follow the leader", "FTL", follow_the_leader),
        AlgorithmRecord("majority_vote", "majority vote", "majority", majority_vote),
    )
