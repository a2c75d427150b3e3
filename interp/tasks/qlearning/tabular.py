r"""Tabular agents: Q-learning with three behaviours, a random policy and two optimal ones.

Q-learning keeps a table by the update of ``interp.tasks.qlearning.bellman`` (there, because samplers need it, too) and
acts by it:

* greedy: ``argmax_a Q_t(s, a)``, the lowest index on exact ties, or any of the tied ones at random: where rewards are
  far away, keeping to one index explores in a direction and choosing at random does not;
* epsilon-greedy: a uniform action with probability epsilon, else greedy;
* Boltzmann: ``P(a) = exp(beta Q_t(s, a)) / sum_b exp(beta Q_t(s, b))``, inverse temperature beta.

(paper, section 4 and its discussion of behaviour policies). With the same seed every agent meets the same starts,
exploration and transition luck. What they earn is scored in ``interp.tasks.qlearning.returns``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from interp.checks import checked, unique
from interp.errors import InputError, require, unknown_name
from interp.tasks.qlearning import bellman
from interp.tasks.qlearning.bellman import discounted, finite_horizon
from interp.tasks.qlearning.episodes import MDPEpisodes, MDPs, check_epsilon
from interp.tasks.qlearning.sampling import Interaction, stream

Choices = Int[np.ndarray, " episode"]
Chooser = Callable[[], Choices]


@runtime_checkable
class Agent(Protocol):
    """What :func:`run` needs: how to act, and the rates of the table kept beside the agent."""

    @property
    def alpha(self) -> float:
        """The learning rate of the table that is kept, in (0, 1]."""

    @property
    def gamma(self) -> float:
        """The discount of the table that is kept, in [0, 1)."""

    @property
    def epsilon(self) -> float:
        """The probability of a uniform action in place of the agent's."""

    def chooser(self, interaction: Interaction, rng: np.random.Generator) -> Chooser:
        """A function that gives one action per episode for where the interaction stands when it is called."""
        ...


@dataclass(frozen=True)
class QLearner:
    """Tabular Q-learning from a table of zeros.

    Args:
        alpha: learning rate in (0, 1].
        gamma: discount in [0, 1); 0 is the table that never bootstraps.
        epsilon: probability of a uniform action.
        beta: inverse temperature of Boltzmann behaviour, at least 0; None acts greedily.
        before_update: act by ``Q_{t-1}(s_t, .)``, the table before the last update, as the transformer circuit does,
            whose Select precedes its Update; it matters only after a step from a state to itself.
        random_ties: break ties of greedy choices at random.

    Raises:
        InputError: a rate outside its range.
    """

    alpha: float = 0.1
    gamma: float = 0.9
    epsilon: float = 0.0
    beta: float | None = None
    before_update: bool = False
    random_ties: bool = False

    def __post_init__(self) -> None:
        bellman.check_rates(self.alpha, self.gamma)
        check_epsilon(self.epsilon)
        require(
            self.beta is None or bool(0 <= self.beta < np.inf),
            f"beta must be a finite number >= 0, or None for greedy behaviour, got {self.beta}",
        )

    @checked
    def policy(self, values: Float[np.ndarray, "*batch action"]) -> Float[np.ndarray, "*batch action"]:
        """Action probabilities for given action values.

        >>> QLearner(epsilon=0.2).policy(np.array([1.0, 1.0])).tolist()
        [0.9, 0.1]

        Raises:
            InputError: no actions.
        """
        n_actions = values.shape[-1]
        require(n_actions > 0, f"action values need at least one action, got shape {values.shape}")
        if self.beta is None:
            tied = bellman.greedy_sets(values) if self.random_ties else np.eye(n_actions)[bellman.greedy(values)]
            chosen = tied / tied.sum(-1, keepdims=True)
        else:
            weights = np.exp(self.beta * (values - values.max(-1, keepdims=True)))
            chosen = weights / weights.sum(-1, keepdims=True)
        return (1 - self.epsilon) * chosen + self.epsilon / n_actions

    def chooser(self, interaction: Interaction, rng: np.random.Generator) -> Chooser:
        """What gives the actions of the next round, Int[episode], by the interaction's table so far."""

        def values() -> Float[np.ndarray, "episode action"]:
            return interaction.values_before if self.before_update else interaction.values

        def greedily() -> Choices:
            if not self.random_ties:
                return bellman.greedy(values())
            tied = bellman.greedy_sets(values())
            return np.asarray((tied * rng.random(tied.shape)).argmax(-1))

        def by_chance() -> Choices:
            reach = QLearner(beta=self.beta).policy(values()).cumsum(-1)
            return (reach / reach[:, -1:] > rng.random((len(reach), 1))).argmax(-1)

        return greedily if self.beta is None else by_chance


@dataclass(frozen=True)
class RandomAgent:
    """Uniform actions; the table that it could have learned is kept with ``alpha`` and ``gamma``."""

    alpha: float = 0.1
    gamma: float = 0.9

    @property
    def epsilon(self) -> float:
        """1: every action is drawn."""
        return 1.0

    def chooser(self, interaction: Interaction, rng: np.random.Generator) -> Chooser:
        """What gives an action that is never taken, as all are drawn."""
        return lambda: np.zeros(len(interaction.mdps), np.int64)


@dataclass(frozen=True)
class OptimalAgent:
    """Knows the MDP and maximises the expected sum of rewards over the rounds to play, or the discounted sum.

    Args:
        discount: None for the sum over the rounds to play; a number in [0, 1) for the discounted sum for ever.
        alpha, gamma: of the table kept beside it.
    """

    discount: float | None = None
    alpha: float = 0.1
    gamma: float = 0.9

    @property
    def epsilon(self) -> float:
        """0: every action is the agent's."""
        return 0.0

    def chooser(self, interaction: Interaction, rng: np.random.Generator) -> Chooser:
        """What gives the best actions, Int[episode], which know the MDP."""
        rows, mdps = np.arange(len(interaction.mdps)), interaction.mdps
        if self.discount is not None:
            stationary = discounted(mdps, self.discount).policy
            return lambda: stationary[rows, interaction.states]
        plan = finite_horizon(mdps, interaction.n_rounds).policy
        return lambda: plan[rows, interaction.round, interaction.states]


@dataclass(frozen=True)
class AgentRecord:
    """A named way to make an agent: ``make(**settings)`` passes the settings on.

    Attributes:
        key, name, short_name: for arguments, titles and table columns.
        make: settings -> agent.
    """

    key: str
    name: str
    short_name: str
    make: Callable[..., Agent]


AGENTS: Mapping[str, AgentRecord] = unique(
    (
        AgentRecord("greedy", "Q-learning, greedy", "greedy Q", QLearner),
        AgentRecord("epsilon-greedy", "Q-learning, epsilon-greedy", "eps Q", partial(QLearner, epsilon=0.2)),
        AgentRecord(
            "random-ties",
            "Q-learning, epsilon-greedy, ties at random",
            "eps Q, random ties",
            partial(QLearner, epsilon=0.2, random_ties=True),
        ),
        AgentRecord("boltzmann", "Q-learning, Boltzmann", "Boltzmann Q", partial(QLearner, beta=5.0)),
        AgentRecord(
            "no-bootstrap", "Q-learning without bootstrapping", "Q, gamma 0", lambda **s: QLearner(gamma=0.0, **s)
        ),
        AgentRecord("random", "random actions", "random", RandomAgent),
        AgentRecord("optimal", "optimal within the rounds played", "optimal", OptimalAgent),
        AgentRecord(
            "optimal-discounted",
            "optimal for the discounted sum",
            "optimal, disc.",
            partial(OptimalAgent, discount=0.9),
        ),
    ),
    "tabular agent",
)


@checked
def agent(key: str, **settings: Any) -> Agent:
    """The agent registered under ``key``.

    Raises:
        InputError: no such agent, or a setting that it does not have.

    >>> agent("epsilon-greedy", epsilon=0.1)
    QLearner(alpha=0.1, gamma=0.9, epsilon=0.1, beta=None, before_update=False, random_ties=False)
    """
    if key not in AGENTS:
        raise unknown_name("tabular agent", key, AGENTS)
    try:
        return AGENTS[key].make(**settings)
    except TypeError as error:
        raise InputError(f"the settings {sorted(settings)} do not fit the agent {key!r}: {error}") from None


@checked
def run(learner: Agent, mdps: MDPs, n_rounds: int, seed: int) -> MDPEpisodes:
    """Let an agent act: one episode per MDP.

    Args:
        learner: a :class:`QLearner`, :class:`RandomAgent`, :class:`OptimalAgent`, or anything with their methods.
        seed: of starts, transitions, rewards and exploration; same seed, same luck for every agent.

    Raises:
        InputError: no rounds, or a choice outside the MDPs' actions.
    """
    interaction = Interaction(mdps, n_rounds, seed, learner.epsilon, learner.alpha, learner.gamma)
    choose = learner.chooser(interaction, stream(seed, "behaviour"))
    while not interaction.done:
        interaction.advance(choose())
    return interaction.episodes()


@checked
def replay(
    episodes: MDPEpisodes, alpha: float | None = None, gamma: float | None = None
) -> Float[np.ndarray, "episode steps state action"]:
    """The tables that Q-learning makes of recorded transitions, ``[episode, round + 1, state, action]``.

    Args:
        alpha, gamma: those of the episodes when None; ``gamma=0`` gives the table that never bootstraps.

    Raises:
        InputError: a rate outside its range.
    """
    alpha, gamma = episodes.alpha if alpha is None else alpha, episodes.gamma if gamma is None else gamma
    bellman.check_rates(alpha, gamma)
    steps = episodes.states, episodes.actions, episodes.rewards, episodes.next_states
    return bellman.replay_tables(*steps, episodes.q_tables[:, 0], alpha, gamma)
