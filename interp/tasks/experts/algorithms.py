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

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from interp.algorithm import Algorithm, AlgorithmRecord, Equation, Role, Values, Variable, numbered
from interp.checks import checked
from interp.tasks.experts.episodes import ExpertEpisodes
from interp.tasks.experts.posterior import check_bounds, keep_uncertain, mean_accuracy, share

PER_EXPERT = numbered("e_")


def _each(key: str, symbol: str, meaning: str, units: str, role: Role = "round", **made: Any) -> Variable:
    """A variable with a number for each expert."""
    return Variable(key, symbol, meaning, units, role, outputs=PER_EXPERT, **made)


_binary = partial(Variable, units="class", kind="class", n_classes=lambda v: 2)
VOTES = _binary("votes", "p_i", "what each expert says", role="input", outputs=numbered("p_"))
LABEL = _binary("label", "y_t", "the truth", role="input", outputs=lambda v: ("y",))
MATCH = _binary(
    "match", "m_i", "whether each expert was right", parents=("votes", "label"), outputs=numbered("m_"),
    equation=lambda v: (v["votes"] == v["label"][..., None]).astype(np.int64),
)  # fmt: skip
_COUNTS = _each("counts", "k_i", "how often each expert was right", "rounds", "state")
_NEXT_COUNTS = _each(
    "next_counts", "k_{i,t+1}", "how often each expert was right, this round included", "rounds",
    parents=("counts", "match"), equation=lambda v: v["counts"] + v["match"],
)  # fmt: skip


def _prediction(meaning: str, parents: tuple[str, ...], equation: Equation) -> Variable:
    return Variable(
        "prediction", "P(y_t = 1)", meaning, "probability", parents=parents, equation=equation,
        outputs=lambda v: ("P(y=1)",),
    )  # fmt: skip


def _zeros(episodes: ExpertEpisodes, dtype: Any = np.float64) -> NDArray[Any]:
    return np.zeros((len(episodes), episodes.n_experts), dtype)


def _algorithm(
    key: str,
    name: str,
    variables: tuple[Variable, ...],
    initial: Callable[[Any], dict[str, NDArray[Any]]],
    parameters: Mapping[str, float] | None = None,
    memory: str = "",
) -> Algorithm:
    return Algorithm(
        key=key, name=name, task="experts", parameters=parameters or {}, variables=(VOTES, LABEL, *variables),
        inputs=lambda episodes: {"votes": episodes.advice, "label": episodes.labels}, initial=initial,
        distribution=lambda v: np.stack([1 - v["prediction"], v["prediction"]], -1),
        memory=memory, written=memory and f"next_{memory}",
    )  # fmt: skip


@checked
def weighted_majority(gain: float = 1.0) -> Algorithm:
    """Weighted Majority with log gamma = ``gain``.

    >>> weighted_majority(0.5).state, weighted_majority().written
    (('log_weights',), 'next_log_weights')
    """
    variables = (
        _each("log_weights", "lambda_i", "log-weight of each expert before the round", "nats", "state"),
        _each(
            "log_weights_centred", "lambda_i - mean",
            "log-weights less their mean over experts: all of them that the prediction depends on", "nats",
            parents=("log_weights",), equation=lambda v: v["log_weights"] - v["log_weights"].mean(-1, keepdims=True),
        ),
        _each(
            "weights", "w_i", "normalised weights: the softmax of the log-weights", "probability",
            parents=("log_weights",), equation=lambda v: special.softmax(v["log_weights"], axis=-1),
        ),
        Variable(
            "binding", "e(p_i)", "each vote knows its expert", "indicator",
            parents=("votes",), equation=lambda v: np.ones(v["votes"].shape), outputs=numbered("p_"),
        ),
        _prediction(
            "the weighted share of votes for 1", ("weights", "votes"), lambda v: share(v["weights"], v["votes"])
        ),
        MATCH,
        _each(
            "next_log_weights", "lambda_{i,t+1}", "log-weight of each expert after the round", "nats",
            parents=("log_weights", "match"), equation=lambda v: v["log_weights"] + gain * v["match"],
        ),
    )  # fmt: skip
    return _algorithm(
        "weighted_majority", "Weighted Majority", variables, lambda episodes: {"log_weights": _zeros(episodes)},
        {"gain": gain}, "log_weights",
    )  # fmt: skip


@checked
def bayes(low: float = 0.3, high: float = 0.9) -> Algorithm:
    """The Bayes predictor for accuracies drawn from U[low, high], each on its own ("uniform" regime by default)."""
    check_bounds((low, high))

    def log_odds(v: Values) -> NDArray[np.float64]:
        accuracy = keep_uncertain(v["accuracies"])
        return np.log(accuracy) - np.log1p(-accuracy)

    variables = (
        _COUNTS,
        Variable("elapsed", "t", "the number of rounds before this one", "rounds", "state"),
        _each(
            "accuracies", "E[q_i]", "posterior mean accuracy of each expert", "probability",
            parents=("counts", "elapsed"),
            equation=lambda v: mean_accuracy(v["counts"], v["elapsed"][..., None] - v["counts"], (low, high)),
        ),
        _each(
            "log_odds", "logit E[q_i]",
            "log-odds of the posterior mean accuracy: the weight of each expert in the vote", "nats",
            parents=("accuracies",), equation=log_odds,
        ),
        Variable(
            "evidence", "logit P(y_t = 1)",
            "log-odds of y = 1: what the votes say together, before the label is seen", "nats",
            parents=("log_odds", "votes"), equation=lambda v: ((2 * v["votes"] - 1) * v["log_odds"]).sum(-1),
            outputs=lambda v: ("log-odds of y=1",),
        ),
        _prediction("the probability that y = 1", ("evidence",), lambda v: special.expit(v["evidence"])),
        MATCH,
        _NEXT_COUNTS,
        Variable(
            "next_elapsed", "t + 1", "the number of rounds, this one included", "rounds",
            parents=("elapsed",), equation=lambda v: v["elapsed"] + 1,
        ),
    )  # fmt: skip
    return _algorithm(
        "bayes", "Bayes predictor", variables,
        lambda episodes: {"counts": _zeros(episodes, np.int64), "elapsed": np.zeros(len(episodes), np.int64)},
        {"low": low, "high": high}, "log_odds",
    )  # fmt: skip


def follow_the_leader() -> Algorithm:
    """Follow those who were right most often so far, a tie broken uniformly at random."""
    variables = (
        _COUNTS,
        _each(
            "leads", "[k_i = max k]", "who was right most often", "indicator", parents=("counts",),
            equation=lambda v: (v["counts"] == v["counts"].max(-1, keepdims=True)).astype(np.float64),
        ),
        _prediction("the share of leaders that say 1", ("leads", "votes"), lambda v: share(v["leads"], v["votes"])),
        MATCH,
        _NEXT_COUNTS,
    )  # fmt: skip
    return _algorithm(
        "follow_the_leader", "follow the leader", variables,
        lambda episodes: {"counts": _zeros(episodes, np.int64)}, memory="counts",
    )  # fmt: skip


def majority_vote() -> Algorithm:
    """The share of all experts that say 1, whatever happened before."""
    prediction = _prediction("the share of votes for 1", ("votes",), lambda v: v["votes"].mean(-1))
    return _algorithm("majority_vote", "majority vote", (prediction,), lambda episodes: {})


def records() -> tuple[AlgorithmRecord, ...]:
    """The algorithms of this task."""
    return (
        AlgorithmRecord("weighted_majority", "Weighted Majority", "WM", weighted_majority),
        AlgorithmRecord("bayes", "Bayes predictor", "Bayes", bayes),
        AlgorithmRecord("follow_the_leader", "follow the leader", "FTL", follow_the_leader),
        AlgorithmRecord("majority_vote", "majority vote", "majority", majority_vote),
    )
