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
def flip_vote(episodes: ExpertEpisodes, round: int, expert: int | str = 0) -> Pair:
    """Flip what one expert says in one round: its index, counted from 0, or the label of its vote, such as "p_1"."""
    t = corrupted_round(episodes, round)
    index = _expert(episodes, expert)
    advice = episodes.advice.copy()
    advice[:, t, index] ^= 1
    return episodes, replace(episodes, advice=advice)


@checked
def flip_label(episodes: ExpertEpisodes, round: int) -> Pair:
    """Flip the label of one round."""
    t = corrupted_round(episodes, round)
    labels = episodes.labels.copy()
    labels[:, t] ^= 1
    return episodes, replace(episodes, labels=labels)


@checked
def swap_histories(episodes: ExpertEpisodes, round: int, experts: tuple[int | str, int | str] = ("p_1", "p_2")) -> Pair:
    """Swap what two experts said in every round before ``round``: their records change places, the round does not.

    An expert is named as in :func:`flip_vote`.
    """
    t = corrupted_round(episodes, round, history=True)
    first, second = (_expert(episodes, expert) for expert in experts)
    require(first != second, f"swapping needs two different experts, got {experts[0]} and {experts[1]}")
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


def _expert(episodes: ExpertEpisodes, expert: int | str) -> int:
    """The index of an expert that is given by its index or by the label of its vote."""
    labels, n = [f"p_{i + 1}" for i in range(episodes.n_experts)], episodes.n_experts
    if expert in labels:
        return labels.index(str(expert))
    known = isinstance(expert, int) and 0 <= expert < n
    require(known, f"expert {expert} does not exist: the episodes have experts 0 to {n - 1}, or p_1 to p_{n}")
    return int(expert)
