"""Bootstrap intervals over episodes, for every statistic of the toolkit that involves no fit.

Rounds of one episode depend on each other, so episodes are resampled, never rounds. If a
participant has several episodes, participants are resampled. A resample is a row of weights: how
often each episode was drawn, divided by the number of episodes. The bootstrap of a ratio of sums,
such as R2, is the ratio of two weighted sums, so no resampled data set is ever built.

    >>> import numpy as np
    >>> samples = resample_weights(100) @ np.arange(100.0)
    >>> print(Interval.of_samples(samples, estimate=49.5))
    49.5 [44, 55.29]
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import lru_cache
from math import nan
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from interp.support.checks import (
    array_of,
    checked,
    format_value,
    refuse_beyond_machine,
    require_real,
)
from interp.support.errors import InputError, require


@dataclass(frozen=True)
@checked
class Interval:
    """An estimate with the lower and upper bound of its confidence interval (95 % unless stated
    otherwise).

    The interval is a bootstrap interval of this module, or an interval for the score of a
    cross-validated fit (:mod:`interp.stats.refit`). The lower bound is at most the upper one;
    bounds are NaN if there is no interval. The estimate may lie outside of the interval. This
    happens to bootstrap intervals of a statistic that is biased in its resamples, such as a
    maximum.

    Attributes:
        estimate: the estimate.
        low: lower bound of the interval.
        high: upper bound of the interval.
    """

    estimate: float
    low: float
    high: float

    def __post_init__(self) -> None:
        """Raise InputError if a field is not a number, or if the lower bound is above the upper
        bound.
        """
        require_real("estimate", self.estimate)
        require_real("low", self.low)
        require_real("high", self.high)
        if self.low > self.high:
            raise InputError(
                f"an interval is Interval(estimate, low, high) with low <= high, got low {self.low:g} and "
                f"high {self.high:g}"
            )

    @classmethod
    def of_samples(cls, samples: ArrayLike, estimate: float, level: float = 0.95) -> Interval:
        """Make an interval around ``estimate`` with percentiles of bootstrap samples as its bounds.

        Samples that are not finite, such as a ratio over 0, are left out; if none remain, the
        bounds are NaN.

        Args:
            samples: the value of the statistic in each bootstrap resample, ``[resample]``.
            estimate: the value of the statistic in the data themselves.
            level: the share of the samples that lie between the bounds.
        """
        drawn = array_of("samples", samples)
        require(drawn.ndim == 1, f"samples must be [resample], got shape {drawn.shape}")
        low, high = percentile_bounds(drawn if drawn.size else [np.nan], level)
        return Interval(float(estimate), float(low), float(high))

    @property
    def complement(self) -> Interval:
        """The interval of 1 minus the estimated quantity. For the interval of an accuracy, it is
        the interval of the error rate.
        """
        return Interval(1 - self.estimate, 1 - self.high, 1 - self.low)

    def columns(self, name: str) -> dict[str, float]:
        """Return estimate, lower and upper bound as cells of a table's row: name of a column ->
        number. For the name "iia" it is ``{"iia": estimate, "iia_low": low, "iia_high": high}``.
        """
        return {name: self.estimate, f"{name}_low": self.low, f"{name}_high": self.high}

    def __str__(self) -> str:
        return f"{self.estimate:.4g} [{self.low:.4g}, {self.high:.4g}]"


NO_NUMBER = Interval(nan, nan, nan)
"""The interval of a quantity that was not measured or is undefined: NaN three times."""


def percentile_bounds(
    samples: ArrayLike, level: float = 0.95
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the lower and the upper percentile of samples, such as bootstrap resamples of a
    statistic.

    Args:
        samples: ``[resample, ...]``; numbers that are not finite are left out.
        level: the share of the samples that lie between the two percentiles.

    Returns:
        The lower and the upper percentiles, two arrays without the axis of resamples.
    """
    samples = np.asarray(samples, dtype=np.float64)
    levels = [(1 - level) / 2, (1 + level) / 2]
    known = np.isfinite(samples)
    if known.all():  # np.quantile is faster than np.nanquantile
        low, high = np.quantile(samples, levels, axis=0)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # nothing left: NaN is the answer
            low, high = np.nanquantile(np.where(known, samples, np.nan), levels, axis=0)
    return np.asarray(low), np.asarray(high)


@checked
def resample_weights(
    n_episodes: int,
    n_resamples: int = 1000,
    seed: int = 0,
    *,
    plain_first: bool = False,
    participants: Any = None,
) -> NDArray[np.float64]:
    """Draw the weights of episodes in bootstrap resamples, ``[resample, episode]``. For one number
    x per episode, ``weights @ x`` is the mean of x in every resample.

    Args:
        n_episodes: number of episodes that are resampled.
        n_resamples: number of resamples (rows).
        seed: seed of the draw.
        plain_first: True to add a first row in which all episodes have the same weight, which gives
            the estimate itself.
        participants: name or number of each episode's participant, ``[episode]``. Participants are
            then resampled, each with all of their episodes. When None, episodes are resampled.

    Returns:
        Weights ``[resample, episode]``: how often a resample contains the episode, divided by the
        size of the resample. Each row sums to 1. The array may be read-only, because it is cached.
    """
    require(n_episodes >= 1, f"a bootstrap needs at least 1 episode, got {n_episodes}")
    require(n_resamples >= 1, f"a bootstrap needs at least 1 resample, got {n_resamples}")
    participant = number_participants(participants, n_episodes)
    n_participants = int(participant.max()) + 1
    if n_participants < n_episodes:
        weights_of_participants = resample_weights(
            n_participants, n_resamples, seed, plain_first=plain_first
        )
        weights = weights_of_participants[:, participant]
        # A participant's weight counts once for each episode, so rows no longer sum to 1.
        return weights / weights.sum(1, keepdims=True)
    n_weights = n_resamples * n_episodes
    # Counts and weights, of 8 bytes each.
    refuse_beyond_machine(f"{n_resamples} resamples of {n_episodes} episodes", 16.0 * n_weights)
    draw = _draw_weights
    if n_weights <= _MAX_CACHED_WEIGHTS:
        draw = _draw_cached_weights
    return draw(n_episodes, n_resamples, seed, plain_first)


_MAX_CACHED_WEIGHTS = 2**18
"""Arrays with at most this many weights are cached: an analysis draws the same weights hundreds of
times.
"""


def _draw_weights(
    n_episodes: int, n_resamples: int, seed: int, plain_first: bool
) -> NDArray[np.float64]:
    """Draw the weights that :func:`resample_weights` describes, for resamples of single episodes
    instead of participants. The array is read-only.
    """
    even = np.full(n_episodes, 1 / n_episodes)
    generator = np.random.default_rng(seed)
    weights = generator.multinomial(n_episodes, even, size=n_resamples) / n_episodes
    if plain_first:
        weights = np.concatenate([even[None], weights])
    weights.flags.writeable = False
    return weights


_draw_cached_weights = lru_cache(maxsize=16)(_draw_weights)


def number_participants(
    participants: Any, n_episodes: int, what: str = "participants"
) -> NDArray[np.int64]:
    """Number the participants (who played the episodes) from 0 in order of first appearance, and
    return the number of each episode's participant, ``[episode]``.

    Args:
        participants: the name or number of each episode's participant; when None, each episode
            counts as one participant.
        n_episodes: the number of episodes.
        what: word for the participants in the error message.

    >>> number_participants(["bob", "ann", "bob"], 3), number_participants(None, 3)
    (array([0, 1, 0]), array([0, 1, 2]))
    """
    if participants is None:
        return np.arange(n_episodes)
    ids = participants.tolist() if hasattr(participants, "tolist") else participants
    is_list = isinstance(ids, list | tuple | range) and len(ids) == n_episodes
    are_names = is_list and all(isinstance(name, str) for name in ids)
    are_numbers = is_list and all(map(_is_whole, ids))
    require(
        are_names or are_numbers,
        f"{what} must be {n_episodes} names, or whole numbers, got {format_value(participants)}",
    )
    # NumPy's strings drop NULs at the end, so that two names could become one.
    has_nul = are_names and "\0" in "".join(ids)
    require(
        not has_nul,
        f"{what} are names without a NUL, got {format_value(participants)}",
    )
    _, first_episode, sorted_number = np.unique(ids, return_index=True, return_inverse=True)
    # np.unique sorts the names; argsort of argsort is their rank by first appearance.
    number_by_appearance = first_episode.argsort().argsort()
    return number_by_appearance[sorted_number]


def _is_whole(value: object) -> bool:
    """Return whether a value is a whole number, such as 2 or 2.0."""
    return isinstance(value, int | float | np.number) and float(value).is_integer()


def average_by_participant(values: ArrayLike, participants: Any) -> NDArray[np.float64]:
    """Average values over the episodes of each participant.

    Args:
        values: one value or array per episode, ``[episode, ...]``.
        participants: name or number of each episode's participant; when None, each episode counts
            as one participant.

    Returns:
        The means, ``[participant, ...]``, in order of first appearance.

    >>> average_by_participant([1.0, 5.0, 2.0], ["bob", "ann", "bob"]), average_by_participant([1.0, 2.0], None)
    (array([1.5, 5. ]), array([1., 2.]))
    """
    of_episodes = np.asarray(values, np.float64)
    participant = number_participants(participants, len(of_episodes))
    n_participants = participant.max() + 1
    if n_participants == len(of_episodes):  # each has one episode
        return of_episodes
    means = [of_episodes[participant == i].mean(0) for i in range(n_participants)]
    return np.stack(means)


@checked
def bootstrap_mean(
    values: ArrayLike, *, seed: int = 0, participants: Any = None
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean over episodes and the bounds of its 95 % bootstrap interval.

    Args:
        values: one value or array per episode, ``[episode, ...]``.
        seed: seed of the resamples.
        participants: name or number of each episode's participant. If not None, participants are
            resampled instead of episodes.

    Returns:
        The mean, the lower bound and the upper bound, each ``[...]``.
    """
    values = np.asarray(values, dtype=np.float64)
    require(values.ndim >= 1, "values are [episode, ...], got one number")
    weights = resample_weights(len(values), seed=seed, participants=participants)
    low, high = percentile_bounds(np.tensordot(weights, values, axes=1))
    return np.asarray(values.mean(axis=0)), low, high


@checked
def mean_interval(values: ArrayLike, *, seed: int = 0, participants: Any = None) -> Interval:
    """Return the mean of one number per episode, with its 95 % bootstrap interval
    (:func:`bootstrap_mean`).

    Args:
        values: one number per episode, ``[episode]``.
        seed: seed of the bootstrap.
        participants: name or number of each episode's participant; None if the bootstrap resamples
            episodes instead of participants.
    """
    require(
        np.ndim(values) == 1, f"values are one number per episode, got shape {np.shape(values)}"
    )
    mean, low, high = bootstrap_mean(values, seed=seed, participants=participants)
    return Interval(float(mean), float(low), float(high))


@checked
def ratio_interval(
    numerators: ArrayLike,
    denominators: ArrayLike,
    *,
    seed: int = 0,
    weights: NDArray[np.float64] | None = None,
    participants: Any = None,
) -> Interval:
    """Return a ratio of two sums over episodes, such as hits over steps, with its 95 % bootstrap
    interval.

    Resamples with a denominator of 0 are left out. If none remain the bounds are NaN; if the
    denominator of the data is 0, the estimate is NaN, too.

    Args:
        numerators: each episode's term in the sum above the fraction bar, ``[episode]``.
        denominators: each episode's term in the sum below the fraction bar, ``[episode]``.
        seed: seed of the resamples.
        weights: bootstrap weights from :func:`resample_weights`, if many ratios share them; new
            ones are drawn when None.
        participants: name or number of each episode's participant. If not None, participants are
            resampled instead of episodes.
    """
    shape, other_shape = np.shape(numerators), np.shape(denominators)
    require(
        shape == other_shape and len(shape) == 1,
        f"numerators and denominators are one number per episode each, got shapes {shape} and {other_shape}",
    )
    numerator_of_each = np.asarray(numerators, np.float64)
    denominator_of_each = np.asarray(denominators, np.float64)
    parts = np.stack([numerator_of_each, denominator_of_each], 1)  # [episode, 2]
    numerator, denominator = numerator_of_each.sum(), denominator_of_each.sum()
    if denominator == 0:
        return NO_NUMBER
    if weights is None:
        weights = resample_weights(len(parts), seed=seed, participants=participants)
    sums = weights @ parts  # [resample, 2], divided by the size of the resample
    has_ratio = sums[:, 1] != 0  # a ratio over 0 is none
    resampled_numerators, resampled_denominators = sums[has_ratio].T
    ratios = resampled_numerators / resampled_denominators
    return Interval.of_samples(ratios, numerator / denominator)


@checked
def share_interval(
    hits: ArrayLike,
    trials: ArrayLike,
    *,
    seed: int = 0,
    weights: NDArray[np.float64] | None = None,
    participants: Any = None,
) -> Interval:
    """Return the share of trials that are hits, with its 95 % interval over episodes. It is that of
    :func:`ratio_interval` if some trials are hits and some are not.

    If all trials are hits, or none are, so are those of every resample, and a bootstrap interval
    would have no width. The interval is then the exact one of Clopper and Pearson (1934). Since
    trials of one participant depend on each other, each participant counts as one trial.

    Args:
        hits: number of hits in each episode, ``[episode]``.
        trials: number of trials in each episode, ``[episode]``.
        seed, weights, participants: as in :func:`ratio_interval`.

    >>> print(share_interval([3, 2, 4], [3, 2, 4]), share_interval([0, 0], [1, 5]), sep=", ")
    1 [0.2924, 1], 0 [0, 0.8419]
    """
    interval = ratio_interval(hits, trials, seed=seed, weights=weights, participants=participants)
    if interval.estimate not in (0, 1):
        return interval
    participant = number_participants(participants, np.size(trials))
    trials_by_participant = np.bincount(participant, trials)
    n_participants = np.count_nonzero(trials_by_participant)
    # With this true share, n participants all have hits with a probability of 2.5 %.
    of_hits_alone = Interval(1, 0.025 ** (1 / n_participants), 1)
    return of_hits_alone if interval.estimate == 1 else of_hits_alone.complement
