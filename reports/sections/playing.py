"""Free rollouts: the model's own choices act in MDPs, beside tabular agents under the same luck."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from interp.tasks.qlearning import returns, tabular
from interp.model.rollout import play
from interp.model.transformer import HookedLatentTransformer
from interp.statistics import bootstrap_mean
from interp.tasks import mdp
from interp.tasks.mdp import MDPEpisodes, MDPs
from reports import figures
from reports.blocks import Figure, Prose, Table, Verdict
from reports.page import Section

MODEL, SAME = "model", "greedy"
"""The model, and the tabular learner that it should equal when it is handwired."""

_TEXT = (
    "The model's choice at `Select` is its next action. Every agent meets the same MDPs, starts and luck. On MDPs "
    "drawn at random a random policy already earns most of what can be earned, so read the normalised score, "
    "(earned − random) / (optimal − random), and the two worlds where control matters: a chain that pays only at "
    "its end, and a ladder that is slow to climb and quick to fall from, their actions relabelled in every episode. "
    "The optimal policy knows the MDP."
)


@dataclass(frozen=True)
class Played:
    """What every agent did in one world: key -> (name, episodes)."""

    world: str
    agents: Mapping[str, tuple[str, MDPEpisodes]]

    @property
    def same_as_tabular(self) -> bool:
        """Whether the model took exactly the actions of the tabular learner, in every episode."""
        own, other = self.agents[MODEL][1], self.agents[SAME][1]
        return np.array_equal(own.actions, other.actions) and np.array_equal(own.rewards, other.rewards)


def worlds(n_episodes: int, n_states: int, n_actions: int, seed: int) -> dict[str, MDPs]:
    """MDPs drawn from the grid and, where there is a choice, two kinds in which control matters."""
    regimes = {"random MDPs": "grid"}
    if n_states > 1 and n_actions > 1:
        regimes |= {"the chain": "chain", "the ladder": "ladder"}
    return {world: mdp.sample_mdps(n_episodes, n_states, n_actions, seed, key) for world, key in regimes.items()}


def play_worlds(
    model: HookedLatentTransformer, worlds: Mapping[str, MDPs], n_rounds: int, *, alpha: float, gamma: float, seed: int
) -> list[Played]:
    """Let the model and the tabular agents act in each world."""
    agents = {
        SAME: ("Q-learning, selects before it updates", tabular.QLearner(alpha, gamma, before_update=True)),
        "epsilon-greedy": ("Q-learning, epsilon .2", tabular.QLearner(alpha, gamma, epsilon=0.2)),
        "random": ("random actions", tabular.agent("random")),
        "optimal": ("optimal within the rounds played", tabular.agent("optimal")),
    }
    return [
        Played(
            world,
            {
                MODEL: (model.config.name, play(model, mdps, n_rounds, seed)[0]),
                **{key: (name, tabular.run(agent, mdps, n_rounds, seed)) for key, (name, agent) in agents.items()},
            },
        )
        for world, mdps in worlds.items()
    ]


def section(played: list[Played], *, handwired: bool, seed: int) -> Section:
    """Cumulative reward in the first world; returns and normalised scores in all."""
    curves = pd.concat([_curve(key, name, e, seed) for key, (name, e) in played[0].agents.items()])
    drawn = figures.curves(curves, ylabel="reward so far")
    rounds = played[0].agents[MODEL][1].n_rounds
    caption = f"Mean cumulative reward in {played[0].world}, with 95 % intervals over episodes."
    scores = pd.concat([_scores(world, seed) for world in played], ignore_index=True)
    blocks: list[object] = [
        Prose(_TEXT),
        Figure(drawn, "Cumulative reward beside tabular agents", caption),
        Table(scores, f"Returns over {rounds} rounds, with 95 % intervals over episodes", formats={"earned": ".2f"}),
    ]
    if handwired:
        same = [Verdict(p.same_as_tabular, "every action equal" if p.same_as_tabular else "differs") for p in played]
        frame = pd.DataFrame({"world": [p.world for p in played], "model and tabular learner": same})
        blocks.append(Table(frame, "Same seed, same actions as the tabular learner that selects before it updates?"))
    return Section("Free rollouts", blocks)


def _curve(key: str, name: str, episodes: MDPEpisodes, seed: int) -> pd.DataFrame:
    mean, low, high = bootstrap_mean(returns.cumulative(episodes), seed=seed)
    rounds = np.arange(1, episodes.n_rounds + 1)
    return pd.DataFrame({"algorithm": key, "name": name, "round": rounds, "mean": mean, "low": low, "high": high})


def _scores(played: Played, seed: int) -> pd.DataFrame:
    rows = []
    for name, episodes in played.agents.values():
        result = returns.normalised_score(episodes, seed=seed)
        rows.append({"world": played.world, "agent": name, "earned": result.earned, "normalised score": result.score})
    return pd.DataFrame(rows)
