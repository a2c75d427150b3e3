r"""What a record of k hits and l misses says about an accuracy q with prior U[low, high].

Evidence and posterior mean are incomplete beta functions. With ``M(p, r) = P(low < Beta(p, r) < high)``,

    \int q^k (1-q)^l dq / (high - low) = B(k+1, l+1) M(k+1, l+1) / (high - low)
    E[q | k, l] = (k+1)/(k+l+2)  M(k+2, l+1) / M(k+1, l+1)

M is a difference of two tails of the side that does not cancel, and where it underflows (a long record that the
prior calls impossible, such as 10,000 hits of 10,000 with high = .9) it is summed in logarithms from
``I_x(p, r) = x^p (1-x)^r / (p B(p, r)) 2F1(p+r, 1; p+1; x)``. An interval of width zero is a known accuracy.

Scope: independent experts whose accuracies do not move. Errors stay near 1e-12 for records up to 1e5 rounds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Integer
from scipy import special

from interp.errors import require
from interp.tasks.experts import Bounds

Counts = Integer[np.ndarray, "*shape"]
Reals = Float[np.ndarray, "*shape"]

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
        ratio = np.exp(_log_mass(k + 2, l + 1, low, high) - _log_mass(k + 1, l + 1, low, high))
        return np.clip((k + 1) / (k + l + 2) * ratio, low, high)

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
    """Many episodes share few records: evaluate ``function`` once for each different one."""
    base = int(misses.max(initial=0)) + 1
    codes, where = np.unique(hits * base + misses, return_inverse=True)
    return function((codes // base).astype(float), (codes % base).astype(float))[where].reshape(hits.shape)


def _log_mass(p: Reals, r: Reals, low: float, high: float) -> Reals:
    """``log P(low < Beta(p, r) < high)``."""
    above = low > p / (p + r)
    # An interval above the mean is one below it for 1 - q.
    p, r = np.where(above, r, p), np.where(above, p, r)
    lower, upper = np.where(above, 1 - high, low), np.where(above, 1 - low, high)
    mass = special.betainc(p, r, upper) - special.betainc(p, r, lower)
    tiny = mass < _UNDERFLOW
    result = np.log(np.where(tiny, 1.0, mass))
    if tiny.any():
        near, far = (_log_tail(p[tiny], r[tiny], edge[tiny]) for edge in (upper, lower))
        result[tiny] = near + np.log(-np.expm1(far - near))
    return result


def _log_tail(p: Reals, r: Reals, x: Reals) -> Reals:
    """``log P(Beta(p, r) < x)`` for x below the mean, where the series of ratios below 1 converges."""
    total, term, step = np.ones_like(x), np.ones_like(x), 0
    while (term > 1e-17 * total).any():
        term = term * x * (p + r + step) / (p + 1 + step)
        total += term
        step += 1
    with np.errstate(divide="ignore"):
        return p * np.log(x) + r * np.log1p(-x) - np.log(p) - special.betaln(p, r) + np.log(total)
