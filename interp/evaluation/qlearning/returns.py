r"""Measure what agents earn in MDPs: cumulative reward, scaled so that a random policy has 0 and an
optimal one 1.

    normalised score = sum_e (x_e - random_e) / sum_e (optimal_e - random_e)

The sums are over episodes e, and x_e is the sum of rewards in an episode. random_e and optimal_e
are exact expectations of this sum for the two policies (by backward induction), from the episode's
first state. The score is a ratio of sums, because the ratio of a single episode divides by almost 0
if all policies earn the same in its MDP. It can lie outside [0, 1], because rewards are random. In
the regime "grid" a random policy earns 70-80 % of the optimum.

:func:`evaluate` lets a model play with its own choices, and with exploration: a random action with
probability .2. Tabular learners play the same MDPs with the same starts and random numbers. The
model was not trained to break ties in a certain way. So an exploring model is best compared with
the epsilon-greedy learner that breaks ties at random.
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
from interp.support.checks import checked, integer
from interp.support.errors import require
from interp.support.provenance import provenance
from interp.tasks.qlearning import sampling, tabular
from interp.tasks.qlearning.bellman import finite_horizon, random_values
from interp.tasks.qlearning.episodes import Batches, MDPEpisodes, describe_draw, list_batches
from interp.tasks.qlearning.layout import representative_sizes
from interp.tasks.qlearning.mdps import EVALUATION, MDPs

_ROUNDING = 1e-9
"""Share of the optimal returns; a smaller gain over a random policy is rounding."""


@checked
def normalised_score(episodes: Batches, *, n_rounds: int = 0, seed: int = 0) -> Scores:
    """Compute the normalised score of played episodes: the sum of rewards, scaled so that a random
    policy has the score 0 and an optimal policy the score 1.

    Args:
        episodes: one batch of episodes, or several of different sizes.
        n_rounds: number of first rounds over which rewards are summed, at most that of the shortest
            batch; 0 for all rounds of each batch.
        seed: seed of the bootstrap.

    Returns:
        Scores by quantity. "earned" is the sum of rewards in an episode, averaged over episodes.
        "random" and "optimal" are the exact expectations of this average for a random and an
        optimal policy, from the same first states. "score" is the normalised score, (earned -
        random) / (optimal - random).

    Raises:
        InputError: if every policy earns the same in these MDPs.
    """
    batches = list_batches(episodes)
    refuse_missing("the normalised score", *batches)
    shortest = min(batch.n_rounds for batch in batches)
    integer("n_rounds", n_rounds, 0, shortest)
    # [episode]; the slice [:None] has all rounds.
    earned = np.concatenate([batch.rewards[:, : n_rounds or None].sum(axis=1) for batch in batches])
    references = [_compute_expected_returns(batch, n_rounds or batch.n_rounds) for batch in batches]
    random = np.concatenate([by_chance for by_chance, _ in references])
    optimal = np.concatenate([optimum for _, optimum in references])
    could_gain = float((optimal - random).sum())  # the denominator of the score
    tolerance = _ROUNDING * (1 + float(np.abs(optimal).sum()))
    require(
        could_gain > tolerance,
        "a random policy earns as much as the optimal one on these MDPs, so no score exists; use MDPs with a choice",
    )
    bootstrap: dict[str, Any] = {"seed": seed, "participants": participants_of(*batches)}
    numbers = {
        ("score",): ratio_interval(earned - random, optimal - random, **bootstrap),
        ("earned",): mean_interval(earned, **bootstrap),
        ("random",): mean_interval(random, **bootstrap),
        ("optimal",): mean_interval(optimal, **bootstrap),
    }
    return Scores(("quantity",), numbers, describe_draw(batches, n_episodes=len(earned)))


def _compute_expected_returns(
    batch: MDPEpisodes, n_rounds: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the exact expected returns of a random and of an optimal policy, each ``[episode]``.

    Args:
        batch: the episodes, whose MDPs and first states are used.
        n_rounds: number of rounds over which rewards are summed.
    """
    mdps = batch.known_mdps
    # Index into values [episode, round, state]: the first state of each episode, at round 0. A
    # value is the expected sum of the rewards from a round on.
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
    """Let a model and tabular agents play the same new MDPs of each regime (distribution of MDPs),
    and compare what they earn.

    Args:
        model: the model.
        regimes: names of the regimes.
        n_episodes: number of episodes per regime, over a few sizes of MDPs.
        horizons: numbers of rounds over which returns are summed. Episodes have as many rounds as
            the largest of them.
        seed: seed of MDPs, play and bootstrap.

    Returns:
        Two entries. "returns" has scores by regime, agent, horizon and quantity: "earned",
        "random", "optimal" and "score" (:func:`normalised_score`). "reward_rates" has the mean
        reward per round in windows of 50 rounds, by regime, agent and first round of the window.
        Agents are the "model", the "exploring-model" (which takes a random action with probability
        .2), and the tabular agents "greedy", "epsilon-greedy", "random-ties" and "random"
        (:data:`interp.tasks.qlearning.tabular.AGENTS`).
    """
    require(
        horizons and min(horizons) >= 1,
        f"horizons must be numbers of rounds >= 1, got {list(horizons)}",
    )
    sizes = representative_sizes(model)
    longest = max(horizons)
    per_size = -(-n_episodes // len(sizes))  # rounded up
    scores: dict[tuple[Any, ...], Interval] = {}
    rates: dict[tuple[Any, ...], Interval] = {}
    for regime in regimes:
        mdps = [
            sampling.sample_mdps(per_size, n_states, n_actions, seed=seed + i, regime=regime)
            for i, (n_states, n_actions) in enumerate(sizes)
        ]
        for key, batches in _play_all(model, mdps, longest, seed).items():
            for horizon in horizons:
                normalised = normalised_score(batches, n_rounds=horizon, seed=seed)
                for (quantity,), number in normalised.numbers.items():
                    scores[regime, key, horizon, quantity] = number
            for start in range(0, longest, _WINDOW):
                rates[regime, key, start] = _compute_reward_rate(batches, start, seed)
    settings = provenance(
        model,
        commit="own",
        sizes=sizes,
        n_episodes=per_size * len(sizes),
        horizons=list(horizons),
        seed=seed,
    )
    return {
        "returns": _make_scores(("regime", "key", "horizon", "quantity"), scores, settings),
        "reward_rates": _make_scores(("regime", "key", "start"), rates, settings),
    }


def _play_all(
    model: Machine, mdps: Sequence[MDPs], n_rounds: int, seed: int
) -> dict[str, list[MDPEpisodes]]:
    """Let the model, with and without exploration, and tabular agents play the same MDPs.

    Args:
        model: the model.
        mdps: one batch of MDPs per size.
        n_rounds: number of rounds to play.
        seed: seed of the random numbers.

    Returns:
        Key of a player -> the played episodes, one batch per size.
    """
    # Key of a player -> probability of a random action.
    exploration = {MODEL: 0.0, EXPLORING: tabular.AGENTS["epsilon-greedy"].epsilon}
    played: dict[str, list[MDPEpisodes]] = {}
    for key, epsilon in exploration.items():
        # play returns the episodes, and the model's rollout of them.
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


def _compute_reward_rate(batches: Sequence[MDPEpisodes], start: int, seed: int) -> Interval:
    """Return the mean reward per round in the window of :data:`_WINDOW` rounds that begins with
    ``start``.

    Args:
        batches: the played episodes.
        start: first round of the window.
        seed: seed of the bootstrap.
    """
    # A window is shorter if the batch ends within it. So the rate is not a mean of means: it is the
    # sum of all rewards divided by the sum of all lengths.
    windows = [batch.rewards[:, start : start + _WINDOW] for batch in batches]
    sums = np.concatenate([window.sum(axis=1) for window in windows])  # [episode]
    lengths = np.concatenate([np.full(len(window), window.shape[1]) for window in windows])
    return ratio_interval(sums, lengths.astype(np.float64), seed=seed)


def _make_scores(
    key_columns: tuple[str, ...], numbers: dict[tuple[Any, ...], Interval], settings: dict[str, Any]
) -> Scores:
    """Make a record of scores, with a column ``commit`` beside the numbers: "own" for the model,
    which reads back its own choice, "" for tabular agents.

    Args:
        key_columns: names of the parts of a key.
        numbers: key -> number with its interval.
        settings: settings of the evaluation.
    """
    further_cells = {}  # of the row of each key
    for key in numbers:
        player = key[1]  # the first part is the regime
        further_cells[key] = {"commit": "" if player in _AGENTS else "own"}
    return Scores(key_columns, numbers, settings, beside=further_cells)
