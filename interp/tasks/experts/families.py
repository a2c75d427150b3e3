"""Rivals of Weighted Majority and the Bayes predictor: what else a model of expert advice could be doing.

    bayes_mixture         the regime of the episode is one of two intervals; its posterior weighs their log-odds votes
    bayes_fading          the Bayes predictor of counts that fade:  counts <- decay counts + match
    fading_majority       Weighted Majority whose log-weights fade
    fixed_share           Weighted Majority that hands a share of all weight out evenly after each round
    sigmoid_vote          P = sigmoid(gain sum_i s_i (hits_i - misses_i)),  s_i = 2 votes_i - 1
    follow_previous_winners   the majority of those who were right in the last round
    fixed_vote            P = sigmoid(logit(accuracy) sum_i s_i): keeps nothing
    late_majority, bayes_late         a round counts ``lag`` rounds after it should
    majority_window, bayes_window     only the last ``window`` rounds count
    stopped_majority, bayes_stopped   only the first ``last`` rounds count: a change point
    deaf_majority         one expert is never heard: it has no vote, or is taken to say the same every time

Those with a lapse, and those that forget bit by bit, extend their base, and replace it only where they explain clearly
more. An average over rounds hardly shows some of these: a lag of one round costs 1.5 % of what the memory is worth.

Each is the algorithm that it varies with a few equations exchanged, so that variables keep their keys. One that fits no
better than its base says nothing for it. Two answer without a memory; what each other one explains beyond the better of
these is what it explains at all. Intervals are searched by their low end and by how much of the room above it they
take: never so little (.05) that the prior is all but certain, which would be a vote without a memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from interp.algorithm import Algorithm, Family, Searched, Values
from interp.checks import checked
from interp.errors import require
from interp.lapses import fading, lapsed, late, stopped, window
from interp.tasks.experts import algorithms
from interp.tasks.experts.algorithms import VARIABLES
from interp.tasks.experts.posterior import keep_uncertain, log_evidence, mean_accuracy, share

_Array = NDArray[Any]


SILENT = 0.5
"""What an expert says that has no vote: neither 0 nor 1."""


def _signs(v: Values) -> _Array:
    return 2 * v["votes"] - 1


def bayes_mixture(
    low: float = 0.3, high: float = 0.9, other_low: float = 0.0, other_high: float = 1.0, weight: float = 0.5
) -> Algorithm:
    """The Bayes predictor of episodes whose experts are all from U[low, high], or all from U[other_low, other_high].

    ``weight`` is the prior probability of the first interval, in (0, 1).
    """
    require(0 < weight < 1, f"weight must lie in (0, 1), got {weight}")
    first, second = algorithms.bayes(low, high), algorithms.bayes(other_low, other_high)
    bounds = (low, high), (other_low, other_high)

    def posterior(v: Values) -> _Array:
        hits = v["counts"]
        misses = v["elapsed"][..., None] - hits
        one, other = (log_evidence(hits, misses, interval).sum(-1) for interval in bounds)
        return special.expit(special.logit(weight) + one - other)

    def evidence(v: Values) -> _Array:
        misses, said = v["elapsed"][..., None] - v["counts"], _signs(v) > 0
        means = [keep_uncertain(mean_accuracy(v["counts"], misses, interval)) for interval in bounds]
        prior = np.stack([v["regime"], 1 - v["regime"]], -1)

        def likelihood(agreeing: _Array) -> _Array:
            """Log-probability of the votes, averaged over the intervals, where these experts are right."""
            votes = [np.where(agreeing, np.log(mean), np.log1p(-mean)).sum(-1) for mean in means]
            return np.asarray(special.logsumexp(np.stack(votes, -1), b=prior, axis=-1))

        return likelihood(said) - likelihood(~said)

    (regime,) = VARIABLES("bayes_mixture", {"regime": posterior})
    kept = [v for v in second.variables if v.key not in ("accuracies", "log_odds")]
    at = [v.key for v in kept].index("evidence")
    return first.varied(
        "bayes_mixture",
        "Bayes predictor of two intervals",
        {"low": low, "high": high, "other_low": other_low, "other_high": other_high, "weight": weight},
        {"evidence": (("regime", "counts", "elapsed", "votes"), evidence)},
        variables=(*kept[:at], regime, *kept[at:]),
        memory="counts",
        written="next_counts",
    )


def bayes_fading(low: float = 0.3, high: float = 0.9, decay: float = 0.9) -> Algorithm:
    """The Bayes predictor of counts that fade by ``decay`` a round."""

    def accuracies(v: Values) -> _Array:
        hits = np.asarray(v["counts"], np.float64)
        return mean_accuracy(hits, np.maximum(v["elapsed"][..., None] - hits, 0.0), (low, high))

    made = fading(algorithms.bayes(low, high), decay, name="Bayes predictor of fading counts")
    return made.varied(made.key, made.name, made.parameters, {"accuracies": (("counts", "elapsed"), accuracies)})


@checked
def fixed_share(gain: float = 1.0, alpha: float = 0.05) -> Algorithm:
    """Weighted Majority that hands a share ``alpha`` of all weight out evenly after each round.

    Source: Herbster and Warmuth, Tracking the best expert, 1998.
    """
    require(0 < alpha < 1, f"alpha must lie in (0, 1), got {alpha}")

    def following(v: Values) -> _Array:
        weights = special.softmax(v["log_weights"] + gain * v["match"], axis=-1)
        return np.log((1 - alpha) * weights + alpha / weights.shape[-1])

    base, changes = algorithms.weighted_majority(gain), {"next_log_weights": (("log_weights", "match"), following)}
    return base.varied("fixed_share", "fixed share", {"gain": gain, "alpha": alpha}, changes)


def sigmoid_vote(gain: float = 0.1) -> Algorithm:
    """Each expert votes with ``gain`` times its hits less its misses, in log-odds."""
    base = algorithms.bayes()
    changes = {"log_odds": (("counts", "elapsed"), lambda v: gain * (2 * v["counts"] - v["elapsed"][..., None]))}
    variables = tuple(v for v in base.variables if v.key != "accuracies")
    return base.varied("sigmoid_vote", "sigmoid vote", {"gain": gain}, changes, variables=variables)


def fixed_vote(accuracy: float = 0.6) -> Algorithm:
    """The log-odds vote of experts that are all right with probability ``accuracy``, whatever happened before."""
    require(0 < accuracy < 1, f"accuracy must lie in (0, 1), got {accuracy}")
    changes = {"prediction": (("votes",), lambda v: special.expit(special.logit(accuracy) * _signs(v).sum(-1)))}
    base = algorithms.majority_vote()
    return base.varied("fixed_vote", "fixed log-odds vote", {"accuracy": accuracy}, changes)


def deaf_majority(gain: float = 1.0, expert: int = 1, hears: float = SILENT) -> Algorithm:
    """Weighted Majority that never hears one expert.

    Args:
        expert: which one, from 1 on; one beyond the last is missed by nobody.
        hears: what it takes that expert to say in every round, 0 or 1; .5 if the expert has no vote at all.
    """
    require(expert >= 1, f"expert must be an integer >= 1, got {expert}")
    base = algorithms.weighted_majority(gain)
    require(hears in (0, SILENT, 1), f"hears must be 0, 1, or {SILENT} for no vote, got {hears!r}")

    def weights(v: Values) -> _Array:
        n_experts = v["votes"].shape[-1]
        mute = (np.arange(n_experts) == expert - 1) & (hears == SILENT) & (n_experts > 1)
        return np.asarray(special.softmax(np.where(mute, -np.inf, v["log_weights"]), axis=-1))

    changes = {
        "weights": (("log_weights", "votes"), weights),
        "prediction": (("weights", "heard"), lambda v: share(v["weights"], v["heard"])),
        "match": (("heard", "label"), lambda v: (v["heard"] == v["label"][..., None]).astype(np.int64)),
    }
    key, name = "deaf_majority", "Weighted Majority that never hears one expert"
    heard = {"heard": lambda v: np.where(np.arange(v["votes"].shape[-1]) == expert - 1, hears, v["votes"])}
    variables = (*base.variables[:2], *VARIABLES(key, heard), *base.variables[2:])
    return base.varied(key, name, {"gain": gain, "expert": expert, "hears": hears}, changes, variables=variables)


late_majority, bayes_late = lapsed(late, algorithms.weighted_majority, "late_majority"), lapsed(late, algorithms.bayes)
majority_window = lapsed(window, algorithms.weighted_majority, "majority_window")
bayes_window = lapsed(window, algorithms.bayes)
stopped_majority = lapsed(stopped, algorithms.weighted_majority, "stopped_majority")
bayes_stopped = lapsed(stopped, algorithms.bayes)
fading_majority = lapsed(fading, algorithms.weighted_majority, "fading_majority")


_LOWS, _ROOMS = (0.0, 0.15, 0.3, 0.45, 0.6, 0.75), (0.2, 0.4, 0.6, 0.8, 1.0)
_FEW_LOWS, _FEW_ROOMS = (0.0, 0.3, 0.6), (0.2, 0.6, 1.0)
_GAINS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
_FEW_GAINS = (0.1, 0.3, 1.0, 3.0)
_DECAYS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
_WINDOWS = (*range(1, 17), 20, 25)
_ROUNDS = (1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 14.0, 20.0, 25.0)
"""How many rounds are learned, or count. These and gains make up for each other, so that they are refined together:
with whole rounds alone, a gain between those of the grid gave a wrong number of rounds in 4 of 12 machines."""
_LAGS = (1, 2, 3)
_EXPERTS = (1, 2, 3, 4, 5, 6)
"""Which expert is not heard; a fit takes the first one beyond the last, if hearing all fits best."""


def _interval(low: float, room: float) -> dict[str, float]:
    return {"low": low, "high": min(1.0, low + room * (1 - low))}


def _prior(
    lows: tuple[float, ...], rooms: tuple[float, ...], enters: tuple[str, ...] = ("accuracies",), prefix: str = ""
) -> tuple[Searched, ...]:
    """An interval."""
    return Searched(f"{prefix}low", lows, enters=enters), Searched(f"{prefix}room", rooms, enters=enters)


def families() -> tuple[Family, ...]:
    """What a model of expert advice is compared with."""
    decay, few_gains, mixed = Searched("decay", _DECAYS), Searched("gain", _FEW_GAINS), ("regime", "evidence")
    two_intervals = (
        *_prior((0.0, 0.15, 0.3), (0.6, 1.0), mixed),
        *_prior((0.3, 0.6), (0.3, 0.6, 0.9), mixed, "other_"),
        Searched("weight", (0.1, 0.5, 0.9), enters=("regime",)),
    )
    few_priors, shares = _prior(_FEW_LOWS, _FEW_ROOMS), Searched("alpha", (0.003, 0.01, 0.03, 0.1, 0.3))
    windows, accuracies = Searched("window", _WINDOWS, kind="choice"), (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
    lags, ends = Searched("lag", _LAGS, kind="choice"), Searched("last", _ROUNDS)
    unheard = Searched("expert", _EXPERTS, kind="choice"), Searched("hears", (0.0, SILENT, 1.0), kind="choice")
    coarse_priors = _prior((0.0, 0.3), (0.5, 1.0))
    recent_gains = Searched("gain", _FEW_GAINS, enters=("log_weights",))

    def of(make: Callable[..., Algorithm], *searched: Searched, base: str = "", memoryless: bool = False) -> Family:
        known = make()
        return Family(known.key, known.name, make, searched, memoryless, base)

    def mixture(low: float, room: float, other_low: float, other_room: float, weight: float) -> Algorithm:
        other = {f"other_{key}": value for key, value in _interval(other_low, other_room).items()}
        return bayes_mixture(**_interval(low, room), **other, weight=weight)

    def on_interval(make: Callable[..., Algorithm], *searched: Searched, base: str = "bayes") -> Family:
        return replace(
            of(make, *searched, base=base), make=lambda low, room, **more: make(**_interval(low, room), **more)
        )

    return (
        on_interval(algorithms.bayes, *_prior(_LOWS, _ROOMS), base=""),
        replace(of(bayes_mixture, *two_intervals, base="bayes"), make=mixture),
        on_interval(bayes_fading, decay, *few_priors),
        on_interval(bayes_window, windows, *few_priors),
        on_interval(bayes_late, lags, *coarse_priors),
        on_interval(bayes_stopped, ends, *coarse_priors),
        of(algorithms.weighted_majority, Searched("gain", _GAINS)),
        of(fading_majority, few_gains, decay, base="weighted_majority"),
        of(fixed_share, few_gains, shares, base="weighted_majority"),
        of(late_majority, lags, few_gains, base="weighted_majority"),
        of(majority_window, Searched("window", _ROUNDS), recent_gains, base="weighted_majority"),
        of(stopped_majority, ends, few_gains, base="weighted_majority"),
        of(deaf_majority, *unheard, few_gains, base="weighted_majority"),
        replace(of(sigmoid_vote, Searched("gain", _GAINS, enters=("log_odds",))), tempered=True),
        *map(of, (algorithms.follow_the_leader, algorithms.follow_previous_winners)),
        of(algorithms.majority_vote, memoryless=True),
        replace(
            of(fixed_vote, Searched("accuracy", accuracies, enters=("prediction",)), memoryless=True), tempered=True
        ),
    )
