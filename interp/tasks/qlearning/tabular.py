"""Tabular agents: epsilon-greedy Q-learning (with epsilon 1 a random policy), and an optimal agent.

The greedy action is the one of the lowest index on exact ties, or any of the tied ones at random:
where rewards are far away, keeping to one index explores in a direction and choosing at random does
not (paper, section 4).
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
"""Gives one action per episode for where the interaction stands when it is called."""


@dataclass(frozen=True)
@checked_fields
class QLearner:
    """Tabular Q-learning from a table of zeros.

    Args:
        gamma: discount in [0, 1); 0 is the table that never bootstraps.
        epsilon: probability of a uniform action.
        before_update: act by ``Q_{t-1}(s_t, .)``, the table before the last update, as the
            transformer circuit does (its Select precedes its Update); it matters only after a step
            from a state to itself.
    """

    alpha: float = 0.1
    gamma: float = 0.9
    epsilon: float = 0.0
    before_update: bool = False
    random_ties: bool = False

    def __post_init__(self) -> None:
        bellman.check_rates(self.alpha, self.gamma)
        check_epsilon(self.epsilon)

    def chooser(self, interaction: Interaction, rng: np.random.Generator) -> _Chooser:
        """Return a function that gives the actions of the next round, Int[episode], by the
        interaction's table so far.

        Args:
            interaction: has the table.
            rng: breaks ties at random, where the learner does.
        """

        def choose() -> _Choices:
            values = interaction.values_before if self.before_update else interaction.values
            if self.random_ties:
                luck = bellman.greedy_sets(values) * rng.random(values.shape)
                return luck.argmax(-1)
            return values.argmax(-1)

        return choose


class OptimalAgent(QLearner):
    """An agent that knows the MDP and maximises the expected sum of rewards over the rounds to
    play.

    Q-learning's table is recorded, too, but the agent does not use it.
    """

    def chooser(self, interaction: Interaction, rng: np.random.Generator) -> _Chooser:
        rows = np.arange(len(interaction.mdps))
        plan = finite_horizon(interaction.mdps, interaction.n_rounds).policy
        return lambda: plan[rows, interaction.round, interaction.states]


AGENTS: Mapping[str, QLearner] = {
    "greedy": QLearner(),
    "epsilon-greedy": QLearner(epsilon=0.2),
    "random-ties": QLearner(epsilon=0.2, random_ties=True),
    "random": QLearner(epsilon=1.0),
    "optimal": OptimalAgent(),
}


@checked
def run(learner: QLearner, mdps: MDPs, n_rounds: int, seed: int) -> MDPEpisodes:
    """Run an agent: one episode per MDP.

    Args:
        learner: the agent.
        mdps: one per episode.
        n_rounds: to play.
        seed: of starts, transitions, rewards and exploration: every agent meets the same luck.
    """
    interaction = Interaction(mdps, n_rounds, seed, learner.epsilon, learner.alpha, learner.gamma)
    choose = learner.chooser(interaction, stream(seed, "behaviour"))
    while not interaction.done:
        interaction.advance(choose())
    return interaction.episodes()
