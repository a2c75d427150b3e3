"""What is put in the place of a state: nothing, another episode's, noise, an older one, the mean of all."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.audit.trial import ALL, Trial


class Change(StrEnum):
    """What the states that rounds read are changed to."""

    INITIAL = "the initial state"
    DONOR = "another episode's state"
    SAME = "another episode's with the same answer"
    NOISE = "noise of equal covariance"
    LATE = "a state one round old"
    MEAN = "the mean state of the round"


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


def limited(
    trial: Trial, starts: Sequence[int], change: str, channel: str = ALL
) -> Float[Tensor, "start episode row width"]:
    """What the rounds ``starts`` read where ``change`` touches only the rows of ``channel``."""
    own, seed = trial.read(starts), trial.effort.seed
    mean, n = own.mean(1, keepdim=True), own.shape[1]
    if change == Change.INITIAL:
        new = trial.run.latents[:, 0].expand_as(own)
    elif change == Change.DONOR:
        new = own[:, torch.from_numpy(donors(n, seed))]
    elif change == Change.SAME:
        answers = trial.run.choices.numpy(force=True)
        rows = (torch.from_numpy(alike(answers[:, t], seed)[0]) for t in starts)
        new = torch.stack([state[of] for state, of in zip(own, rows, strict=True)])
    elif change == Change.NOISE:  # the mean, and a Gaussian combination of deviations: their covariance at any rank
        draws = torch.randn(n, n, generator=torch.Generator().manual_seed(seed)).to(own)
        new = mean + torch.einsum("ij,sjrw->sirw", draws, own - mean) / max(n - 1, 1) ** 0.5
    elif change == Change.LATE:
        new = trial.read([max(t - 1, 0) for t in starts])
    else:
        new = mean.expand_as(own)
    state, of_channel = own.clone(), trial.channels[channel]
    state[:, :, of_channel] = new[:, :, of_channel]
    return state
