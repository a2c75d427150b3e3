r"""The Q-table that a model's latents hold, and the learning rate and discount that it behaves as if it used.

A handwired model's table is read exactly (``read_state``). A learned model's is decoded (``interp.decoder``): for
every action slot, the column Q(., a) is an affine function of that slot's latent, fitted on four fifths of the episodes
and read on the last fifth, in turn, so that every decoded table is of held-out episodes. There is no penalty (thousands
of rounds, tens of coordinates): a shrunken table would understate the rates.

From the decoded tables, ``interp.tasks.qlearning.rates`` regresses the change of Q(s_t, a_t) on its two causes. The
same estimator on the episodes' own tables (alpha .1, gamma .9), on those that never bootstrap (gamma 0), and on what is
decoded from an untrained model stand beside it. The last is a warning: a reader fitted to bootstrapped tables finds
them, in part, in any record of what happened (an untrained model of d_model 64 gave R2 .30, alpha .055, gamma 1.2), so
a gamma near .9 says something only where R2 is near 1 and the untrained model's is not. What a policy's own choices
say (:mod:`interp.tasks.qlearning.evaluation.discount`) has no such reader in between.

NOT evidence of use: a table can be decodable and idle. Agreement on disputed steps, and interventions, show use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from interp.checks import checked
from interp.decoder import cross_fitted
from interp.display import Tabled
from interp.model.rollout import rollout
from interp.model.run import Rollout
from interp.model.transformer import HookedLatentTransformer
from interp.model.untrained import untrained
from interp.provenance import provenance
from interp.statistics import Interval, ratio_interval
from interp.tasks.qlearning import sampling
from interp.tasks.qlearning.evaluation.by_regime import bounds
from interp.tasks.qlearning.rates import EffectiveRates, effective_rates
from interp.tasks.qlearning.sampling import MDPEpisodes

SIZES = ((4, 2), (6, 3), (8, 4))
"""(n_states, n_actions) that rates are measured on, moved into what a model serves."""
Table = Float[np.ndarray, "episode steps state action"]


@dataclass(frozen=True)
class RatesResult(Tabled):
    """Effective rates of what a model's latents hold, with controls.

    Attributes:
        rates: "model", "true table", "gamma = 0 table" and "untrained model" -> the estimator's answer.
        r2: "model" and "untrained model" -> share of the table's variance decoded on held-out episodes.
        settings: model, digest, commit, sizes, seed, versions.
    """

    rates: dict[str, EffectiveRates]
    r2: dict[str, Interval]
    settings: dict[str, Any] = field(repr=False)

    def to_frame(self) -> pd.DataFrame:
        """One row per source, rate and method, then the R2 of the decoding."""
        frames = [rates.to_frame().assign(source=source) for source, rates in self.rates.items()]
        read = [
            {"source": source, "rate": "R2 of the table", "method": "held-out episodes", **vars(value)}
            for source, value in self.r2.items()
        ]
        frame = pd.concat([*frames, pd.DataFrame(read)], ignore_index=True)
        return frame.assign(commit=self.settings["commit"])


def representative_sizes(model: HookedLatentTransformer) -> list[tuple[int, int]]:
    """A small, a middle and a large (n_states, n_actions) among those that a model serves."""
    (low_s, high_s), (low_a, high_a) = bounds(model)
    return list(dict.fromkeys((min(max(s, low_s), high_s), min(max(a, low_a), high_a)) for s, a in SIZES))


@checked
def decode(
    model: HookedLatentTransformer,
    episodes: MDPEpisodes,
    *,
    commit: str = "own",
    seed: int = 0,
    run: Rollout | None = None,
) -> Table:
    """The tables in a model's latents before each round and after the last: exact, or decoded on held-out episodes.

    Args:
        run: the rollout of ``episodes``, where it is known.

    Raises:
        InputError: fewer episodes than folds (learned models).
    """
    latents = (rollout(model, episodes, commit=commit) if run is None else run).latents
    if model.is_handwired:
        return model.read_state(latents).double().numpy(force=True)
    columns = model.layout.per_latent(torch.from_numpy(episodes.q_tables))
    decoded = cross_fitted(latents, columns, per_latent=True, seed=seed)
    return model.layout.state(decoded).numpy(force=True)


@checked
def evaluate(
    model: HookedLatentTransformer,
    *,
    regime: str = "grid",
    n_episodes: int = 256,
    n_rounds: int = 50,
    commit: str = "own",
    seed: int = 3,
) -> RatesResult:
    """Effective alpha and gamma of what a model's latents hold, with intervals over episodes, and three controls.

    Args:
        n_episodes: over the representative sizes.
        commit: whose a* is fed, "own" or "target".

    Raises:
        InputError: a model of another task, too few episodes.
    """
    chosen = representative_sizes(model)
    each = -(-n_episodes // len(chosen))
    batches = [sampling.sample(each, n_rounds, s, a, regime=regime, seed=seed + i) for i, (s, a) in enumerate(chosen)]
    tables = {"model": [decode(model, batch, commit=commit, seed=seed) for batch in batches]}
    if not model.is_handwired:
        blank = untrained(model, seed)
        tables["untrained model"] = [decode(blank, batch, commit=commit, seed=seed) for batch in batches]
    rates = {source: effective_rates(decoded, batches, seed=seed) for source, decoded in tables.items()}
    rates["true table"] = effective_rates([batch.q_tables for batch in batches], batches, seed=seed)
    short = [batch.relearned(gamma=0.0) for batch in batches]
    rates["gamma = 0 table"] = effective_rates([batch.q_tables for batch in short], short, seed=seed)
    settings = provenance(
        model=model.config.name, digest=model.digest(), commit=commit, regime=regime, sizes=chosen,
        n_episodes=n_episodes, n_rounds=n_rounds, seed=seed,
    )  # fmt: skip
    return RatesResult(rates, {source: _r2(decoded, batches, seed) for source, decoded in tables.items()}, settings)


def _r2(tables: Sequence[np.ndarray], batches: Sequence[MDPEpisodes], seed: int) -> Interval:
    """Share of the variance about each size's mean table entry, pooled."""
    missed, total = [], []
    for decoded, batch in zip(tables, batches, strict=True):
        missed.append(((decoded - batch.q_tables) ** 2).sum((1, 2, 3)))
        total.append(((batch.q_tables - batch.q_tables.mean()) ** 2).sum((1, 2, 3)))
    return ratio_interval(np.concatenate(missed), np.concatenate(total), seed=seed).complement
