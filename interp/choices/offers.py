"""Choices among the options that were offered, if these differ from round to round.

Episodes may record which options each round offered
(:attr:`~interp.tasks.bandit.BanditEpisodes.offers`). An offered option has a *slot*: its position
among those offered in the round. A choice is then the index of the chosen slot, and a prediction is
the probability of each slot, given that one of them is chosen. Without such a record, every outcome
is offered and slots are outcomes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_LEAST = 1e-12  # least probability of an offered option


def offers_of(episodes: Any, first_asked: int = 0) -> NDArray[np.int64] | None:
    """Return the outcome in each slot (option offered in the round), ``[episode, scored round,
    slot]``; None if every outcome is offered in every round.

    Args:
        episodes: the episodes.
        first_asked: index of the first scored round.
    """
    offers = getattr(episodes, "offers", None)
    return None if offers is None else offers[:, first_asked:]


def slots_of(outcomes: NDArray[np.int64], offers: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Return the slot (position among the options offered in the round) of each chosen outcome,
    ``[episode, round]``; 0 if the outcome was not offered.

    >>> slots_of(np.array([[3, 0]]), np.array([[[1, 3], [0, 2]]]))
    array([[1, 0]])

    Args:
        outcomes: index of the chosen outcome, ``[episode, round]``.
        offers: the outcome in each slot, ``[episode, round, slot]``; None if every outcome is
            offered.
    """
    if offers is None:
        return outcomes
    is_chosen = offers == outcomes[..., None]
    return np.asarray(is_chosen.argmax(-1))


def among_offered(p: Array, offers: NDArray[np.int64] | None) -> Array:
    """Return the probability of each slot (option offered in the round), given that one of the
    offered options is chosen, ``[episode, round, slot]``.

    >>> among_offered(np.array([[[0.1, 0.3, 0.6]]]), np.array([[[1, 0]]]))
    array([[[0.75, 0.25]]])

    Args:
        p: probability of each outcome, ``[episode, round, outcome]``.
        offers: the outcome in each slot, ``[episode, round, slot]``; negative in empty slots; None
            if every outcome is offered.
    """
    if offers is None:
        return p
    present = offers >= 0
    of_slots = np.take_along_axis(p, np.where(present, offers, 0), -1)
    possible = np.where(present, np.maximum(of_slots, _LEAST), 0.0)
    return np.asarray(possible / possible.sum(-1, keepdims=True))


def even_guess(like: Array, offers: NDArray[np.int64] | None) -> Array:
    """Return equal probabilities for all options offered in each round, ``[episode, round, slot]``.

    Args:
        like: an array with the shape of the result, ``[episode, round, outcome]``; used if
            ``offers`` is None.
        offers: the outcome in each slot (offered option), ``[episode, round, slot]``; negative in
            empty slots; None if every outcome is offered.
    """
    present = np.ones_like(like) if offers is None else (offers >= 0).astype(np.float64)
    return np.asarray(present / present.sum(-1, keepdims=True))
