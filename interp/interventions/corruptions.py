"""Named corruptions: from episodes, a pair (clean, corrupted) that differs in one thing at one round.

Both sides share everything else, so whatever patching finds is about that one thing. A corrupted Q-learning episode
gets the Q-tables that its own transitions produce. Where the difference can first be seen is part of the record:
a label or a reward is read after the round's prediction, so it shows from the next round on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.errors import InputError, require, unknown_name
from interp.model.rollout import select_rounds
from interp.tasks.experts import ExpertEpisodes
from interp.tasks.mdp import MDPEpisodes


@dataclass(frozen=True)
class Corruption:
    """A corruption: its key, its name in tables, its task, and how it is made.

    Attributes:
        tasks: the tasks that it exists for: "experts", "qlearning".
        delay: rounds after the corrupted one until a prediction can differ.
        build: ``(episodes, round, **options) -> (clean, corrupted)``.
    """

    key: str
    name: str
    tasks: tuple[str, ...]
    delay: int
    build: Callable[..., tuple[Any, Any]]


def flip_vote(episodes: ExpertEpisodes, round: int, expert: int = 0) -> tuple[ExpertEpisodes, ExpertEpisodes]:
    """Flip what one expert (counted from 0) says in one round."""
    t = _round(_experts(episodes), round)
    _expert(episodes, expert)
    advice = episodes.advice.copy()
    advice[:, t, expert] ^= 1
    return episodes, replace(episodes, advice=advice)


def flip_label(episodes: ExpertEpisodes, round: int) -> tuple[ExpertEpisodes, ExpertEpisodes]:
    """Flip the label of one round."""
    t = _round(_experts(episodes), round)
    labels = episodes.labels.copy()
    labels[:, t] ^= 1
    return episodes, replace(episodes, labels=labels)


def swap_histories(
    episodes: ExpertEpisodes, round: int, experts: tuple[int, int] = (0, 1)
) -> tuple[ExpertEpisodes, ExpertEpisodes]:
    """Swap what two experts said in every round before ``round``: their records change places, the round does not."""
    t = _round(_experts(episodes), round)
    first, second = experts
    _expert(episodes, first)
    _expert(episodes, second)
    require(first != second, f"swapping needs two different experts, got {first} twice")
    require(t >= 1, "round 0 has no history to swap; choose a later round")
    advice = episodes.advice.copy()
    advice[:, :t, [first, second]] = advice[:, :t, [second, first]]
    return episodes, replace(episodes, advice=advice)


def swap_latents(
    episodes: ExpertEpisodes | MDPEpisodes, round: int
) -> tuple[ExpertEpisodes | MDPEpisodes, ExpertEpisodes | MDPEpisodes]:
    """Give each episode the next episode's history (all rounds before ``round``), and so its latents."""
    require(len(episodes) >= 2, f"swapping latents needs at least 2 episodes, got {len(episodes)}")
    if isinstance(episodes, ExpertEpisodes):
        t = _round(episodes, round)
        require(t >= 1, "round 0 has no history to swap; choose a later round")
        return episodes, replace(episodes, advice=_mixed(episodes.advice, t), labels=_mixed(episodes.labels, t))
    t = _round(_mdp(episodes), round)
    require(t >= 1, "round 0 has no history to swap; choose a later round")
    names = ("states", "actions", "rewards", "next_states")
    return episodes, _relearned(episodes, **{name: _mixed(getattr(episodes, name), t) for name in names})


def change_reward(episodes: MDPEpisodes, round: int) -> tuple[MDPEpisodes, MDPEpisodes]:
    """Move the reward of one round by a half, round the unit interval: ``r -> (r + 1/2) mod 1``, never the same."""
    t = _round(_mdp(episodes), round)
    rewards = episodes.rewards.copy()
    rewards[:, t] = (rewards[:, t] + 0.5) % 1.0
    return episodes, _relearned(episodes, rewards=rewards)


CORRUPTIONS = {
    corruption.key: corruption
    for corruption in (
        Corruption("flip-vote", "flip one expert's vote", ("experts",), 0, flip_vote),
        Corruption("flip-label", "flip the label", ("experts",), 1, flip_label),
        Corruption("swap-histories", "swap two experts' histories", ("experts",), 0, swap_histories),
        Corruption("swap-latents", "swap latents with another episode", ("experts", "qlearning"), 0, swap_latents),
        Corruption("change-reward", "change the reward", ("qlearning",), 1, change_reward),
    )
}


def corruption(name: str, task: str) -> Corruption:
    """The corruption of that key.

    Raises:
        InputError: no such corruption for this task.
    """
    valid = {key: c for key, c in CORRUPTIONS.items() if task in c.tasks}
    if name not in valid:
        raise unknown_name(f"corruption of {task} episodes", name, valid)
    return valid[name]


def _relearned(episodes: MDPEpisodes, **changed: NDArray[Any]) -> MDPEpisodes:
    """The episodes with other transitions, and the Q-tables that these produce."""
    names = ("states", "actions", "rewards", "next_states")
    transitions = {name: changed.get(name, getattr(episodes, name)) for name in names}
    return MDPEpisodes.from_transitions(
        episodes.mdps,
        **transitions,
        alpha=episodes.alpha,
        gamma=episodes.gamma,
        epsilon=episodes.epsilon,
        initial=episodes.q_tables[:, 0],
        regime=episodes.regime,
        seed=episodes.seed,
    )


def _mixed(values: NDArray[Any], t: int) -> NDArray[Any]:
    """The next episode's rounds before t, then one's own."""
    return np.concatenate([np.roll(values, -1, axis=0)[:, :t], values[:, t:]], axis=1)


def _experts(episodes: Any) -> ExpertEpisodes:
    if not isinstance(episodes, ExpertEpisodes):
        raise InputError(f"this corruption needs expert episodes, got {type(episodes).__name__}")
    return episodes


def _mdp(episodes: Any) -> MDPEpisodes:
    if not isinstance(episodes, MDPEpisodes):
        raise InputError(f"this corruption needs expert or MDP episodes, got {type(episodes).__name__}")
    return episodes


def _round(episodes: ExpertEpisodes | MDPEpisodes, round: int) -> int:
    (t,) = select_rounds(round, episodes.n_rounds)
    return t


def _expert(episodes: ExpertEpisodes, expert: int) -> None:
    require(
        0 <= expert < episodes.n_experts,
        f"expert {expert} does not exist: the episodes have experts 0 to {episodes.n_experts - 1}",
    )
