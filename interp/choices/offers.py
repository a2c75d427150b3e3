"""Choices among what was on offer, where the options differ from round to round.

Where episodes say what was on offer (:attr:`~interp.tasks.bandit.BanditEpisodes.offers`), choices
and predictions are of the slots in which options were shown: a choice is which of them was taken,
and a prediction is the probability of each, on condition that one of them is taken. Elsewhere a
slot is an outcome.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_LEAST = 1e-12  # probability of an option that a prediction rules out


def offers_of(episodes: Any, first_asked: int = 0) -> NDArray[np.int64] | None:
    """Return the outcomes on offer, ``[episode, scored round, slot]``; None where every one is."""
    offers = getattr(episodes, "offers", None)
    return None if offers is None else offers[:, first_asked:]


def slots_of(outcomes: NDArray[np.int64], offers: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Return the slot of each chosen outcome ``[episode, round]``; 0 where it is in none.

    >>> slots_of(np.array([[3, 0]]), np.array([[[1, 3], [0, 2]]]))
    array([[1, 0]])
    """
    if offers is None:
        return outcomes
    is_chosen = offers == outcomes[..., None]
    return np.asarray(is_chosen.argmax(-1))


def among_offered(p: Array, offers: NDArray[np.int64] | None) -> Array:
    """Return the probability of each slot, ``[episode, round, slot]``, of outcomes ``[episode, round, outcome]``.

    >>> among_offered(np.array([[[0.1, 0.3, 0.6]]]), np.array([[[1, 0]]]))
    array([[[0.75, 0.25]]])
    """
    if offers is None:
        return p
    present = offers >= 0
    of_slots = np.take_along_axis(p, np.where(present, offers, 0), -1)
    possible = np.where(present, np.maximum(of_slots, _LEAST), 0.0)
    return np.asarray(possible / possible.sum(-1, keepdims=True))


def even_guess(like: Array, offers: NDArray[np.int64] | None) -> Array:
    """Return equal probabilities of all slots that hold an option, in the shape of ``like``."""
    present = np.ones_like(like) if offers is None else (offers >= 0).astype(np.float64)
    return np.asarray(present / present.sum(-1, keepdims=True))
