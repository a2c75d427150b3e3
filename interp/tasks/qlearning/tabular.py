"""Agents that act in MDPs: epsilon-greedy tabular Q-learning (a random policy for epsilon 1), and
an optimal agent.

On exact ties the greedy action is the one with the lowest index, or a random one of the tied
actions. If rewards are far away, always taking the lowest index explores in one direction, and
random choices do not (paper, section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from interp.support.checks import checked, checked_fields
from interp.tasks.qlearning import bellman
from interp.tasks.qlearning.bellman import finite_horizon
from interp.tasks.qlearning.episodes import MDPEpisodes, MDPs, check_epsilon
from interp.tasks.qlearning.sampling import Interaction, stream

_Choices = Int[np.ndarray, " episode"]
_Chooser = Callable[[], _Choices]
"""Returns the agent's action in each episode, for the current state of the interaction."""


@dataclass(frozen=True)
@checked_fields
class QLearner:
    """An agent: tabular Q-learning that begins with a table of zeros.

    Args:
        alpha: learning rate in (0, 1].
        gamma: discount in [0, 1).
        epsilon: probability of a uniformly random action.
        random_ties: True to choose at random among tied greedy actions; False to choose the tied
            action with the lowest index.
    """

    alpha: float = 0.1
    gamma: float = 0.9
    epsilon: float = 0.0
    random_ties: bool = False

    def __post_init__(self) -> None:
        bellman.check_rates(self.alpha, self.gamma)
        check_epsilon(self.epsilon)

    def make_chooser(self, interaction: Interaction, rng: np.random.Generator) -> _Chooser:
        """Return a function that chooses actions. The function takes no arguments, and returns the
        agent's greedy action in each episode, ``[episode]``. Exploration is left to the
        interaction.

        Args:
            interaction: the environment in which the agent acts. At every call, the function reads
                the current states and Q-tables from it.
            rng: random generator for ties, if they are broken at random.
        """

        def choose() -> _Choices:
            """Return the greedy action in each episode, ``[episode]``."""
            values = interaction.values
            if self.random_ties:
                # Uniform numbers at tied actions, 0 elsewhere: the largest is at a random tied one.
                luck = bellman.greedy_sets(values) * rng.random(values.shape)
                return luck.argmax(-1)
            return values.argmax(-1)

        return choose


class OptimalAgent(QLearner):
    """An agent that knows the MDP and maximises the expected sum of rewards over all rounds.

    Its episodes have the Q-tables that Q-learning computes from its actions, but the agent does not
    use them.
    """

    def make_chooser(self, interaction: Interaction, rng: np.random.Generator) -> _Chooser:
        rows = np.arange(len(interaction.mdps))
        policy = finite_horizon(interaction.mdps, interaction.n_rounds).policy
        return lambda: policy[rows, interaction.round, interaction.states]


AGENTS: Mapping[str, QLearner] = {
    "greedy": QLearner(),
    "epsilon-greedy": QLearner(epsilon=0.2),
    "random-ties": QLearner(epsilon=0.2, random_ties=True),
    "random": QLearner(epsilon=1.0),
    "optimal": OptimalAgent(),
}


@checked
def run(learner: QLearner, mdps: MDPs, n_rounds: int, seed: int) -> MDPEpisodes:
    """Let an agent play one episode in every MDP, and return the episodes.

    Args:
        learner: the agent.
        mdps: the MDP of each episode.
        n_rounds: number of rounds.
        seed: seed of initial states, transitions, rewards and exploration. Their random draws are
            the same for every agent.
    """
    interaction = Interaction(mdps, n_rounds, seed, learner.epsilon, learner.alpha, learner.gamma)
    choose = learner.make_chooser(interaction, stream(seed, "behaviour"))
    while not interaction.done:
        interaction.advance(choose())
    return interaction.episodes()
