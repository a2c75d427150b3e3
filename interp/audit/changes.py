"""What is put in the place of a state: nothing, another episode's, noise, an older one, the mean of all.

Every change takes the states that rounds read, ``[start, episode, row, width]``, to others of the same shape;
:func:`limited` lets it touch the rows of one channel alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.audit.trial import Trial

State = Float[Tensor, "start episode row width"]
Change = Callable[[Trial, Sequence[int]], State]
"""A trial and the rounds whose state is changed, to what they read instead."""
INITIAL, DONOR, SAME, NOISE, LATE, MEAN = (
    "the initial state",
    "another episode's state",
    "another episode's with the same answer",
    "noise of equal covariance",
    "a state one round old",
    "the mean state of the round",
)


def donors(n_episodes: int, seed: int) -> Int[np.ndarray, " episode"]:
    """For each episode another one, drawn at random: a circle through all of them.

    >>> bool((donors(5, 0) != np.arange(5)).all())
    True
    """
    order = np.random.default_rng([seed, 11]).permutation(n_episodes)
    given = np.empty(n_episodes, np.int64)
    given[order] = np.roll(order, 1)
    return given


def alike(
    labels: Int[np.ndarray, " episode"], seed: int
) -> tuple[Int[np.ndarray, " episode"], Bool[np.ndarray, " episode"]]:
    """For each episode another one with the same label, and whether there is one; itself where there is none.

    >>> given, found = alike(np.array([3, 3, 1]), seed=0)
    >>> given.tolist(), found.tolist()
    ([1, 0, 2], [True, True, False])
    """
    given, found = np.arange(len(labels)), np.zeros(len(labels), bool)
    for label in np.unique(labels):
        of = np.flatnonzero(labels == label)
        given[of], found[of] = of[donors(len(of), seed)], len(of) > 1
    return given, found


def _initial(trial: Trial, starts: Sequence[int]) -> State:
    return trial.run.latents[:, 0].expand(len(starts), *trial.run.latents[:, 0].shape)


def _donor(trial: Trial, starts: Sequence[int]) -> State:
    return trial.read(starts)[:, torch.from_numpy(donors(trial.shape[0], trial.effort.seed))]


def _same(trial: Trial, starts: Sequence[int]) -> State:
    return torch.stack(
        [
            state[torch.from_numpy(alike(trial.run.choices[:, t].numpy(force=True), trial.effort.seed)[0])]
            for t, state in zip(starts, trial.read(starts), strict=True)
        ]
    )


def has_alike(trial: Trial, starts: Sequence[int]) -> Bool[np.ndarray, "start episode"]:
    """Whether another episode gives the same answer in the round, so that :data:`SAME` can change anything."""
    return np.stack([alike(trial.run.choices[:, t].numpy(force=True), trial.effort.seed)[1] for t in starts])


def _noise(trial: Trial, starts: Sequence[int]) -> State:
    """The round's mean, and a Gaussian combination of the episodes' deviations: their covariance, whatever its rank."""
    state = trial.read(starts)
    mean, n = state.mean(1, keepdim=True), state.shape[1]
    draws = torch.randn(n, n, generator=torch.Generator().manual_seed(trial.effort.seed)).to(state)
    return mean + torch.einsum("ij,sjrw->sirw", draws, state - mean) / max(n - 1, 1) ** 0.5


def _late(trial: Trial, starts: Sequence[int]) -> State:
    return trial.read([max(t - 1, 0) for t in starts])


def _mean(trial: Trial, starts: Sequence[int]) -> State:
    state = trial.read(starts)
    return state.mean(1, keepdim=True).expand_as(state)


CHANGES: Mapping[str, Change] = {
    INITIAL: _initial,
    DONOR: _donor,
    SAME: _same,
    NOISE: _noise,
    LATE: _late,
    MEAN: _mean,
}


def limited(trial: Trial, starts: Sequence[int], change: str, channel: str) -> State:
    """What the rounds ``starts`` read where ``change`` touches only the rows of ``channel``."""
    state, rows = trial.read(starts).clone(), trial.channels[channel]
    state[:, :, rows] = CHANGES[change](trial, starts)[:, :, rows]
    return state
