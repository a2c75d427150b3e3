"""What a learned subspace is trained and scored on: pairs of rounds, and what the algorithm chooses in each.

A pair takes a round of a base episode and the same round of a source episode. Its *counterfactual* is the algorithm's
choice in the base round with one variable set to its value in the source round. A pair is *informative* where that
differs from the algorithm's own choice in the base round: on the others a subspace that does nothing is right.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.algorithm import Algorithm, Values
from interp.errors import require

LARGEST = 8192
"""Pairs of one part of the episodes: every base is paired with as many sources as fit."""
TIE = 1e-6
"""A choice that changes when the variable moves by this share of its spread is a tie, which rounding decides."""
N_MOVES = 8
"""Random moves by which ties are found."""
STOPPING_SHARE = 1 / 3
"""Share of the episodes not scored that says when training stops."""


@dataclass(frozen=True)
class Pairs:
    """Pairs of rounds, in order ``[episode, source, round]``.

    Attributes:
        n_episodes: base episodes.
        base, source: rows of the rounds, ``episode * n_rounds + round``, Int[pair].
        rounds: index of the round, Int[pair].
        target: the algorithm's distribution over outcomes under the interchange, Float[pair, outcome].
        informative: whether that differs from its choice without, Bool[pair]; never on a tie.
        tied: whether either choice is a tie, Bool[pair]: such pairs do not train.
    """

    n_episodes: int
    base: Int[Tensor, " pair"]
    source: Int[Tensor, " pair"]
    rounds: Int[Tensor, " pair"]
    target: Float[Tensor, "pair outcome"]
    informative: Bool[Tensor, " pair"]
    tied: Bool[Tensor, " pair"]

    def __len__(self) -> int:
        return len(self.base)

    @property
    def wanted(self) -> Int[Tensor, " pair"]:
        """The most probable outcome of the target."""
        return self.target.argmax(-1)

    @property
    def n_informative(self) -> int:
        """How many pairs have a wanted outcome that differs from the base's own."""
        return int(self.informative.sum())

    def weights(self) -> Float[Tensor, " pair"]:
        """How often a pair is drawn: informative and other pairs equally often, and of each kind every round."""
        weights = torch.zeros(len(self), dtype=torch.float64)
        for kind in (self.informative, ~self.informative & ~self.tied):
            counts = torch.bincount(self.rounds[kind])
            weights[kind] = 1 / (counts[self.rounds[kind]] * (counts > 0).sum()).double()
        return weights

    def drawn(self, n: int, seed: int) -> Int[Tensor, " n"]:
        """``n`` pairs by their weights, with replacement."""
        return torch.multinomial(self.weights(), n, replacement=True, generator=torch.Generator().manual_seed(seed))


def split(n_episodes: int, held_out: float) -> tuple[range, range, range]:
    """Episodes that train, that stop training, and that score (the last ``held_out`` share).

    >>> [len(part) for part in split(64, 0.5)]
    [21, 11, 32]

    Raises:
        InputError: a part without an episode.
    """
    scored = max(1, round(held_out * n_episodes))
    stopping = max(1, round(STOPPING_SHARE * (n_episodes - scored)))
    training = n_episodes - scored - stopping
    require(
        0.0 < held_out < 1.0 and training >= 1,
        f"held_out {held_out} of {n_episodes} episodes leaves none to train, to stop training or to score; give more "
        "episodes",
    )
    return range(training), range(training, training + stopping), range(training + stopping, n_episodes)


def make_pairs(algorithm: Algorithm, own: Values, other: Values, variable: str, episodes: range) -> Pairs:
    """Every base episode with sources from the same part, as many as ``LARGEST`` pairs allow.

    Args:
        own, other: every variable at the rounds of base and source episodes, ``[episode, round, ...]``.
        episodes: of this part: both the bases and the sources.
    """
    n, n_rounds = len(episodes), len(next(iter(own.values()))[0])
    n_sources = min(n, max(1, LARGEST // (n * n_rounds)))
    bases, shifts, rounds = np.meshgrid(np.arange(n), np.arange(n_sources), np.arange(n_rounds), indexing="ij")
    first = episodes.start
    base, source = ((first + i).ravel() * n_rounds + rounds.ravel() for i in (bases, (bases + shifts) % n))
    before, theirs = (rows_of(values, rows) for values, rows in ((own, base), (other, source)))
    target, tied = _outcome(algorithm, before, theirs[variable], variable)
    unpatched, tied_before = _outcome(algorithm, before, before[variable], variable)
    tied |= tied_before
    informative = (target.argmax(-1) != unpatched.argmax(-1)) & ~tied
    rows = (torch.from_numpy(x) for x in (base, source, rounds.ravel()))
    judged = (torch.from_numpy(x) for x in (target, informative, tied))
    return Pairs(n, *rows, *judged)


def rows_of(values: Values, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Chosen rounds ``[row, 1, ...]`` of variables ``[episode, round, ...]``."""
    return {key: value.reshape(-1, 1, *value.shape[2:])[rows] for key, value in values.items()}


def _outcome(algorithm: Algorithm, base: Values, value: np.ndarray, variable: str) -> tuple[np.ndarray, np.ndarray]:
    """The algorithm's distribution in every base row with the variable at ``value``; whether its choice is a tie."""
    distribution = outcome_of(algorithm, base, value, variable)
    tied = np.zeros(len(distribution), dtype=bool)
    if algorithm.variable(variable).kind == "real":
        rng, size = np.random.default_rng(0), TIE * value.std()
        for _ in range(N_MOVES):
            moved = outcome_of(algorithm, base, value + size * rng.standard_normal(value.shape), variable)
            tied |= moved.argmax(-1) != distribution.argmax(-1)
    return distribution, tied


def outcome_of(algorithm: Algorithm, base: Values, value: np.ndarray, variable: str) -> np.ndarray:
    """The algorithm's distribution over outcomes ``[row, outcome]`` in base rows, with one variable set."""
    return np.asarray(algorithm.distribution(algorithm.interchange(base, {variable: value}, variable)), np.float64)[
        :, 0
    ]
