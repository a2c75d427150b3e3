"""Uncertainty over episodes: the bootstrap that every interval in the toolkit comes from.

Rounds of one episode depend on each other, so episodes are resampled, never rounds; and where several episodes are of
one participant, participants. A resample is a row of weights (how often each episode was drawn, over the number of
episodes); a statistic that is a ratio of sums, such as R2, is the ratio of two weighted sums, so no resample is ever
materialised.

    >>> import numpy as np
    >>> samples = resample_weights(100) @ np.arange(100.0)
    >>> print(Interval.of_samples(samples, estimate=49.5))
    49.5 [44, 55.29]
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from interp.support.checks import array_of, checked, refuse_beyond_machine, shown
from interp.support.errors import require


@dataclass(frozen=True)
@checked
class Interval:
    """An estimate with its interval (95 % unless told otherwise): of the bootstrap here, of a
    refit in interp.stats.refit."""

    estimate: float
    low: float
    high: float

    @classmethod
    def of_samples(cls, samples: ArrayLike, estimate: float, level: float = 0.95) -> Interval:
        """The interval around ``estimate`` that holds the middle ``level`` of ``samples [resample]``.

        Samples that are not finite, such as a ratio over 0, are left out; where none is left, the bounds are NaN.
        """
        drawn = array_of("samples", samples)
        require(drawn.ndim == 1, f"samples must be [resample], got shape {drawn.shape}")
        low, high = percentile_bounds(drawn if drawn.size else [np.nan], level)
        return Interval(float(estimate), float(low), float(high))

    @property
    def complement(self) -> Interval:
        """1 less it: what is left of a share."""
        return Interval(1 - self.estimate, 1 - self.high, 1 - self.low)

    def columns(self, name: str) -> dict[str, float]:
        """The three numbers as columns of a table: ``name``, ``name_low`` and ``name_high``."""
        return {name: self.estimate, f"{name}_low": self.low, f"{name}_high": self.high}

    def __str__(self) -> str:
        return f"{self.estimate:.4g} [{self.low:.4g}, {self.high:.4g}]"


NO_NUMBER = Interval(float("nan"), float("nan"), float("nan"))
"""Of what was not asked, or has no number."""


def exact_share(hits: ArrayLike) -> Interval:
    """The share of independent ``hits [one]`` with its exact 95 % interval (Clopper and Pearson); NaN of none.

    >>> print(exact_share([True] * 11))
    1 [0.7151, 1]
    """
    from scipy.stats import binomtest

    found = np.asarray(hits, dtype=bool)
    require(found.ndim == 1, f"hits must be [one], got shape {found.shape}")
    if not len(found):
        return NO_NUMBER
    bounds = binomtest(int(found.sum()), len(found)).proportion_ci()
    return Interval(float(found.mean()), float(bounds.low), float(bounds.high))


def percentile_bounds(
    samples: ArrayLike, level: float = 0.95, axis: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lower and upper percentiles of many statistics, along ``axis``; samples that are not finite are left out."""
    samples, levels = np.asarray(samples, dtype=np.float64), [(1 - level) / 2, (1 + level) / 2]
    require(
        -samples.ndim <= axis < samples.ndim,
        f"axis {axis} is none of samples of shape {samples.shape}",
    )
    known = np.isfinite(samples)
    if known.all():
        low, high = np.quantile(samples, levels, axis=axis)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # nothing left: NaN is the answer
            low, high = np.nanquantile(np.where(known, samples, np.nan), levels, axis=axis)
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
    """Bootstrap weights ``[n_resamples, n_episodes]``, which nobody may write into; each row sums to 1.

    With ``plain_first`` one more row before them weighs every episode alike: it gives the estimate itself. With
    ``participants``, whose each episode is, these are drawn, each with all of its episodes.
    """
    require(n_episodes >= 1, f"a bootstrap needs at least 1 episode, got {n_episodes}")
    require(n_resamples >= 1, f"a bootstrap needs at least 1 resample, got {n_resamples}")
    whose = of_whom(participants, n_episodes)
    if (n := int(whose.max()) + 1) < n_episodes:
        drawn = resample_weights(n, n_resamples, seed, plain_first=plain_first)[:, whose]
        return drawn / drawn.sum(1, keepdims=True)
    refuse_beyond_machine(
        f"{n_resamples} resamples of {n_episodes} episodes", 16.0 * n_resamples * n_episodes
    )
    draw = _drawn if n_resamples * n_episodes <= _MOST_KEPT else _drawn.__wrapped__
    return draw(n_episodes, n_resamples, seed, plain_first)


_MOST_KEPT = 2**18
"""Weights that are kept for the next interval of as many episodes: an analysis asks for the same hundreds of times."""


@lru_cache(maxsize=16)
def _drawn(n_episodes: int, n_resamples: int, seed: int, plain_first: bool) -> NDArray[np.float64]:
    counts = np.random.default_rng(seed).multinomial(
        n_episodes, np.full(n_episodes, 1 / n_episodes), size=n_resamples
    )
    plain = np.full((int(plain_first), n_episodes), 1 / n_episodes)
    weights = np.concatenate([plain, counts / n_episodes])
    weights.flags.writeable = False
    return weights


def of_whom(participants: Any, n_episodes: int, what: str = "participants") -> NDArray[np.int64]:
    """The number of the participant of each episode, counted from 0 in the order in which they first come.

    Where ``participants`` is None each episode stands for itself.

    >>> of_whom(["bob", "ann", "bob"], 3), of_whom(None, 3)
    (array([0, 1, 0]), array([0, 1, 2]))
    """
    if participants is None:
        return np.arange(n_episodes)
    given = participants.tolist() if hasattr(participants, "tolist") else participants
    several = isinstance(given, list | tuple | range) and len(given) == n_episodes
    named = several and all(isinstance(one, str) for one in given)
    whole = several and all(
        isinstance(one, int | float | np.number) and float(one).is_integer() for one in given
    )
    require(
        named or whole,
        f"{what} must be {n_episodes} names, or whole numbers, got {shown(participants)}",
    )
    require(
        not named or "\0" not in "".join(given),
        f"{what} are names without a NUL, got {shown(participants)}",
    )
    _, first, whose = np.unique(given, return_index=True, return_inverse=True)
    return first.argsort().argsort()[whose]


def of_each(values: ArrayLike, participants: Any) -> NDArray[np.float64]:
    """The mean of ``values [episode, ...]`` of each participant; the values themselves where each has one.

    >>> of_each([1.0, 5.0, 2.0], ["bob", "ann", "bob"]), of_each([1.0, 2.0], None)
    (array([1.5, 5. ]), array([1., 2.]))
    """
    own = np.asarray(values, np.float64)
    whose = of_whom(participants, len(own))
    n = whose.max() + 1
    return own if n == len(own) else np.stack([own[whose == i].mean(0) for i in range(n)])


@checked
def bootstrap_mean(
    values: ArrayLike, *, seed: int = 0, participants: Any = None
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Mean over episodes and its interval: ``values [episode, ...] -> (mean, low, high)``, each ``[...]``.

    The interval is over ``participants``, where it is known whose each episode is.
    """
    values = np.asarray(values, dtype=np.float64)
    require(values.ndim >= 1, "values are [episode, ...], got one number")
    samples = np.tensordot(
        resample_weights(len(values), seed=seed, participants=participants), values, axes=1
    )
    return np.asarray(values.mean(axis=0)), *percentile_bounds(samples)


@checked
def mean_interval(values: ArrayLike, *, seed: int = 0, participants: Any = None) -> Interval:
    """:func:`bootstrap_mean` of one number per episode (``values [episode]``)."""
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
    """A ratio of sums over episodes, such as hits over steps, from one numerator and denominator per episode.

    ``weights`` (of :func:`resample_weights`) are drawn when None; give them to share one draw between many ratios.
    Resamples whose denominator is 0 have no ratio and are left out; where none is left, the bounds are NaN, and
    without any step at all the estimate is, too.
    """
    shapes = np.shape(numerators), np.shape(denominators)
    require(
        shapes[0] == shapes[1] and np.ndim(numerators) == 1,
        f"numerators and denominators are one number per episode each, got shapes {shapes[0]} and {shapes[1]}",
    )
    parts = np.stack([np.asarray(numerators, np.float64), np.asarray(denominators, np.float64)], 1)
    if parts[:, 1].sum() == 0:
        return NO_NUMBER
    weights = (
        resample_weights(len(parts), seed=seed, participants=participants)
        if weights is None
        else weights
    )
    sums = weights @ parts
    samples = sums[sums[:, 1] != 0]
    return Interval.of_samples(samples[:, 0] / samples[:, 1], parts[:, 0].sum() / parts[:, 1].sum())
