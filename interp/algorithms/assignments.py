r"""Bayes predictors over the order of the experts: who stands in which slot of the regime?

A regime such as "stratified" draws one accuracy from each of several intervals and permutes the experts. Given the
order, which interval is whose, the experts are independent, so

    P(y | advice, history)  ~  sum_order P(order | history) prod_i P(advice_i | y, history of i, interval of i)

The sum runs over the different orders (24 for four different intervals, n for one special expert). In a switching
regime the accuracies of the slots are known and the order rotates by a random non-zero shift every m rounds: the
posterior over orders is filtered through the rotations.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Integer
from scipy import special

from interp.algorithms.posterior import keep_uncertain, log_evidence, mean_accuracy
from interp.errors import InputError, require
from interp.tasks.experts import Bounds, ExpertEpisodes

Predictions = Float[np.ndarray, "episode round"]
States = Float[np.ndarray, "episode round_plus_1 expert"]
Orders = Integer[np.ndarray, "order expert"]

MAX_ORDERS = 1000
"""More orders than this are refused: use one interval for all experts."""


def different_orders(slots: tuple[Bounds, ...]) -> tuple[list[Bounds], Orders]:
    """The different slots, and each different way to deal them to experts: ``orders[o, i]`` is expert i's slot.

    >>> different_orders(((0.5, 0.6), (0.0, 0.1), (0.5, 0.6)))[1].tolist()
    [[0, 1, 1], [1, 0, 1], [1, 1, 0]]

    Raises:
        InputError: more than :data:`MAX_ORDERS` of them.
    """
    kinds = sorted(set(slots))
    tally = [slots.count(kind) for kind in kinds]
    number = special.gammaln(len(slots) + 1) - special.gammaln(np.array(tally) + 1).sum()
    require(
        bool(number < np.log(MAX_ORDERS + 0.5)),
        f"{len(slots)} experts in {len(kinds)} kinds of slot have {np.exp(number):.0f} orders, more than {MAX_ORDERS}; "
        "give prior=(low, high), one interval for all experts",
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
    episodes: ExpertEpisodes, hits: Integer[np.ndarray, "episode round_plus_1 expert"], slots: tuple[Bounds, ...]
) -> tuple[Predictions, States]:
    """P(y=1) and posterior mean accuracies when each slot is one expert's, in an unknown order.

    Args:
        hits: how often each expert was right before each round, and after the last.
        slots: one interval per expert, in any order.

    Raises:
        InputError: more than :data:`MAX_ORDERS` orders.
    """
    kinds, orders = different_orders(slots)
    misses = np.arange(hits.shape[1])[:, None] - hits
    evidence = np.stack([log_evidence(hits, misses, kind) for kind in kinds])
    means = np.stack([mean_accuracy(hits, misses, kind) for kind in kinds])
    vote = _log_likelihoods(means[:, :, :-1], episodes.advice)
    experts = np.arange(episodes.n_experts)

    def of(order: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Pick each expert's slot: ``[slot, episode, round, expert] -> [expert, episode, round]``."""
        return values[order, :, :, experts]

    posterior = np.stack([of(order, evidence).sum(axis=0) for order in orders])
    posterior = special.softmax(posterior, axis=0)
    with np.errstate(divide="ignore"):
        prior = np.log(posterior[:, :, :-1])
    label = [special.logsumexp(prior + [of(o, side).sum(axis=0) for o in orders], axis=0) for side in vote]
    state = sum(
        weight[..., None] * np.moveaxis(of(o, means), 0, -1) for o, weight in zip(orders, posterior, strict=True)
    )
    return special.expit(label[1] - label[0]), np.asarray(state)


def filter_switches(episodes: ExpertEpisodes, slots: tuple[Bounds, ...], every: int) -> tuple[Predictions, States]:
    """P(y=1) and posterior mean accuracies when known accuracies rotate to a new order every ``every`` rounds.

    Raises:
        InputError: a slot whose accuracy is not known (an interval of positive width), or too many orders.
    """
    if any(low < high for low, high in slots):
        raise InputError(f"the Bayes predictor of a switching regime needs known accuracies, got intervals {slots}")
    kinds, orders = different_orders(slots)
    accuracies = np.array([low for low, _ in kinds])[orders]
    hit, miss = np.log(keep_uncertain(accuracies)), np.log(keep_uncertain(1 - accuracies))
    rotate = _rotations(orders)
    correct = episodes.correct
    belief = np.full((len(episodes), len(orders)), 1 / len(orders))
    beliefs = []
    for start in range(0, episodes.n_rounds + 1, every):
        if start:
            belief = belief @ rotate
        right = correct[:, start : start + every].cumsum(axis=1)
        wrong = np.arange(1, right.shape[1] + 1)[:, None] - right
        with np.errstate(divide="ignore"):
            after = np.log(belief)[:, None] + right @ hit.T + wrong @ miss.T
        segment = np.concatenate([belief[:, None], special.softmax(after, axis=-1)], axis=1)
        beliefs.append(segment[:, :every])
        belief = segment[:, -1]
    posterior = np.concatenate(beliefs, axis=1)
    with np.errstate(divide="ignore"):
        prior = np.log(posterior[:, :-1])
    vote = _log_likelihoods(accuracies[:, None, None], episodes.advice).sum(axis=-1)
    label = special.logsumexp(prior + np.moveaxis(vote, 1, -1), axis=-1)
    return special.expit(label[1] - label[0]), posterior @ accuracies


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
