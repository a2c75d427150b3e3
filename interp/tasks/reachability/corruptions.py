"""Corruptions of reachability episodes: a pair (clean, corrupted) that differs in one thing at one round.

The graph of one round is changed and all others stay, so that what a latent holds and what a round says can be told
apart. An edge that is taken away in one round delays what it leads to; the next round finds it again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from interp.task import Corruption, corrupted_round, exchanged
from interp.tasks.reachability.episodes import ReachabilityEpisodes

_Pair = tuple[ReachabilityEpisodes, ReachabilityEpisodes]


def _exchange_history(episodes: ReachabilityEpisodes, round: int) -> _Pair:
    """Give each episode the history of the next one: all rounds before ``round``, and so its set of nodes reached."""
    t = corrupted_round(episodes, round, history=True)
    arrays: dict[str, Any] = {name: exchanged(episodes.by_round(name), t) for name in ("edges", "roots", "candidates")}
    return episodes, replace(episodes, **arrays)


def _add_edge(episodes: ReachabilityEpisodes, round: int) -> _Pair:
    """Add an edge from the root to the negative candidate in one round, in place of an edge that is given twice.

    Where no edge is given twice, one that starts farthest from the root gives way.
    """
    t = corrupted_round(episodes, round)
    edges = episodes.by_round("edges").copy()
    at = edges[:, t]
    code = at[..., 0] * episodes.n_nodes + at[..., 1]
    repeated = (code[:, :, None] == code[:, None, :]).sum(-1) > 1
    far = np.take_along_axis(episodes.distances, at[..., 0], -1)
    slot = np.where(repeated, 2 * episodes.n_nodes, far).argmax(-1)
    at[np.arange(len(at)), slot] = np.stack([episodes.by_round("roots")[:, t], episodes.negatives], -1)
    return episodes, replace(episodes, edges=edges)


def _remove_edges(episodes: ReachabilityEpisodes, round: int) -> _Pair:
    """Take away every edge into the target in one round; a self-loop of the root, which changes nothing, fills in."""
    t = corrupted_round(episodes, round)
    edges, roots = episodes.by_round("edges").copy(), episodes.by_round("roots")[:, t]
    into = edges[:, t, :, 1] == episodes.targets[:, None]
    edges[:, t] = np.where(into[..., None], roots[:, None, None], edges[:, t])
    return episodes, replace(episodes, edges=edges)


def _move_target(episodes: ReachabilityEpisodes, round: int) -> _Pair:
    """Lead every edge into the target to the negative in one round: the search finds the one instead of the other."""
    t = corrupted_round(episodes, round)
    edges = episodes.by_round("edges").copy()
    into = edges[:, t, :, 1] == episodes.targets[:, None]
    edges[:, t, :, 1] = np.where(into, episodes.negatives[:, None], edges[:, t, :, 1])
    return episodes, replace(episodes, edges=edges)


def _change_root(episodes: ReachabilityEpisodes, round: int) -> _Pair:
    """Make the negative candidate the root of one round."""
    t = corrupted_round(episodes, round)
    roots = episodes.by_round("roots").copy()
    roots[:, t] = episodes.negatives
    return episodes, replace(episodes, roots=roots)


def _swap_candidates(episodes: ReachabilityEpisodes, round: int) -> _Pair:
    """Ask about another pair in one round: the root, which is reached, takes the place of the target."""
    t = corrupted_round(episodes, round)
    candidates = episodes.by_round("candidates").copy()
    roots = episodes.by_round("roots")[:, t]
    replaced = (candidates[:, t] == episodes.targets[:, None]) & ~(candidates[:, t] == roots[:, None]).any(-1)[:, None]
    candidates[:, t] = np.where(replaced, roots[:, None], candidates[:, t])
    return episodes, replace(episodes, candidates=candidates)


def records() -> tuple[Corruption, ...]:
    """The corruptions of this task."""
    return (
        Corruption("exchange-history", "take another episode's history", 0, _exchange_history, changes_history=True),
        Corruption("swap-candidates", "ask about the root instead of the target", 0, _swap_candidates, possible=False),
        Corruption("add-edge", "add an edge from the root to the negative", 1, _add_edge, possible=False),
        Corruption("remove-edges", "take away the edges into the target", 1, _remove_edges, possible=False),
        Corruption("move-target", "lead the edges into the target to the negative", 1, _move_target, possible=False),
        Corruption("change-root", "make the negative the root", 1, _change_root, possible=False),
    )
