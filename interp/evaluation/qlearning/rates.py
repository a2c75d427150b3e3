"""The learning rate and discount that a decoded Q-table behaves as if it used.

The paper's update is read as a regression of decoded changes on their two causes, by instruments
and by least squares. Instruments repair the noise of a decoding and not its bias, such as a ridge
probe's. :func:`evaluate` compares a model with three controls. A gamma near .9 is informative only
where R2 is near 1 and the untrained model's is not. NOT evidence of use: a table can be decodable
and idle.

The regression, its instruments and what an untrained model gave: docs/method/playing.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray

from interp.core.algorithm import participants_of
from interp.core.machine import Machine
from interp.core.task import episode_array
from interp.model.rollout import require_own, rollout
from interp.model.run import Rollout
from interp.model.transformer import untrained
from interp.results.measure import Scores
from interp.stats.decoder import cross_fitted
from interp.stats.intervals import Interval, ratio_interval, resample_weights
from interp.support.checks import checked
from interp.support.errors import require
from interp.support.provenance import provenance
from interp.tasks.qlearning import bellman, sampling
from interp.tasks.qlearning.episodes import Batches, MDPEpisodes, drawn_from, one_each
from interp.tasks.qlearning.layout import representative_sizes

_Array = NDArray[np.float64]
R2 = ("R2 of the table", "held-out episodes")
"""How the share of the table's variance that is decoded is named beside the rates and their methods."""

_MOST_ILL_CONDITIONED = 1e12
_MOST_ILL_CONDITIONED_EPISODE = 1e6
"""Condition numbers from which moments determine no rates: of all episodes together, and of one."""


@dataclass(frozen=True)
class _Moments:
    """Moments of a regression of changes D on causes X with instruments Z, an episode a row.

    ``xx`` and ``zx`` are ``[episode, cause, cause]``, ``xd`` and ``zd`` ``[episode, cause]``.
    """

    xx: _Array
    xd: _Array
    zx: _Array
    zd: _Array

    @classmethod
    def joined(cls, parts: Sequence[_Moments]) -> _Moments:
        """Join the episodes of several batches."""
        names = ("xx", "xd", "zx", "zd")
        moments = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        return cls(**moments)


def effective_rates(tables: Any, episodes: Batches, *, seed: int = 0) -> Scores:
    """Compute "alpha" and "gamma" by both methods, from a regression of the decoded change of
    Q(s_t, a_t) on its two causes.

    Args:
        tables: decoded Q-tables ``[episode, round + 1, state, action]``, one array per batch.
        episodes: one batch, or several of different sizes.
        seed: of the bootstrap.

    Raises:
        InputError: changes that determine no rates, of a constant table or of rewards that are all
            zero.
    """
    pairs = one_each("tables", tables, episodes)
    batches = [batch for _, batch in pairs]
    moments = _Moments.joined([_moments(table, batch) for table, batch in pairs])
    n_episodes = len(moments.xx)
    weights = resample_weights(n_episodes, seed=seed, participants=participants_of(*batches))
    by_instruments = _rates(moments.zx, moments.zd, weights)
    by_least_squares = _rates(moments.xx, moments.xd, weights)
    numbers: dict[tuple[Any, ...], Interval] = {}
    for i, rate in enumerate(("alpha", "gamma")):
        numbers[rate, "instruments"] = by_instruments[i]
        numbers[rate, "least squares"] = by_least_squares[i]
    settings = drawn_from(batches, n_episodes=n_episodes, bootstrap_seed=seed)
    n_steps = sum(int(batch.counted.sum()) for batch in batches)
    beside = {key: {"n_steps": n_steps} for key in numbers}
    return Scores(("rate", "method"), numbers, settings, beside)


def _visited(tables: _Array, batch: MDPEpisodes) -> _Array:
    """Return Q(s_t, a_t) of a table for each round."""
    return bellman.entries_at(bellman.rows_at(tables, batch.states), batch.actions)


def _causes(tables: _Array, batch: MDPEpisodes) -> _Array:
    """Return r - Q(s, a) and max_a Q(s', a) of each round that counts, ``[episode, round, 2]``."""
    surprise = batch.rewards - _visited(tables, batch)
    next_value = bellman.rows_at(tables, batch.next_states).max(axis=-1)
    causes = np.stack([surprise, next_value], axis=-1)
    return causes * batch.counted[..., None]


def _moments(decoded: Any, batch: MDPEpisodes) -> _Moments:
    """Compute the moments of decoded tables; the instruments are the causes by the true tables."""
    tables = episode_array("tables", decoded, "episode, round + 1, state, action")
    wanted = batch.q_tables.shape
    require(
        tables.shape == wanted,
        f"tables must be [episode, round + 1, state, action] = {wanted}, got {tables.shape}",
    )
    before = tables[:, :-1]
    after = tables[:, 1:]
    causes = _causes(before, batch)
    instruments = _causes(batch.q_tables[:, :-1], batch)
    change = _visited(after, batch) - _visited(before, batch)
    xx = np.einsum("bti,btj->bij", causes, causes)
    zx = np.einsum("bti,btj->bij", instruments, causes)
    xd = np.einsum("bti,bt->bi", causes, change)
    zd = np.einsum("bti,bt->bi", instruments, change)
    return _Moments(xx=xx, xd=xd, zx=zx, zd=zd)


def _rates(left: _Array, right: _Array, weights: _Array) -> tuple[Interval, Interval]:
    """Return alpha and gamma from per-episode moments of the slopes (alpha, alpha gamma).

    Args:
        left: moments of the causes, ``[episode, 2, 2]``.
        right: moments of the causes with the changes, ``[episode, 2]``.
        weights: of the resamples, ``[resample, episode]``.

    Raises:
        InputError: changes that determine no rates.
    """
    total = left.sum(axis=0)
    require(
        bool(np.linalg.cond(total) < _MOST_ILL_CONDITIONED),
        "the decoded changes determine no rates: a cause is constant at zero; use more rounds with rewards",
    )
    alpha, alpha_gamma = np.linalg.solve(total, right.sum(axis=0))
    systems = np.tensordot(weights, left, axes=1)
    usable = np.linalg.cond(systems) < _MOST_ILL_CONDITIONED
    solved = np.linalg.solve(systems[usable], (weights[usable] @ right)[..., None])
    alphas = solved[:, 0, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        gammas = solved[:, 1, 0] / alphas
        gamma = alpha_gamma / alpha
    return Interval.of_samples(alphas, alpha), Interval.of_samples(gammas, gamma)


# What a model's latents hold.


@checked
def decode(
    model: Machine, episodes: MDPEpisodes, *, seed: int = 0, run: Rollout | None = None
) -> Float[np.ndarray, "episode steps state action"]:
    """Return the tables that a model carries before each round and after the last: exact, or
    decoded out of fold.

    Each column is decoded from its slot's latent, or from all that is carried where a machine has
    no such slots.

    Args:
        model: the model.
        episodes: one batch.
        seed: seed of the folds.
        run: the rollout of ``episodes``; it is run when None.
    """
    run = rollout(model, episodes) if run is None else require_own(run, model, episodes)
    latents = run.latents
    if model.is_handwired:
        return model.read_state(latents).double().numpy(force=True)
    folds: dict[str, Any] = {"seed": seed, "participants": participants_of(episodes)}
    n_slots = model.layout.fit(episodes).n_latents
    has_slots = len(model.channels) == 1 and latents.shape[-2] == n_slots
    if not has_slots:
        decoded = cross_fitted(latents, episodes.q_tables, **folds)
        return decoded.numpy(force=True)
    columns = model.layout.per_latent(torch.from_numpy(episodes.q_tables))
    decoded = cross_fitted(latents, columns, per_latent=True, **folds)
    return model.layout.state(decoded).numpy(force=True)


@checked
def evaluate(model: Machine, *, n_episodes: int = 256, n_rounds: int = 50, seed: int = 3) -> Scores:
    """Compute effective alpha and gamma of the table decoded from a model's latents, with intervals
    and three controls.

    Args:
        model: any machine of Q-learning.
        n_episodes: over the representative sizes.
        n_rounds: of each episode.
        seed: of episodes, folds and bootstrap.

    Returns:
        By source ("model", "true table", "gamma = 0 table" and, unless it overflows, "untrained
        model"), rate and method; R2 is the share of the table's variance that is decoded on
        held-out episodes.
    """
    sizes = representative_sizes(model)
    per_size = -(-n_episodes // len(sizes))
    batches = [
        sampling.sample(per_size, n_rounds, n_states, n_actions, seed=seed + i)
        for i, (n_states, n_actions) in enumerate(sizes)
    ]
    tables = {"model": [decode(model, batch, seed=seed) for batch in batches]}
    fresh = None if model.is_handwired else _decode_untrained(model, batches, seed)
    if fresh is not None:
        tables["untrained model"] = fresh
    short = [batch.relearned(gamma=0.0) for batch in batches]
    scores = {
        source: effective_rates(decoded, batches, seed=seed) for source, decoded in tables.items()
    }
    scores["true table"] = effective_rates(_true_tables(batches), batches, seed=seed)
    scores["gamma = 0 table"] = effective_rates(_true_tables(short), short, seed=seed)

    numbers: dict[tuple[Any, ...], Interval] = {}
    beside: dict[tuple[Any, ...], dict[str, Any]] = {}
    for source, of_source in scores.items():
        for key, number in of_source.numbers.items():
            numbers[source, *key] = number
            beside[source, *key] = {**of_source.beside[key], "commit": "own"}
    for source, decoded in tables.items():
        numbers[source, *R2] = _r2(decoded, batches, seed)
        beside[source, *R2] = {"commit": "own"}
    settings = provenance(
        model,
        commit="own",
        regime="grid",
        sizes=sizes,
        n_episodes=n_episodes,
        n_rounds=n_rounds,
        seed=seed,
    )
    return Scores(("source", "rate", "method"), numbers, settings, beside)


def _true_tables(batches: Sequence[MDPEpisodes]) -> list[np.ndarray]:
    """Return the Q-tables of the episodes themselves."""
    return [batch.q_tables for batch in batches]


def _decode_untrained(
    model: Machine, batches: Sequence[MDPEpisodes], seed: int
) -> list[np.ndarray] | None:
    """Decode tables from an untrained copy; None where its latents overflow, as linear heads may.

    Args:
        model: copied in shape.
        batches: episodes.
        seed: seed of the weights and the folds.
    """
    fresh = untrained(model, seed)
    runs = [rollout(fresh, batch) for batch in batches]
    overflows = any(not run.latents.isfinite().all() for run in runs)
    if overflows:
        return None
    return [
        decode(fresh, batch, seed=seed, run=run) for batch, run in zip(batches, runs, strict=True)
    ]


def _r2(tables: Sequence[np.ndarray], batches: Sequence[MDPEpisodes], seed: int) -> Interval:
    """Return the R2 of decoded tables about each size's mean table entry, pooled over sizes.

    Args:
        tables: decoded, one array per batch.
        batches: episodes, with the true tables.
        seed: seed of the bootstrap.
    """
    missed = []
    total = []
    for decoded, batch in zip(tables, batches, strict=True):
        true = batch.q_tables
        missed.append(((decoded - true) ** 2).sum(axis=(1, 2, 3)))
        deviations = true - true.mean()
        total.append((deviations**2).sum(axis=(1, 2, 3)))
    unexplained = ratio_interval(
        np.concatenate(missed),
        np.concatenate(total),
        seed=seed,
        participants=participants_of(*batches),
    )
    return unexplained.complement
