"""Rivals of Weighted Majority and the Bayes predictor: what else a model of expert advice could be doing.

Each is the algorithm that it varies with a few equations exchanged, so that variables keep their keys. One that fits no
better than its base says nothing for it. Those with a lapse, and those that forget bit by bit, replace their base only
where they explain clearly more. Two answer without a memory: what another explains beyond them is what it explains at
all.

All of them with their equations, and how their intervals are searched: docs/method/families.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from interp.core.algorithm import Algorithm, Family, Searched, Values
from interp.support.checks import checked
from interp.support.errors import require
from interp.tasks.experts import algorithms
from interp.tasks.experts.algorithms import VARIABLES
from interp.tasks.experts.posterior import keep_uncertain, log_evidence, mean_accuracy, share
from interp.tasks.lapses import fading, lapsed, late, stopped, window

_Array = NDArray[Any]


_SILENT = 0.5  # what an expert says that has no vote: neither 0 nor 1


def bayes_mixture(
    low: float = 0.3,
    high: float = 0.9,
    other_low: float = 0.0,
    other_high: float = 1.0,
    weight: float = 0.5,
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
        misses, said = v["elapsed"][..., None] - v["counts"], v["votes"] > 0.5
        means = [
            keep_uncertain(mean_accuracy(v["counts"], misses, interval)) for interval in bounds
        ]
        prior = np.stack([v["regime"], 1 - v["regime"]], -1)

        def likelihood(agreeing: _Array) -> _Array:
            """Log-probability of the votes, averaged over the intervals, where these experts are right."""
            votes = [np.where(agreeing, np.log(mean), np.log1p(-mean)).sum(-1) for mean in means]
            return np.asarray(special.logsumexp(np.stack(votes, -1), b=prior, axis=-1))

        return likelihood(said) - likelihood(~said)

    (regime,) = VARIABLES("bayes_mixture", {"regime": posterior})
    kept = [v for v in second.variables if v.key not in ("accuracies", "log_odds")]
    at = [v.key for v in kept].index("evidence")
    known = {
        "low": low,
        "high": high,
        "other_low": other_low,
        "other_high": other_high,
        "weight": weight,
    }
    changes = {"evidence": (("regime", "counts", "elapsed", "votes"), evidence)}
    name, made = "Bayes predictor of two intervals", (*kept[:at], regime, *kept[at:])
    return first.varied(
        "bayes_mixture",
        name,
        known,
        changes,
        variables=made,
        memory="counts",
        written="next_counts",
    )


def bayes_fading(low: float = 0.3, high: float = 0.9, decay: float = 0.9) -> Algorithm:
    """The Bayes predictor of counts that fade by ``decay`` a round."""

    def accuracies(v: Values) -> _Array:
        hits = np.asarray(v["counts"], np.float64)
        return mean_accuracy(hits, np.maximum(v["elapsed"][..., None] - hits, 0.0), (low, high))

    made = fading(algorithms.bayes(low, high), decay, name="Bayes predictor of fading counts")
    return made.varied(
        made.key, made.name, made.parameters, {"accuracies": (("counts", "elapsed"), accuracies)}
    )


@checked
def fixed_share(gain: float = 1.0, alpha: float = 0.05) -> Algorithm:
    """Weighted Majority that hands a share ``alpha`` of all weight out evenly after each round.

    Source: Herbster and Warmuth, Tracking the best expert, 1998.
    """
    require(0 < alpha < 1, f"alpha must lie in (0, 1), got {alpha}")

    def following(v: Values) -> _Array:
        weights = special.softmax(v["log_weights"] + gain * v["match"], axis=-1)
        return np.log((1 - alpha) * weights + alpha / weights.shape[-1])

    base, changes = (
        algorithms.weighted_majority(gain),
        {"next_log_weights": (("log_weights", "match"), following)},
    )
    return base.varied("fixed_share", "fixed share", {"gain": gain, "alpha": alpha}, changes)


def sigmoid_vote(gain: float = 0.1) -> Algorithm:
    """Each expert votes with ``gain`` times its hits less its misses, in log-odds."""
    base = algorithms.bayes()
    changes = {
        "log_odds": (
            ("counts", "elapsed"),
            lambda v: gain * (2 * v["counts"] - v["elapsed"][..., None]),
        )
    }
    variables = tuple(v for v in base.variables if v.key != "accuracies")
    return base.varied("sigmoid_vote", "sigmoid vote", {"gain": gain}, changes, variables=variables)


def fixed_vote(accuracy: float = 0.6) -> Algorithm:
    """The log-odds vote of experts that are all right with probability ``accuracy``, whatever happened before."""
    require(0 < accuracy < 1, f"accuracy must lie in (0, 1), got {accuracy}")
    changes = {
        "prediction": (
            ("votes",),
            lambda v: special.expit(special.logit(accuracy) * (2 * v["votes"] - 1).sum(-1)),
        )
    }
    return algorithms.majority_vote().varied(
        "fixed_vote", "fixed log-odds vote", {"accuracy": accuracy}, changes
    )


def deaf_majority(gain: float = 1.0, expert: int = 1, hears: float = _SILENT) -> Algorithm:
    """Weighted Majority that never hears one expert.

    Args:
        expert: which one, from 1 on; one beyond the last is missed by nobody.
        hears: what it takes that expert to say in every round, 0 or 1; .5 if the expert has no vote at all.
    """
    require(expert >= 1, f"expert must be an integer >= 1, got {expert}")
    base = algorithms.weighted_majority(gain)
    require(
        hears in (0, _SILENT, 1), f"hears must be 0, 1, or {_SILENT} for no vote, got {hears!r}"
    )

    def weights(v: Values) -> _Array:
        n_experts = v["votes"].shape[-1]
        mute = (np.arange(n_experts) == expert - 1) & (hears == _SILENT) & (n_experts > 1)
        return np.asarray(special.softmax(np.where(mute, -np.inf, v["log_weights"]), axis=-1))

    changes = {
        "weights": (("log_weights", "votes"), weights),
        "prediction": (("weights", "heard"), lambda v: share(v["weights"], v["heard"])),
        "match": (
            ("heard", "label"),
            lambda v: (v["heard"] == v["label"][..., None]).astype(np.int64),
        ),
    }
    key, name = "deaf_majority", "Weighted Majority that never hears one expert"
    heard = {
        "heard": lambda v: np.where(
            np.arange(v["votes"].shape[-1]) == expert - 1, hears, v["votes"]
        )
    }
    variables = (*base.variables[:2], *VARIABLES(key, heard), *base.variables[2:])
    return base.varied(
        key, name, {"gain": gain, "expert": expert, "hears": hears}, changes, variables=variables
    )


late_majority = lapsed(late, algorithms.weighted_majority, "late_majority")
majority_window = lapsed(window, algorithms.weighted_majority, "majority_window")
fading_majority = lapsed(fading, algorithms.weighted_majority, "fading_majority")


def _by_room(make: Callable[..., Algorithm]) -> Callable[..., Algorithm]:
    """``make`` by how much of the room above its low end every interval takes."""

    def made(**given: float) -> Algorithm:
        for name in [name for name in given if name.endswith("low")]:
            low, prefix = given[name], name.removesuffix("low")
            given[f"{prefix}high"] = min(1.0, low + given.pop(f"{prefix}room") * (1 - low))
        return make(**given)

    return made


# Where a fit looks for each parameter, but for what a family says itself. Rounds that count or are learned and gains
# make up for each other, so that they are refined together: with whole rounds alone, a gain between those of the grid
# gave a wrong number of rounds in 4 of 12 machines. The expert that is not heard is the first one beyond the last, if
# hearing all fits best.
_LOW = Searched("low", (0.0, 0.3, 0.6), enters=("accuracies",))
_ROOM = Searched("room", (0.2, 0.6, 1.0), enters=("accuracies",))
_OTHER_LOW = Searched("other_low", (0.3, 0.6), enters=("regime", "evidence"))
_OTHER_ROOM = Searched("other_room", (0.3, 0.6, 0.9), enters=("regime", "evidence"))
_WEIGHT = Searched("weight", (0.1, 0.5, 0.9), enters=("regime",))
_GAIN = Searched("gain", (0.1, 0.3, 1.0, 3.0))
_DECAY = Searched("decay", (0.5, 0.7, 0.8, 0.9, 0.95, 0.98))
_ALPHA = Searched("alpha", (0.003, 0.01, 0.03, 0.1, 0.3))
_LAG = Searched("lag", (1, 2, 3), kind="choice")
_WINDOW = Searched("window", (1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 14.0, 20.0, 25.0))
_LAST = Searched("last", (1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 14.0, 20.0, 25.0))
_EXPERT = Searched("expert", (1, 2, 3, 4, 5, 6), kind="choice")
_HEARS = Searched("hears", (0.0, 0.5, 1.0), kind="choice")
_ACCURACY = Searched("accuracy", (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9), enters=("prediction",))


def families() -> tuple[Family, ...]:
    """What a model of expert advice is compared with."""
    stopped_majority = lapsed(stopped, algorithms.weighted_majority, "stopped_majority")
    return (
        Family(
            "bayes",
            "Bayes predictor",
            _by_room(algorithms.bayes),
            searched=(
                Searched("low", (0.0, 0.15, 0.3, 0.45, 0.6, 0.75), enters=("accuracies",)),
                Searched("room", (0.2, 0.4, 0.6, 0.8, 1.0), enters=("accuracies",)),
            ),
        ),
        Family(
            "bayes_mixture",
            "Bayes predictor of two intervals",
            _by_room(bayes_mixture),
            searched=(
                Searched("low", (0.0, 0.15, 0.3), enters=("regime", "evidence")),
                Searched("room", (0.6, 1.0), enters=("regime", "evidence")),
                _OTHER_LOW,
                _OTHER_ROOM,
                _WEIGHT,
            ),
            extends="bayes",
        ),
        Family(
            "bayes_fading",
            "Bayes predictor of fading counts",
            _by_room(bayes_fading),
            searched=(_DECAY, _LOW, _ROOM),
            extends="bayes",
        ),
        Family(
            "bayes_window",
            "Bayes predictor of the last rounds",
            _by_room(lapsed(window, algorithms.bayes)),
            searched=(
                Searched(
                    "window",
                    (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 20, 25),
                    kind="choice",
                ),
                _LOW,
                _ROOM,
            ),
            extends="bayes",
        ),
        Family(
            "bayes_late",
            "Bayes predictor, some rounds late",
            _by_room(lapsed(late, algorithms.bayes)),
            searched=(
                _LAG,
                Searched("low", (0.0, 0.3), enters=("accuracies",)),
                Searched("room", (0.5, 1.0), enters=("accuracies",)),
            ),
            extends="bayes",
        ),
        Family(
            "bayes_stopped",
            "Bayes predictor that stops learning",
            _by_room(lapsed(stopped, algorithms.bayes)),
            searched=(
                _LAST,
                Searched("low", (0.0, 0.3), enters=("accuracies",)),
                Searched("room", (0.5, 1.0), enters=("accuracies",)),
            ),
            extends="bayes",
        ),
        Family(
            "weighted_majority",
            "Weighted Majority",
            algorithms.weighted_majority,
            searched=(Searched("gain", (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0)),),
        ),
        Family(
            "fading_majority",
            "Weighted Majority that forgets",
            fading_majority,
            searched=(_GAIN, _DECAY),
            extends="weighted_majority",
        ),
        Family(
            "fixed_share",
            "fixed share",
            fixed_share,
            searched=(_GAIN, _ALPHA),
            extends="weighted_majority",
        ),
        Family(
            "late_majority",
            "Weighted Majority, some rounds late",
            late_majority,
            searched=(_LAG, _GAIN),
            extends="weighted_majority",
        ),
        Family(
            "majority_window",
            "Weighted Majority of the last rounds",
            majority_window,
            searched=(_WINDOW, Searched("gain", (0.1, 0.3, 1.0, 3.0), enters=("log_weights",))),
            extends="weighted_majority",
        ),
        Family(
            "stopped_majority",
            "Weighted Majority that stops learning",
            stopped_majority,
            searched=(_LAST, _GAIN),
            extends="weighted_majority",
        ),
        Family(
            "deaf_majority",
            "Weighted Majority that never hears one expert",
            deaf_majority,
            searched=(_EXPERT, _HEARS, _GAIN),
            extends="weighted_majority",
        ),
        Family(
            "sigmoid_vote",
            "sigmoid vote",
            sigmoid_vote,
            searched=(
                Searched("gain", (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0), enters=("log_odds",)),
            ),
            tempered=True,
        ),
        Family("follow_the_leader", "follow the leader", algorithms.follow_the_leader),
        Family(
            "follow_previous_winners",
            "follow the previous winners",
            algorithms.follow_previous_winners,
        ),
        Family("majority_vote", "majority vote", algorithms.majority_vote, memoryless=True),
        Family(
            "fixed_vote",
            "fixed log-odds vote",
            fixed_vote,
            searched=(_ACCURACY,),
            memoryless=True,
            tempered=True,
        ),
    )
