"""What a record of k hits and l misses says about an accuracy q with prior U[low, high].

Experts are independent, and their accuracies do not move. Evidence and posterior mean are incomplete beta functions;
means are exact to about 1e-13 for records of 1e5 rounds. An interval of width zero is a known accuracy. Where a
regime gives its experts different intervals, the answer is averaged over which interval is whose; in a switching regime
that order is filtered through the rotations.

The formulas, and where a difference of tails is not trusted: docs/method/posterior.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
from jaxtyping import Bool, Float, Integer
from scipy import special

from interp.support.checks import non_empty
from interp.support.errors import InputError, require
from interp.tasks.experts import Bounds, ExpertEpisodes

_Counts = Integer[np.ndarray, "*shape"] | Float[np.ndarray, "*shape"]
"""Whole numbers, or fractions where old rounds fade."""
_Reals = Float[np.ndarray, "*shape"]
_Mask = Bool[np.ndarray, "*shape"]

_UNDERFLOW = 1e-250  # below this the tails are summed in logarithms
_CERTAIN = 1e-15


def check_bounds(bounds: Bounds) -> None:
    """Raise unless ``bounds`` is an interval in [0, 1]."""
    require(len(bounds) == 2, f"a prior is an interval (low, high), got {bounds!r}")
    low, high = bounds
    require(
        0 <= low <= high <= 1, f"a prior is an interval (low, high) in [0, 1], got ({low}, {high})"
    )


def mean_accuracy(hits: _Counts, misses: _Counts, bounds: Bounds) -> _Reals:
    """Posterior mean of an accuracy with prior U[low, high] after ``hits`` and ``misses``.

    Without prior knowledge this is Laplace's rule of succession, (k + 1) / (k + l + 2):

    >>> mean_accuracy(np.array([0, 7]), np.array([0, 1]), (0.0, 1.0)).tolist()
    [0.5, 0.8]
    """
    check_bounds(bounds)
    low, high = bounds
    if (low, high) == (0, 1):
        return (hits + 1.0) / ((hits + 1.0) + (misses + 1.0))

    if low == high:
        return np.full(hits.shape, float(low))
    return _once_per_record(
        lambda k, m: np.clip(_mean(k + 1, m + 1, low, high), low, high), hits, misses
    )


def log_evidence(hits: _Counts, misses: _Counts, bounds: Bounds) -> _Reals:
    """Log-probability of one particular sequence with ``hits`` and ``misses`` under prior U[low, high]."""
    check_bounds(bounds)
    low, high = bounds

    def evidence(k: _Reals, l: _Reals) -> _Reals:  # noqa: E741
        if low == high:
            return special.xlogy(k, low) + special.xlog1py(l, -low)
        return (
            special.betaln(k + 1, l + 1) + _log_mass(k + 1, l + 1, low, high) - np.log(high - low)
        )

    return _once_per_record(evidence, hits, misses)


def keep_uncertain(accuracies: _Reals) -> _Reals:
    """Accuracies kept 1e-15 away from 0 and 1, so that no vote is infinite."""
    return np.clip(accuracies, _CERTAIN, 1 - _CERTAIN)


def _once_per_record(
    function: Callable[[_Reals, _Reals], _Reals], hits: _Counts, misses: _Counts
) -> _Reals:
    """Many episodes share few records: evaluate ``function`` once for each different one, unless they are fractions."""
    if hits.dtype.kind == "f":
        return function(hits, misses)
    base = int(misses.max(initial=0)) + 1
    codes, where = np.unique(hits * base + misses, return_inverse=True)
    return function((codes // base).astype(float), (codes % base).astype(float))[where].reshape(
        hits.shape
    )


def _below(
    p: _Reals, r: _Reals, low: float, high: float
) -> tuple[_Reals, _Reals, _Reals, _Reals, _Mask]:
    """Beta(p, r) on (low, high), or its mirror image where the interval lies above the mean; and where it does."""
    above = low > p / (p + r)
    p, r = np.where(above, r, p), np.where(above, p, r)
    return p, r, np.where(above, 1 - high, low), np.where(above, 1 - low, high), above


def _log_mass(p: _Reals, r: _Reals, low: float, high: float) -> _Reals:
    """``log P(low < Beta(p, r) < high)``."""
    p, r, lower, upper, _ = _below(p, r, low, high)
    mass = special.betainc(p, r, upper) - special.betainc(p, r, lower)
    tiny = mass < _UNDERFLOW
    result = np.log(np.where(tiny, 1.0, mass))
    if tiny.any():
        p, r, lower, upper = p[tiny], r[tiny], lower[tiny], upper[tiny]
        at_edge = (
            special.xlogy(p, upper) + special.xlog1py(r, -upper) - np.log(p) - special.betaln(p, r)
        )
        tails = (
            1 + _series(p, r, upper) - _edge_ratio(p, r, lower, upper) * (1 + _series(p, r, lower))
        )
        result[tiny] = at_edge + np.log(tails)
    return result


def _mean(p: _Reals, r: _Reals, low: float, high: float) -> _Reals:
    """Mean of Beta(p, r) restricted to (low, high)."""
    p, r, lower, upper, above = _below(p, r, low, high)
    mass = special.betainc(p, r, upper) - special.betainc(p, r, lower)
    tiny = mass < _UNDERFLOW
    ratio = (special.betainc(p + 1, r, upper) - special.betainc(p + 1, r, lower)) / np.where(
        tiny, 1.0, mass
    )
    if tiny.any():
        # I_x(p+1, r) lacks the first term of the series of I_x(p, r), so no logarithm is needed, and none is lost.
        series = [_series(p[tiny], r[tiny], edge[tiny]) for edge in (upper, lower)]
        far = _edge_ratio(p[tiny], r[tiny], lower[tiny], upper[tiny])
        ratio[tiny] = (series[0] - far * series[1]) / (1 + series[0] - far * (1 + series[1]))
    mean = p / (p + r) * ratio
    return np.where(above, 1 - mean, mean)


def _edge_ratio(p: _Reals, r: _Reals, lower: _Reals, upper: _Reals) -> _Reals:
    """``x^p (1-x)^r`` at the lower edge over that at the upper."""
    return np.exp(special.xlogy(p, lower / upper) + special.xlogy(r, (1 - lower) / (1 - upper)))


def _series(p: _Reals, r: _Reals, x: _Reals) -> _Reals:
    """``2F1(p+r, 1; p+1; x) - 1`` for x below the mean, where the ratios of its terms fall below 1."""
    term = x * (p + r) / (p + 1)
    total, step = term, 1
    while (term > 1e-17 * (1 + total)).any():
        term = term * x * (p + r + step) / (p + 1 + step)
        total = total + term
        step += 1
    return total


def share(
    weights: Float[np.ndarray, "... expert"] | Bool[np.ndarray, "... expert"],
    advice: Integer[np.ndarray, "... expert"] | Float[np.ndarray, "... expert"],
) -> Float[np.ndarray, "*any"]:
    """Share of the weight that stands behind advice 1; 1/2 where nobody has weight."""
    total = weights.sum(axis=-1)
    return np.where(total > 0, (weights * advice).sum(axis=-1) / np.where(total > 0, total, 1), 0.5)


_Predictions = Float[np.ndarray, "episode round"]
_Orders = Integer[np.ndarray, "order expert"]

_MAX_ORDERS = 1000  # more orders than this are refused: use one interval for all experts
_IMPOSSIBLE = -1e300  # log of zero in a sum that some orders leave out (0 * -inf is NaN)
_BLOCK = (
    2**21
)  # numbers per intermediate array: episodes are taken in blocks, so that memory stays bounded


def _different_orders(slots: tuple[Bounds, ...]) -> tuple[list[Bounds], _Orders]:
    """The different slots, and each different way to deal them to experts: ``orders[o, i]`` is expert i's slot."""
    kinds = sorted(set(slots))
    tally = [slots.count(kind) for kind in kinds]
    number = special.gammaln(len(slots) + 1) - special.gammaln(np.array(tally) + 1).sum()
    require(
        bool(number < np.log(_MAX_ORDERS + 0.5)),
        f"{len(slots)} experts in {len(kinds)} kinds of slot have {np.exp(number):.0f} orders, more than "
        f"{_MAX_ORDERS}; give prior=(low, high), one interval for all experts",
    )
    return kinds, np.array(_deal(tally))


def _deal(tally: list[int]) -> list[list[int]]:
    if not any(tally):
        return [[]]
    return [
        [kind, *rest]
        for kind, left in enumerate(tally)
        if left
        for rest in _deal([n - (other == kind) for other, n in enumerate(tally)])
    ]


def average_orders(
    episodes: ExpertEpisodes, alternatives: Sequence[tuple[Bounds, ...]]
) -> _Predictions:
    """P(y=1) when each slot is one expert's, in an unknown order.

    ``alternatives`` are the slots of each regime that an episode may be of, each as likely as the others beforehand.
    """
    dealt = [
        _different_orders(slots)
        for slots in non_empty("alternatives", alternatives, "the slots of each regime")
    ]
    kinds = sorted({kind for own, _ in dealt for kind in own})
    orders = np.concatenate(
        [np.array([kinds.index(kind) for kind in own])[order] for own, order in dealt]
    )
    log_prior = -np.log(np.concatenate([np.full(len(order), len(order)) for _, order in dealt]))
    deal = (orders[:, :, None] == np.arange(len(kinds))).reshape(len(orders), -1).astype(np.float64)
    hits = episodes.correct.cumsum(axis=1) - episodes.correct
    misses = np.arange(episodes.n_rounds)[:, None] - hits

    def average(block: slice) -> _Predictions:
        record, advice = (hits[block], misses[block]), episodes.advice[block, ..., None]
        evidence = np.maximum(
            np.stack([log_evidence(*record, kind) for kind in kinds], axis=-1), _IMPOSSIBLE
        )
        means = np.stack([mean_accuracy(*record, kind) for kind in kinds], axis=-1)
        posterior = special.softmax(_flat(evidence) @ deal.T + log_prior, axis=-1)
        right, wrong = np.log(keep_uncertain(means)), np.log(keep_uncertain(1 - means))
        return _predict(
            posterior, [_flat(np.where(advice == y, right, wrong)) @ deal.T for y in (0, 1)]
        )

    return _in_blocks(average, episodes, len(orders))


def filter_switches(
    episodes: ExpertEpisodes, slots: tuple[Bounds, ...], every: int
) -> _Predictions:
    """P(y=1) when known accuracies rotate to a new order every ``every`` rounds."""
    if len(slots) != episodes.n_experts:
        raise InputError(
            f"slots must be the accuracies of {episodes.n_experts} experts, got {len(slots)}"
        )
    if any(low < high for low, high in slots):
        raise InputError(
            f"the Bayes predictor of a switching regime needs known accuracies, got intervals {slots}"
        )
    kinds, orders = _different_orders(slots)
    accuracies = np.array([low for low, _ in kinds])[orders]
    # How likely each order follows each: a rotation by 1, ..., n - 1 places, equally likely.
    number, rotate = (
        {tuple(order): i for i, order in enumerate(orders)},
        np.zeros((len(orders), len(orders))),
    )
    for i, shift in product(range(len(orders)), range(1, len(slots))):
        rotate[i, number[tuple(np.roll(orders[i], shift))]] += 1 / (len(slots) - 1)
    hit, miss = np.log(keep_uncertain(accuracies)), np.log(keep_uncertain(1 - accuracies))

    def filtered(block: slice) -> _Predictions:
        correct, advice = episodes.correct[block], episodes.advice[block, :, None]
        posterior = _beliefs(correct, hit, miss, rotate, every)
        return _predict(posterior, [np.where(advice == y, hit, miss).sum(axis=-1) for y in (0, 1)])

    return _in_blocks(filtered, episodes, len(orders))


def _beliefs(
    correct: np.ndarray, hit: np.ndarray, miss: np.ndarray, rotate: np.ndarray, every: int
) -> Float[np.ndarray, "episode round order"]:
    """P(order | history) before each round; ``hit`` and ``miss`` are logs, [order, expert]."""
    belief = np.full((len(correct), len(hit)), 1 / len(hit))
    segments = []
    for start in range(0, correct.shape[1], every):
        if start:
            belief = belief @ rotate
        right = correct[:, start : start + every].cumsum(axis=1)
        wrong = np.arange(1, right.shape[1] + 1)[:, None] - right
        with np.errstate(divide="ignore"):
            after = np.log(belief)[:, None] + right @ hit.T + wrong @ miss.T
        segment = np.concatenate([belief[:, None], special.softmax(after, axis=-1)], axis=1)
        segments.append(segment[:, :-1])
        belief = segment[:, -1]
    return np.concatenate(segments, axis=1)


def _flat(values: np.ndarray) -> np.ndarray:
    """``[..., expert, slot] -> [..., expert * slot]``, so that a sum over an order is a product with a matrix."""
    return values.reshape(*values.shape[:-2], -1)


def _predict(posterior: np.ndarray, vote: list[np.ndarray]) -> _Predictions:
    """P(y=1) from P(order) and ``log P(advice | y, order)`` for y = 0, 1."""
    zero, one = (special.logsumexp(side, b=posterior, axis=-1) for side in vote)
    return special.expit(one - zero)


def _in_blocks(
    function: Callable[[slice], _Predictions], episodes: ExpertEpisodes, n_orders: int
) -> _Predictions:
    """``function`` on blocks of episodes, put together."""
    size = max(1, _BLOCK // (2 * n_orders * (episodes.n_rounds + 1) * episodes.n_experts))
    return np.concatenate(
        [function(slice(start, start + size)) for start in range(0, len(episodes), size)]
    )
