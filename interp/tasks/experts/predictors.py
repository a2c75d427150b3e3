"""Baselines for prediction with expert advice: weighted majority, simple rules, Bayes and an
oracle.

Every predictor maps episodes to ``P(y_t = 1)`` before ``y_t`` is seen, for all episodes at once.
Weighted majority (paper, section 3.1) is multiplicative weights with eta = log(gamma). It predicts
1 with probability p_t, from weights w_{t,i} of the experts i in round t:

    p_t = sum_{i: advice 1} w_{t,i} / sum_i w_{t,i}
    log w_{t+1,i} = log w_{t,i} + log(gamma) [i was right]

``ExpertRun.decision`` says how a prediction is scored; ties (within 1e-12 of 1/2, or of the best
count) and sampled choices count *expected* mistakes. The Bayes predictor is exact if accuracies are
fixed and experts independent, and if a known best expert switches. Otherwise
``ExpertRun.approximation`` says what it ignores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import special

from interp.core.algorithm import Algorithm, refuse_missing
from interp.support.checks import array_of, checked, checked_result
from interp.support.errors import convert_errors, require
from interp.tasks.draws import draw_by_number
from interp.tasks.experts import (
    Bounds,
    ExpertEpisodes,
    ExpertRegime,
    algorithms,
    get_regime,
    posterior,
)
from interp.tasks.experts.posterior import (
    check_bounds,
    clip_accuracies,
    compute_vote_share,
    mean_accuracy,
)

Decision = Literal["threshold", "sample"]
_Predictions = Float[np.ndarray, "episode round"]
_States = Float[np.ndarray, "episode round_plus_1 expert"]

_ETA_STREAM = 100
"""Random stream of the learning rates U[.05, .5] (paper, appendix on LLM baselines)."""


@dataclass(frozen=True, eq=False)
@checked_result
class ExpertRun:
    """Predictions of a baseline for a batch of episodes.

    Attributes:
        predictions: P(y = 1) before the label is seen, ``[episode, round]``.
        decision: how a prediction becomes a choice when mistakes are counted: "threshold" (choose 1
            if the prediction is above 1/2), or "sample" (choose 1 with the predicted probability).
        approximation: what a Bayes predictor or an oracle ignores about the episodes' regime, such
            as "shared predictions" (rounds in which all experts give the same advice); "" if it
            ignores nothing, and for all other baselines.
    """

    predictions: _Predictions
    decision: Decision = "threshold"
    approximation: str = ""


@checked
def log_weights(episodes: ExpertEpisodes, eta: ArrayLike = 1.0) -> _States:
    """Return the log-weights of Weighted Majority, ``[episode, round + 1, expert]``. Index t of the
    second axis has those before round t, and the last index those after the last round.

    Sums are made in the order of rounds, so that they equal those of a plain loop bit for bit.

    Args:
        episodes: the episodes.
        eta: log gamma, the amount by which an expert's log-weight grows in a round in which the
            expert is right: one number, or one per episode.
    """
    rates = array_of("eta", eta).astype(float)
    n_episodes = len(episodes)
    require(
        rates.shape in ((), (n_episodes,)),
        f"eta must be one number or one per episode ({n_episodes}), got shape {rates.shape}",
    )
    is_rate = np.isfinite(rates) & (rates >= 0)
    require(is_rate.all(), f"eta must be finite and >= 0, got {eta!r}")
    is_right = episodes.correct & episodes.counted[..., None]  # missing rounds change no weight
    rates_by_episode = rates.reshape(-1, 1, 1)  # [episode or 1, 1, 1]
    sums = (is_right * rates_by_episode).cumsum(axis=1)
    return np.pad(sums, ((0, 0), (1, 0), (0, 0)))  # zeros before the first round


@checked
def weighted_majority(episodes: ExpertEpisodes, eta: ArrayLike = 1.0) -> ExpertRun:
    """Run Weighted Majority on a batch of episodes, and return its predicted probability of label 1
    in each round, as an :class:`ExpertRun`.

    Args:
        episodes: the episodes.
        eta: log gamma, the amount by which an expert's log-weight grows in a round in which the
            expert is right: one number, or one per episode.
    """
    before_each_round = log_weights(episodes, eta)[:, :-1]
    weights = special.softmax(before_each_round, axis=-1)
    return ExpertRun(compute_vote_share(weights, episodes.advice))


def horizon_eta(n_experts: int, n_rounds: int) -> float:
    """Return the learning rate for which the classical bound on Weighted Majority's regret holds
    after ``n_rounds`` rounds: ``sqrt(ln n_experts / n_rounds)``.
    """
    return float(np.sqrt(np.log(n_experts) / n_rounds))


def _make_predictor(
    algorithm: Algorithm, decision: Decision = "threshold"
) -> Callable[[ExpertEpisodes], ExpertRun]:
    """Return a function that maps episodes to the predictions of one of the task's algorithms.

    Args:
        algorithm: the algorithm.
        decision: how a prediction becomes a choice: "threshold" chooses label 1 if the prediction
            is above 1/2, "sample" chooses it with the predicted probability.
    """

    def predict(episodes: ExpertEpisodes) -> ExpertRun:
        """Return an :class:`ExpertRun` with two fields: the algorithm's predicted probability of
        label 1, ``[episode, round]``, and the rule ``decision``.
        """
        return ExpertRun(algorithm.run(episodes)["prediction"], decision=decision)

    return predict


@checked
def bayes(
    episodes: ExpertEpisodes,
    prior: str | ExpertRegime | Bounds | list[str] | list[ExpertRegime] | None = None,
) -> ExpertRun:
    """Compute the Bayes predictions P(y_t = 1 | advice, earlier rounds) for every round of a batch
    of episodes, if the experts' accuracies were drawn from a known prior. Return them as the field
    ``predictions`` of an :class:`ExpertRun`, ``[episode, round]``.

    For independent priors U[low, high] the log-odds of a prediction are ``sum_i s_i log(q_i / (1 -
    q_i))``. Here q_i is the posterior mean of expert i's accuracy, and s_i is +1 for advice 1 and
    -1 for advice 0. ``interp.tasks.experts.posterior`` computes other priors.

    Args:
        episodes: the episodes to predict.
        prior: the regime (name or record) from which the accuracies were drawn; or one interval
            (low, high) for all experts; or a list of regimes, each equally likely for an episode.
            None takes the regime of ``episodes``.

    Raises:
        InputError: the prior's intervals can be assigned to experts in more than 1,000 ways; a list
            contains a regime in which accuracies switch between experts; or the prior is None and
            the episodes' regime is unknown.
    """
    refuse_missing("the Bayes predictor", episodes)
    priors = prior if isinstance(prior, list) else [prior]
    regimes = [_find_regime(episodes, choice) for choice in priors]
    require(regimes, "a prior that is a list of regimes needs at least one")
    is_one_regime = len(regimes) == 1
    for regime in regimes:
        require(
            regime.switch_every is None or is_one_regime,
            f"regime {regime.name!r} switches, and cannot be one of several; take it alone as the prior",
        )
    # For each regime, the intervals from which accuracies are drawn, one per expert.
    alternatives = [regime.list_intervals(episodes.n_experts) for regime in regimes]
    # A regime that switches is alone, as was checked above.
    first_intervals, every = alternatives[0], regimes[0].switch_every
    has_one_interval = is_one_regime and len(set(first_intervals)) == 1
    if every is not None:  # accuracies switch between experts every so many rounds
        predictions = posterior.filter_switches(episodes, first_intervals, every)
    elif has_one_interval:  # the experts are independent of each other
        means = mean_accuracy(*posterior.count_records(episodes), first_intervals[0])
        predictions = vote(means, episodes.advice)
    else:  # it is unknown which expert has which interval
        predictions = posterior.average_orders(episodes, alternatives)
    return ExpertRun(predictions, approximation=_name_ignored(regimes))


_IGNORES_SHARED = "shared predictions"


def _name_ignored(regimes: Sequence[ExpertRegime]) -> str:
    """Return in words which properties of the regimes the Bayes predictor ignores, such as drifting
    accuracies; "" if none.
    """
    ignored = []
    if any(regime.drift_std for regime in regimes):
        ignored.append("drifting accuracies taken as fixed")
    if any(regime.correlation for regime in regimes):
        ignored.append(_IGNORES_SHARED)
    return "; ".join(ignored)


def oracle(episodes: ExpertEpisodes) -> ExpertRun:
    """Return the predictions of an oracle for ``episodes``, as an :class:`ExpertRun`. The oracle
    knows the experts' true accuracies in each round, and treats the experts as independent
    (:func:`vote`).
    """
    ignored = _IGNORES_SHARED if episodes.params.get("correlation") else ""
    return ExpertRun(vote(episodes.accuracies_by_round, episodes.advice), approximation=ignored)


def vote(accuracies: np.ndarray, advice: np.ndarray) -> _Predictions:
    """Return the probability of label 1, ``[...]``, that follows from the advice of independent
    experts with known accuracies.

    The log-odds of this probability are a sum over experts: the vote (+1 for advice 1, -1 for
    advice 0) times the log-odds of the accuracy.

    Args:
        accuracies: probability that each expert is right, ``[..., expert]``. Numbers below 1e-15
            and above 1 - 1e-15 are clipped.
        advice: label that each expert advises, 0 or 1, ``[..., expert]``.
    """
    accuracies, advice = array_of("accuracies", accuracies), array_of("advice", advice)
    with convert_errors(
        f"accuracies and advice are [..., expert] both, got shapes {accuracies.shape} and {advice.shape}",
        of=ValueError,
    ):
        np.broadcast_shapes(accuracies.shape, advice.shape)  # fails if they do not fit together
    log_odds = special.logit(clip_accuracies(accuracies))
    signs = 2 * advice - 1
    evidence = (signs * log_odds).sum(axis=-1)
    return special.expit(evidence)


def _find_regime(
    episodes: ExpertEpisodes, prior: str | ExpertRegime | Bounds | None
) -> ExpertRegime:
    """Return the regime that the argument ``prior`` of :func:`bayes` stands for.

    Args:
        episodes: the episodes.
        prior: name or record of a regime; an interval (low, high), for a regime in which it holds
            for all experts; None for the regime of the episodes.
    """
    if isinstance(prior, str | ExpertRegime):
        return get_regime(prior)
    if prior is not None:
        check_bounds(prior)
        return ExpertRegime("interval", "one interval for all experts", prior)
    # Episodes that a regime drew store its parameters. "rest" is among them in every regime: it is
    # the interval of all experts' accuracies, apart from experts with an interval of their own.
    require(
        "rest" in episodes.params,
        f"episodes of regime {episodes.regime!r} do not say how their accuracies were drawn; "
        "give prior=(low, high) or the name of a regime",
    )
    return ExpertRegime.from_params(episodes.regime, episodes.params)


@dataclass(frozen=True)
class _Baseline:
    """A predictor with which models are compared.

    Attributes:
        name: name of the predictor in tables and legends.
        run: function from episodes to the predictions.
    """

    name: str
    run: Callable[[ExpertEpisodes], ExpertRun]


def _run_majority_with_horizon(episodes: ExpertEpisodes) -> ExpertRun:
    return weighted_majority(episodes, horizon_eta(episodes.n_experts, episodes.n_rounds))


def _run_majority_of_the_paper(episodes: ExpertEpisodes) -> ExpertRun:
    """Run Weighted Majority on ``episodes`` with a learning rate per episode, drawn from .05 to .5
    by the number of the episode. So an episode that is selected from a batch keeps its learning
    rate.
    """
    seed = [episodes.seed or 0, _ETA_STREAM]
    draws = draw_by_number(seed, episodes.numbers, 1)[:, 0]  # in [0, 1)
    return weighted_majority(episodes, 0.05 + (0.5 - 0.05) * draws)


def _run_guessing(episodes: ExpertEpisodes) -> ExpertRun:
    return ExpertRun(np.full(episodes.labels.shape, 0.5), decision="sample")


_follow_leader = _make_predictor(algorithms.follow_the_leader(), decision="sample")
_follow_winners = _make_predictor(algorithms.follow_previous_winners())
_vote_evenly = _make_predictor(algorithms.majority_vote())
PREDICTORS: Mapping[str, _Baseline] = {
    "weighted_majority": _Baseline("weighted majority, eta 1", weighted_majority),
    "weighted_majority_horizon": _Baseline(
        "weighted majority, eta sqrt(ln n / T)", _run_majority_with_horizon
    ),
    "weighted_majority_paper": _Baseline(
        "weighted majority, eta U[.05, .5] per episode", _run_majority_of_the_paper
    ),
    "follow_the_leader": _Baseline("follow the leader", _follow_leader),
    "follow_previous_winners": _Baseline("follow previous winners", _follow_winners),
    "majority_vote": _Baseline("majority vote", _vote_evenly),
    "random": _Baseline("random guessing", _run_guessing),
    "bayes": _Baseline("Bayes predictor, the regime's own prior", bayes),
    "bayes_uniform": _Baseline(
        "Bayes predictor, prior U[.3, .9]", partial(bayes, prior=(0.3, 0.9))
    ),
    "bayes_wide": _Baseline("Bayes predictor, prior U[0, 1]", partial(bayes, prior=(0.0, 1.0))),
    "oracle": _Baseline("oracle that knows the accuracies", oracle),
}
