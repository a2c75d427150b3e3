"""Prediction with expert advice: weighted majority, the simple baselines, the Bayes predictor and the oracle.

Every predictor maps episodes to ``P(y_t = 1)`` before ``y_t`` is seen, for all episodes at once. Weighted majority
(paper, section 3.1) predicts 1 with probability

    p_t = sum_{i: advice 1} w_{t,i} / sum_i w_{t,i},     log w_{t+1,i} = log w_{t,i} + log(gamma) [i was right]

which, weights being relative, is multiplicative weights with eta = log(gamma): ``w <- w exp(-eta loss)``.

How a prediction becomes a mistake is part of the algorithm (``ExpertRun.decision``). Ties (within 1e-12 of 1/2, or of
the best count) are broken by a fair coin, which is never tossed: a tied or sampled round counts *expected* mistakes.

Scope: the Bayes predictor is the exact ``P(y_t | history)`` where accuracies are fixed and experts independent, and
where a known best expert switches; elsewhere ``ExpertRun.approximation`` says what it ignores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from jaxtyping import Float, Integer
from numpy.typing import ArrayLike
from scipy import special

from interp.checks import array_of, checked, integer, refuse_beyond_machine, unique
from interp.errors import InputError, require, unknown_name
from interp.tasks.experts import Bounds, ExpertEpisodes, ExpertRegime, algorithms, families, get_regime, posterior
from interp.tasks.experts.posterior import check_bounds, keep_uncertain, mean_accuracy, share

Decision = Literal["threshold", "sample"]
Predictions = Float[np.ndarray, "episode round"]
_States = Float[np.ndarray, "episode round_plus_1 expert"]

_TIE = 1e-12
_ETA = 100  # stream of the learning rates, apart from the streams that make episodes


@dataclass(frozen=True, eq=False)
class ExpertRun:
    """What an algorithm did.

    Attributes:
        predictions: P(y=1) before the label is seen.
        decision: how a prediction becomes a mistake: "threshold" or "sample".
        state: what it carries into each round, called ``state_name``: "log-weights", "counts" or "mean accuracies".
        approximation: what a Bayes predictor ignores of the episodes' regime; "" when it is exact.
    """

    predictions: Predictions
    decision: Decision = "threshold"
    state: _States | None = None
    state_name: str = ""
    approximation: str = ""


def counts(episodes: ExpertEpisodes) -> Integer[np.ndarray, "episode round_plus_1 expert"]:
    """How often each expert was right before each round, and after the last."""
    start = np.zeros((len(episodes), 1, episodes.n_experts), dtype=np.int64)
    return np.concatenate([start, episodes.correct.cumsum(axis=1)], axis=1)


@checked
def log_weights(episodes: ExpertEpisodes, eta: ArrayLike = 1.0) -> _States:
    """The log-weights before each round, and after the last: + eta = log(gamma) whenever an expert was right.

    Added up round by round, so that they are bitwise those of a plain loop.
    """
    rates = array_of("eta", eta).astype(np.float64)
    wanted = f"eta must be one number or one per episode ({len(episodes)}), got shape {rates.shape}"
    require(rates.shape in ((), (len(episodes),)), wanted)
    require(bool((np.isfinite(rates) & (rates >= 0)).all()), f"eta must be finite and >= 0, got {eta!r}")
    gains = episodes.correct * rates.reshape(-1, 1, 1)
    return np.concatenate([np.zeros((len(episodes), 1, episodes.n_experts)), gains.cumsum(axis=1)], axis=1)


@checked
def weighted_majority(
    episodes: ExpertEpisodes, *, eta: ArrayLike | None = None, gamma: float | None = None, randomised: bool = False
) -> ExpertRun:
    """Weighted majority: the weighted share of the experts that advise 1.

    >>> from interp.tasks import experts
    >>> run = weighted_majority(experts.sample(2, 100, 4), gamma=2.0)
    >>> run.predictions.shape, run.state.shape
    ((2, 100), (2, 101, 4))

    Args:
        eta: the learning rate, one number or one per episode; 1 when neither eta nor gamma is given.
        gamma: the factor > 1 that a right expert's weight grows by, instead of ``eta = log(gamma)``.
        randomised: predict 1 with the share as probability, instead of when it exceeds 1/2.
    """
    require(eta is None or gamma is None, f"give eta or gamma, not both (got eta {eta!r} and gamma {gamma})")
    if gamma is not None:
        require(np.isfinite(gamma) and gamma > 1, f"gamma must be a finite number > 1, got {gamma}")
        eta = np.log(gamma)
    state = log_weights(episodes, 1.0 if eta is None else eta)
    weights = special.softmax(state[:, :-1], axis=-1)
    return ExpertRun(share(weights, episodes.advice), "sample" if randomised else "threshold", state, "log-weights")


def horizon_eta(n_experts: int, n_rounds: int) -> float:
    """The learning rate sqrt(ln n / T) of the classical regret bound."""
    return float(np.sqrt(np.log(n_experts) / n_rounds))


def paper_eta(n_episodes: int, seed: int = 0) -> Float[np.ndarray, " episode"]:
    """One learning rate U[.05, .5] per episode (paper, appendix on LLM baselines)."""
    integer("n_episodes", n_episodes, 0)
    refuse_beyond_machine(f"a rate for each of {n_episodes} episodes", 8.0 * n_episodes)
    return np.random.default_rng([seed, _ETA]).uniform(0.05, 0.5, size=n_episodes)


def follow_the_leader(episodes: ExpertEpisodes) -> ExpertRun:
    """Follow an expert that was right most often so far, a tie broken uniformly at random."""
    predictions = algorithms.follow_the_leader().run(episodes)["prediction"]
    return ExpertRun(predictions, "sample", counts(episodes).astype(np.float64), "counts")


def follow_previous_winners(episodes: ExpertEpisodes) -> ExpertRun:
    """The majority of those who were right in the last round; if there are none, or a tie, the majority of all."""
    return ExpertRun(families.follow_previous_winners().run(episodes)["prediction"])


def majority_vote(episodes: ExpertEpisodes) -> ExpertRun:
    """The majority of all experts, whatever happened before."""
    return ExpertRun(algorithms.majority_vote().run(episodes)["prediction"])


@checked
def random(episodes: ExpertEpisodes) -> ExpertRun:
    """A fair coin."""
    return ExpertRun(np.full(episodes.labels.shape, 0.5), "sample")


@checked
def bayes(
    episodes: ExpertEpisodes, prior: str | ExpertRegime | Bounds | list[str] | list[ExpertRegime] | None = None
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
    regimes = [_prior(episodes, each) for each in prior] if isinstance(prior, list) else [_prior(episodes, prior)]
    require(len(regimes) > 0, "a prior that is a list of regimes needs at least one")
    alternatives = [regime.slots(episodes.n_experts) for regime in regimes]
    slots, *others = alternatives
    for regime in regimes:
        message = f"regime {regime.name!r} switches, and cannot be one of several; take it alone as the prior"
        require(regime.switch_every is None or not others, message)
    if (every := regimes[0].switch_every) is not None:
        predictions, state = posterior.filter_switches(episodes, slots, every)
    elif not others and len(set(slots)) == 1:
        hits = counts(episodes)
        misses = np.arange(episodes.n_rounds + 1)[:, None] - hits
        state = mean_accuracy(hits, misses, slots[0])
        predictions = vote(state[:, :-1], episodes.advice)
    else:
        predictions, state = posterior.average_orders(episodes, alternatives)
    ignored = {
        "drifting accuracies taken as fixed": any(regime.drift_std for regime in regimes),
        "shared predictions": any(regime.correlation for regime in regimes),
    }
    approximation = "; ".join(name for name, parameter in ignored.items() if parameter)
    return ExpertRun(predictions, "threshold", state, "mean accuracies", approximation)


def oracle(episodes: ExpertEpisodes) -> ExpertRun:
    """The log-odds vote of one who knows every accuracy (and takes the experts as independent)."""
    ignored = "shared predictions" if episodes.params.get("correlation") else ""
    return ExpertRun(vote(episodes.accuracies_by_round, episodes.advice), approximation=ignored)


def decisions(predictions: Predictions) -> Predictions:
    """The likelier label of each prediction; 1/2 for a tie (within 1e-12), which counts as half a mistake."""
    return np.where(np.abs(predictions - 0.5) <= _TIE, 0.5, (predictions > 0.5).astype(np.float64))


def vote(accuracies: np.ndarray, advice: np.ndarray) -> Predictions:
    """P(y = 1) from votes weighted by the log-odds of accuracies (0 and 1 kept uncertain), both ``[..., expert]``."""
    accuracies, advice = array_of("accuracies", accuracies), array_of("advice", advice)
    try:
        np.broadcast_shapes(accuracies.shape, advice.shape)
    except ValueError:
        one, other = accuracies.shape, advice.shape
        raise InputError(f"accuracies and advice are [..., expert] both, got shapes {one} and {other}") from None
    return special.expit(((2 * advice - 1) * special.logit(keep_uncertain(accuracies))).sum(axis=-1))


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
class Baseline:
    """A predictor that models are compared with, named once for tables, legends and the command line."""

    key: str
    name: str
    short_name: str
    run: Callable[[ExpertEpisodes], ExpertRun]


PREDICTORS: Mapping[str, Baseline] = unique(
    (
        Baseline("weighted_majority", "weighted majority, eta 1", "WM", weighted_majority),
        Baseline("weighted_majority_randomised", "randomised weighted majority, eta 1", "WM random",
                 partial(weighted_majority, randomised=True)),
        Baseline("weighted_majority_horizon", "weighted majority, eta sqrt(ln n / T)", "WM horizon",
                 lambda episodes: weighted_majority(episodes, eta=horizon_eta(episodes.n_experts, episodes.n_rounds))),
        Baseline("weighted_majority_paper", "weighted majority, eta U[.05, .5] per episode", "WM paper",
                 lambda episodes: weighted_majority(episodes, eta=paper_eta(len(episodes), episodes.seed or 0))),
        Baseline("follow_the_leader", "follow the leader", "FTL", follow_the_leader),
        Baseline("follow_previous_winners", "follow previous winners", "FPW", follow_previous_winners),
        Baseline("majority_vote", "majority vote", "majority", majority_vote),
        Baseline("random", "random guessing", "random guess", random),
        Baseline("bayes", "Bayes predictor, the regime's own prior", "Bayes", bayes),
        Baseline("bayes_uniform", "Bayes predictor, prior U[.3, .9]", "Bayes U[.3,.9]",
                 partial(bayes, prior=(0.3, 0.9))),
        Baseline("bayes_wide", "Bayes predictor, prior U[0, 1]", "Bayes U[0,1]", partial(bayes, prior=(0.0, 1.0))),
        Baseline("oracle", "oracle that knows the accuracies", "oracle", oracle),
    ),
    "predictor",
)  # fmt: skip


def get_predictor(key: str) -> Baseline:
    """The predictor called ``key``."""
    if key not in PREDICTORS:
        raise unknown_name("predictor", key, PREDICTORS, limit=len(PREDICTORS))
    return PREDICTORS[key]
