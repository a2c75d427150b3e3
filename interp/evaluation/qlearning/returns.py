r"""What agents earn: cumulative reward, and where it lies between a random and an optimal policy.

    normalised score = sum_e (x_e - random_e) / sum_e (optimal_e - random_e)

over episodes e, with x the sum of rewards, and both references computed exactly (backward induction) from the state
where the episode started. A ratio of sums, since single MDPs where all policies earn the same would otherwise divide by
nearly 0. It can leave [0, 1]: x holds luck. On the grid random earns 70-80 % of the optimum.

:func:`evaluate` lets a model play, by its choices alone and exploring (a random action with probability .2), and so do
tabular learners with the same MDPs, starts and luck. Nothing told the model which of several tied choices to take: its
peer, exploring, is the epsilon-greedy learner that breaks ties at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from interp.core.algorithm import participants_of, refuse_missing
from interp.core.machine import Machine
from interp.evaluation.plan import MODEL
from interp.model.rollout import play
from interp.results.measure import Scores
from interp.stats.intervals import Interval, mean_interval, ratio_interval
from interp.support.checks import checked
from interp.support.errors import require
from interp.support.provenance import provenance
from interp.tasks.qlearning import sampling, tabular
from interp.tasks.qlearning.bellman import finite_horizon, random_values
from interp.tasks.qlearning.episodes import Batches, as_batches, drawn_from
from interp.tasks.qlearning.layout import representative_sizes
from interp.tasks.qlearning.mdps import EVALUATION


@checked
def normalised_score(episodes: Batches, *, n_rounds: int = 0, seed: int = 0) -> Scores:
    """Where the rewards of ``episodes`` lie between a random and an optimal policy: "score", a ratio of sums.

    "earned", "random" and "optimal" are mean sums of rewards, the last two exact expectations for these episodes'
    starts, over their first ``n_rounds``, all when 0. ``episodes`` are one batch, or several of different sizes. MDPs
    where every policy earns the same are refused.
    """
    batches = as_batches(episodes)
    refuse_missing("the normalised score", *batches)
    rows = []
    for batch in batches:
        at, mdps, n = (
            (np.arange(len(batch)), 0, batch.states[:, 0]),
            batch.known_mdps,
            n_rounds or batch.n_rounds,
        )
        optimum, by_chance = finite_horizon(mdps, n).values[at], random_values(mdps, n)[at]
        rows.append((batch.rewards[:, :n].sum(1), by_chance, optimum))
    earned, random, optimal = (np.concatenate(column) for column in zip(*rows, strict=True))
    alike = "a random policy earns as much as the optimal one on these MDPs, so no score exists; use MDPs with a choice"
    require(bool((optimal - random).sum() > 1e-9 * (1 + np.abs(optimal).sum())), alike)
    columns = {"earned": earned, "random": random, "optimal": optimal}
    whose = participants_of(*batches)
    intervals = {
        k: mean_interval(column, seed=seed, participants=whose) for k, column in columns.items()
    }
    made = drawn_from(batches, n_episodes=len(earned))
    score = ratio_interval(earned - random, optimal - random, seed=seed, participants=whose)
    return Scores(
        ("quantity",), {(k,): value for k, value in {"score": score, **intervals}.items()}, made
    )


# What a model earns when it acts.

PLAYED = ("grid", *EVALUATION, "chain", "ladder")
EXPLORING = "exploring-model"
_AGENTS = ("greedy", "epsilon-greedy", "random-ties", "random")
PLAYERS = (MODEL, EXPLORING, *_AGENTS)
HORIZONS = (50, 200)
_WINDOW = 50


@checked
def evaluate(
    model: Machine,
    regimes: Sequence[str] = PLAYED,
    *,
    n_episodes: int = 96,
    horizons: Sequence[int] = HORIZONS,
    seed: int = 4,
) -> dict[str, Scores]:
    """Let a model and tabular agents act in fresh MDPs of each regime, under the same luck.

    "returns" are by regime, agent, horizon and quantity ("score" is the normalised return), "reward_rates" the mean
    reward a round by regime, agent and first round of a window.

    Args:
        n_episodes: per regime, over the representative sizes.
        horizons: numbers of rounds after which returns are read; the longest is played.
    """
    require(
        bool(horizons) and min(horizons) >= 1,
        f"horizons must be numbers of rounds >= 1, got {list(horizons)}",
    )
    sizes, longest = representative_sizes(model), max(horizons)
    each, explored = -(-n_episodes // len(sizes)), tabular.AGENTS["epsilon-greedy"].epsilon
    scores: dict[tuple[Any, ...], Interval] = {}
    rates: dict[tuple[Any, ...], Interval] = {}
    for regime in regimes:
        mdps = [
            sampling.sample_mdps(each, s, a, seed=seed + i, regime=regime)
            for i, (s, a) in enumerate(sizes)
        ]
        played = {
            key: [
                play(model, batch, longest, seed + i, epsilon=epsilon)[0]
                for i, batch in enumerate(mdps)
            ]
            for key, epsilon in ((MODEL, 0.0), (EXPLORING, explored))
        }
        for key in _AGENTS:
            played[key] = [
                tabular.run(tabular.AGENTS[key], batch, longest, seed + i)
                for i, batch in enumerate(mdps)
            ]
        for key, batches in played.items():
            for horizon in horizons:
                found = normalised_score(batches, n_rounds=horizon, seed=seed).numbers
                scores |= {
                    (regime, key, horizon, *quantity): value for quantity, value in found.items()
                }
            for start in range(0, longest, _WINDOW):
                rewards = [
                    row for batch in batches for row in batch.rewards[:, start : start + _WINDOW]
                ]
                sums, lengths = [row.sum() for row in rewards], [float(len(row)) for row in rewards]
                rates[regime, key, start] = ratio_interval(sums, lengths, seed=seed)
    settings = provenance(
        model, commit="own", sizes=sizes, n_episodes=n_episodes, horizons=list(horizons), seed=seed
    )
    columns = {"returns": (scores, ("horizon", "quantity")), "reward_rates": (rates, ("start",))}
    own = {"commit": "own"}, {"commit": ""}
    return {
        name: Scores(("regime", "key", *by), of, settings, {at: own[at[1] in _AGENTS] for at in of})
        for name, (of, by) in columns.items()
    }
