r"""What a record of k hits and l misses says about an accuracy q with prior U[low, high].

Evidence and posterior mean are incomplete beta functions. With ``M(p, r) = P(low < Beta(p, r) < high)``,

    \int q^k (1-q)^l dq / (high - low) = B(k+1, l+1) M(k+1, l+1) / (high - low)
    E[q | k, l] = (k+1)/(k+l+2)  M(k+2, l+1) / M(k+1, l+1)

M is a difference of two tails of the side that does not cancel, and where it underflows (a long record that the
prior calls impossible, such as 10,000 hits of 10,000 with high = .9) it is summed in logarithms from
``I_x(p, r) = x^p (1-x)^r / (p B(p, r)) 2F1(p+r, 1; p+1; x)``. An interval of width zero is a known accuracy.

Scope: independent experts whose accuracies do not move. Means are exact to about 1e-13 for records of 1e5 rounds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float, Integer
from scipy import special

from interp.errors import require
from interp.tasks.experts import Bounds

Counts = Integer[np.ndarray, "*shape"] | Float[np.ndarray, "*shape"]
"""Whole numbers, or fractions where old rounds fade."""
Reals = Float[np.ndarray, "*shape"]
Mask = Bool[np.ndarray, "*shape"]

_UNDERFLOW = 1e-250  # below this the tails are summed in logarithms
_CERTAIN = 1e-15


def check_bounds(bounds: Bounds) -> None:
    """Raise unless ``bounds`` is an interval in [0, 1].

    Raises:
        InputError: it is not.
    """
    low, high = bounds
    require(0 <= low <= high <= 1, f"a prior is an interval (low, high) in [0, 1], got ({low}, {high})")


def mean_accuracy(hits: Counts, misses: Counts, bounds: Bounds) -> Reals:
    """Posterior mean of an accuracy with prior U[low, high] after ``hits`` and ``misses``.

    Without prior knowledge this is Laplace's rule of succession, (k + 1) / (k + l + 2):

    >>> mean_accuracy(np.array([0, 7]), np.array([0, 1]), (0.0, 1.0)).tolist()
    [0.5, 0.8]

    Raises:
        InputError: ``bounds`` is not an interval in [0, 1].
    """
    check_bounds(bounds)
    low, high = bounds

    def mean(k: Reals, l: Reals) -> Reals:  # noqa: E741
        return np.clip(_mean(k + 1, l + 1, low, high), low, high)

    return np.full(hits.shape, float(low)) if low == high else _once_per_record(mean, hits, misses)


def log_evidence(hits: Counts, misses: Counts, bounds: Bounds) -> Reals:
    """Log-probability of one particular sequence with ``hits`` and ``misses`` under prior U[low, high].

    Raises:
        InputError: ``bounds`` is not an interval in [0, 1].
    """
    check_bounds(bounds)
    low, high = bounds

    def evidence(k: Reals, l: Reals) -> Reals:  # noqa: E741
        if low == high:
            return special.xlogy(k, low) + special.xlog1py(l, -low)
        return special.betaln(k + 1, l + 1) + _log_mass(k + 1, l + 1, low, high) - np.log(high - low)

    return _once_per_record(evidence, hits, misses)


def keep_uncertain(accuracies: Reals) -> Reals:
    """Accuracies kept 1e-15 away from 0 and 1, so that no vote is infinite."""
    return np.clip(accuracies, _CERTAIN, 1 - _CERTAIN)


def _once_per_record(function: Callable[[Reals, Reals], Reals], hits: Counts, misses: Counts) -> Reals:
    """Many episodes share few records: evaluate ``function`` once for each different one, unless they are fractions."""
    if hits.dtype.kind == "f":
        return function(hits, misses)
    base = int(misses.max(initial=0)) + 1
    codes, where = np.unique(hits * base + misses, return_inverse=True)
    return function((codes // base).astype(float), (codes % base).astype(float))[where].reshape(hits.shape)


def _below(p: Reals, r: Reals, low: float, high: float) -> tuple[Reals, Reals, Reals, Reals, Mask]:
    """Beta(p, r) on (low, high), or its mirror image where the interval lies above the mean; and where it does."""
    above = low > p / (p + r)
    p, r = np.where(above, r, p), np.where(above, p, r)
    return p, r, np.where(above, 1 - high, low), np.where(above, 1 - low, high), above


def _log_mass(p: Reals, r: Reals, low: float, high: float) -> Reals:
    """``log P(low < Beta(p, r) < high)``."""
    p, r, lower, upper, _ = _below(p, r, low, high)
    mass = special.betainc(p, r, upper) - special.betainc(p, r, lower)
    tiny = mass < _UNDERFLOW
    result = np.log(np.where(tiny, 1.0, mass))
    if tiny.any():
        p, r, lower, upper = p[tiny], r[tiny], lower[tiny], upper[tiny]
        at_edge = special.xlogy(p, upper) + special.xlog1py(r, -upper) - np.log(p) - special.betaln(p, r)
        tails = 1 + _series(p, r, upper) - _edge_ratio(p, r, lower, upper) * (1 + _series(p, r, lower))
        result[tiny] = at_edge + np.log(tails)
    return result


def _mean(p: Reals, r: Reals, low: float, high: float) -> Reals:
    """Mean of Beta(p, r) restricted to (low, high)."""
    p, r, lower, upper, above = _below(p, r, low, high)
    mass = special.betainc(p, r, upper) - special.betainc(p, r, lower)
    tiny = mass < _UNDERFLOW
    shifted = special.betainc(p + 1, r, upper) - special.betainc(p + 1, r, lower)
    ratio = shifted / np.where(tiny, 1.0, mass)
    if tiny.any():
        # I_x(p+1, r) lacks the first term of the series of I_x(p, r), so no logarithm is needed, and none is lost.
        series = [_series(p[tiny], r[tiny], edge[tiny]) for edge in (upper, lower)]
        far = _edge_ratio(p[tiny], r[tiny], lower[tiny], upper[tiny])
        ratio[tiny] = (series[0] - far * series[1]) / (1 + series[0] - far * (1 + series[1]))
    mean = p / (p + r) * ratio
    return np.where(above, 1 - mean, mean)


def _edge_ratio(p: Reals, r: Reals, lower: Reals, upper: Reals) -> Reals:
    """``x^p (1-x)^r`` at the lower edge over that at the upper."""
    return np.exp(special.xlogy(p, lower / upper) + special.xlogy(r, (1 - lower) / (1 - upper)))


def _series(p: Reals, r: Reals, x: Reals) -> Reals:
    """``2F1(p+r, 1; p+1; x) - 1`` for x below the mean, where the ratios of its terms fall below 1."""
    term = x * (p + r) / (p + 1)
    total, step = term, 1
    while (term > 1e-17 * (1 + total)).any():
        term = term * x * (p + r + step) / (p + 1 + step)
        total = total + term
        step += 1
    return total


def share(
    weights: Float[np.ndarray, "... expert"] | Bool[np.ndarray, "... expert"], advice: Integer[np.ndarray, "... expert"]
) -> Float[np.ndarray, ...]:
    """Share of the weight that stands behind advice 1; 1/2 where nobody has weight."""
    total = weights.sum(axis=-1)
    return np.where(total > 0, (weights * advice).sum(axis=-1) / np.where(total > 0, total, 1), 0.5)
