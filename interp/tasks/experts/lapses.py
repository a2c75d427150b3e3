"""Weighted Majority and the Bayes predictor with a lapse: what they hear comes late, ends, or is not what was said.

    late_majority, bayes_late         a round counts ``lag`` rounds after it should
    majority_window, bayes_window     only the last ``window`` rounds count
    stopped_majority, bayes_stopped   only the first ``last`` rounds count: a change point
    deaf_majority                     one expert is never heard: it has no vote, or is taken to say the same every time

An average over rounds hardly shows some of these: a lag of one round costs 1.5 % of what the memory is worth. Each is
its base exactly where the lapse is none: no lag, a window or an end after the last round, an expert that is not there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from interp import lapses
from interp.algorithm import Algorithm, Values, Variable
from interp.errors import require
from interp.tasks.experts.algorithms import PER_EXPERT, bayes, weighted_majority
from interp.tasks.experts.posterior import share

Array = NDArray[Any]
SILENT = 0.5
"""What an expert says that has no vote: neither 0 nor 1."""


def late_majority(gain: float = 1.0, lag: int = 1) -> Algorithm:
    """Weighted Majority in which a round counts ``lag`` rounds late: 1 never uses the last outcome."""
    return lapses.late(weighted_majority(gain), lag, "late_majority")


def bayes_late(low: float = 0.3, high: float = 0.9, lag: int = 1) -> Algorithm:
    """The Bayes predictor of all rounds but the last ``lag`` ones."""
    return lapses.late(bayes(low, high), lag)


def majority_window(gain: float = 1.0, window: float = 10) -> Algorithm:
    """Weighted Majority of the last ``window`` rounds; of a fraction of a round, that fraction counts."""
    return lapses.window(weighted_majority(gain), window, "majority_window")


def bayes_window(low: float = 0.3, high: float = 0.9, window: float = 10) -> Algorithm:
    """The Bayes predictor of the last ``window`` rounds."""
    return lapses.window(bayes(low, high), window)


def stopped_majority(gain: float = 1.0, last: float = 10) -> Algorithm:
    """Weighted Majority that learns from the first ``last`` rounds alone; of a fraction of a round, that fraction."""
    return lapses.stopped(weighted_majority(gain), last, "stopped_majority")


def bayes_stopped(low: float = 0.3, high: float = 0.9, last: float = 10) -> Algorithm:
    """The Bayes predictor of the first ``last`` rounds, which need not be whole; ``elapsed`` counts these alone."""
    return lapses.stopped(bayes(low, high), last)


def deaf_majority(gain: float = 1.0, expert: int = 1, hears: float = SILENT) -> Algorithm:
    """Weighted Majority that never hears one expert.

    Args:
        expert: which one, from 1 on; one beyond the last is missed by nobody.
        hears: what it takes that expert to say in every round, 0 or 1; .5 if the expert has no vote at all.
    """
    require(expert >= 1, f"expert must be an integer >= 1, got {expert}")
    base = weighted_majority(gain)
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
