"""Targets of prediction with expert advice: what weighted majority and the Bayes predictor keep and say.

Weighted majority keeps log-weights, ``eta = log(gamma)`` times the number of rounds in which an expert was right; the
Bayes predictor keeps the same counts and turns them into posterior mean accuracies (paper, section 3.1). R2 does not
depend on a common factor, so raw log-weights stand for counts too. Raw log-weights grow with time, and a probe that
knows the round alone decodes most of them: *centred* log-weights, which the prediction depends on, do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array
from scipy.special import logit, softmax

from interp.tasks.experts import predictors as algorithms
from interp.tasks.experts.posterior import mean_accuracy
from interp.tasks.experts import ExpertEpisodes
from probes.targets.record import Computed, Moment, Target, at_moment, numbered, register


def _per_expert(values: Array) -> Computed:
    return Computed(values, numbered("e_", values.shape[-1]))


def _log_weights(episodes: ExpertEpisodes, when: Moment, eta: float) -> Computed:
    return _per_expert(at_moment(algorithms.log_weights(episodes, eta), when))


def _centred(episodes: ExpertEpisodes, when: Moment, eta: float) -> Computed:
    values = at_moment(algorithms.log_weights(episodes, eta), when)
    return _per_expert(values - values.mean(-1, keepdims=True))


def _weights(episodes: ExpertEpisodes, when: Moment, eta: float) -> Computed:
    return _per_expert(softmax(at_moment(algorithms.log_weights(episodes, eta), when), axis=-1))


def _counts(episodes: ExpertEpisodes, when: Moment) -> Computed:
    return _per_expert(at_moment(algorithms.counts(episodes), when).astype(np.float64))


def _mean_accuracies(episodes: ExpertEpisodes, low: float, high: float) -> Float[Array, "episode steps expert"]:
    right = algorithms.counts(episodes)
    wrong = np.arange(right.shape[1])[:, None] - right
    return mean_accuracy(right, wrong, (low, high))


def _accuracies(episodes: ExpertEpisodes, when: Moment, low: float, high: float) -> Computed:
    return _per_expert(at_moment(_mean_accuracies(episodes, low, high), when))


def _log_odds(episodes: ExpertEpisodes, when: Moment, low: float, high: float) -> Computed:
    return _per_expert(logit(at_moment(_mean_accuracies(episodes, low, high), when)))


def _bayes_vote(episodes: ExpertEpisodes, when: Moment, low: float, high: float) -> Computed:
    odds = logit(at_moment(_mean_accuracies(episodes, low, high), "before"))
    return Computed(((2 * episodes.advice - 1) * odds).sum(-1, keepdims=True), ("log-odds of y=1",))


def _prediction(episodes: ExpertEpisodes, when: Moment, eta: float) -> Computed:
    return Computed(algorithms.weighted_majority(episodes, eta=eta).predictions[..., None], ("P(y=1)",))


def _label(episodes: ExpertEpisodes, when: Moment) -> Computed:
    return Computed(episodes.labels[..., None], ("y",))


def _votes(episodes: ExpertEpisodes, when: Moment) -> Computed:
    return Computed(episodes.advice, numbered("p_", episodes.n_experts))


def _matches(episodes: ExpertEpisodes, when: Moment) -> Computed:
    return Computed(episodes.correct.astype(np.int64), numbered("m_", episodes.n_experts))


def _round(episodes: Any, when: Moment) -> Computed:
    n_episodes, n_rounds = len(episodes), episodes.n_rounds
    return Computed(np.broadcast_to(np.arange(n_rounds, dtype=np.float64)[:, None], (n_episodes, n_rounds, 1)), ("t",))


def _target(key: str, name: str, what: str, units: str, compute: Callable[..., Computed], **others: Any) -> Target:
    shape, source = others.pop("shape", "[n_experts]"), others.pop("source", "section 3.1")
    return register(Target(key, name, what, "experts", shape, units, source, compute, **others))


_ETA = {"eta": 1.0}
_PRIOR = {"low": 0.3, "high": 0.9}
_INPUT: dict[str, Any] = {"kind": "class", "of": "round", "implied_by": ("inputs",)}

log_weights = _target(
    "log_weights",
    "log-weights",
    "the log-weight of every expert: eta = log gamma times how often it was right",
    "nats",
    _log_weights,
    parameters=_ETA,
)
log_weights_centred = _target(
    "log_weights_centred",
    "centred log-weights",
    "log-weights less their mean over experts: all of them that the prediction depends on",
    "nats",
    _centred,
    parameters=_ETA,
)
weights = _target(
    "weights",
    "weights",
    "normalised weights: the softmax of the log-weights",
    "probability",
    _weights,
    parameters=_ETA,
)
counts = _target("counts", "counts", "how often every expert was right", "rounds", _counts)
accuracies = _target(
    "accuracies",
    "posterior mean accuracies",
    "what the Bayes predictor with prior U[low, high] believes of every expert",
    "probability",
    _accuracies,
    parameters=_PRIOR,
)
expert_log_odds = _target(
    "expert_log_odds",
    "Bayes weights",
    "log-odds of the posterior mean accuracy: the weight of every expert in the Bayes predictor's vote",
    "nats",
    _log_odds,
    parameters=_PRIOR,
)
bayes_log_odds = _target(
    "bayes_log_odds",
    "Bayes log-odds",
    "the Bayes predictor's log-odds of y = 1 in the round, before the label is seen",
    "nats",
    _bayes_vote,
    shape="[1]",
    of="round",
    parameters=_PRIOR,
)
prediction = _target(
    "prediction",
    "P(y=1)",
    "weighted majority's prediction in the round",
    "probability",
    _prediction,
    shape="[1]",
    of="round",
    parameters=_ETA,
)
label = _target("label", "label y", "the round's label", "class", _label, shape="[1]", **_INPUT)
votes = _target("votes", "votes p_i", "the round's advice", "class", _votes, **_INPUT)
matches = _target("matches", "matches m_i", "whether every expert was right in the round", "class", _matches, **_INPUT)

round_index = register(
    Target(
        "round_index",
        "round index",
        "the number of rounds before this one",
        "any",
        "[1]",
        "rounds",
        "none",
        _round,
        of="round",
        implied_by=("round", "shuffled"),
    )
)
