r"""The learning rate and discount that a decoded Q-table behaves as if it used.

    D_t = alpha (r_t - Q_t(s_t, a_t)) + alpha gamma max_a Q_t(s_{t+1}, a)

with D_t the decoded change of Q(s_t, a_t) and all values decoded: the paper's update, read as a regression without
intercept. The true tables give back their alpha and gamma, and those of the gamma = 0 table give 0.

A noisy decoding puts the same error into both sides. Least squares then overstates alpha and understates gamma, so that
a bootstrapping model looks as if it did not bootstrap. The remedy is instruments: the same two causes computed from the
episodes' own tables, which do not share that error. Both estimates are given, the instrumented one first. NOT repaired
by either: a decoding that is biased, such as a ridge probe's, shrunken towards its mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from interp.checks import checked
from interp.display import Tabled
from interp.errors import require
from interp.provenance import provenance
from interp.statistics import Interval, resample_weights
from interp.tasks.qlearning import bellman
from interp.tasks.qlearning.episodes import MDPEpisodes
from interp.tasks.qlearning.returns import Batches, as_batches

Array = NDArray[np.float64]


@dataclass(frozen=True)
class EffectiveRates(Tabled):
    """Effective rates of a decoded table.

    Attributes:
        alpha, gamma: by instruments, with 95 % intervals over episodes.
        alpha_plain, gamma_plain: by ordinary least squares on the decoded values.
        r2: share of the decoded change's sum of squares that the least-squares fit explains.
        n_episodes, n_steps: what it rests on.
        provenance: regime, seeds, versions.
    """

    alpha: Interval
    gamma: Interval
    alpha_plain: Interval
    gamma_plain: Interval
    r2: float
    n_episodes: int
    n_steps: int
    provenance: dict[str, Any] = field(default_factory=dict)

    def to_frame(self) -> pd.DataFrame:
        """One row per rate and method."""
        rows = []
        for rate in ("alpha", "gamma"):
            for method, suffix in (("instruments", ""), ("least squares", "_plain")):
                value: Interval = getattr(self, rate + suffix)
                rows.append({"rate": rate, "method": method, **vars(value), "n_steps": self.n_steps})
        return pd.DataFrame(rows)


@checked
def effective_rates(tables: Any, episodes: Batches, *, n_resamples: int = 1000, seed: int = 0) -> EffectiveRates:
    """Regress the decoded change of Q(s_t, a_t) on its two causes.

    Args:
        tables: decoded Q-tables ``[episode, round + 1, state, action]``; one array per batch for several batches.
        episodes: one batch, or several of different sizes.
        n_resamples, seed: of the bootstrap over episodes.

    Raises:
        InputError: tables of another shape or not finite, or changes that determine no rates (a table that is
            constant, or rewards that are all zero).
    """
    batches = as_batches(episodes)
    given = [tables] if isinstance(episodes, MDPEpisodes) else list(tables)
    require(len(given) == len(batches), f"got {len(given)} arrays of tables for {len(batches)} batches; give one each")
    moments = [_moments(_checked(t, batch), batch) for t, batch in zip(given, batches, strict=True)]
    xx, xy, zx, zy, yy = (np.concatenate(column) for column in zip(*moments, strict=True))
    weights = resample_weights(len(xx), n_resamples, seed)
    alpha, gamma, _ = _rates(zx, zy, weights)
    alpha_plain, gamma_plain, slopes = _rates(xx, xy, weights)
    explained = 2 * slopes @ xy.sum(0) - slopes @ xx.sum(0) @ slopes
    return EffectiveRates(
        alpha,
        gamma,
        alpha_plain,
        gamma_plain,
        r2=float(explained / yy.sum()),
        n_episodes=len(xx),
        n_steps=sum(batch.states.size for batch in batches),
        provenance=provenance(
            regimes=sorted({b.regime for b in batches}), seeds=sorted({b.seed for b in batches}), bootstrap_seed=seed
        ),
    )


@checked
def rates_by_episode(tables: Any, episodes: MDPEpisodes) -> pd.DataFrame:
    """The same regression for every episode on its own, by instruments: few rounds each, so expect scatter.

    Args:
        tables: decoded Q-tables ``[episode, round + 1, state, action]``.

    Returns:
        Columns ``episode``, ``alpha``, ``gamma``; NaN where an episode's changes determine no rates.

    Raises:
        InputError: tables of another shape or not finite.
    """
    _, _, zx, zy, _ = _moments(_checked(tables, episodes), episodes)
    slopes = np.full((len(zx), 2), np.nan)
    usable = np.linalg.cond(zx) < 1e6
    slopes[usable] = np.linalg.solve(zx[usable], zy[usable][..., None])[..., 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        gamma = slopes[:, 1] / slopes[:, 0]
    return pd.DataFrame({"episode": np.arange(len(zx)), "alpha": slopes[:, 0], "gamma": gamma})


def _checked(tables: Any, batch: MDPEpisodes) -> Array:
    array = np.asarray(tables, np.float64)
    require(
        array.shape == batch.q_tables.shape,
        f"tables must be [episode, round + 1, state, action] = {batch.q_tables.shape}, got {array.shape}",
    )
    require(bool(np.isfinite(array).all()), "tables must be finite, got NaN or infinity")
    return array


def _causes(tables: Array, batch: MDPEpisodes) -> Array:
    """``r - Q(s, a)`` and ``max_a Q(s', a)``, ``[episode, round, 2]``."""
    before = tables[:, :-1]
    bootstrap = bellman.rows_at(before, batch.next_states).max(-1)
    return np.stack([batch.rewards - _visited(before, batch), bootstrap], -1)


def _visited(tables: Array, batch: MDPEpisodes) -> Array:
    rows = bellman.rows_at(tables, batch.states)
    return np.take_along_axis(rows, batch.actions[..., None], -1)[..., 0]


def _moments(tables: Array, batch: MDPEpisodes) -> tuple[Array, Array, Array, Array, Array]:
    """Per episode: X'X, X'D, Z'X, Z'D and D'D, with X the decoded causes and Z their instruments."""
    causes, instruments = _causes(tables, batch), _causes(batch.q_tables, batch)
    change = _visited(tables[:, 1:], batch) - _visited(tables[:, :-1], batch)
    xx, zx = (np.einsum("bti,btj->bij", left, causes) for left in (causes, instruments))
    xy, zy = (np.einsum("bti,bt->bi", left, change) for left in (causes, instruments))
    return xx, xy, zx, zy, np.einsum("bt,bt->b", change, change)


def _rates(left: Array, right: Array, weights: Array) -> tuple[Interval, Interval, Array]:
    """alpha, gamma and the slopes (alpha, alpha gamma), from per-episode moments."""
    total = left.sum(0)
    require(
        bool(np.linalg.cond(total) < 1e12),
        "the decoded changes determine no rates: a cause is constant at zero; use more rounds with rewards",
    )
    slopes = np.linalg.solve(total, right.sum(0))
    systems = np.tensordot(weights, left, axes=1)
    usable = np.linalg.cond(systems) < 1e12
    samples = np.linalg.solve(systems[usable], (weights[usable] @ right)[..., None])[..., 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = samples[:, 1] / samples[:, 0]
        ratio = slopes[1] / slopes[0]
    return Interval.of_samples(samples[:, 0], slopes[0]), Interval.of_samples(ratios, ratio), slopes
