"""Corruptions of Q-learning episodes: a pair (clean, corrupted) that differs in one thing at one round.

A corrupted episode gets the Q-tables that its own transitions produce. A reward is read after the round's choice, so
its corruption shows from the next round on.
"""

from __future__ import annotations

from interp.checks import checked
from interp.task import Corruption, corrupted_round, exchanged
from interp.tasks.qlearning.episodes import TRANSITIONS, MDPEpisodes

_Pair = tuple[MDPEpisodes, MDPEpisodes]


@checked
def exchange_history(episodes: MDPEpisodes, round: int) -> _Pair:
    """Give each episode the history of the next one: all rounds before ``round``, and so its latents."""
    t = corrupted_round(episodes, round, history=True)
    return episodes, episodes.relearned(
        transitions={name: exchanged(getattr(episodes, name), t) for name in TRANSITIONS}
    )


def change_reward(episodes: MDPEpisodes, round: int, reward: float | None = None) -> _Pair:
    """Set the reward of one round; by default move it by a half: ``r -> (r + 1/2) mod 1``, never the same."""
    t = corrupted_round(episodes, round)
    rewards = episodes.rewards.copy()
    rewards[:, t] = (rewards[:, t] + 0.5) % 1.0 if reward is None else reward
    return episodes, episodes.relearned(transitions={"rewards": rewards})


def records() -> tuple[Corruption, ...]:
    """The corruptions of this task."""
    return (
        Corruption("exchange-history", "take another episode's history", 0, exchange_history, changes_history=True),
        Corruption("change-reward", "change the reward", 1, change_reward),
    )
