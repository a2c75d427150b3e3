"""What a learned subspace is trained and scored on: pairs of rounds, and what the algorithm chooses in each.

A pair takes a round of a base episode and the same round of a source episode. Its *counterfactual* is the algorithm's
choice in the base round with one variable set to its value in the source round. A pair is *informative* where that
differs from the algorithm's own choice in the base round: on the others a subspace that does nothing is right.

The *rank* that a learned subspace needs is how many directions of the variable the algorithm's choices depend on.
Adding one number to all log-weights changes no prediction, so of n log-weights only n - 1 directions can be found. The
directions that count are the normals of the surfaces at which the choice changes. Each informative pair crosses such a
surface on the way from the base's value to the source's. The crossing is found by halving, and its normal by how far
the crossing moves when one element does. The rank is that of all normals together: a property of the algorithm on
these pairs, never of a model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from interp.algorithm import Algorithm, Values
from interp.errors import require

_LARGEST = 8192  # pairs of one part of the episodes: every base is paired with as many sources as fit
_TIE = 1e-6  # a choice that changes when the variable moves by this share of its spread is a tie, decided by rounding
_N_MOVES = 8  # random moves by which ties are found
_STOPPING_SHARE = 1 / 3  # share of the episodes not scored that says when training stops
_N_CROSSINGS = 128  # informative pairs whose crossings are looked at
_HALVINGS = 45
_REACH = 0.02  # share of the way from base to source within which a moved crossing is looked for
_STEP = 1e-4  # how far an element moves, in standard deviations of the variable
_SMALLEST = 1e-3  # singular values below this share of the largest count as zero


@dataclass(frozen=True)
class Pairs:
    """Pairs of rounds, in order ``[episode, source, round]``.

    Attributes:
        base, source: rows of the rounds, ``episode * n_rounds + round``.
        target: the algorithm's distribution over outcomes under the interchange.
        informative: whether its choice differs from that without; never on a tie.
        tied: whether either choice is a tie: such pairs do not train.
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
        """How many pairs have a wanted outcome that differs from the base's."""
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
    """
    scored = max(1, round(held_out * n_episodes))
    stopping = max(1, round(_STOPPING_SHARE * (n_episodes - scored)))
    training = n_episodes - scored - stopping
    require(
        0.0 < held_out < 1.0 and training >= 1,
        f"held_out {held_out} of {n_episodes} episodes leaves none to train, to stop training or to score; give more "
        "episodes",
    )
    return range(training), range(training, training + stopping), range(training + stopping, n_episodes)


def make_pairs(
    algorithm: Algorithm, base_values: Values, source_values: Values, variable: str, episodes: range
) -> Pairs:
    """Every base episode of a part with sources from the same part, as many as ``_LARGEST`` pairs allow.

    The values are those of every variable at the rounds of base and source episodes, ``[episode, round, ...]``.
    """
    n, n_rounds = len(episodes), len(next(iter(base_values.values()))[0])
    n_sources = min(n, max(1, _LARGEST // (n * n_rounds)))
    bases, shifts, rounds = np.meshgrid(np.arange(n), np.arange(n_sources), np.arange(n_rounds), indexing="ij")
    first = episodes.start
    base, source = ((first + i).ravel() * n_rounds + rounds.ravel() for i in (bases, (bases + shifts) % n))
    before, theirs = (_rows_of(values, rows) for values, rows in ((base_values, base), (source_values, source)))
    target, tied = _outcome(algorithm, before, theirs[variable], variable)
    unpatched, tied_before = _outcome(algorithm, before, before[variable], variable)
    tied |= tied_before
    informative = (target.argmax(-1) != unpatched.argmax(-1)) & ~tied
    rows = (torch.from_numpy(x) for x in (base, source, rounds.ravel()))
    judged = (torch.from_numpy(x) for x in (target, informative, tied))
    return Pairs(n, *rows, *judged)


def _rows_of(values: Values, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Chosen rounds ``[row, 1, ...]`` of variables ``[episode, round, ...]``."""
    return {key: value.reshape(-1, 1, *value.shape[2:])[rows] for key, value in values.items()}


def _outcome(algorithm: Algorithm, base: Values, value: np.ndarray, variable: str) -> tuple[np.ndarray, np.ndarray]:
    """The algorithm's distribution in every base row with the variable at ``value``; whether its choice is a tie."""
    distribution = _outcome_of(algorithm, base, value, variable)
    tied = np.zeros(len(distribution), dtype=bool)
    if algorithm.variable(variable).kind == "real":
        rng, size = np.random.default_rng(0), _TIE * value.std()
        for _ in range(_N_MOVES):
            moved = _outcome_of(algorithm, base, value + size * rng.standard_normal(value.shape), variable)
            tied |= moved.argmax(-1) != distribution.argmax(-1)
    return distribution, tied


def _outcome_of(algorithm: Algorithm, base: Values, value: np.ndarray, variable: str) -> np.ndarray:
    """The algorithm's distribution over outcomes ``[row, outcome]`` in base rows, with one variable set."""
    after = algorithm.interchange(base, {variable: value}, variable)
    return np.asarray(algorithm.distribution(after), np.float64)[:, 0]


def identified_rank(
    algorithm: Algorithm, base_values: Values, source_values: Values, variable: str, pairs: Pairs
) -> int:
    """The number of directions of ``variable`` that the algorithm's choices identify, on informative pairs.

    For a class variable, an element of k classes has k - 1 directions.

    >>> from interp.tasks import experts
    >>> algorithm = experts.TASK.algorithm("weighted_majority", gain=0.5)
    >>> base_values, source_values = (algorithm.run(experts.sample(8, 20, 5, seed=seed)) for seed in (0, 1))
    >>> pairs = make_pairs(algorithm, base_values, source_values, "log_weights", range(8))
    >>> identified_rank(algorithm, base_values, source_values, "log_weights", pairs)
    4
    """
    shape = base_values[variable].shape[2:]
    n, record = int(np.prod(shape)), algorithm.variable(variable)
    if record.n_classes is not None:
        return n * (record.n_classes(base_values) - 1)
    informative = np.flatnonzero(pairs.informative.numpy())
    if n == 1 or not len(informative):
        return n
    at = informative[:: max(1, len(informative) // _N_CROSSINGS)][:_N_CROSSINGS]
    base, source = pairs.base.numpy()[at], pairs.source.numpy()[at]
    start = base_values[variable].reshape(-1, n)[base]
    path = source_values[variable].reshape(-1, n)[source] - start

    def choice(values: Float[NDArray, "row element"]) -> NDArray:
        rows = _rows_of(base_values, np.repeat(base, len(values) // len(base)))
        return _outcome_of(algorithm, rows, values.reshape(len(values), 1, *shape), variable).argmax(-1)

    before, ones = choice(start), np.ones(len(at))
    crossing, _ = _crossings(choice, before, start, path, 0 * ones, ones)
    h = _STEP * float(base_values[variable].std())
    moved = np.stack([sign * h * np.eye(n)[j] for j in range(n) for sign in (1, -1)])
    low, high = (np.repeat(crossing + sign * _REACH, 2 * n) for sign in (-1, 1))
    before, along, starts = (np.repeat(x, 2 * n, 0) for x in (before, path, start))
    shifted, bracketed = _crossings(choice, before, starts + np.tile(moved, (len(at), 1)), along, low, high)
    normals = (shifted.reshape(len(at), n, 2) @ np.array([1.0, -1.0]))[bracketed.reshape(len(at), -1).all(-1)]
    lengths = np.linalg.norm(normals, axis=-1, keepdims=True)
    normals = normals[lengths[:, 0] > 0] / lengths[lengths[:, 0] > 0]
    if not len(normals):
        return n
    singular = np.linalg.svd(normals, compute_uv=False)
    return int((singular > _SMALLEST * singular[0]).sum())


def _crossings(
    choice: Callable[[NDArray], NDArray], before: NDArray, start: NDArray, path: NDArray, low: NDArray, high: NDArray
) -> tuple[Float[NDArray, " row"], Bool[NDArray, " row"]]:
    """The share of each ``path`` at which the choice leaves ``before``, and whether it does between two shares."""

    def left(share: NDArray) -> NDArray:
        return choice(start + share[:, None] * path) != before

    bracketed = ~left(low) & left(high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        beyond = left(middle)
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    return (low + high) / 2, bracketed
