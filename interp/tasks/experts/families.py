"""Rivals of Weighted Majority and the Bayes predictor: other algorithms that a model may compute.

Each rival changes a few equations of one of these two algorithms, its base, and its variables have
the same keys. If a rival fits a model as well as its base does, the fit is no evidence for either.
Rivals that learn late, stop learning or forget are preferred to their base only if they explain
clearly more. Two rivals have no memory; the quality of other fits is measured relative to these
two.

An equation is a function of ``v``, the values of all variables that come before: key of a variable
-> its values, with any leading axes ``[...]``. All rivals with their equations, and how their
intervals are searched: docs/method/families.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from interp.core.algorithm import Algorithm, Equation, Family, Searched, Values
from interp.support.checks import checked
from interp.support.errors import require
from interp.tasks.experts import algorithms
from interp.tasks.experts.algorithms import VARIABLES, count_misses
from interp.tasks.experts.posterior import (
    check_bounds,
    clip_accuracies,
    compute_vote_share,
    log_evidence,
    mean_accuracy,
)
from interp.tasks.lapses import add_lapse, fading, late, stopped, window

_Array = NDArray[Any]


_NO_VOTE = 0.5  # stands for the vote of an expert that is ignored


def _require_inside(name: str, value: float) -> None:
    """Raise InputError if the value of the parameter ``name`` is not strictly between 0 and 1."""
    require(0 < value < 1, f"{name} must lie in (0, 1), got {value}")


def bayes_mixture(
    low: float = 0.3,
    high: float = 0.9,
    other_low: float = 0.0,
    other_high: float = 1.0,
    weight: float = 0.5,
) -> Algorithm:
    """Return the Bayes predictor for two kinds of episodes: in one, all experts' accuracies are
    drawn from a first interval; in the other, all from a second interval.

    Args:
        low, high: bounds of the first interval.
        other_low, other_high: bounds of the second interval.
        weight: prior probability of the first interval, in (0, 1).
    """
    _require_inside("weight", weight)
    interval, other_interval = (low, high), (other_low, other_high)
    base = algorithms.bayes(low, high)
    check_bounds(other_interval)

    def regime(v: Values) -> _Array:
        """Return the posterior probability of the first interval, ``[...]``."""
        hits, misses = v["counts"], count_misses(v)
        # Log-probability of the record of all experts if one interval is the true one, [...].
        first = log_evidence(hits, misses, interval).sum(-1)
        second = log_evidence(hits, misses, other_interval).sum(-1)
        # Bayes' rule: posterior log-odds are prior log-odds plus the log of the likelihood ratio.
        log_odds = special.logit(weight) + first - second
        return special.expit(log_odds)

    def evidence(v: Values) -> _Array:
        """Return the log-odds of label 1, ``[...]``."""
        says_one = v["votes"] > 0.5
        hits, misses = v["counts"], count_misses(v)
        means = [
            mean_accuracy(hits, misses, interval),
            mean_accuracy(hits, misses, other_interval),
        ]
        prior = np.stack([v["regime"], 1 - v["regime"]], -1)
        if_one = _compute_log_likelihood(says_one, means, prior)
        if_zero = _compute_log_likelihood(~says_one, means, prior)
        return if_one - if_zero

    variables = [v for v in base.variables if v.key not in ("accuracies", "log_odds")]
    # Variables are in the order of computation, and "evidence" reads "regime".
    index = [variable.key for variable in variables].index("evidence")
    variables[index:index] = VARIABLES("bayes_mixture", {"regime": regime})
    parameters = {
        "low": low,
        "high": high,
        "other_low": other_low,
        "other_high": other_high,
        "weight": weight,
    }
    return base.make_variant(
        "bayes_mixture",
        "Bayes predictor of two intervals",
        parameters,
        {"evidence": (("regime", "counts", "elapsed", "votes"), evidence)},
        variables=tuple(variables),
        memory="counts",
        written="next_counts",
    )


def _compute_log_likelihood(is_right: _Array, means: Sequence[_Array], prior: _Array) -> _Array:
    """Return the log-probability of a round's votes if the label is known, averaged over two
    possible intervals of the experts' accuracies.

    Args:
        is_right: True for experts whose vote equals the label, ``[..., expert]``.
        means: for each interval, the experts' mean accuracies if it is the true one,
            ``[..., expert]``.
        prior: probability that an interval is the true one, ``[..., interval]``.
    """
    by_interval = []
    for mean in means:
        accuracy = clip_accuracies(mean)
        by_expert = np.where(is_right, np.log(accuracy), np.log1p(-accuracy))
        by_interval.append(by_expert.sum(-1))  # experts err independently
    # The log of the average of the probabilities, weighted by the prior.
    return special.logsumexp(np.stack(by_interval, -1), b=prior, axis=-1)


def bayes_fading(low: float = 0.3, high: float = 0.9, decay: float = 0.9) -> Algorithm:
    """Return the Bayes predictor with counts of hits and misses that decay, so that old rounds
    count less.

    Args:
        low, high: bounds of the prior U[low, high] of accuracies.
        decay: factor by which counts are multiplied in each round.
    """

    def accuracies(v: Values) -> _Array:
        """Return the experts' posterior mean accuracies, ``[..., expert]``; counts are fractions."""
        hits = np.asarray(v["counts"], float)
        misses = np.maximum(count_misses(v), 0.0)  # below 0 by rounding, or if hits are edited
        return mean_accuracy(hits, misses, (low, high))

    faded = fading(algorithms.bayes(low, high), decay)
    name = "Bayes predictor of fading counts"
    # Key of a variable -> (keys of the variables that it reads, its equation).
    changes = {"accuracies": (("counts", "elapsed"), accuracies)}
    return faded.make_variant(faded.key, name, faded.parameters, changes)


@checked
def fixed_share(gain: float = 1.0, alpha: float = 0.05) -> Algorithm:
    """Return a variant of Weighted Majority for experts who may change: after each round, a share
    of all weight is redistributed evenly over all experts.

    Source: Herbster and Warmuth, Tracking the best expert, 1998.

    Args:
        gain: log gamma, the amount by which an expert's log-weight grows in a round in which the
            expert is right.
        alpha: the share that is redistributed, in (0, 1).
    """
    _require_inside("alpha", alpha)

    def share_out(v: Values) -> _Array:
        """Return the log-weights after the round, ``[..., expert]``."""
        weights = special.softmax(v["log_weights"] + gain * v["match"], axis=-1)
        share_of_each = alpha / weights.shape[-1]
        return np.log((1 - alpha) * weights + share_of_each)

    # Key of a variable -> (keys of the variables that it reads, its equation).
    changes = {"next_log_weights": (("log_weights", "match"), share_out)}
    base = algorithms.weighted_majority(gain)
    return base.make_variant("fixed_share", "fixed share", {"gain": gain, "alpha": alpha}, changes)


def sigmoid_vote(gain: float = 0.1) -> Algorithm:
    """Return an algorithm that predicts from a weighted sum of votes: the log-odds of label 1 are
    the sum over experts of vote times weight.

    The vote is +1 for advice 1 and -1 for advice 0. The weight is ``gain (hits - misses)``, where
    ``hits`` and ``misses`` are the numbers of earlier rounds in which the expert was right and
    wrong.
    """

    # Bayes sums vote times "log_odds", the log-odds that an expert is right. A weight replaces them.
    def compute_weights(v: Values) -> _Array:
        """Return the weights of the experts' votes, ``[..., expert]``."""
        # Misses are the elapsed rounds minus the hits.
        hits_minus_misses = 2 * v["counts"] - v["elapsed"][..., None]
        return gain * hits_minus_misses

    base = algorithms.bayes()
    # Key of a variable -> (keys of the variables that it reads, its equation).
    changes = {"log_odds": (("counts", "elapsed"), compute_weights)}
    # The accuracies are left out, since the new log-odds do not read them.
    variables = tuple(v for v in base.variables if v.key != "accuracies")
    return base.make_variant(
        "sigmoid_vote", "sigmoid vote", {"gain": gain}, changes, variables=variables
    )


def fixed_vote(accuracy: float = 0.6) -> Algorithm:
    """Return an algorithm without memory that predicts from a sum of votes: the log-odds of label 1
    are the sum over experts of vote times weight.

    The vote is +1 for advice 1 and -1 for advice 0. All experts have the same weight: the log-odds
    of ``accuracy``.
    """
    _require_inside("accuracy", accuracy)

    def predict(v: Values) -> _Array:
        """Return the probability of label 1, ``[...]``."""
        signed_votes = (2 * v["votes"] - 1).sum(-1)
        return special.expit(special.logit(accuracy) * signed_votes)

    # Key of a variable -> (keys of the variables that it reads, its equation).
    changes = {"prediction": (("votes",), predict)}
    base, parameters = algorithms.majority_vote(), {"accuracy": accuracy}
    return base.make_variant("fixed_vote", "fixed log-odds vote", parameters, changes)


def deaf_majority(gain: float = 1.0, expert: int = 1, hears: float = _NO_VOTE) -> Algorithm:
    """Return a variant of Weighted Majority that ignores one expert's votes.

    Args:
        gain: log gamma, the amount by which an expert's log-weight grows in a round in which the
            expert is right.
        expert: number of the expert, counted from 1; if it is larger than the number of experts,
            none is ignored.
        hears: the vote, 0 or 1, that is assumed for this expert in every round, whatever the expert
            advises; or .5 to leave the expert out.
    """
    require(expert >= 1, f"expert must be an integer >= 1, got {expert}")
    require(
        hears in (0, _NO_VOTE, 1), f"hears must be 0, 1, or {_NO_VOTE} for no vote, got {hears!r}"
    )

    def mark_ignored(v: Values) -> _Array:
        """Return True for the expert who is ignored, ``[expert]``."""
        return np.arange(v["votes"].shape[-1]) == expert - 1

    def compute_weights(v: Values) -> _Array:
        """Return the experts' weights, ``[..., expert]``; 0 for an expert who is left out. A single
        expert is never left out.
        """
        log_weights = v["log_weights"]
        is_ignored = mark_ignored(v)
        # A single expert is not left out, since weights cannot all be 0.
        if hears == _NO_VOTE and len(is_ignored) > 1:
            log_weights = np.where(is_ignored, -np.inf, log_weights)
        weights: _Array = special.softmax(log_weights, axis=-1)
        return weights

    def replace_vote(v: Values) -> _Array:
        """Return the votes, ``[..., expert]``, with ``hears`` in place of the ignored expert's."""
        return np.where(mark_ignored(v), hears, v["votes"])

    def mark_right(v: Values) -> _Array:
        """Return 1 for each vote that equals the label, and 0 for others, ``[..., expert]``. The
        ignored expert's vote counts as ``hears``.
        """
        return (v["heard"] == v["label"][..., None]).astype(np.int64)

    key, name = "deaf_majority", "Weighted Majority that never hears one expert"
    # Key of a variable -> (keys of the variables that it reads, its equation).
    changes: dict[str, tuple[tuple[str, ...], Equation]] = {
        "weights": (("log_weights", "votes"), compute_weights),
        "prediction": (
            ("weights", "heard"),
            lambda v: compute_vote_share(v["weights"], v["heard"]),
        ),
        "match": (("heard", "label"), mark_right),
    }
    base = algorithms.weighted_majority(gain)
    # Variables are in the order of computation: "heard" is computed right after the inputs.
    votes_and_label, others = base.variables[:2], base.variables[2:]
    variables = (*votes_and_label, *VARIABLES(key, {"heard": replace_vote}), *others)
    parameters = {"gain": gain, "expert": expert, "hears": hears}
    return base.make_variant(key, name, parameters, changes, variables=variables)


late_majority = add_lapse(late, algorithms.weighted_majority, "late_majority")
majority_window = add_lapse(window, algorithms.weighted_majority, "majority_window")
fading_majority = add_lapse(fading, algorithms.weighted_majority, "fading_majority")


def _search_by_room(make: Callable[..., Algorithm]) -> Callable[..., Algorithm]:
    """Return a version of ``make`` with a parameter ``room`` in place of ``high``, which makes
    every point of a parameter grid a valid interval.

    ``room`` is the share of the range from ``low`` to 1 that the interval covers:
    ``high = low + room (1 - low)``. In the same way, ``other_room`` replaces ``other_high``.

    Args:
        make: function that makes an algorithm from parameters such as ``low`` and ``high``.
    """

    def make_with_room(**parameters: float) -> Algorithm:
        """Return the algorithm, with ``high`` computed from ``low`` and ``room``, and ``other_high``
        from ``other_low`` and ``other_room``.
        """
        for name in list(parameters):
            if name.endswith("room"):  # room or other_room
                prefix = name.removesuffix("room")
                require(
                    f"{prefix}low" in parameters, f"{name} is above a low end; give {prefix}low"
                )
                low = parameters[f"{prefix}low"]
                width = parameters.pop(name) * (1 - low)
                parameters[f"{prefix}high"] = min(1.0, low + width)
        return make(**parameters)

    return make_with_room


# The grid of each parameter in a fit, unless a family has its own. A gain and a number of rounds
# can compensate each other, so both are refined together: with whole numbers of rounds, a gain
# between grid points gave a wrong number of rounds in 4 of 12 machines. If ignoring no expert fits
# best, `expert` is one more than the number of experts.
_LOW = Searched("low", (0.0, 0.3, 0.6), used_by=("accuracies",))
_ROOM = Searched("room", (0.2, 0.6, 1.0), used_by=("accuracies",))
_OTHER_LOW = Searched("other_low", (0.3, 0.6), used_by=("regime", "evidence"))
_OTHER_ROOM = Searched("other_room", (0.3, 0.6, 0.9), used_by=("regime", "evidence"))
_WEIGHT = Searched("weight", (0.1, 0.5, 0.9), used_by=("regime",))
_GAIN = Searched("gain", (0.1, 0.3, 1.0, 3.0))
_DECAY = Searched("decay", (0.5, 0.7, 0.8, 0.9, 0.95, 0.98))
_ALPHA = Searched("alpha", (0.003, 0.01, 0.03, 0.1, 0.3))
_LAG = Searched("lag", (1, 2, 3), kind="choice")
_WINDOW = Searched("window", (1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 14.0, 20.0, 25.0))
_LAST = Searched("last", (1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 14.0, 20.0, 25.0))
_EXPERT = Searched("expert", (1, 2, 3, 4, 5, 6), kind="choice")
_HEARS = Searched("hears", (0.0, 0.5, 1.0), kind="choice")
_ACCURACY = Searched("accuracy", (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9), used_by=("prediction",))


_FINE_GAIN = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
_FEW_LOWS = Searched("low", (0.0, 0.3), used_by=("accuracies",))
_FEW_ROOMS = Searched("room", (0.5, 1.0), used_by=("accuracies",))
_WHOLE_WINDOW = Searched("window", (*range(1, 17), 20, 25), kind="choice")


def families() -> tuple[Family, ...]:
    """Return the families of algorithms with which a model of expert advice is compared. The
    algorithms of a family differ only in their parameters.
    """
    return (*_list_bayes_families(), *_list_majority_families(), *_list_other_families())


def _list_bayes_families() -> tuple[Family, ...]:
    """Return the families of the Bayes predictor and of its variants, such as one that forgets."""
    # `used_by`: the variables whose equations read the parameter.
    plain = (
        Searched("low", (0.0, 0.15, 0.3, 0.45, 0.6, 0.75), used_by=("accuracies",)),
        Searched("room", (0.2, 0.4, 0.6, 0.8, 1.0), used_by=("accuracies",)),
    )
    mixed = (
        Searched("low", (0.0, 0.15, 0.3), used_by=("regime", "evidence")),
        Searched("room", (0.6, 1.0), used_by=("regime", "evidence")),
        _OTHER_LOW,
        _OTHER_ROOM,
        _WEIGHT,
    )
    few = (_FEW_LOWS, _FEW_ROOMS)
    bayes = algorithms.bayes
    windowed = add_lapse(window, bayes)
    delayed = add_lapse(late, bayes)
    ended = add_lapse(stopped, bayes)
    # Key, name, function, and parameters that a fit searches.
    extensions = (
        ("bayes_mixture", "Bayes predictor of two intervals", bayes_mixture, mixed),
        ("bayes_fading", "Bayes predictor of fading counts", bayes_fading, (_DECAY, _LOW, _ROOM)),
        (
            "bayes_window",
            "Bayes predictor of the last rounds",
            windowed,
            (_WHOLE_WINDOW, _LOW, _ROOM),
        ),
        ("bayes_late", "Bayes predictor, some rounds late", delayed, (_LAG, *few)),
        ("bayes_stopped", "Bayes predictor that stops learning", ended, (_LAST, *few)),
    )
    listed = [Family("bayes", "Bayes predictor", _search_by_room(bayes), plain)]
    for key, name, make, searched in extensions:
        listed.append(Family(key, name, _search_by_room(make), searched, extends="bayes"))
    return tuple(listed)


def _list_majority_families() -> tuple[Family, ...]:
    """Return the families of Weighted Majority and of its variants, such as one that forgets."""
    plain = Searched("gain", _FINE_GAIN)
    # This variant computes log_weights anew in each round, with the gain.
    windowed_gain = replace(_GAIN, used_by=("log_weights",))
    stopped_majority = add_lapse(stopped, algorithms.weighted_majority, "stopped_majority")
    # Key, name, function, and parameters that a fit searches.
    extensions = (
        ("fading_majority", "Weighted Majority that forgets", fading_majority, (_GAIN, _DECAY)),
        ("fixed_share", "fixed share", fixed_share, (_GAIN, _ALPHA)),
        ("late_majority", "Weighted Majority, some rounds late", late_majority, (_LAG, _GAIN)),
        (
            "majority_window",
            "Weighted Majority of the last rounds",
            majority_window,
            (_WINDOW, windowed_gain),
        ),
        (
            "stopped_majority",
            "Weighted Majority that stops learning",
            stopped_majority,
            (_LAST, _GAIN),
        ),
        (
            "deaf_majority",
            "Weighted Majority that never hears one expert",
            deaf_majority,
            (_EXPERT, _HEARS, _GAIN),
        ),
    )
    majority = algorithms.weighted_majority
    listed = [Family("weighted_majority", "Weighted Majority", majority, (plain,))]
    for key, name, make, searched in extensions:
        listed.append(Family(key, name, make, searched, extends="weighted_majority"))
    return tuple(listed)


def _list_other_families() -> tuple[Family, ...]:
    """Return the families of algorithms that the two functions above do not list: the sigmoid vote,
    two that follow the best experts, and two without memory.
    """
    # Only the equation of log_odds reads the gain, so that a fit computes the states only once. A
    # tempered family has an inverse temperature already (such as a gain): a fit adds no other.
    gain = Searched("gain", _FINE_GAIN, used_by=("log_odds",))
    follow_winners = algorithms.follow_previous_winners
    return (
        Family("sigmoid_vote", "sigmoid vote", sigmoid_vote, searched=(gain,), tempered=True),
        Family("follow_the_leader", "follow the leader", algorithms.follow_the_leader),
        Family("follow_previous_winners", "follow the previous winners", follow_winners),
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
