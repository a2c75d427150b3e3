"""The families of algorithms that could explain a model of expert advice, and where a fit looks for their parameters.

Two answer without a memory; what each explains beyond the better of these is what it explains at all. Intervals are
searched by their low end and by how much of the room above it they take: never so little (.05) that the prior is all
but certain, which would be a vote without a memory.
"""

from __future__ import annotations

from interp.algorithm import Algorithm, Family, Searched
from interp.tasks.experts import algorithms, rivals

LOWS, ROOMS = (0.0, 0.15, 0.3, 0.45, 0.6, 0.75), (0.2, 0.4, 0.6, 0.8, 1.0)
FEW_LOWS, FEW_ROOMS = (0.0, 0.3, 0.6), (0.2, 0.6, 1.0)
GAINS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
FEW_GAINS = (0.1, 0.3, 1.0, 3.0)
DECAYS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
WINDOWS = (*range(1, 17), 20, 25)


def _interval(low: float, room: float) -> dict[str, float]:
    return {"low": low, "high": min(1.0, low + room * (1 - low))}


def _mixture(low: float, room: float, other_low: float, other_room: float, weight: float) -> Algorithm:
    other = {f"other_{key}": value for key, value in _interval(other_low, other_room).items()}
    return rivals.bayes_mixture(**_interval(low, room), **other, weight=weight)


def _prior(
    lows: tuple[float, ...], rooms: tuple[float, ...], enters: tuple[str, ...] = ("accuracies",), prefix: str = ""
) -> tuple[Searched, ...]:
    """An interval."""
    return Searched(f"{prefix}low", lows, enters=enters), Searched(f"{prefix}room", rooms, enters=enters)


def families() -> tuple[Family, ...]:
    """What a model of expert advice is compared with."""
    decay, few_gains, mixed = Searched("decay", DECAYS), Searched("gain", FEW_GAINS), ("regime", "evidence")
    return (
        Family(
            "bayes",
            "Bayes predictor",
            lambda low, room: algorithms.bayes(**_interval(low, room)),
            _prior(LOWS, ROOMS),
        ),
        Family(
            "bayes_mixture",
            "Bayes predictor of two intervals",
            _mixture,
            (
                *_prior((0.0, 0.15, 0.3), (0.6, 1.0), mixed),
                *_prior((0.3, 0.6), (0.3, 0.6, 0.9), mixed, "other_"),
                Searched("weight", (0.1, 0.5, 0.9), enters=("regime",)),
            ),
            extends="bayes",
        ),
        Family(
            "bayes_fading",
            "Bayes predictor of fading counts",
            lambda low, room, decay: rivals.bayes_fading(**_interval(low, room), decay=decay),
            (decay, *_prior(FEW_LOWS, FEW_ROOMS)),
            extends="bayes",
        ),
        Family(
            "bayes_window",
            "Bayes predictor of the last rounds",
            lambda low, room, window: rivals.bayes_window(**_interval(low, room), window=window),
            (Searched("window", WINDOWS, kind="choice"), *_prior(FEW_LOWS, FEW_ROOMS)),
            extends="bayes",
        ),
        Family("weighted_majority", "Weighted Majority", algorithms.weighted_majority, (Searched("gain", GAINS),)),
        Family(
            "fading_majority",
            "Weighted Majority that forgets",
            rivals.fading_majority,
            (few_gains, decay),
            extends="weighted_majority",
        ),
        Family(
            "fixed_share",
            "fixed share",
            rivals.fixed_share,
            (few_gains, Searched("alpha", (0.003, 0.01, 0.03, 0.1, 0.3))),
            extends="weighted_majority",
        ),
        Family(
            "sigmoid_vote",
            "sigmoid vote",
            rivals.sigmoid_vote,
            (Searched("gain", GAINS, enters=("log_odds",)),),
        ),
        Family("follow_the_leader", "follow the leader", algorithms.follow_the_leader),
        Family("follow_previous_winners", "follow the previous winners", rivals.follow_previous_winners),
        Family("majority_vote", "majority vote", algorithms.majority_vote, memoryless=True),
        Family(
            "fixed_vote",
            "fixed log-odds vote",
            rivals.fixed_vote,
            (Searched("accuracy", (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9), enters=("prediction",)),),
            memoryless=True,
        ),
    )
