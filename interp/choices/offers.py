"""Choices among the options that were offered, if these differ from round to round.

An option is an outcome that can be chosen, such as an arm. Episodes may record which options each
round offered, in the order in which they were shown
(:attr:`~interp.tasks.bandit.BanditEpisodes.offers`). An offered option has a *slot*: its position
in this order. A choice is then the index of the chosen slot, and a prediction is a probability of
each slot; these sum to 1. Without such a record all options are offered, and there is no difference
between slots and options.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_LEAST_PROBABILITY = 1e-12  # least probability of an offered option


def offers_of(episodes: Any, first_asked: int = 0) -> NDArray[np.int64] | None:
    """Return which options each round offered, in the order in which they were shown.

    For example, the entries of a round that offered the arms 1 and 3 of four arms are ``[1, 3]``.
    Slot 0 holds arm 1, and slot 1 holds arm 3.

    Args:
        episodes: the episodes.
        first_asked: index of the first scored round; earlier rounds are left out.

    Returns:
        Index of the option in each slot, ``[episode, scored round, slot]``; -1 in empty slots. None
        if all options were offered in every round.
    """
    offers = getattr(episodes, "offers", None)
    return None if offers is None else offers[:, first_asked:]


def slots_of(outcomes: NDArray[np.int64], offers: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Return the slot of each chosen option (its position among the options that the round
    offered), ``[episode, round]``; 0 if the chosen option was not offered.

    >>> offers = np.array([[[1, 3], [0, 2]]])  # two rounds: options 1 and 3, then 0 and 2
    >>> slots_of(np.array([[3, 0]]), offers)
    array([[1, 0]])

    Args:
        outcomes: index of the chosen option, ``[episode, round]``.
        offers: the option in each slot, ``[episode, round, slot]``, from :func:`offers_of`; None
            returns ``outcomes``, because all options are offered.
    """
    if offers is None:
        return outcomes
    is_chosen = offers == outcomes[..., None]
    return is_chosen.argmax(-1)


def restrict_to_offers(p: Array, offers: NDArray[np.int64] | None) -> Array:
    """Select the probabilities of the options that each round offered, and scale them to sum to 1.

    >>> offers = np.array([[[1, 0]]])  # options 1 and 0 are offered
    >>> restrict_to_offers(np.array([[[0.1, 0.3, 0.6]]]), offers)
    array([[[0.75, 0.25]]])

    Args:
        p: probability of each option, ``[episode, round, outcome]``.
        offers: the option in each slot, ``[episode, round, slot]``, from :func:`offers_of`;
            negative in empty slots. None returns ``p``, because all options are offered.

    Returns:
        Probability of the option in each slot, ``[episode, round, slot]``; 0 in empty slots.
    """
    if offers is None:
        return p
    present = offers >= 0
    # Empty slots read option 0, and are set to 0 after that.
    of_slots = np.take_along_axis(p, np.where(present, offers, 0), -1)
    weights = np.where(present, np.maximum(of_slots, _LEAST_PROBABILITY), 0.0)
    return weights / weights.sum(-1, keepdims=True)


def guess_uniformly(shape: tuple[int, ...], offers: NDArray[np.int64] | None) -> Array:
    """Return equal probabilities for the options that each round offered; 0 in empty slots. The
    array is read-only.

    >>> guess_uniformly((1, 2, 3), np.array([[[1, 0, 2], [2, 0, -1]]]))[0].round(2).tolist()
    [[0.33, 0.33, 0.33], [0.5, 0.5, 0.0]]

    Args:
        shape: shape of the result: (episodes, rounds, slots), or (episodes, rounds, outcomes) if
            all options are offered.
        offers: the option in each slot, ``[episode, round, slot]``, from :func:`offers_of`;
            negative in empty slots. None if all options are offered.
    """
    n_slots = shape[-1]
    present = np.ones(n_slots, bool) if offers is None else offers >= 0
    return np.broadcast_to(present / present.sum(-1, keepdims=True), shape)
