r"""Bayes predictors over the order of the experts: who stands in which slot of the regime?

A regime such as "stratified" draws one accuracy from each of several intervals and permutes the experts. Given the
order, which interval is whose, the experts are independent, so

    P(y | advice, history)  ~  sum_order P(order | history) prod_i P(advice_i | y, history of i, interval of i)

The sum runs over the different orders (24 for four different intervals, n for one special expert); where an episode is
of one of several regimes, over the orders of each. In a switching regime the accuracies of the slots are known and the
order rotates by a random non-zero shift every m rounds: the posterior over orders is filtered through the rotations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Integer
from scipy import special

from interp.checks import checked
from interp.errors import InputError, require
from interp.tasks.experts import Bounds, ExpertEpisodes
from interp.tasks.experts.posterior import keep_uncertain, log_evidence, mean_accuracy

Predictions = Float[np.ndarray, "episode round"]
States = Float[np.ndarray, "episode round_plus_1 expert"]
Orders = Integer[np.ndarray, "order expert"]

_MAX_ORDERS = 1000
"""More orders than this are refused: use one interval for all experts."""
_IMPOSSIBLE = -1e300  # log of zero in a sum that some orders leave out (0 * -inf is NaN)
_BLOCK = 2**21  # numbers per intermediate array: episodes are taken in blocks, so that memory stays bounded


@checked
def different_orders(slots: tuple[Bounds, ...]) -> tuple[list[Bounds], Orders]:
    """The different slots, and each different way to deal them to experts: ``orders[o, i]`` is expert i's slot.

    >>> different_orders(((0.5, 0.6), (0.0, 0.1), (0.5, 0.6)))[1].tolist()
    [[0, 1, 1], [1, 0, 1], [1, 1, 0]]

    Raises:
        InputError: more than :data:`_MAX_ORDERS` of them.
    """
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


@checked
def average_orders(episodes: ExpertEpisodes, alternatives: Sequence[tuple[Bounds, ...]]) -> tuple[Predictions, States]:
    """P(y=1) and posterior mean accuracies when each slot is one expert's, in an unknown order.

    Args:
        alternatives: slots of each regime that an episode may be of, each as likely as the others beforehand.

    Raises:
        InputError: more than :data:`_MAX_ORDERS` orders of a regime.
    """
    dealt = [different_orders(slots) for slots in alternatives]
    kinds = sorted({kind for own, _ in dealt for kind in own})
    orders = np.concatenate([np.array([kinds.index(kind) for kind in own])[order] for own, order in dealt])
    log_prior = -np.log(np.concatenate([np.full(len(order), len(order)) for _, order in dealt]))
    deal = (orders[:, :, None] == np.arange(len(kinds))).reshape(len(orders), -1).astype(np.float64)
    right = episodes.correct.cumsum(axis=1)
    hits = np.concatenate([np.zeros_like(right[:, :1]), right], axis=1)
    # Few records (hits, misses) occur, each many times: evaluate each once, then look it up.
    code, record = np.unique(hits * (episodes.n_rounds + 1) + np.arange(hits.shape[1])[:, None], return_inverse=True)
    hit, total = np.divmod(code, episodes.n_rounds + 1)
    evidence = np.stack([log_evidence(hit, total - hit, kind) for kind in kinds], axis=-1)
    evidence = np.maximum(evidence, _IMPOSSIBLE)
    mean = np.stack([mean_accuracy(hit, total - hit, kind) for kind in kinds], axis=-1)
    record = record.reshape(hits.shape)

    def average(block: slice) -> tuple[Predictions, States]:
        means = mean[record[block]]
        posterior = special.softmax(_flat(evidence[record[block]]) @ deal.T + log_prior, axis=-1)
        sides = _log_likelihoods(means[:, :-1], episodes.advice[block, ..., None])
        vote = [_flat(side) @ deal.T for side in sides]
        held = (posterior @ deal).reshape(means.shape)
        return _predict(posterior[:, :-1], vote), (held * means).sum(axis=-1)

    return _in_blocks(average, episodes, len(orders))


@checked
def filter_switches(episodes: ExpertEpisodes, slots: tuple[Bounds, ...], every: int) -> tuple[Predictions, States]:
    """P(y=1) and posterior mean accuracies when known accuracies rotate to a new order every ``every`` rounds.

    Raises:
        InputError: a slot whose accuracy is not known (an interval of positive width), or too many orders.
    """
    if any(low < high for low, high in slots):
        raise InputError(f"the Bayes predictor of a switching regime needs known accuracies, got intervals {slots}")
    kinds, orders = different_orders(slots)
    accuracies = np.array([low for low, _ in kinds])[orders]
    rotate = _rotations(orders)
    hit, miss = np.log(keep_uncertain(accuracies)), np.log(keep_uncertain(1 - accuracies))

    def filtered(block: slice) -> tuple[Predictions, States]:
        correct, advice = episodes.correct[block], episodes.advice[block, :, None]
        posterior = _beliefs(correct, hit, miss, rotate, every)
        vote = [np.where(advice == y, hit, miss).sum(axis=-1) for y in (0, 1)]
        return _predict(posterior[:, :-1], vote), posterior @ accuracies

    return _in_blocks(filtered, episodes, len(orders))


def _beliefs(
    correct: np.ndarray, hit: np.ndarray, miss: np.ndarray, rotate: np.ndarray, every: int
) -> Float[np.ndarray, "episode round_plus_1 order"]:
    """P(order | history) before each round, and after the last; ``hit`` and ``miss`` are logs, [order, expert]."""
    belief = np.full((len(correct), len(hit)), 1 / len(hit))
    segments = []
    for start in range(0, correct.shape[1] + 1, every):
        if start:
            belief = belief @ rotate
        right = correct[:, start : start + every].cumsum(axis=1)
        wrong = np.arange(1, right.shape[1] + 1)[:, None] - right
        with np.errstate(divide="ignore"):
            after = np.log(belief)[:, None] + right @ hit.T + wrong @ miss.T
        segment = np.concatenate([belief[:, None], special.softmax(after, axis=-1)], axis=1)
        segments.append(segment[:, :every])
        belief = segment[:, -1]
    return np.concatenate(segments, axis=1)


def _flat(values: np.ndarray) -> np.ndarray:
    """``[..., expert, slot] -> [..., expert * slot]``, so that a sum over an order is a product with a matrix."""
    return values.reshape(*values.shape[:-2], -1)


def _predict(posterior: np.ndarray, vote: list[np.ndarray]) -> Predictions:
    """P(y=1) from P(order) and ``log P(advice | y, order)`` for y = 0, 1."""
    zero, one = (special.logsumexp(side, b=posterior, axis=-1) for side in vote)
    return special.expit(one - zero)


def _in_blocks(
    function: Callable[[slice], tuple[Predictions, States]], episodes: ExpertEpisodes, n_orders: int
) -> tuple[Predictions, States]:
    """``function`` on blocks of episodes, put together."""
    size = max(1, _BLOCK // (2 * n_orders * (episodes.n_rounds + 1) * episodes.n_experts))
    blocks = [function(slice(start, start + size)) for start in range(0, len(episodes), size)]
    predictions, states = zip(*blocks, strict=True)
    return np.concatenate(predictions), np.concatenate(states)


def _rotations(orders: Orders) -> Float[np.ndarray, "order order"]:
    """How likely each order follows each: a rotation by 1, ..., n - 1 places, equally likely."""
    number = {tuple(order): i for i, order in enumerate(orders)}
    n_experts = orders.shape[1]
    matrix = np.zeros((len(orders), len(orders)))
    for i, order in enumerate(orders):
        for shift in range(1, n_experts):
            matrix[i, number[tuple(np.roll(order, shift))]] += 1 / (n_experts - 1)
    return matrix


def _log_likelihoods(accuracies: np.ndarray, advice: np.ndarray) -> np.ndarray:
    """``log P(advice | y)`` for y = 0, 1 (leading axis) of experts with the given accuracies."""
    right, wrong = np.log(keep_uncertain(accuracies)), np.log(keep_uncertain(1 - accuracies))
    return np.stack([np.where(advice == y, right, wrong) for y in (0, 1)])
