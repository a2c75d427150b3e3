"""Random draws that samplers and algorithms of several tasks share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_Reals = NDArray[np.float64]


def draw_by_number(seed: int | Sequence[int], numbers: NDArray[Any], n_draws: int) -> _Reals:
    """Draw uniform numbers in [0, 1) for each episode, ``[episode, draw]``. They depend only on the
    seed and the number of the episode, and not on the other episodes.

    The episode with number i gets row i of ``np.random.default_rng(seed).random((n, n_draws))``, for
    any n > i. Rows that no episode needs are skipped, so that large numbers take no memory.

    Args:
        seed: the seed.
        numbers: number of each episode, ``[episode]``.
        n_draws: how many numbers to draw for an episode.

    >>> draw_by_number(0, np.array([2, 10**9, 2]), 1).round(3).tolist()
    [[0.041], [0.163], [0.041]]
    """
    generator = np.random.PCG64(seed)
    rng = np.random.Generator(generator)
    different, index = np.unique(numbers, return_inverse=True)
    draws = np.empty((len(different), n_draws))
    n_passed = 0  # rows of the stream that are drawn or skipped
    for row, number in enumerate(different.tolist()):
        generator.advance((number - n_passed) * n_draws)
        draws[row] = rng.random(n_draws)
        n_passed = number + 1
    return draws[index]


def draw_walk(
    rng: np.random.Generator,
    start: _Reals,
    n_rounds: int,
    step: float,
    bounds: tuple[float, float],
) -> _Reals:
    """Draw a random walk of probabilities, ``[episode, round, ...]``. In each round after the first,
    every probability takes a normal step, and is clipped.

    Args:
        rng: the random generator.
        start: the probabilities in the first round, ``[episode, ...]``.
        n_rounds: number of rounds.
        step: standard deviation of a step.
        bounds: smallest and largest probability.
    """
    path = [start]
    for change in rng.normal(0, step, (n_rounds - 1, *start.shape)):
        path.append(np.clip(path[-1] + change, *bounds))
    return np.stack(path, axis=1)


def draw_rotations(
    rng: np.random.Generator, n_episodes: int, n_rounds: int, n_places: int, every: int
) -> NDArray[np.int64]:
    """Draw by how many places a ring of ``n_places`` has rotated in each round since the first one,
    ``[episode, round]``. The ring rotates every ``every`` rounds, by 1 to ``n_places`` - 1 places.

    Args:
        rng: the random generator.
        n_episodes, n_rounds: numbers of episodes and of rounds.
        n_places: number of places, at least 2.
        every: number of rounds between two rotations.
    """
    segment = np.arange(n_rounds) // every  # number of rotations before each round
    shifts = rng.integers(1, n_places, (n_episodes, segment[-1] + 1))
    shifts[:, 0] = 0  # no rotation before the first round
    return shifts.cumsum(axis=1)[:, segment]
