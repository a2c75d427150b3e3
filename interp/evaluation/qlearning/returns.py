r"""What agents earn: cumulative reward, and where it lies between a random and an optimal policy.

    normalised score = sum_e (x_e - random_e) / sum_e (optimal_e - random_e)

over episodes e, with x the sum of rewards, and both references computed exactly (backward
induction) from the state where the episode started. A ratio of sums, since single MDPs where all
policies earn the same would otherwise divide by nearly 0. It can leave [0, 1]: x holds luck. On the
grid random earns 70-80 % of the optimum.

:func:`evaluate` lets a model play, by its choices alone and exploring (a random action with
probability .2), and so do tabular learners with the same MDPs, starts and luck. The model was not
trained to break ties in one way: when it explores, its peer is the epsilon-greedy learner that
breaks ties at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
from interp.tasks.qlearning.episodes import Batches, MDPEpisodes, as_batches, drawn_from
from interp.tasks.qlearning.layout import representative_sizes
from interp.tasks.qlearning.mdps import EVALUATION, MDPs

_ROUNDING = 1e-9
"""Share of the optimal returns below which a gain over a random policy is rounding."""


@checked
def normalised_score(episodes: Batches, *, n_rounds: int = 0, seed: int = 0) -> Scores:
    """Compute where rewards lie between a random and an optimal policy: "score", a ratio of sums.

    "earned", "random" and "optimal" are mean sums of rewards, the last two exact expectations for these episodes'
    starts.

    Args:
        episodes: one batch, or several of different sizes.
        n_rounds: the first rounds, over which rewards are summed; all when 0.
        seed: of the bootstrap.

    Raises:
        InputError: MDPs in which every policy earns the same.
    """
    batches = as_batches(episodes)
    refuse_missing("the normalised score", *batches)
    earned = np.concatenate([_sums(batch.rewards[:, : n_rounds or None]) for batch in batches])
    references = [_expected_returns(batch, n_rounds or batch.n_rounds) for batch in batches]
    random = np.concatenate([by_chance for by_chance, _ in references])
    optimal = np.concatenate([optimum for _, optimum in references])
    could_gain = float((optimal - random).sum())
    rounding = _ROUNDING * (1 + float(np.abs(optimal).sum()))
    require(
        could_gain > rounding,
        "a random policy earns as much as the optimal one on these MDPs, so no score exists; use MDPs with a choice",
    )
    bootstrap: dict[str, Any] = {"seed": seed, "participants": participants_of(*batches)}
    numbers = {
        ("score",): ratio_interval(earned - random, optimal - random, **bootstrap),
        ("earned",): mean_interval(earned, **bootstrap),
        ("random",): mean_interval(random, **bootstrap),
        ("optimal",): mean_interval(optimal, **bootstrap),
    }
    return Scores(("quantity",), numbers, drawn_from(batches, n_episodes=len(earned)))


def _sums(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what each episode earned."""
    return np.asarray(rewards.sum(axis=1))


def _expected_returns(
    batch: MDPEpisodes, n_rounds: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what a random and an optimal policy earn from each episode's start, exactly."""
    mdps = batch.known_mdps
    starts = (np.arange(len(batch)), 0, batch.states[:, 0])
    by_chance = random_values(mdps, n_rounds)[starts]
    optimum = finite_horizon(mdps, n_rounds).values[starts]
    return by_chance, optimum


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
    """Run a model and tabular agents in fresh MDPs of each regime, under the same luck.

    "returns" are by regime, agent, horizon and quantity ("score" is the normalised return),
    "reward_rates" the mean reward a round by regime, agent and first round of a window.

    Args:
        n_episodes: per regime, over the representative sizes.
        horizons: numbers of rounds after which returns are read; the longest is played.
    """
    require(
        bool(horizons) and min(horizons) >= 1,
        f"horizons must be numbers of rounds >= 1, got {list(horizons)}",
    )
    sizes = representative_sizes(model)
    longest = max(horizons)
    per_size = -(-n_episodes // len(sizes))
    scores: dict[tuple[Any, ...], Interval] = {}
    rates: dict[tuple[Any, ...], Interval] = {}
    for regime in regimes:
        mdps = [
            sampling.sample_mdps(per_size, n_states, n_actions, seed=seed + i, regime=regime)
            for i, (n_states, n_actions) in enumerate(sizes)
        ]
        for key, batches in _played_by_all(model, mdps, longest, seed).items():
            for horizon in horizons:
                normalised = normalised_score(batches, n_rounds=horizon, seed=seed)
                for (quantity,), number in normalised.numbers.items():
                    scores[regime, key, horizon, quantity] = number
            for start in range(0, longest, _WINDOW):
                rates[regime, key, start] = _reward_rate(batches, start, seed)
    settings = provenance(
        model, commit="own", sizes=sizes, n_episodes=n_episodes, horizons=list(horizons), seed=seed
    )
    return {
        "returns": _scores(("regime", "key", "horizon", "quantity"), scores, settings),
        "reward_rates": _scores(("regime", "key", "start"), rates, settings),
    }


def _played_by_all(
    model: Machine, mdps: Sequence[MDPs], n_rounds: int, seed: int
) -> dict[str, list[MDPEpisodes]]:
    """Run the model, with and without exploration, and tabular agents in the same MDPs.

    Args:
        model: the model.
        mdps: a batch per size.
        n_rounds: to play.
        seed: seed of the luck.
    """
    exploration = {MODEL: 0.0, EXPLORING: tabular.AGENTS["epsilon-greedy"].epsilon}
    played: dict[str, list[MDPEpisodes]] = {}
    for key, epsilon in exploration.items():
        played[key] = [
            play(model, batch, n_rounds, seed + i, epsilon=epsilon)[0]
            for i, batch in enumerate(mdps)
        ]
    for key in _AGENTS:
        agent = tabular.AGENTS[key]
        played[key] = [
            tabular.run(agent, batch, n_rounds, seed + i) for i, batch in enumerate(mdps)
        ]
    return played


def _reward_rate(batches: Sequence[MDPEpisodes], start: int, seed: int) -> Interval:
    """Return the mean reward a round in one window.

    Args:
        batches: episodes that were played.
        start: first round of the window.
        seed: seed of the bootstrap.
    """
    windows = [batch.rewards[:, start : start + _WINDOW] for batch in batches]
    sums = np.concatenate([_sums(window) for window in windows])
    lengths = np.concatenate([np.full(len(window), window.shape[1]) for window in windows])
    return ratio_interval(sums, lengths.astype(np.float64), seed=seed)


def _scores(
    by: tuple[str, ...], numbers: dict[tuple[Any, ...], Interval], settings: dict[str, Any]
) -> Scores:
    """Make scores with a column ``commit``: "own" for models, which commit their choice, "" for
    agents.

    Args:
        by: names of the parts of a key.
        numbers: by key.
        settings: what was measured and how.
    """
    beside = {key: {"commit": "" if key[1] in _AGENTS else "own"} for key in numbers}
    return Scores(by, numbers, settings, beside)
