"""The learning rate and discount that a decoded Q-table behaves as if it used.

The paper's update is read as a regression of decoded changes on their two causes, by instruments and by least squares.
Instruments repair the noise of a decoding and not its bias, such as a ridge probe's. :func:`evaluate` sets three
controls beside a model. A gamma near .9 says something only where R2 is near 1 and the untrained model's is not. NOT
evidence of use: a table can be decodable and idle.

The regression, its instruments and what an untrained model gave: docs/method/playing.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
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


def effective_rates(tables: Any, episodes: Batches, *, seed: int = 0) -> Scores:
    """Regress the decoded change of Q(s_t, a_t) on its two causes: "alpha" and "gamma" by both methods.

    ``tables`` are decoded Q-tables ``[episode, round + 1, state, action]``, one array per batch. Changes that determine
    no rates, of a table that is constant or of rewards that are all zero, are refused.
    """
    pairs = one_each("tables", tables, episodes)
    moments = [_moments(t, batch) for t, batch in pairs]
    xx, xy, zx, zy = (np.concatenate(column) for column in zip(*moments, strict=True))
    weights = resample_weights(
        len(xx), seed=seed, participants=participants_of(*(batch for _, batch in pairs))
    )
    by_method = {"instruments": _rates(zx, zy, weights), "least squares": _rates(xx, xy, weights)}
    numbers = {
        (rate, method): found[i]
        for i, rate in enumerate(("alpha", "gamma"))
        for method, found in by_method.items()
    }
    made = drawn_from([batch for _, batch in pairs], n_episodes=len(xx), bootstrap_seed=seed)
    n_steps = {"n_steps": sum(int(batch.counted.sum()) for _, batch in pairs)}
    return Scores(("rate", "method"), numbers, made, dict.fromkeys(numbers, n_steps))


def rates_by_episode(tables: Any, episodes: MDPEpisodes) -> pd.DataFrame:
    """The same regression for every episode on its own, by instruments: few rounds each, so expect scatter.

    Columns ``episode``, ``alpha``, ``gamma``; NaN where an episode's changes determine no rates.
    """
    _, _, zx, zy = _moments(tables, episodes)
    slopes = np.full((len(zx), 2), np.nan)
    usable = np.linalg.cond(zx) < 1e6
    slopes[usable] = np.linalg.solve(zx[usable], zy[usable][..., None])[..., 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        gamma = slopes[:, 1] / slopes[:, 0]
    return pd.DataFrame({"episode": np.arange(len(zx)), "alpha": slopes[:, 0], "gamma": gamma})


def _visited(tables: _Array, batch: MDPEpisodes) -> _Array:
    return bellman.entries_at(bellman.rows_at(tables, batch.states), batch.actions)


def _moments(decoded: Any, batch: MDPEpisodes) -> tuple[_Array, _Array, _Array, _Array]:
    """Per episode: X'X, X'D, Z'X and Z'D, with X the decoded causes and Z their instruments."""
    tables = episode_array("tables", decoded, "episode, round + 1, state, action")
    wanted = f"tables must be [episode, round + 1, state, action] = {batch.q_tables.shape}, got {tables.shape}"
    require(tables.shape == batch.q_tables.shape, wanted)
    causes, instruments = (  # r - Q(s, a) and max_a Q(s', a), [episode, round, 2]
        np.stack(
            [batch.rewards - _visited(of, batch), bellman.rows_at(of, batch.next_states).max(-1)],
            -1,
        )
        * batch.counted[..., None]
        for of in (tables[:, :-1], batch.q_tables[:, :-1])
    )
    change = _visited(tables[:, 1:], batch) - _visited(tables[:, :-1], batch)
    xx, zx = (np.einsum("bti,btj->bij", left, causes) for left in (causes, instruments))
    xy, zy = (np.einsum("bti,bt->bi", left, change) for left in (causes, instruments))
    return xx, xy, zx, zy


def _rates(left: _Array, right: _Array, weights: _Array) -> tuple[Interval, Interval]:
    """alpha and gamma, from per-episode moments of the slopes (alpha, alpha gamma)."""
    total = left.sum(0)
    constant = "the decoded changes determine no rates: a cause is constant at zero; use more rounds with rewards"
    require(bool(np.linalg.cond(total) < 1e12), constant)
    slopes = np.linalg.solve(total, right.sum(0))
    systems = np.tensordot(weights, left, axes=1)
    usable = np.linalg.cond(systems) < 1e12
    samples = np.linalg.solve(systems[usable], (weights[usable] @ right)[..., None])[..., 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = samples[:, 1] / samples[:, 0]
        ratio = slopes[1] / slopes[0]
    return Interval.of_samples(samples[:, 0], slopes[0]), Interval.of_samples(ratios, ratio)


# What a model's latents hold.


@checked
def decode(
    model: Machine, episodes: MDPEpisodes, *, seed: int = 0, run: Rollout | None = None
) -> Float[np.ndarray, "episode steps state action"]:
    """The tables that a model carries before each round and after the last: exact, or decoded on held-out episodes.

    Each column is decoded from its slot's latent, or from all that is carried where a machine has no such slots.
    """
    latents = (
        rollout(model, episodes) if run is None else require_own(run, model, episodes)
    ).latents
    if model.is_handwired:
        return model.read_state(latents).double().numpy(force=True)
    held: dict[str, Any] = {"seed": seed, "participants": participants_of(episodes)}
    if len(model.channels) > 1 or latents.shape[-2] != model.layout.fit(episodes).n_latents:
        # Nothing says which part of what it carries holds which column.
        return cross_fitted(latents, episodes.q_tables, **held).numpy(force=True)
    columns = model.layout.per_latent(torch.from_numpy(episodes.q_tables))
    return model.layout.state(cross_fitted(latents, columns, per_latent=True, **held)).numpy(
        force=True
    )


@checked
def evaluate(model: Machine, *, n_episodes: int = 256, n_rounds: int = 50, seed: int = 3) -> Scores:
    """Effective alpha and gamma of what a model's latents hold, with intervals over episodes, and three controls.

    By source ("model", "true table", "gamma = 0 table" and, unless it overflows, "untrained model"), rate and method;
    R2 is the share of the table's variance that is decoded on held-out episodes.

    ``n_episodes`` are over the representative sizes.
    """
    sizes = representative_sizes(model)
    each = -(-n_episodes // len(sizes))
    batches = [
        sampling.sample(each, n_rounds, s, a, seed=seed + i) for i, (s, a) in enumerate(sizes)
    ]
    tables = {"model": [decode(model, batch, seed=seed) for batch in batches]}
    if not model.is_handwired:
        blank = untrained(model, seed)
        runs = [rollout(blank, batch) for batch in batches]
        if all(
            run.latents.isfinite().all() for run in runs
        ):  # linear heads can overflow, which is no control
            pairs = zip(batches, runs, strict=True)
            tables["untrained model"] = [decode(blank, b, seed=seed, run=run) for b, run in pairs]
    rates = {
        source: effective_rates(decoded, batches, seed=seed) for source, decoded in tables.items()
    }
    rates["true table"] = effective_rates([batch.q_tables for batch in batches], batches, seed=seed)
    short = [batch.relearned(gamma=0.0) for batch in batches]
    rates["gamma = 0 table"] = effective_rates(
        [batch.q_tables for batch in short], short, seed=seed
    )
    drawn = {
        "commit": "own",
        "regime": "grid",
        "sizes": sizes,
        "n_episodes": n_episodes,
        "n_rounds": n_rounds,
    }
    numbers = {
        (source, *key): value
        for source, found in rates.items()
        for key, value in found.numbers.items()
    }
    beside = {
        (source, *key): found.beside[key]
        for source, found in rates.items()
        for key in found.numbers
    }
    numbers |= {(source, *R2): _r2(decoded, batches, seed) for source, decoded in tables.items()}
    beside = {key: {**beside.get(key, {}), "commit": "own"} for key in numbers}
    return Scores(
        ("source", "rate", "method"), numbers, provenance(model, **drawn, seed=seed), beside
    )


def _r2(tables: Sequence[np.ndarray], batches: Sequence[MDPEpisodes], seed: int) -> Interval:
    """Share of the variance about each size's mean table entry, pooled."""
    pairs = [(decoded, batch.q_tables) for decoded, batch in zip(tables, batches, strict=True)]
    missed = np.concatenate([((decoded - true) ** 2).sum((1, 2, 3)) for decoded, true in pairs])
    total = np.concatenate([((true - true.mean()) ** 2).sum((1, 2, 3)) for _, true in pairs])
    return ratio_interval(
        missed, total, seed=seed, participants=participants_of(*batches)
    ).complement
