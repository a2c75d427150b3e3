r"""What agents earn: cumulative reward, and where it lies between a random and an optimal policy.

    normalised score = sum_e (x_e - random_e) / sum_e (optimal_e - random_e)

over episodes e, with x the sum of rewards, and both references computed exactly (backward induction) from the state
where the episode started; 0 is a random policy, 1 the optimum. A ratio of sums, since single MDPs where all policies
earn the same would otherwise divide by nearly 0. It can leave [0, 1]: x holds luck, the references do not.

Scope: on the grid MDPs random earns 70-80 % of the optimum, so raw returns hardly separate agents.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from interp.checks import checked
from interp.display import Tabled
from interp.errors import require
from interp.provenance import provenance
from interp.statistics import Interval, mean_interval, ratio_interval
from interp.tasks.qlearning.episodes import MDPEpisodes
from interp.tasks.qlearning.planning import finite_horizon, random_values

Batches = MDPEpisodes | Iterable[MDPEpisodes]


def as_batches(episodes: Batches) -> tuple[MDPEpisodes, ...]:
    """One batch, or several of different sizes, as a tuple.

    Raises:
        InputError: no batch, or a batch of something else.
    """
    batches = (episodes,) if isinstance(episodes, MDPEpisodes) else tuple(episodes)
    require(len(batches) > 0, "no episodes were given; pass one batch of MDPEpisodes or several")
    for batch in batches:
        require(isinstance(batch, MDPEpisodes), f"expected batches of MDPEpisodes, got {type(batch).__name__}")
    return batches


@checked
def cumulative(episodes: MDPEpisodes) -> Float[np.ndarray, "episode round"]:
    """The sum of rewards up to and including each round."""
    return episodes.rewards.cumsum(1)


@dataclass(frozen=True)
class ScoreResult(Tabled):
    """Mean returns and the normalised score, with 95 % intervals over episodes.

    Attributes:
        score: (earned - random) / (optimal - random), as a ratio of sums over episodes.
        earned, random, optimal: mean sum of rewards; the last two are exact expectations for these episodes' starts.
        provenance: regime, sizes, seed, versions.
    """

    score: Interval
    earned: Interval
    random: Interval
    optimal: Interval
    provenance: dict[str, Any] = field(default_factory=dict)

    def to_frame(self) -> pd.DataFrame:
        """One row per quantity."""
        rows = {name: getattr(self, name) for name in ("score", "earned", "random", "optimal")}
        return pd.DataFrame(
            [{"quantity": k, "estimate": v.estimate, "low": v.low, "high": v.high} for k, v in rows.items()]
        )


@checked
def normalised_score(episodes: Batches, *, n_resamples: int = 1000, seed: int = 0) -> ScoreResult:
    """Where the rewards of ``episodes`` lie between a random and an optimal policy.

    Args:
        episodes: one batch, or several (such as ``mdp.sample_grid(...).values()``).
        n_resamples, seed: of the bootstrap over episodes.

    Raises:
        InputError: no episodes, or MDPs where every policy earns the same.
    """
    batches = as_batches(episodes)
    rows = [_references(batch) for batch in batches]
    earned, random, optimal = (np.concatenate(column) for column in zip(*rows, strict=True))
    room = (optimal - random).sum()
    require(
        bool(room > 1e-9 * (1 + np.abs(optimal).sum())),
        "a random policy earns as much as the optimal one on these MDPs, so no score exists; use MDPs with a choice",
    )
    columns = {"earned": earned, "random": random, "optimal": optimal}
    intervals = {k: mean_interval(column, n_resamples=n_resamples, seed=seed) for k, column in columns.items()}
    record = provenance(
        regimes=sorted({b.regime for b in batches}), seeds=sorted({b.seed for b in batches}), n_episodes=len(earned)
    )
    score = ratio_interval(earned - random, optimal - random, n_resamples=n_resamples, seed=seed)
    return ScoreResult(score=score, provenance=record, **intervals)


def _references(
    batch: MDPEpisodes,
) -> tuple[Float[np.ndarray, " episode"], Float[np.ndarray, " episode"], Float[np.ndarray, " episode"]]:
    rows, start = np.arange(len(batch)), batch.states[:, 0]
    random = random_values(batch.known_mdps, batch.n_rounds)[rows, 0, start]
    optimal = finite_horizon(batch.known_mdps, batch.n_rounds).values[rows, 0, start]
    return batch.rewards.sum(1), random, optimal
