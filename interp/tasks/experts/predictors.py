"""Prediction with expert advice: weighted majority, the simple baselines, the Bayes predictor and the oracle.

Every predictor maps episodes to ``P(y_t = 1)`` before ``y_t`` is seen, for all episodes at once. Weighted majority
(paper, section 3.1), which is multiplicative weights with eta = log(gamma), predicts 1 with probability

    p_t = sum_{i: advice 1} w_{t,i} / sum_i w_{t,i},     log w_{t+1,i} = log w_{t,i} + log(gamma) [i was right]

Ties (within 1e-12 of 1/2, or of the best count) and sampled rounds count *expected* mistakes (``ExpertRun.decision``).
The Bayes predictor is the exact ``P(y_t | history)`` where accuracies are fixed and experts independent, and where a
known best expert switches; elsewhere ``ExpertRun.approximation`` says what it ignores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import special

from interp.core.algorithm import Algorithm, refuse_missing
from interp.support.checks import array_of, checked
from interp.support.errors import InputError, require
from interp.tasks.experts import (
    Bounds,
    ExpertEpisodes,
    ExpertRegime,
    algorithms,
    get_regime,
    posterior,
)
from interp.tasks.experts.posterior import check_bounds, keep_uncertain, mean_accuracy, share

Decision = Literal["threshold", "sample"]
_Predictions = Float[np.ndarray, "episode round"]
_States = Float[np.ndarray, "episode round_plus_1 expert"]

_ETA = 100
"""The stream of the learning rates U[.05, .5] (paper, appendix on LLM baselines), apart from those of episodes."""


@dataclass(frozen=True, eq=False)
class ExpertRun:
    """What an algorithm did.

    Attributes:
        predictions: P(y=1) before the label is seen.
        decision: how a prediction becomes a mistake: "threshold" or "sample".
        approximation: what a Bayes predictor ignores of the episodes' regime; "" when it is exact.
    """

    predictions: _Predictions
    decision: Decision = "threshold"
    approximation: str = ""


@checked
def log_weights(episodes: ExpertEpisodes, eta: ArrayLike = 1.0) -> _States:
    """The log-weights before each round, and after the last, added up round by round: bitwise those of a plain loop."""
    rates = array_of("eta", eta).astype(np.float64)
    wanted = f"eta must be one number or one per episode ({len(episodes)}), got shape {rates.shape}"
    require(rates.shape in ((), (len(episodes),)), wanted)
    require(
        bool((np.isfinite(rates) & (rates >= 0)).all()), f"eta must be finite and >= 0, got {eta!r}"
    )
    gains = (episodes.correct & episodes.counted[..., None]) * rates.reshape(-1, 1, 1)
    return np.concatenate(
        [np.zeros((len(episodes), 1, episodes.n_experts)), gains.cumsum(axis=1)], axis=1
    )


@checked
def weighted_majority(episodes: ExpertEpisodes, eta: ArrayLike = 1.0) -> ExpertRun:
    """The weighted share of the experts that advise 1; ``eta`` is log gamma, one or one per episode."""
    return ExpertRun(
        share(special.softmax(log_weights(episodes, eta)[:, :-1], axis=-1), episodes.advice)
    )


def horizon_eta(n_experts: int, n_rounds: int) -> float:
    """The learning rate sqrt(ln n / T) of the classical regret bound."""
    return float(np.sqrt(np.log(n_experts) / n_rounds))


def _of(
    algorithm: Algorithm, decision: Decision = "threshold"
) -> Callable[[ExpertEpisodes], ExpertRun]:
    return lambda episodes: ExpertRun(algorithm.run(episodes)["prediction"], decision)


@checked
def bayes(
    episodes: ExpertEpisodes,
    prior: str | ExpertRegime | Bounds | list[str] | list[ExpertRegime] | None = None,
) -> ExpertRun:
    """The Bayes predictor: P(y_t = 1 | advice, history) when accuracies were drawn from a prior.

    With independent priors U[low, high] it is the log-odds vote ``sum_i s_i log(q_i / (1 - q_i))`` of posterior mean
    accuracies, s_i = +1 for advice 1 and -1 for advice 0; other regimes are in ``interp.tasks.experts.posterior``.

    Args:
        prior: a regime, by name or record, or one interval for all experts; a list of regimes where every episode is
            of one of them, each as likely; None for the episodes' own regime.

    Raises:
        InputError: a prior that needs too many orders, a switching regime in a list, None for episodes made by hand.
    """
    refuse_missing("the Bayes predictor", episodes)
    regimes = (
        [_prior(episodes, each) for each in prior]
        if isinstance(prior, list)
        else [_prior(episodes, prior)]
    )
    require(len(regimes) > 0, "a prior that is a list of regimes needs at least one")
    alternatives = [regime.slots(episodes.n_experts) for regime in regimes]
    slots, *others = alternatives
    for regime in regimes:
        message = f"regime {regime.name!r} switches, and cannot be one of several; take it alone as the prior"
        require(regime.switch_every is None or not others, message)
    if (every := regimes[0].switch_every) is not None:
        predictions = posterior.filter_switches(episodes, slots, every)
    elif not others and len(set(slots)) == 1:
        hits = episodes.correct.cumsum(axis=1) - episodes.correct
        misses = np.arange(episodes.n_rounds)[:, None] - hits
        predictions = vote(mean_accuracy(hits, misses, slots[0]), episodes.advice)
    else:
        predictions = posterior.average_orders(episodes, alternatives)
    ignored = {
        "drifting accuracies taken as fixed": any(regime.drift_std for regime in regimes),
        "shared predictions": any(regime.correlation for regime in regimes),
    }
    return ExpertRun(
        predictions,
        "threshold",
        "; ".join(name for name, parameter in ignored.items() if parameter),
    )


def oracle(episodes: ExpertEpisodes) -> ExpertRun:
    """The log-odds vote of one who knows every accuracy (and takes the experts as independent)."""
    ignored = "shared predictions" if episodes.params.get("correlation") else ""
    return ExpertRun(vote(episodes.accuracies_by_round, episodes.advice), approximation=ignored)


def vote(accuracies: np.ndarray, advice: np.ndarray) -> _Predictions:
    """P(y = 1) from votes weighted by the log-odds of accuracies (0 and 1 kept uncertain), both ``[..., expert]``."""
    accuracies, advice = array_of("accuracies", accuracies), array_of("advice", advice)
    try:
        np.broadcast_shapes(accuracies.shape, advice.shape)
    except ValueError:
        one, other = accuracies.shape, advice.shape
        raise InputError(
            f"accuracies and advice are [..., expert] both, got shapes {one} and {other}"
        ) from None
    return special.expit(
        ((2 * advice - 1) * special.logit(keep_uncertain(accuracies))).sum(axis=-1)
    )


def _prior(episodes: ExpertEpisodes, prior: str | ExpertRegime | Bounds | None) -> ExpertRegime:
    if isinstance(prior, str | ExpertRegime):
        return get_regime(prior)
    if prior is not None:
        check_bounds(prior)
        return ExpertRegime("interval", "one interval for all experts", prior)
    if "rest" not in episodes.params:
        raise InputError(
            f"episodes of regime {episodes.regime!r} do not say how their accuracies were drawn; "
            "give prior=(low, high) or the name of a regime"
        )
    own = dict(episodes.params)
    own |= {"first": tuple(tuple(b) for b in own["first"]), "rest": tuple(own["rest"])}
    own |= {"drift_bounds": tuple(own["drift_bounds"])} if "drift_bounds" in own else {}
    return ExpertRegime(episodes.regime, "", min_experts=2 if "switch_every" in own else 1, **own)


@dataclass(frozen=True)
class _Baseline:
    """A predictor that models are compared with, named once for tables, legends and the command line."""

    name: str
    run: Callable[[ExpertEpisodes], ExpertRun]


PREDICTORS: Mapping[str, _Baseline] = {
    "weighted_majority": _Baseline("weighted majority, eta 1", weighted_majority),
    "weighted_majority_horizon": _Baseline(
        "weighted majority, eta sqrt(ln n / T)",
        lambda e: weighted_majority(e, horizon_eta(e.n_experts, e.n_rounds)),
    ),
    "weighted_majority_paper": _Baseline(
        "weighted majority, eta U[.05, .5] per episode",
        lambda e: weighted_majority(
            e, np.random.default_rng([e.seed or 0, _ETA]).uniform(0.05, 0.5, len(e))
        ),
    ),
    "follow_the_leader": _Baseline(
        "follow the leader", _of(algorithms.follow_the_leader(), "sample")
    ),
    "follow_previous_winners": _Baseline(
        "follow previous winners", _of(algorithms.follow_previous_winners())
    ),
    "majority_vote": _Baseline("majority vote", _of(algorithms.majority_vote())),
    "random": _Baseline(
        "random guessing", lambda e: ExpertRun(np.full(e.labels.shape, 0.5), "sample")
    ),
    "bayes": _Baseline("Bayes predictor, the regime's own prior", bayes),
    "bayes_uniform": _Baseline(
        "Bayes predictor, prior U[.3, .9]", partial(bayes, prior=(0.3, 0.9))
    ),
    "bayes_wide": _Baseline("Bayes predictor, prior U[0, 1]", partial(bayes, prior=(0.0, 1.0))),
    "oracle": _Baseline("oracle that knows the accuracies", oracle),
}
