"""Sample episodes of Q-learning, and let agents act in a batch of MDPs round by round.

:func:`sample` returns episodes of one size; :class:`Interaction` lets any agent act.
:func:`battery` returns episodes on which different tabular learners would choose differently; the
actions in all of them are Q-learning's. States and actions are renumbered at random after an
episode was made, and the targets ``greedy`` break ties by the lowest *new* number. Two agents with
the same seed get the same random draws, and equal arguments give equal arrays.

How an episode is made, and what each set of the battery distinguishes: docs/method/playing.md.
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
from interp.tasks.qlearning.mdps import REGIMES, draw_from_regime

_HUB_REWARD = 0.1
"""Largest reward at a hub; at a leaf it is 1.

With this value the tables for discounts .9 and 0 disagree most (.09 nats a round).
"""

_PEAK_BYTES = 60.0
"""Measured peak memory while sampling, in bytes per entry of all tables and transitions."""
_SECONDS_PER_NUMBER = 1e-7
"""Least seconds to sample one transition probability; 1.4e-7 were measured."""

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
    """Return a new random generator for one purpose, such as exploration. Generators for different
    purposes are independent; equal arguments give the same random numbers.

    Args:
        seed: the seed.
        name: the purpose: "cells", "mdps", "epsilon", "start", "explore", "action", "transition",
            "reward", "relabel", "sizes" or "behaviour".
    """
    return np.random.default_rng([seed_of(seed), _STREAMS.index(name)])


class Interaction:
    """An environment in which agents act in a batch of MDPs, round by round.

    An agent reads the current :attr:`states` and passes its actions to :meth:`step`, which returns
    the round with its rewards and next states. The environment also computes the Q-table that
    Q-learning would have after these actions.

    Agents that make no choice before the first round pass None. The action in the first round is
    then 0, or a random action with probability ``epsilon``.

    Args:
        mdps: the MDP of each episode.
        n_rounds: number of rounds of every episode.
        seed: seed of initial states, exploration, transitions and Bernoulli rewards. The agents'
            choices do not depend on it.
        epsilon: probability of a uniformly random action in place of the agent's choice: one
            number, or one per episode.
        alpha, gamma: learning rate and discount of the Q-table.
        told: who explores. False: the environment replaces some choices by random actions. True:
            the agents explore themselves, and the environment uses their choices unchanged. In this
            case the field ``noise`` of each round says which random action the agent has to take in
            the next round: 0 for none, a + 1 for action a.

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
        """Make all random draws of the episodes in advance, so that they do not depend on choices."""
        bellman.check_rates(alpha, gamma)
        rates = check_epsilon(epsilon)
        n_mdps, n_states, n_actions = mdps.rewards.shape
        # check_epsilon accepts NaN, the rate of recorded agents that have none.
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
        self._explores = stream(seed, "explore").random(shape) < self.epsilon[:, None]
        self._random_actions = stream(seed, "action").integers(n_actions, size=shape)
        draws = np.where(self._explores, self._random_actions + 1, 0)
        # Each round has the draw for the next round's action, and the last round has 0.
        self._noise = np.pad(draws[:, 1:], ((0, 0), (0, 1)))
        self._agents_explore = told  # agents read the draws, and take random actions themselves
        self._transition_draws = stream(seed, "transition").random(shape)
        self._reward_draws = stream(seed, "reward").random(shape)
        total = mdps.transitions.cumsum(-1)  # [episode, state, action, next state]
        # The last entry is exactly 1, so that no draw in [0, 1) selects an impossible state.
        self._cumulative_transitions = total / total[..., -1:]
        self._rows = np.arange(n_mdps)
        self._states = np.zeros((n_mdps, n_rounds + 1), np.int64)
        self._states[:, 0] = stream(seed, "start").integers(n_states, size=n_mdps)
        self._actions = np.zeros(shape, np.int64)
        self._rewards = np.zeros(shape)
        self._tables = np.zeros((n_mdps, n_rounds + 1, n_states, n_actions))
        self._seed = int(seed)

    @property
    def done(self) -> bool:
        """True if all rounds have been played."""
        return self.round == self.n_rounds

    @property
    def states(self) -> Int[np.ndarray, " episode"]:
        """The current state in each episode."""
        return self._states[:, self.round]

    @property
    def values(self) -> Float[np.ndarray, "episode action"]:
        """``Q_t(s_t, .)``: values of all actions at the current state, from the current Q-table."""
        return self._tables[self._rows, self.round, self.states]

    @checked
    def advance(self, choices: ArrayLike | None = None) -> None:
        """Play one round in every episode: take the actions, and draw rewards and next states.

        Args:
            choices: the agents' actions, ``[episode]``. None, for agents that make no choice before
                the first round, means action 0 (the greedy action of a table of zeros). Exploration
                may replace an action by a random one.
        """
        require(
            not self.done, f"all {self.n_rounds} rounds are played; make a new Interaction for more"
        )
        t, rows, states = self.round, self._rows, self.states
        actions = self._choose(choices)
        # In some MDPs a reward is 1 or 0, and `mdps.rewards` has the probability of 1.
        rewards = self.mdps.rewards[rows, states, actions]
        is_paid = self._reward_draws[:, t] < rewards
        rewards = np.where(self.mdps.bernoulli, is_paid, rewards)
        # The next state is the first whose cumulative probability is above a uniform draw.
        cumulative = self._cumulative_transitions[rows, states, actions]  # [episode, next state]
        next_states = (cumulative > self._transition_draws[:, t, None]).argmax(-1)
        self._actions[:, t] = actions
        self._rewards[:, t] = rewards
        self._states[:, t + 1] = next_states
        self._tables[:, t + 1] = bellman.q_update(
            self._tables[:, t], states, actions, rewards, next_states, self.alpha, self.gamma
        )
        self.round += 1

    def _choose(self, choices: ArrayLike | None) -> Int[np.ndarray, " episode"]:
        """Return the actions of this round, Int[episode]: the agents' choices, or random actions in
        episodes that explore.

        Args:
            choices: the agents' actions, ``[episode]``; None for action 0.
        """
        n_episodes = len(self._rows)
        agents = np.zeros(n_episodes) if choices is None else array_of("choices", choices)
        agents = episode_array(
            "choices", agents, "episode", low=0, high=self.mdps.n_actions - 1, whole=True
        )
        require(
            len(agents) == n_episodes,
            f"choices must be one for each of {n_episodes} episodes, got {len(agents)}",
        )
        # Agents that explore themselves have replaced their choices already. They cannot do so in a
        # first round without choices.
        if self._agents_explore and choices is not None:
            return agents
        explores = self._explores[:, self.round]
        random_actions = self._random_actions[:, self.round]
        return np.where(explores, random_actions, agents)

    def step(self, choices: ArrayLike | None = None) -> MDPEpisodes:
        """Play one round like :meth:`advance`, and return episodes that consist of this round only.
        Their first Q-table is the table before the round.

        Args:
            choices: the agents' actions, ``[episode]``; None for action 0.
        """
        self.advance(choices)
        return self._record(self.round - 1, self.round)

    def episodes(self, regime: str = "custom") -> MDPEpisodes:
        """Return the rounds that were played so far, as episodes of the regime called ``regime``."""
        require(self.round > 0, "no round is played yet; call step or advance first")
        return self._record(0, self.round, regime)

    def _record(self, start: int, stop: int, regime: str = "custom") -> MDPEpisodes:
        """Return rounds ``start`` to ``stop - 1`` as episodes of the regime called ``regime``."""
        rounds, after = slice(start, stop), slice(start + 1, stop + 1)
        tables = self._tables[:, start : stop + 1].copy()  # before each round, and after the last
        next_states = self._states[:, after].copy()
        by_round = {
            "states": self._states,
            "actions": self._actions,
            "rewards": self._rewards,
            "noise": self._noise,
        }
        arrays = {name: array[:, rounds].copy() for name, array in by_round.items()}
        next_values = bellman.take_rows(tables[:, 1:], next_states)
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
    """Sample episodes in which epsilon-greedy tabular Q-learning acts, each in a new MDP.

    With another number of rounds, the first rounds differ, too. To compare the same episodes at
    several lengths, sample the longest, and shorten them with ``episodes.first(n_rounds)``.

    Args:
        n_episodes, n_rounds: number of episodes, and of rounds per episode.
        n_states, n_actions: numbers of states and of actions of each MDP.
        seed: seed of all random draws.
        alpha: learning rate in (0, 1].
        gamma: discount in [0, 1).
        epsilon: probability of a random action, in [0, 1]; "uniform" draws it from U(0, 1) for each
            episode.
        regime: regime from which the MDPs are sampled, a key of ``REGIMES``.

    >>> sample(n_episodes=64, n_rounds=50, n_states=4, n_actions=3, seed=0).q_tables.shape
    (64, 51, 4, 3)
    """
    check_sizes(n_episodes=n_episodes, n_states=n_states, n_actions=n_actions, n_rounds=n_rounds)
    rates = stream(seed, "epsilon").random(n_episodes) if epsilon == "uniform" else epsilon
    mdps = _draw_mdps(n_episodes, n_states, n_actions, seed, regime)
    return _play(mdps, n_rounds, seed, rates, alpha, gamma, regime)


@checked
def sample_mdps(
    n_mdps: int, n_states: int, n_actions: int, seed: int = 0, regime: str = "grid"
) -> MDPs:
    """Sample MDPs for agents to act in; their states and actions are numbered at random.

    Args:
        n_mdps, n_states, n_actions: number of MDPs, and numbers of states and of actions of each.
        seed: seed of all random draws.
        regime: regime from which the MDPs are sampled, a key of ``REGIMES``.
    """
    integer("n_mdps", n_mdps, 1)
    check_sizes(n_episodes=n_mdps, n_states=n_states, n_actions=n_actions)
    return _relabel(_draw_mdps(n_mdps, n_states, n_actions, seed, regime), seed)


def battery(
    n_episodes: int, n_rounds: int, *, n_states: int, n_actions: int, seed: int
) -> dict[str, MDPEpisodes]:
    """Sample five sets of episodes, on which different learners would choose differently.

    - "grid": MDPs of the regime "grid", as in training, with exploration rates from 0 to 1;
    - "explored": MDPs of the regime "deterministic", with random actions;
    - "draws": MDPs of the regime "bernoulli-draws", in which rewards are 0 or 1, with random
      actions;
    - "chain": the chain (:func:`~interp.tasks.qlearning.mdps.chain`), with random actions in half
      of the rounds;
    - "delayed": MDPs in which large rewards come one step late, with random actions.

    Args:
        n_episodes: number of episodes of each set.
        n_rounds, n_states, n_actions: numbers of rounds, of states and of actions of each episode.
        seed: seed of the random draws.

    Returns:
        A mapping {name of the set: episodes}.

    >>> list(battery(2, 10, n_states=4, n_actions=3, seed=0))
    ['grid', 'explored', 'draws', 'chain', 'delayed']
    """
    draw_from = partial(sample, n_episodes, n_rounds, n_states, n_actions, seed)
    delayed = _draw_late_rewards(n_episodes, n_states, n_actions, seed)
    return {
        "grid": draw_from(regime="grid", epsilon="uniform"),
        "explored": draw_from(regime="deterministic", epsilon=1.0),
        "draws": draw_from(regime="bernoulli-draws", epsilon=1.0),
        "chain": draw_from(regime="chain", epsilon=0.5),
        "delayed": _play(delayed, n_rounds, seed, epsilon=1.0),
    }


def _draw_late_rewards(n_mdps: int, n_states: int, n_actions: int, seed: int) -> MDPs:
    """Sample MDPs whose large rewards come one step late, which requires bootstrapping.

    The first half of the states are hubs with small rewards; each action leads from a hub to a leaf
    with a large or small reward, and from a leaf back to a hub.

    Args:
        n_mdps, n_states, n_actions: number of MDPs, and numbers of states and of actions of each.
        seed: seed of the random draws.
    """
    rng = stream(seed, "mdps")
    n_hubs = n_states // 2
    is_hub = (np.arange(n_states) < n_hubs)[:, None]  # [state, 1]
    shape = (n_mdps, n_states, n_actions)
    leaves = n_hubs + rng.integers(0, n_states - n_hubs, shape)
    hubs = rng.integers(0, n_hubs, shape)
    next_states = np.where(is_hub, leaves, hubs)
    hub_rewards = _HUB_REWARD * rng.random(shape)
    leaf_rewards = rng.beta(0.5, 0.5, shape)  # most are large or small
    rewards = np.where(is_hub, hub_rewards, leaf_rewards)
    transitions = np.eye(n_states)[next_states]  # every action leads to one state for certain
    return MDPs(transitions, rewards, families=("delayed",) * n_mdps)


def _draw_mdps(n_mdps: int, n_states: int, n_actions: int, seed: int, regime: str) -> MDPs:
    require_known("MDP regime", regime, REGIMES)
    cell_rng, mdp_rng = stream(seed, "cells"), stream(seed, "mdps")
    return draw_from_regime(
        REGIMES[regime], n_mdps, n_states, n_actions, cell_rng=cell_rng, mdp_rng=mdp_rng
    )


def _play(
    mdps: MDPs,
    n_rounds: int,
    seed: int,
    epsilon: Any,
    alpha: float = 0.1,
    gamma: float = 0.9,
    regime: str = "delayed",
) -> MDPEpisodes:
    """Let epsilon-greedy Q-learning play one episode in every MDP, and renumber states and actions
    at random.

    Args:
        mdps: the MDP of each episode.
        n_rounds: number of rounds.
        seed: seed of the random draws.
        epsilon: probability of a uniformly random action: one number, or one per episode.
        alpha: learning rate.
        gamma: discount.
        regime: name of the regime, for the episodes.
    """
    interaction = Interaction(mdps, n_rounds, seed, epsilon, alpha, gamma)
    while not interaction.done:
        interaction.advance(interaction.values.argmax(-1))
    return _relabel(interaction.episodes(regime), seed)


def _relabel(drawn: _Drawn, seed: int) -> _Drawn:
    """Return the same MDPs or episodes with randomly renumbered states and actions, differently in
    each of them.

    Args:
        drawn: the MDPs or episodes.
        seed: seed of the random numbers.
    """
    rng, n_episodes = stream(seed, "relabel"), len(drawn)
    states = np.tile(np.arange(drawn.n_states), (n_episodes, 1))
    actions = np.tile(np.arange(drawn.n_actions), (n_episodes, 1))
    return drawn.permute(rng.permuted(states, axis=1), rng.permuted(actions, axis=1))


def check_sizes(n_episodes: int, n_states: int, n_actions: int, n_rounds: int = 1) -> None:
    """Raise InputError for sizes below 1, and for batches that would not fit into memory or would
    take too long to sample.

    Args:
        n_episodes, n_states, n_actions, n_rounds: numbers of episodes, of states, of actions and of
            rounds.
    """
    sizes = {
        "n_episodes": n_episodes,
        "n_rounds": n_rounds,
        "n_states": n_states,
        "n_actions": n_actions,
    }
    for name, size in sizes.items():
        integer(name, size, 1)
    n_numbers = n_episodes * n_states * n_actions * (n_rounds + n_states)
    refuse_beyond_machine(
        f"{n_episodes} episodes of {n_rounds} rounds in {n_states} states with {n_actions} actions",
        _PEAK_BYTES * n_numbers,
    )
    what = f"MDPs of {n_states} states and {n_actions} actions"
    # The time to draw the transition probabilities of one MDP, a lower bound for every batch.
    refuse_slow(what, _SECONDS_PER_NUMBER * n_states**2 * n_actions)
