"""Episodes on which learners of tabular control choose differently, what tells them apart::

    grid            the training grid, explored as in training
    explored        deterministic transitions, uniform actions: what lies ahead, and whose actions it depends on
    draws           rewards of 0 or 1 drawn anew at each visit, uniform actions: how many visits a value remembers
    chain           one reward at the end of a chain, half of the actions greedy: values that must travel
    delayed         small rewards at hubs, large and uneven ones at the leaves that they lead to, uniform actions: the
                    discount, and the maximum against the mean

The behaviour is that of tabular Q-learning at learning rate .1 and discount .9, whoever is asked to explain it.
"""

from __future__ import annotations

import numpy as np

from interp.checks import checked
from interp.tasks.qlearning import bellman
from interp.tasks.qlearning.episodes import MDPEpisodes, MDPs
from interp.tasks.qlearning.sampling import Epsilon, Interaction, relabelling, sample, stream

HUB_REWARD = 0.1
"""Largest reward at a hub; at a leaf it is 1. Here the tables of discount .9 and 0 disagree most (.09 nats a round)."""


@checked
def battery(n_episodes: int, n_rounds: int, *, n_states: int, n_actions: int, seed: int) -> dict[str, MDPEpisodes]:
    """A batch of ``n_episodes`` by the name of each set; other seeds draw other episodes.

    >>> list(battery(2, 10, n_states=4, n_actions=3, seed=0))
    ['grid', 'explored', 'draws', 'chain', 'delayed']

    Raises:
        InputError: a size below 1 (below 2 for states and actions), or a negative seed.
    """

    def drawn(regime: str, epsilon: Epsilon) -> MDPEpisodes:
        return sample(n_episodes, n_rounds, n_states, n_actions, seed=seed, epsilon=epsilon, regime=regime)

    return {
        "grid": drawn("grid", "uniform"),
        "explored": drawn("deterministic", 1.0),
        "draws": drawn("bernoulli-draws", 1.0),
        "chain": drawn("chain", 0.5),
        "delayed": _acted(delayed(n_episodes, n_states, n_actions, seed), n_rounds, seed),
    }


@checked
def delayed(n: int, n_states: int, n_actions: int, seed: int) -> MDPs:
    """MDPs whose first half of states are hubs: every action leads from a hub to a leaf, and from a leaf to a hub."""
    rng, n_hubs = stream(seed, "mdps"), n_states // 2
    hub = np.arange(n_states) < n_hubs
    shape = (n, n_states, n_actions)
    target = np.where(hub[:, None], n_hubs + rng.integers(0, n_states - n_hubs, shape), rng.integers(0, n_hubs, shape))
    rewards = np.where(hub[:, None], HUB_REWARD * rng.random(shape), rng.beta(0.5, 0.5, shape))
    return MDPs(np.eye(n_states)[target], rewards, families=("delayed",) * n)


def _acted(mdps: MDPs, n_rounds: int, seed: int) -> MDPEpisodes:
    """Episodes of uniform actions, labels shuffled."""
    interaction = Interaction(mdps, n_rounds, seed, 1.0)
    while not interaction.done:
        interaction.advance(bellman.greedy(interaction.values))
    return interaction.episodes("delayed").permuted(*relabelling(mdps, seed))
