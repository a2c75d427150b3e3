"""MDP episodes: act in a batch of MDPs round by round, and sample the episodes that Q-learning
experiments need.

:func:`sample` draws episodes of one size; :class:`Interaction` lets any agent act. :func:`battery`
draws episodes on which learners of tabular control choose differently; tabular Q-learning acts in
all of them. States and actions are relabelled at random after an episode was made, and the targets
``greedy`` break ties to the lowest *new* label. Two agents with one seed meet the same luck, and
the same seed gives the same bytes.

How an episode is drawn, and what each set of the battery distinguishes: docs/method/playing.md.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from interp.core.task import episode_array
from interp.support.checks import (
    array_of,
    checked,
    integer,
    refuse_beyond_machine,
    refuse_slow,
    seed_of,
)
from interp.support.errors import require, require_known
from interp.tasks.qlearning import bellman
from interp.tasks.qlearning.episodes import MDPEpisodes, MDPs, check_epsilon
from interp.tasks.qlearning.mdps import REGIMES, draw

_HUB_REWARD = 0.1
"""Largest reward at a hub; at a leaf it is 1. Here the tables of discount .9 and 0 disagree most (.09 nats a round)."""

_PEAK_BYTES = 60.0
"""The most that is held at once for each entry of all tables and transitions while episodes are drawn, as measured."""
_SECONDS_OF_A_NUMBER = 1e-7
"""The least time that a probability of a transition takes to draw, of which 1.4e-7 were measured."""

_Epsilon = float | Literal["uniform"]
_Drawn = TypeVar("_Drawn", MDPs, MDPEpisodes)

_STREAMS = (
    "cells",
    "mdps",
    "epsilon",
    "start",
    "explore",
    "action",
    "transition",
    "reward",
    "relabel",
    "sizes",
    "behaviour",
)


def stream(seed: int, name: str) -> np.random.Generator:
    """Return the generator of one purpose: streams of one seed never share a draw."""
    return np.random.default_rng([seed_of(seed), _STREAMS.index(name)])


class Interaction:
    """Agents acting in MDPs, one round at a time, with the table that Q-learning makes of what they
    do.

    Args:
        seed: draws starts, exploration, transitions and Bernoulli rewards, but not the agents'
            choices.
        epsilon: probability of a uniform action in place of the agent's choice; one number, or one
            per episode.
        told: the agents read each round's draw (``noise``) and explore by themselves: their choices
            are taken as they are, and only a first action, before any round, is drawn for them.

    >>> from interp.tasks.mdp import chain
    >>> play = Interaction(chain(), n_rounds=2, seed=0)
    >>> while not play.done:
    ...     _ = play.step(np.array([0]))
    >>> play.episodes().actions
    array([[0, 0]])
    """

    @checked
    def __init__(
        self,
        mdps: MDPs,
        n_rounds: int,
        seed: int,
        epsilon: float | Float[np.ndarray, " episode"] = 0.0,
        alpha: float = 0.1,
        gamma: float = 0.9,
        *,
        told: bool = False,
    ) -> None:
        bellman.check_rates(alpha, gamma)
        rates = check_epsilon(epsilon)
        n_mdps, n_states, n_actions = mdps.rewards.shape
        require(not np.isnan(rates).any(), "epsilon must lie in [0, 1], got nan")
        require(
            rates.shape in ((), (n_mdps,)),
            f"epsilon must be one number or {n_mdps}, got shape {rates.shape}",
        )
        check_sizes(n_episodes=n_mdps, n_states=n_states, n_actions=n_actions, n_rounds=n_rounds)
        self.mdps, self.n_rounds = mdps, n_rounds
        self.alpha, self.gamma = alpha, gamma
        self.round = 0
        self.epsilon = np.broadcast_to(rates, (n_mdps,))
        shape = (n_mdps, n_rounds)
        self._explore = stream(seed, "explore").random(shape) < self.epsilon[:, None]
        self._random_action = stream(seed, "action").integers(n_actions, size=shape)
        drawn = np.where(self._explore, self._random_action + 1, 0)
        self._noise = np.pad(drawn[:, 1:], ((0, 0), (0, 1)))
        self._told = told
        self._luck = stream(seed, "transition").random(shape)
        self._reward_luck = stream(seed, "reward").random(shape)
        total = mdps.transitions.cumsum(-1)
        # Ends at exactly 1: no draw in [0, 1) falls on an impossible state.
        self._reach = total / total[..., -1:]
        self._rows = np.arange(n_mdps)
        self._states = np.zeros((n_mdps, n_rounds + 1), np.int64)
        self._states[:, 0] = stream(seed, "start").integers(n_states, size=n_mdps)
        self._actions = np.zeros(shape, np.int64)
        self._rewards = np.zeros(shape)
        self._tables = np.zeros((n_mdps, n_rounds + 1, n_states, n_actions))
        self._seed = int(seed)

    @property
    def done(self) -> bool:
        """Whether all rounds have been played."""
        return self.round == self.n_rounds

    @property
    def states(self) -> Int[np.ndarray, " episode"]:
        """Where each agent stands now."""
        return self._states[:, self.round]

    @property
    def values(self) -> Float[np.ndarray, "episode action"]:
        """``Q_t(s_t, .)``: the current table's values where each agent stands."""
        return self._tables[self._rows, self.round, self.states]

    @property
    def values_before(self) -> Float[np.ndarray, "episode action"]:
        """``Q_{t-1}(s_t, .)``: what a machine sees that selects before it updates (zeros at the start)."""
        before = max(self.round - 1, 0)
        return self._tables[self._rows, before, self.states]

    @checked
    def advance(self, choices: ArrayLike | None = None) -> None:
        """Play one round.

        ``choices`` are the agents' actions, ``[episode]``; None stands for action 0, the greedy action of a table of
        zeros, so that an agent with no first choice starts as a tabular learner does.
        """
        require(
            not self.done, f"all {self.n_rounds} rounds are played; make a new Interaction for more"
        )
        t, rows, states = self.round, self._rows, self.states
        actions = self._choose(choices)
        rewards = self.mdps.rewards[rows, states, actions]
        is_paid = self._reward_luck[:, t] < rewards
        rewards = np.where(self.mdps.bernoulli, is_paid, rewards)
        reach = self._reach[rows, states, actions]
        next_states = (reach > self._luck[:, t, None]).argmax(-1)
        self._actions[:, t] = actions
        self._rewards[:, t] = rewards
        self._states[:, t + 1] = next_states
        self._tables[:, t + 1] = bellman.q_update(
            self._tables[:, t], states, actions, rewards, next_states, self.alpha, self.gamma
        )
        self.round += 1

    def _choose(self, choices: ArrayLike | None) -> Int[np.ndarray, " episode"]:
        """Return the actions of this round: the agents' choices, or random ones where they
        explore.
        """
        n_episodes = len(self._rows)
        agents = np.zeros(n_episodes) if choices is None else array_of("choices", choices)
        agents = episode_array("choices", agents, "episode", 0, self.mdps.n_actions - 1, whole=True)
        require(
            len(agents) == n_episodes,
            f"choices must be one for each of {n_episodes} episodes, got {len(agents)}",
        )
        if self._told and choices is not None:
            return agents
        explores, random_actions = self._explore[:, self.round], self._random_action[:, self.round]
        return np.where(explores, random_actions, agents)

    def step(self, choices: ArrayLike | None = None) -> MDPEpisodes:
        """Play one round, and return it as episodes of one round; their first table is the current
        one.
        """
        self.advance(choices)
        return self._record(self.round - 1, self.round)

    def episodes(self, regime: str = "custom") -> MDPEpisodes:
        """Return the rounds played so far."""
        return self._record(0, self.round, regime)

    def _record(self, start: int, stop: int, regime: str = "custom") -> MDPEpisodes:
        rounds, after = slice(start, stop), slice(start + 1, stop + 1)
        tables = self._tables[:, start : stop + 1].copy()
        next_states = self._states[:, after].copy()
        by_round = {
            "states": self._states,
            "actions": self._actions,
            "rewards": self._rewards,
            "noise": self._noise,
        }
        arrays = {name: array[:, rounds].copy() for name, array in by_round.items()}
        next_values = bellman.rows_at(tables[:, 1:], next_states)
        return MDPEpisodes(
            **arrays,
            next_states=next_states,
            greedy=next_values.argmax(-1),
            q_tables=tables,
            mdps=self.mdps,
            alpha=self.alpha,
            gamma=self.gamma,
            epsilon=self.epsilon.copy(),
            regime=regime,
            seed=self._seed,
        )


@checked
def sample(
    n_episodes: int,
    n_rounds: int,
    n_states: int,
    n_actions: int,
    seed: int = 0,
    alpha: float = 0.1,
    gamma: float = 0.9,
    epsilon: _Epsilon = "uniform",
    regime: str = "grid",
) -> MDPEpisodes:
    """Draw episodes of epsilon-greedy tabular Q-learning, each in a new MDP.

    Args:
        n_episodes, n_rounds, n_states, n_actions: sizes.
        seed: of all draws.
        alpha: learning rate in (0, 1].
        gamma: discount in [0, 1).
        epsilon: the exploration rate in [0, 1]; or "uniform": U(0, 1), drawn per episode.
        regime: where the MDPs come from, a key of ``REGIMES``.

    >>> sample(n_episodes=64, n_rounds=50, n_states=4, n_actions=3, seed=0).q_tables.shape
    (64, 51, 4, 3)
    """
    check_sizes(n_episodes=n_episodes, n_states=n_states, n_actions=n_actions, n_rounds=n_rounds)
    rate: Any = epsilon
    if isinstance(epsilon, str):
        require(
            epsilon == "uniform",
            f"epsilon must be a number in [0, 1] or 'uniform', got {epsilon!r}",
        )
        rate = stream(seed, "epsilon").random(n_episodes)
    mdps = _draw_mdps(n_episodes, n_states, n_actions, seed, regime)
    return _play(mdps, n_rounds, seed, rate, alpha, gamma, regime)


@checked
def sample_mdps(
    n_mdps: int, n_states: int, n_actions: int, seed: int = 0, regime: str = "grid"
) -> MDPs:
    """Draw MDPs without episodes, labels shuffled, for agents that act by themselves.

    Args:
        n_mdps, n_states, n_actions: sizes.
        seed: of all draws.
        regime: where they come from, a key of ``REGIMES``.
    """
    integer("n_mdps", n_mdps, 1)
    check_sizes(n_episodes=n_mdps, n_states=n_states, n_actions=n_actions)
    return _relabel(_draw_mdps(n_mdps, n_states, n_actions, seed, regime), seed)


def battery(
    n_episodes: int, n_rounds: int, *, n_states: int, n_actions: int, seed: int
) -> dict[str, MDPEpisodes]:
    """Draw a batch of episodes by the name of each set.

    Args:
        n_episodes: of each set.
        n_rounds, n_states, n_actions: sizes.
        seed: seed of the draws.

    >>> list(battery(2, 10, n_states=4, n_actions=3, seed=0))
    ['grid', 'explored', 'draws', 'chain', 'delayed']
    """
    draw_from = partial(sample, n_episodes, n_rounds, n_states, n_actions, seed)
    delayed = _delayed(n_episodes, n_states, n_actions, seed)
    return {
        "grid": draw_from(regime="grid", epsilon="uniform"),
        "explored": draw_from(regime="deterministic", epsilon=1.0),
        "draws": draw_from(regime="bernoulli-draws", epsilon=1.0),
        "chain": draw_from(regime="chain", epsilon=0.5),
        "delayed": _play(delayed, n_rounds, seed, 1.0),
    }


def _delayed(n_mdps: int, n_states: int, n_actions: int, seed: int) -> MDPs:
    """Draw MDPs in which the first half of states are hubs: each action leads from a hub to a leaf,
    and back to a hub.

    Args:
        n_mdps, n_states, n_actions: sizes.
        seed: seed of the draws.
    """
    rng = stream(seed, "mdps")
    n_hubs = n_states // 2
    is_hub = (np.arange(n_states) < n_hubs)[:, None]
    shape = (n_mdps, n_states, n_actions)
    leaves = n_hubs + rng.integers(0, n_states - n_hubs, shape)
    hubs = rng.integers(0, n_hubs, shape)
    next_states = np.where(is_hub, leaves, hubs)
    small = _HUB_REWARD * rng.random(shape)
    rewards = np.where(is_hub, small, rng.beta(0.5, 0.5, shape))
    return MDPs(np.eye(n_states)[next_states], rewards, families=("delayed",) * n_mdps)


def _draw_mdps(n_mdps: int, n_states: int, n_actions: int, seed: int, regime: str) -> MDPs:
    require_known("MDP regime", regime, REGIMES)
    cells, mdps = stream(seed, "cells"), stream(seed, "mdps")
    return draw(REGIMES[regime], n_mdps, n_states, n_actions, cells, mdps)


def _play(
    mdps: MDPs,
    n_rounds: int,
    seed: int,
    epsilon: Any,
    alpha: float = 0.1,
    gamma: float = 0.9,
    regime: str = "delayed",
) -> MDPEpisodes:
    """Run epsilon-greedy Q-learning, and shuffle the labels.

    Args:
        mdps: one per episode.
        n_rounds: to play.
        seed: seed of the luck.
        epsilon: probability of a uniform action.
        alpha: learning rate.
        gamma: discount.
        regime: its name, for the episodes.
    """
    interaction = Interaction(mdps, n_rounds, seed, epsilon, alpha, gamma)
    while not interaction.done:
        interaction.advance(interaction.values.argmax(-1))
    return _relabel(interaction.episodes(regime), seed)


def _relabel(drawn: _Drawn, seed: int) -> _Drawn:
    """Return the same MDPs or episodes, the states and actions of each labelled anew at random."""
    rng, n_episodes = stream(seed, "relabel"), len(drawn)
    states = np.tile(np.arange(drawn.n_states), (n_episodes, 1))
    actions = np.tile(np.arange(drawn.n_actions), (n_episodes, 1))
    return drawn.permuted(rng.permuted(states, axis=1), rng.permuted(actions, axis=1))


def check_sizes(n_episodes: int, n_states: int, n_actions: int, n_rounds: int = 1) -> None:
    """Refuse sizes below 1, and episodes that this machine's memory cannot hold, or that take too
    long.

    Args:
        n_episodes, n_states, n_actions, n_rounds: the sizes.
    """
    sizes = {"n_episodes": n_episodes, "n_rounds": n_rounds}
    for name, size in (sizes | {"n_states": n_states, "n_actions": n_actions}).items():
        integer(name, size, 1)
    n_numbers = n_episodes * n_states * n_actions * (n_rounds + n_states)
    refuse_beyond_machine(
        f"{n_episodes} episodes of {n_rounds} rounds in {n_states} states with {n_actions} actions",
        _PEAK_BYTES * n_numbers,
    )
    what = f"MDPs of {n_states} states and {n_actions} actions"
    refuse_slow(what, _SECONDS_OF_A_NUMBER * n_states**2 * n_actions)
