"""Corruptions of expert advice: from episodes, a pair (clean, corrupted) that differs in one thing at one round.

Both sides share everything else, so whatever patching finds is about that one thing. A label is read after the round's
prediction, so its corruption shows from the next round on.
"""

from __future__ import annotations

from dataclasses import replace

from interp.checks import checked
from interp.errors import require
from interp.task import Corruption, corrupted_round, exchanged
from interp.tasks.experts.episodes import ExpertEpisodes

Pair = tuple[ExpertEpisodes, ExpertEpisodes]


@checked
def flip_vote(episodes: ExpertEpisodes, round: int, expert: int = 0) -> Pair:
    """Flip what one expert (counted from 0) says in one round."""
    t = corrupted_round(episodes, round)
    _expert(episodes, expert)
    advice = episodes.advice.copy()
    advice[:, t, expert] ^= 1
    return episodes, replace(episodes, advice=advice)


@checked
def flip_label(episodes: ExpertEpisodes, round: int) -> Pair:
    """Flip the label of one round."""
    t = corrupted_round(episodes, round)
    labels = episodes.labels.copy()
    labels[:, t] ^= 1
    return episodes, replace(episodes, labels=labels)


@checked
def swap_histories(episodes: ExpertEpisodes, round: int, experts: tuple[int, int] = (0, 1)) -> Pair:
    """Swap what two experts said in every round before ``round``: their records change places, the round does not."""
    t = corrupted_round(episodes, round, history=True)
    first, second = experts
    _expert(episodes, first)
    _expert(episodes, second)
    require(first != second, f"swapping needs two different experts, got {first} twice")
    advice = episodes.advice.copy()
    advice[:, :t, [first, second]] = advice[:, :t, [second, first]]
    return episodes, replace(episodes, advice=advice)


@checked
def exchange_history(episodes: ExpertEpisodes, round: int) -> Pair:
    """Give each episode the history of the next one: all rounds before ``round``, and so its latents."""
    t = corrupted_round(episodes, round, history=True)
    return episodes, replace(episodes, advice=exchanged(episodes.advice, t), labels=exchanged(episodes.labels, t))


def records() -> tuple[Corruption, ...]:
    """The corruptions of this task."""
    return (
        Corruption("flip-vote", "flip one expert's vote", 0, flip_vote, each=_each_expert),
        Corruption("flip-label", "flip the label", 1, flip_label),
        Corruption("swap-histories", "swap two experts' histories", 0, swap_histories, changes_history=True),
        Corruption("exchange-history", "take another episode's history", 0, exchange_history, changes_history=True),
    )


def _each_expert(episodes: ExpertEpisodes) -> dict[str, dict[str, int]]:
    return {f"p_{i + 1}": {"expert": i} for i in range(episodes.n_experts)}


def _expert(episodes: ExpertEpisodes, expert: int) -> None:
    missing = f"expert {expert} does not exist: the episodes have experts 0 to {episodes.n_experts - 1}"
    require(0 <= expert < episodes.n_experts, missing)
