"""MDP episodes: act in a batch of MDPs round by round, and sample the episodes that Q-learning experiments need.

:func:`sample` draws episodes of one size; :class:`Interaction` lets any agent act. :func:`battery` draws episodes on
which learners of tabular control choose differently; their behaviour is that of tabular Q-learning, whoever is asked to
explain it. States and actions are relabelled at random after an episode was made, and the targets ``greedy`` break ties
to the lowest *new* label. Two agents with one seed meet the same luck, and the same seed gives the same bytes.

How an episode is drawn, and what each of the battery tells apart: docs/method/playing.md.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from interp.core.task import episode_array
from interp.support.checks import array_of, checked, integer, refuse_beyond_machine, seed_of
from interp.support.errors import require, require_known
from interp.tasks.qlearning import bellman
from interp.tasks.qlearning.episodes import MDPEpisodes, MDPs, check_epsilon
from interp.tasks.qlearning.mdps import REGIMES, draw

_HUB_REWARD = 0.1
"""Largest reward at a hub; at a leaf it is 1. Here the tables of discount .9 and 0 disagree most (.09 nats a round)."""

_Epsilon = float | Literal["uniform"]
_Drawn = TypeVar("_Drawn", MDPs, MDPEpisodes)

_STREAMS = (
    *(
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
    ),
    "behaviour",
)


def stream(seed: int, name: str) -> np.random.Generator:
    """The generator of one purpose: streams of one seed never share a draw."""
    return np.random.default_rng([seed_of(seed), _STREAMS.index(name)])


class Interaction:
    """Agents acting in MDPs, one round at a time, with the table that Q-learning makes of what they do.

    Args:
        seed: draws starts, exploration, transitions and Bernoulli rewards; not the agents' own choices.
        epsilon: probability of a uniform action in place of the agent's choice; one number, or one per episode.
        told: the agents read each round's draw (``noise``) and explore by themselves: their choices are taken as they
            are, and only a first action, before any round, is drawn for them.

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
        check_epsilon(epsilon)
        require(
            not np.isnan(array_of("epsilon", epsilon)).any(), "epsilon must lie in [0, 1], got nan"
        )
        n, shape = len(mdps), (len(mdps), n_rounds)
        _check_sizes(
            n_episodes=n, n_states=mdps.n_states, n_actions=mdps.n_actions, n_rounds=n_rounds
        )
        require(
            np.shape(epsilon) in ((), (n,)),
            f"epsilon must be one number or {n}, got shape {np.shape(epsilon)}",
        )
        self.mdps, self.n_rounds, self.alpha, self.gamma, self.round = (
            mdps,
            n_rounds,
            alpha,
            gamma,
            0,
        )
        self.epsilon = np.broadcast_to(np.asarray(epsilon, np.float64), (n,))
        self._explore = stream(seed, "explore").random(shape) < self.epsilon[:, None]
        self._random_action = stream(seed, "action").integers(mdps.n_actions, size=shape)
        drawn = np.where(self._explore, self._random_action + 1, 0)[:, 1:]
        self._noise, self._told = np.concatenate([drawn, np.zeros((n, 1), np.int64)], 1), told
        self._luck = stream(seed, "transition").random(shape)
        self._reward_luck = stream(seed, "reward").random(shape)
        total = mdps.transitions.cumsum(-1)
        self._reach = (
            total / total[..., -1:]
        )  # ends at exactly 1: no draw in [0, 1) falls on an impossible state
        self._rows = np.arange(n)
        self._states = np.zeros((n, n_rounds + 1), np.int64)
        self._states[:, 0] = stream(seed, "start").integers(mdps.n_states, size=n)
        self._actions, self._rewards = np.zeros(shape, np.int64), np.zeros(shape)
        self._tables = np.zeros((n, n_rounds + 1, mdps.n_states, mdps.n_actions))
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
        return self._tables[self._rows, max(self.round - 1, 0), self.states]

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
        chosen = np.zeros(len(rows), np.int64) if choices is None else array_of("choices", choices)
        chosen = episode_array("choices", chosen, "episode", 0, self.mdps.n_actions - 1, whole=True)
        require(
            chosen.shape == rows.shape,
            f"choices must be one for each of {len(rows)} episodes, got {len(chosen)}",
        )
        wrapped = self._explore[:, t] & (choices is None or not self._told)
        actions = np.where(wrapped, self._random_action[:, t], chosen)
        rewards = self.mdps.rewards[rows, states, actions]
        rewards = np.where(self.mdps.bernoulli, self._reward_luck[:, t] < rewards, rewards)
        following = (self._reach[rows, states, actions] > self._luck[:, t, None]).argmax(-1)
        self._actions[:, t], self._rewards[:, t], self._states[:, t + 1] = (
            actions,
            rewards,
            following,
        )
        self._tables[:, t + 1] = bellman.q_update(
            self._tables[:, t], states, actions, rewards, following, self.alpha, self.gamma
        )
        self.round += 1

    def step(self, choices: ArrayLike | None = None) -> MDPEpisodes:
        """:meth:`advance`, then that round alone as episodes of one round (their first table is the current one)."""
        self.advance(choices)
        return self._record(self.round - 1, self.round)

    def episodes(self, regime: str = "custom") -> MDPEpisodes:
        """The rounds played so far."""
        return self._record(0, self.round, regime)

    def _record(self, start: int, stop: int, regime: str = "custom") -> MDPEpisodes:
        following, tables = self._states[:, start + 1 : stop + 1], self._tables[:, start : stop + 1]
        states, actions, rewards = (
            each[:, start:stop].copy() for each in (self._states, self._actions, self._rewards)
        )
        rounds = states, actions, rewards, following.copy()
        greedy = bellman.rows_at(tables[:, 1:], following).argmax(-1)
        learner, drawn = (
            (self.alpha, self.gamma, self.epsilon.copy()),
            self._noise[:, start:stop].copy(),
        )
        return MDPEpisodes(
            *rounds, greedy, tables.copy(), self.mdps, *learner, regime, self._seed, drawn
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
    """Episodes of epsilon-greedy tabular Q-learning, each in an MDP of its own.

    The exploration rate ``epsilon`` lies in [0, 1], or is "uniform": U(0, 1), drawn per episode. The MDPs come from a
    ``regime``, a key of ``REGIMES``.

    >>> sample(n_episodes=64, n_rounds=50, n_states=4, n_actions=3, seed=0).q_tables.shape
    (64, 51, 4, 3)
    """
    _check_sizes(n_episodes=n_episodes, n_states=n_states, n_actions=n_actions, n_rounds=n_rounds)
    rate: Any = epsilon
    if isinstance(epsilon, str):
        require(
            epsilon == "uniform",
            f"epsilon must be a number in [0, 1] or 'uniform', got {epsilon!r}",
        )
        rate = stream(seed, "epsilon").random(n_episodes)
    return _played(
        _drawn(n_episodes, n_states, n_actions, seed, regime),
        n_rounds,
        seed,
        rate,
        alpha,
        gamma,
        regime,
    )


@checked
def sample_mdps(
    n_mdps: int, n_states: int, n_actions: int, seed: int = 0, regime: str = "grid"
) -> MDPs:
    """MDPs alone, labels shuffled, for agents that act on their own."""
    _check_sizes(n_mdps=n_mdps, n_states=n_states, n_actions=n_actions)
    return _relabelled(_drawn(n_mdps, n_states, n_actions, seed, regime), seed)


def battery(
    n_episodes: int, n_rounds: int, *, n_states: int, n_actions: int, seed: int
) -> dict[str, MDPEpisodes]:
    """A batch of ``n_episodes`` by the name of each set; other seeds draw other episodes.

    >>> list(battery(2, 10, n_states=4, n_actions=3, seed=0))
    ['grid', 'explored', 'draws', 'chain', 'delayed']
    """

    drawn = partial(sample, n_episodes, n_rounds, n_states, n_actions, seed)
    return {
        "grid": drawn(regime="grid", epsilon="uniform"),
        "explored": drawn(regime="deterministic", epsilon=1.0),
        "draws": drawn(regime="bernoulli-draws", epsilon=1.0),
        "chain": drawn(regime="chain", epsilon=0.5),
        "delayed": _played(_delayed(n_episodes, n_states, n_actions, seed), n_rounds, seed, 1.0),
    }


def _delayed(n: int, n_states: int, n_actions: int, seed: int) -> MDPs:
    """MDPs whose first half of states are hubs: every action leads from a hub to a leaf, and from a leaf to a hub."""
    rng, n_hubs = stream(seed, "mdps"), n_states // 2
    hub = np.arange(n_states) < n_hubs
    shape = (n, n_states, n_actions)
    target = np.where(
        hub[:, None],
        n_hubs + rng.integers(0, n_states - n_hubs, shape),
        rng.integers(0, n_hubs, shape),
    )
    rewards = np.where(hub[:, None], _HUB_REWARD * rng.random(shape), rng.beta(0.5, 0.5, shape))
    return MDPs(np.eye(n_states)[target], rewards, families=("delayed",) * n)


def _drawn(n: int, n_states: int, n_actions: int, seed: int, regime: str) -> MDPs:
    require_known("MDP regime", regime, REGIMES)
    return draw(
        REGIMES[regime], n, n_states, n_actions, stream(seed, "cells"), stream(seed, "mdps")
    )


def _played(
    mdps: MDPs,
    n_rounds: int,
    seed: int,
    epsilon: Any,
    alpha: float = 0.1,
    gamma: float = 0.9,
    regime: str = "delayed",
) -> MDPEpisodes:
    """Episodes of epsilon-greedy Q-learning, labels shuffled."""
    interaction = Interaction(mdps, n_rounds, seed, epsilon, alpha, gamma)
    while not interaction.done:
        interaction.advance(interaction.values.argmax(-1))
    return _relabelled(interaction.episodes(regime), seed)


def _relabelled(drawn: _Drawn, seed: int) -> _Drawn:
    """The same MDPs or episodes, the states and actions of each labelled anew at random."""
    rng, n = stream(seed, "relabel"), len(drawn)
    states = rng.permuted(np.tile(np.arange(drawn.n_states), (n, 1)), axis=1)
    return drawn.permuted(states, rng.permuted(np.tile(np.arange(drawn.n_actions), (n, 1)), axis=1))


def _check_sizes(**sizes: int) -> None:
    """Refuse sizes that are none, and episodes that this machine's memory cannot hold."""
    n, n_states, n_actions, *n_rounds = (integer(name, size, 1) for name, size in sizes.items())
    refuse_beyond_machine(
        f"{n} episodes of {sum(n_rounds)} rounds in {n_states} states with {n_actions} actions",
        8.0 * n * n_states * n_actions * (sum(n_rounds) + n_states),
    )
