"""Posterior of an expert's accuracy, with prior U[low, high], after some hits and misses; and Bayes
predictions for regimes with several such priors.

Experts are independent, and accuracies are fixed. The evidence and the posterior mean are
incomplete beta functions; means are exact to about 1e-13 for records of 1e5 rounds. An interval of
width zero is a known accuracy. If a regime has several intervals, predictions are averaged over the
ways to assign the intervals to experts. In a switching regime, a Bayes filter tracks the assignment
across switches.

The formulas, and where a difference of tails would lose precision: docs/method/posterior.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool, Float, Integer
from numpy.typing import NDArray
from scipy import special

from interp.support.errors import require
from interp.tasks.experts import Bounds, ExpertEpisodes

_Counts = Integer[np.ndarray, "*shape"] | Float[np.ndarray, "*shape"]
"""Whole numbers, or fractions if old rounds decay."""
_Reals = Float[np.ndarray, "*shape"]

_UNDERFLOW = 1e-250  # below this the tails are summed in logarithms
_SMALLEST_ACCURACY = 1e-15


def check_bounds(bounds: Bounds) -> None:
    """Raise InputError unless ``bounds`` are an interval (low, high) in [0, 1]."""
    require(len(bounds) == 2, f"a prior is an interval (low, high), got {bounds!r}")
    low, high = bounds
    require(
        0 <= low <= high <= 1, f"a prior is an interval (low, high) in [0, 1], got ({low}, {high})"
    )


def mean_accuracy(hits: _Counts, misses: _Counts, bounds: Bounds) -> _Reals:
    """Return the posterior mean of an expert's accuracy with prior U[low, high].

    For U[0, 1], k hits and l misses this is Laplace's rule of succession, (k + 1) / (k + l + 2).
    Without hits and misses it is 1/2; after 7 hits and 1 miss it is 8/10:

    >>> mean_accuracy(np.array([0, 7]), np.array([0, 1]), (0.0, 1.0)).tolist()
    [0.5, 0.8]

    Args:
        hits: number of rounds in which the expert was right, an array of any shape.
        misses: number of rounds in which the expert was wrong, in the same shape.
        bounds: bounds (low, high) of the prior.

    Returns:
        The means, in the same shape.
    """
    low, high = bounds
    if (low, high) == (0, 1):
        p, r = hits + 1.0, misses + 1.0  # the posterior is Beta(p, r)
        return p / (p + r)
    if low == high:  # the accuracy is known
        return np.full(hits.shape, float(low))

    def mean(k: _Reals, m: _Reals) -> _Reals:
        """Return the means of Beta(k + 1, m + 1) truncated to [low, high], in the shape of k. They
        are the posterior means after k hits and m misses.
        """
        # Clipped, since rounding errors may lead out of the interval.
        return np.clip(_mean(k + 1, m + 1, low, high), low, high)

    return _apply_once_per_record(mean, hits, misses)


def log_evidence(hits: _Counts, misses: _Counts, bounds: Bounds) -> _Reals:
    """Return the log-probability (in nats) of a sequence of hits and misses of one expert, if the
    expert's accuracy has prior U[low, high]. The order of hits and misses does not matter.

    Args:
        hits: number of rounds in which the expert was right, an array of any shape.
        misses: number of rounds in which the expert was wrong, in the same shape.
        bounds: bounds (low, high) of the prior.

    Returns:
        The log-probabilities, in the same shape.
    """
    low, high = bounds

    def evidence(k: _Reals, m: _Reals) -> _Reals:
        """Return the log-probabilities of k hits and m misses, in the shape of k."""
        if low == high:  # the accuracy is known
            return special.xlogy(k, low) + special.xlog1py(m, -low)
        p, r = k + 1, m + 1
        # The likelihood q^k (1 - q)^m, integrated over the interval, is B(p, r) times the mass of
        # the interval under Beta(p, r); the prior's density is 1 / (high - low).
        return special.betaln(p, r) + _log_interval_mass(p, r, low, high) - np.log(high - low)

    return _apply_once_per_record(evidence, hits, misses)


def clip_accuracies(accuracies: _Reals) -> _Reals:
    """Clip ``accuracies`` to [1e-15, 1 - 1e-15], so that their log-odds are finite."""
    return np.clip(accuracies, _SMALLEST_ACCURACY, 1 - _SMALLEST_ACCURACY)


def _apply_once_per_record(
    function: Callable[[_Reals, _Reals], _Reals], hits: _Counts, misses: _Counts
) -> _Reals:
    """Apply a function to counts of hits and misses elementwise, and return the values in the shape
    of the counts. Whole numbers are computed once per distinct pair, since few pairs occur.

    Args:
        function: maps hits and misses, two arrays of floats of one shape, to values.
        hits, misses: counts, two arrays of one shape. Fractions are passed on as they are.
    """
    if hits.dtype.kind == "f":
        return function(hits, misses)
    # Each pair is coded as one number, hits * base + (misses - fewest), where the last term is from
    # 0 to base - 1. `fewest` is 0, unless an intervention on hits made misses negative.
    fewest = misses.min(initial=0)
    base = int(misses.max(initial=0) - fewest) + 1
    codes, code_index = np.unique(hits * base + misses - fewest, return_inverse=True)
    k, m = np.divmod(codes, base)
    results = function(k.astype(float), m + float(fewest))
    return results[code_index].reshape(hits.shape)


class _Truncated:
    """The beta distribution Beta(p, r) truncated to an interval. It is mirrored (x becomes 1 - x)
    if the interval lies above the mean, for numerical precision.

    Attributes:
        p, r: parameters of the distribution after mirroring, arrays of one shape.
        lower, upper: bounds of the interval after mirroring.
        is_mirrored: True where the distribution is mirrored.
        mass: probability of the interval under Beta(p, r).
        is_tiny: True where ``mass`` is too small to be computed as a difference of two tails.

    Args:
        p, r: parameters of the beta distribution.
        low, high: the interval.
    """

    def __init__(self, p: _Reals, r: _Reals, low: float, high: float) -> None:
        is_mirrored = low > p / (p + r)
        self.is_mirrored = is_mirrored
        self.p, self.r = np.where(is_mirrored, r, p), np.where(is_mirrored, p, r)
        self.lower = np.where(is_mirrored, 1 - high, low)
        self.upper = np.where(is_mirrored, 1 - low, high)
        self.mass = self.compute_mass(self.p)
        self.is_tiny = self.mass < _UNDERFLOW

    def compute_mass(self, p: _Reals) -> _Reals:
        """Return the probability of the interval under Beta(p, r), in the shape of ``p``. The
        interval and r are those of the object, and p is the argument.
        """
        below_upper = special.betainc(p, self.r, self.upper)
        return below_upper - special.betainc(p, self.r, self.lower)

    def compute_tail_terms(self) -> tuple[_Reals, _Reals]:
        """Return two terms from which the interval's probability is computed where it is too small
        for a difference of tails. Both have one entry for each True in :attr:`is_tiny`.

        Returns:
            ``factor``, the factor ``x^p (1 - x)^r`` of a tail at x = ``lower``, divided by that at
            x = ``upper``; and the difference
            ``_compute_series(p, r, upper) - factor * _compute_series(p, r, lower)``.
        """
        is_tiny = self.is_tiny
        p, r = self.p[is_tiny], self.r[is_tiny]
        lower, upper = self.lower[is_tiny], self.upper[is_tiny]
        ratio, ratio_of_rests = lower / upper, (1 - lower) / (1 - upper)
        factor = np.exp(special.xlogy(p, ratio) + special.xlogy(r, ratio_of_rests))
        return factor, _compute_series(p, r, upper) - factor * _compute_series(p, r, lower)


def _log_interval_mass(p: _Reals, r: _Reals, low: float, high: float) -> _Reals:
    """Return the log-probability that a variable with distribution Beta(p, r) lies between ``low``
    and ``high``, in the shape of ``p``.

    A tiny probability is a difference of two tails ``x^p (1 - x)^r 2F1(p + r, 1; p + 1; x) /
    (p B(p, r))`` (DLMF 8.17.8), from which the factor of the upper tail is taken out.

    Args:
        p, r: parameters of the beta distribution.
        low, high: bounds of the interval.
    """
    beta = _Truncated(p, r, low, high)
    is_tiny = beta.is_tiny
    result = np.log(np.where(is_tiny, 1.0, beta.mass))  # the 1.0 are replaced below
    if is_tiny.any():
        p, r, upper = beta.p[is_tiny], beta.r[is_tiny], beta.upper[is_tiny]
        density = special.xlogy(p, upper) + special.xlog1py(r, -upper)
        # Log of the upper tail's factor. The mass is this factor times F(upper) - factor F(lower), in
        # which F is 2F1, one more than the sums in `series`.
        at_edge = density - np.log(p) - special.betaln(p, r)
        factor, series = beta.compute_tail_terms()
        result[is_tiny] = at_edge + np.log(1 - factor + series)
    return result


def _mean(p: _Reals, r: _Reals, low: float, high: float) -> _Reals:
    """Return the mean of a variable with distribution Beta(p, r), given that it lies between
    ``low`` and ``high``, in the shape of ``p``.

    Since x times the density of Beta(p, r) is ``p / (p + r)`` times that of Beta(p + 1, r), the
    mean is ``p / (p + r)`` times the ratio of the interval's masses under these distributions.

    Args:
        p, r: parameters of the beta distribution.
        low, high: bounds of the interval.
    """
    beta = _Truncated(p, r, low, high)
    is_tiny = beta.is_tiny
    ratio = beta.compute_mass(beta.p + 1) / np.where(is_tiny, 1.0, beta.mass)
    if is_tiny.any():
        # Let S be the series of :func:`_compute_series`, at the bounds l and u. The masses are a
        # common factor, which cancels, times
        #   (1 + S(u)) - factor (1 + S(l)) = 1 - factor + series  for Beta(p, r), and
        #   S(u) - factor S(l) = series                           for Beta(p + 1, r).
        factor, series = beta.compute_tail_terms()
        ratio[is_tiny] = series / (1 - factor + series)
    mean = beta.p / (beta.p + beta.r) * ratio  # of 1 - x where the distribution is mirrored
    return np.where(beta.is_mirrored, 1 - mean, mean)


def _compute_series(p: _Reals, r: _Reals, x: _Reals) -> _Reals:
    """Return ``2F1(p+r, 1; p+1; x) - 1``, in the shape of ``x``, by summing the series of the
    hypergeometric function 2F1.

    Args:
        p, r: parameters of the beta distribution.
        x: argument of the function. It must lie below the mean of Beta(p, r), where the series
            converges quickly.
    """
    term = x * (p + r) / (p + 1)
    total, step = term, 1
    while (term > 1e-17 * (1 + total)).any():  # smaller terms do not change the sum
        term = term * x * (p + r + step) / (p + 1 + step)
        total = total + term
        step += 1
    return total


def compute_vote_share(
    weights: Float[np.ndarray, "... expert"] | Bool[np.ndarray, "... expert"],
    advice: Integer[np.ndarray, "... expert"] | Float[np.ndarray, "... expert"],
) -> Float[np.ndarray, "*any"]:
    """Return the sum of the weights of experts with advice 1, divided by the sum of all weights.

    Args:
        weights: weights of the experts, ``[..., expert]``.
        advice: label that each expert advises, 0 or 1, ``[..., expert]``.

    Returns:
        The shares, ``[...]``; 1/2 where all weights are zero.
    """
    total = weights.sum(axis=-1)
    for_one = (weights * advice).sum(axis=-1)
    has_weight = total > 0
    return np.where(has_weight, for_one / np.where(has_weight, total, 1), 0.5)


_Predictions = Float[np.ndarray, "episode round"]
_Orders = Integer[np.ndarray, "order expert"]

_MAX_ORDERS = 1000  # more assignments than this are refused: use one interval for all experts
_IMPOSSIBLE = -1e300  # replaces log(0), since 0 * -inf in a matrix product would be NaN
_BLOCK = 2**21
"""Largest number of entries of an intermediate array. Episodes are processed in blocks for which the
arrays are no larger.
"""


def _list_orders(slots: tuple[Bounds, ...]) -> tuple[list[Bounds], _Orders]:
    """Return the distinct intervals, and all distinct ways to assign them to experts.

    Args:
        slots: the intervals (low, high), one for each expert, in any order.

    Returns:
        The intervals, and ``orders[o, i]``, the index of expert i's interval in assignment o.
    """
    kinds = sorted(set(slots))
    tally = [slots.count(kind) for kind in kinds]
    n_orders = math.factorial(len(slots))
    for count in tally:
        n_orders //= math.factorial(count)  # equal intervals can be exchanged
    require(
        n_orders <= _MAX_ORDERS,
        f"{len(slots)} experts in {len(kinds)} kinds of slot have {n_orders} orders, more than "
        f"{_MAX_ORDERS}; give prior=(low, high), one interval for all experts",
    )
    return kinds, np.array(_list_arrangements(tally))


def _list_arrangements(tally: list[int]) -> list[list[int]]:
    """Return all distinct orders of intervals, each as a list with the index of the interval at
    every place.

    Args:
        tally: how often each interval occurs in an order.

    >>> _list_arrangements([2, 1])
    [[0, 0, 1], [0, 1, 0], [1, 0, 0]]
    """
    if not any(tally):
        return [[]]
    orders = []
    for first, count in enumerate(tally):
        if count:
            remaining = [*tally[:first], count - 1, *tally[first + 1 :]]
            orders += [[first, *order] for order in _list_arrangements(remaining)]
    return orders


def count_records(episodes: ExpertEpisodes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count in how many of the earlier rounds each expert was right, and in how many wrong.

    Returns:
        Two arrays ``[episode, round, expert]``: hits and misses. Both are 0 in the first round.
    """
    hits = episodes.correct.cumsum(axis=1) - episodes.correct  # without the round itself
    n_earlier = np.arange(episodes.n_rounds)[:, None]
    return hits, n_earlier - hits


def average_orders(
    episodes: ExpertEpisodes, alternatives: Sequence[tuple[Bounds, ...]]
) -> _Predictions:
    """Return the Bayes predictions P(y = 1), ``[episode, round]``. The predictor knows from which
    intervals the experts' accuracies are drawn, but not which expert has which interval.

    Args:
        episodes: the episodes to predict.
        alternatives: the equally likely sets of intervals, one set or several. A set is a tuple of
            intervals (low, high), one per expert in any order, such as ``((0.8, 0.9), (0.3, 0.5),
            (0.3, 0.5))``.
    """
    kinds = sorted({kind for slots in alternatives for kind in slots})
    orders_by_set, log_priors = [], []
    for slots in alternatives:
        slot_kinds, orders = _list_orders(slots)
        # From indices among this set's intervals to indices among all intervals.
        kind_index = np.array([kinds.index(kind) for kind in slot_kinds])
        orders_by_set.append(kind_index[orders])
        n_orders = len(orders)
        log_priors.append(np.full(n_orders, -np.log(n_orders)))
    # Index of each expert's interval, [order, expert], and log-probability of the order.
    all_orders, log_prior = np.concatenate(orders_by_set), np.concatenate(log_priors)
    has_kind = all_orders[:, :, None] == np.arange(len(kinds))  # [order, expert, kind]
    # A product with this matrix sums, for each order, over the experts' entries in that order.
    to_orders = has_kind.reshape(len(all_orders), -1).astype(float).T  # [expert kind, order]
    hits, misses = count_records(episodes)

    def average(block: slice) -> _Predictions:
        """Return the predictions for the episodes in the slice ``block``, ``[episode, round]``. A
        kind is an interval of accuracies, and an order says which expert has which kind.
        """
        k, m = hits[block], misses[block]
        # Evidence and means are [episode, round, expert, kind]; the posterior, and the
        # log-probabilities of the advice if the label is 0 or 1, are [episode, round, order].
        evidence = np.stack([log_evidence(k, m, kind) for kind in kinds], axis=-1)
        # Finite, since the product of -inf with a zero of `to_orders` would be NaN.
        possible = _flatten_last_two(np.maximum(evidence, _IMPOSSIBLE))
        # `to_orders` sums over the experts, each with the kind that it has in an order.
        posterior = special.softmax(possible @ to_orders + log_prior, axis=-1)
        means = np.stack([mean_accuracy(k, m, kind) for kind in kinds], axis=-1)
        right, wrong = np.log(clip_accuracies(means)), np.log(clip_accuracies(1 - means))
        says_one = episodes.advice[block, ..., None] == 1
        if_zero = _flatten_last_two(np.where(says_one, wrong, right)) @ to_orders
        if_one = _flatten_last_two(np.where(says_one, right, wrong)) @ to_orders
        return _apply_bayes_rule(posterior, if_zero, if_one)

    return _apply_in_blocks(average, episodes, len(all_orders))


def filter_switches(
    episodes: ExpertEpisodes, slots: tuple[Bounds, ...], every: int
) -> _Predictions:
    """Return the Bayes predictions P(y = 1), ``[episode, round]``, if accuracies switch between
    experts. After every ``every`` rounds, all accuracies rotate among the experts by a random
    number of places.

    The predictor knows the values of the accuracies, but not which expert has which value, nor by
    how many places they rotate.

    Args:
        episodes: the episodes to predict.
        slots: the accuracies in any order, one per expert, each as an interval of width zero, such
            as (0.9, 0.9).
        every: number of rounds between two rotations.
    """
    require(
        all(low == high for low, high in slots),
        f"the Bayes predictor of a switching regime needs known accuracies, got intervals {slots}",
    )
    kinds, orders = _list_orders(slots)
    accuracies = np.array([low for low, _ in kinds])[orders]  # [order, expert]
    # Log-probability that an expert is right, or wrong, [order, expert].
    hit, miss = np.log(clip_accuracies(accuracies)), np.log(clip_accuracies(1 - accuracies))
    rotate = _compute_rotations(orders)

    def predict(block: slice) -> _Predictions:
        """Return the predictions for the episodes in the slice ``block``, ``[episode, round]``."""
        posterior = _compute_beliefs(episodes.correct[block], hit, miss, rotate, every)
        says_one = episodes.advice[block, :, None] == 1  # [episode, round, 1, expert]
        # Log-probability of all advice if the label is 0, or 1, [episode, round, order].
        if_zero = np.where(says_one, miss, hit).sum(axis=-1)
        if_one = np.where(says_one, hit, miss).sum(axis=-1)
        return _apply_bayes_rule(posterior, if_zero, if_one)

    return _apply_in_blocks(predict, episodes, len(orders))


def _compute_rotations(orders: _Orders) -> NDArray[np.float64]:
    """Return the transition matrix of a rotation of n experts by 1, ..., n - 1 places, all equally
    likely: probabilities ``[order before, order after]``.

    Args:
        orders: the assignments of accuracies to experts, ``[order, expert]``.
    """
    index_of_order = {tuple(order): i for i, order in enumerate(orders)}
    n_shifts = orders.shape[1] - 1
    rotate = np.zeros((len(orders), len(orders)))
    for i, order in enumerate(orders):
        for shift in range(1, n_shifts + 1):
            rotate[i, index_of_order[tuple(np.roll(order, shift))]] += 1 / n_shifts
    return rotate


def _compute_beliefs(
    correct: NDArray[np.bool_],
    hit: NDArray[np.float64],
    miss: NDArray[np.float64],
    rotate: NDArray[np.float64],
    every: int,
) -> Float[np.ndarray, "episode round order"]:
    """Return the probability of each assignment of accuracies to experts ("order") before each
    round, from the rounds so far.

    Args:
        correct: True where experts were right, ``[episode, round, expert]``.
        hit: log of the experts' accuracies in each order, ``[order, expert]``.
        miss: log of 1 minus these accuracies, ``[order, expert]``.
        rotate: transition matrix of a rotation, ``[order before, order after]``.
        every: number of rounds between two rotations.
    """
    belief = np.full((len(correct), len(hit)), 1 / len(hit))  # [episode, order]
    beliefs: list[NDArray[np.float64]] = []  # [episode, some rounds, order]
    for start in range(0, correct.shape[1], every):
        if start:
            belief = belief @ rotate
        right = correct[:, start : start + every].cumsum(axis=1)
        wrong = np.arange(1, right.shape[1] + 1)[:, None] - right
        with np.errstate(divide="ignore"):  # a belief may be 0
            log_belief = np.log(belief)[:, None]
        log_posterior = log_belief + right @ hit.T + wrong @ miss.T
        updated = special.softmax(log_posterior, axis=-1)  # after each of these rounds
        # Before the first of these rounds, and before each further one.
        beliefs += [belief[:, None], updated[:, :-1]]
        belief = updated[:, -1]
    return np.concatenate(beliefs, axis=1)


def _flatten_last_two(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Flatten the last two axes of ``values``, an array ``[..., expert, interval]``, so that sums
    over experts can be computed as matrix products.
    """
    return values.reshape(*values.shape[:-2], -1)


def _apply_bayes_rule(
    posterior: NDArray[np.float64], if_zero: NDArray[np.float64], if_one: NDArray[np.float64]
) -> _Predictions:
    """Return P(y = 1) by Bayes' rule, averaged over assignments of intervals to experts ("orders").

    Args:
        posterior: probability of each order before the round, ``[..., order]``.
        if_zero, if_one: log-probability of the round's advice under each order, if the label y is 0
            or 1, ``[..., order]``.
    """
    log_zero = special.logsumexp(if_zero, b=posterior, axis=-1)
    log_one = special.logsumexp(if_one, b=posterior, axis=-1)
    return special.expit(log_one - log_zero)  # both labels are equally likely before the advice


def _apply_in_blocks(
    function: Callable[[slice], _Predictions], episodes: ExpertEpisodes, n_orders: int
) -> _Predictions:
    """Apply a function to blocks of episodes, which limits memory, and concatenate the results to
    predictions ``[episode, round]``.

    Args:
        function: maps a slice of episodes to their predictions, ``[episode, round]``.
        episodes: the episodes.
        n_orders: number of assignments of intervals to experts, which determines the size of a
            block.
    """
    # For each label, an array [episode, round, order, expert] of log-probabilities.
    per_episode = 2 * n_orders * (episodes.n_rounds + 1) * episodes.n_experts
    block_size = max(1, _BLOCK // per_episode)  # in episodes
    starts = range(0, len(episodes), block_size)
    return np.concatenate([function(slice(start, start + block_size)) for start in starts])
