"""Weighted Majority and the Bayes predictor with a lapse: what they hear comes late, ends, or is not what was said.

    late_majority, bayes_late         a round counts ``lag`` rounds after it should
    majority_window, bayes_window     only the last ``window`` rounds count
    stopped_majority, bayes_stopped   only the first ``last`` rounds count: a change point
    deaf_majority                     one expert is never heard: it has no vote, or is taken to say the same every time

An average over rounds hardly shows some of these: a lag of one round costs 1.5 % of what the memory is worth. Each is
its base exactly where the lapse is none: no lag, a window or an end after the last round, an expert that is not there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from interp.algorithm import Algorithm, Values, Variable
from interp.checks import checked
from interp.errors import require
from interp.tasks.experts import algorithms
from interp.tasks.experts.algorithms import LABEL, PER_EXPERT, VOTES
from interp.tasks.experts.posterior import share

Array = NDArray[Any]
SILENT = 0.5
"""What an expert says that has no vote: neither 0 nor 1."""


def _check_whole(name: str, value: int, least: int = 1) -> None:
    require(value >= least, f"{name} must be an integer >= {least}, got {value}")


def _check_rounds(name: str, value: float) -> None:
    require(1 <= value <= 10**6, f"{name} must be a number of rounds >= 1, got {value}; at most 1,000,000 are kept")


# What counts is late.


def _waiting(base: Algorithm, lag: int, changes: Mapping[str, Any], **made: Any) -> Algorithm:
    """``base`` with who was right waiting for ``lag`` rounds; ``changes`` read ``due``, -1 before the first round."""

    def queue(v: Values) -> Array:
        return np.concatenate([v["waiting"], v["match"][..., None, :]], -2)

    waiting = Variable(
        "waiting",
        "m_{t-l..t-1}",
        "who was right in the rounds that do not count yet, -1 before the first",
        "indicator",
        "state",
    )
    due = Variable(
        "due",
        "m_{t-l}",
        "who was right in the round that counts now, -1 before the first",
        "indicator",
        parents=("waiting", "match"),
        equation=lambda v: queue(v)[..., 0, :],
        outputs=PER_EXPERT,
    )
    following = replace(
        waiting,
        key="next_waiting",
        role="round",
        parents=("waiting", "match"),
        equation=lambda v: queue(v)[..., 1:, :],
    )
    at = [v.key for v in base.variables].index("match") + 1
    return base.varied(
        changes=changes,
        variables=(*base.variables[:at], waiting, due, *base.variables[at:], following),
        initial=lambda e: {**base.initial(e), "waiting": np.full((len(e), lag, e.n_experts), -1)},
        **made,
    )


@checked
def late_majority(gain: float = 1.0, lag: int = 1) -> Algorithm:
    """Weighted Majority in which a round counts ``lag`` rounds late: 1 never uses the last outcome.

    >>> late_majority(0.5, lag=2).state
    ('log_weights', 'waiting')
    """
    _check_whole("lag", lag, 0)

    def counted(v: Values) -> Array:
        return v["log_weights"] + gain * np.maximum(v["due"], 0)

    return _waiting(
        algorithms.weighted_majority(gain),
        lag,
        {"next_log_weights": (("log_weights", "due"), counted)},
        key="late_majority",
        name="Weighted Majority, some rounds late",
        parameters={"gain": gain, "lag": lag},
    )


@checked
def bayes_late(low: float = 0.3, high: float = 0.9, lag: int = 1) -> Algorithm:
    """The Bayes predictor of all rounds but the last ``lag`` ones."""
    _check_whole("lag", lag, 0)
    base = algorithms.bayes(low, high)
    changes = {
        "next_counts": (("counts", "due"), lambda v: v["counts"] + np.maximum(v["due"], 0)),
        "next_elapsed": (("elapsed", "due"), lambda v: v["elapsed"] + (v["due"][..., 0] >= 0)),
    }
    return _waiting(
        base,
        lag,
        changes,
        key="bayes_late",
        name="Bayes predictor, some rounds late",
        parameters={**base.parameters, "lag": lag},
    )


# What counts is recent.


def _recent(window: int) -> tuple[Variable, Variable, Callable[[Any], dict[str, Array]]]:
    """Who was right in the last ``window`` rounds, before and after a round, and at the start: -1."""
    recent = Variable(
        "recent", "m_{t-w..t-1}", "who was right in the last rounds, -1 before the first", "class", "state"
    )
    following = replace(
        recent,
        key="next_recent",
        role="round",
        parents=("recent", "match"),
        equation=lambda v: np.concatenate([v["recent"][..., 1:, :], v["match"][..., None, :]], -2),
    )
    return recent, following, lambda e: {"recent": np.full((len(e), window, e.n_experts), -1)}


def _held(base: Algorithm, key: str, equation: Callable[[Values], Array]) -> Variable:
    """A carried variable of ``base`` as one that recent rounds determine."""
    return replace(base.variable(key), role="round", parents=("recent",), equation=equation)


@checked
def bayes_window(low: float = 0.3, high: float = 0.9, window: int = 10) -> Algorithm:
    """The Bayes predictor of the last ``window`` rounds."""
    _check_whole("window", window)
    base = algorithms.bayes(low, high)
    recent, following, start = _recent(window)
    memory = (
        recent,
        _held(base, "counts", lambda v: (v["recent"] > 0).sum(-2)),
        _held(base, "elapsed", lambda v: (v["recent"][..., 0] >= 0).sum(-1)),
    )
    round_ = [v for v in base.variables[2:] if v.key not in ("counts", "elapsed", "next_counts", "next_elapsed")]
    return base.varied(
        "bayes_window",
        "Bayes predictor of the last rounds",
        {**base.parameters, "window": window},
        {},
        variables=(VOTES, LABEL, *memory, *round_, following),
        initial=start,
    )


@checked
def majority_window(gain: float = 1.0, window: float = 10) -> Algorithm:
    """Weighted Majority of the last ``window`` rounds; of a fraction of a round, that fraction counts."""
    _check_rounds("window", window)
    base = algorithms.weighted_majority(gain)
    recent, following, start = _recent(math.ceil(window))
    weights = np.clip(window - np.arange(math.ceil(window))[::-1], 0, 1)[:, None]
    held = _held(base, "log_weights", lambda v: gain * (weights * (v["recent"] > 0)).sum(-2))
    round_ = [v for v in base.variables[2:] if v.key not in ("log_weights", "next_log_weights")]
    return base.varied(
        "majority_window",
        "Weighted Majority of the last rounds",
        {"gain": gain, "window": window},
        {},
        variables=(VOTES, LABEL, recent, held, *round_, following),
        initial=start,
    )


# What counts is old.


@checked
def stopped_majority(gain: float = 1.0, last: float = 10) -> Algorithm:
    """Weighted Majority that learns from the first ``last`` rounds alone; of a fraction of a round, that fraction."""
    _check_rounds("last", last)
    base = algorithms.weighted_majority(gain)
    elapsed = algorithms.bayes().variable("elapsed")
    following = algorithms.bayes().variable("next_elapsed")

    def counted(v: Values) -> Array:
        return v["log_weights"] + gain * v["match"] * np.clip(last - v["elapsed"], 0, 1)[..., None]

    return base.varied(
        "stopped_majority",
        "Weighted Majority that stops learning",
        {"gain": gain, "last": last},
        {"next_log_weights": (("log_weights", "match", "elapsed"), counted)},
        variables=(*base.variables[:2], elapsed, *base.variables[2:], following),
        initial=lambda e: {**base.initial(e), "elapsed": np.zeros(len(e), np.int64)},
    )


@checked
def bayes_stopped(low: float = 0.3, high: float = 0.9, last: float = 10) -> Algorithm:
    """The Bayes predictor of the first ``last`` rounds, which need not be whole; ``elapsed`` counts these alone."""
    _check_rounds("last", last)
    base = algorithms.bayes(low, high)

    def learning(v: Values) -> Array:
        return np.asarray(np.clip(last - v["elapsed"], 0, 1))

    changes = {
        "next_counts": (
            ("counts", "match", "elapsed"),
            lambda v: v["counts"] + v["match"] * learning(v)[..., None],
        ),
        "next_elapsed": (("elapsed",), lambda v: v["elapsed"] + learning(v)),
    }
    name = "Bayes predictor that stops learning"
    return base.varied("bayes_stopped", name, {**base.parameters, "last": last}, changes)


# What counts was not said.


@checked
def deaf_majority(gain: float = 1.0, expert: int = 1, hears: float = SILENT) -> Algorithm:
    """Weighted Majority that never hears one expert.

    Args:
        expert: which one, from 1 on; one beyond the last is missed by nobody.
        hears: what it takes that expert to say in every round, 0 or 1; .5 if the expert has no vote at all.
    """
    _check_whole("expert", expert)
    base = algorithms.weighted_majority(gain)
    require(hears in (0, SILENT, 1), f"hears must be 0, 1, or {SILENT} for no vote, got {hears!r}")

    def is_deaf(votes: Array) -> Array:
        return np.arange(votes.shape[-1]) == expert - 1

    def heard(v: Values) -> Array:
        return np.where(is_deaf(v["votes"]), hears, v["votes"])

    def weights(v: Values) -> Array:
        mute = is_deaf(v["votes"]) & (hears == SILENT) & (v["votes"].shape[-1] > 1)
        return np.asarray(special.softmax(np.where(mute, -np.inf, v["log_weights"]), axis=-1))

    said = Variable(
        "heard",
        "h_i",
        "what each expert is taken to say",
        "class",
        parents=("votes",),
        equation=heard,
        outputs=PER_EXPERT,
    )
    changes = {
        "weights": (("log_weights", "votes"), weights),
        "prediction": (("weights", "heard"), lambda v: share(v["weights"], v["heard"])),
        "match": (("heard", "label"), lambda v: (v["heard"] == v["label"][..., None]).astype(np.int64)),
    }
    return base.varied(
        "deaf_majority",
        "Weighted Majority that never hears one expert",
        {"gain": gain, "expert": expert, "hears": hears},
        changes,
        variables=(*base.variables[:2], said, *base.variables[2:]),
    )
