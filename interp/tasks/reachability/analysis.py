"""What interventions and probes ask of a model of reachability: its algorithm, where its variables could be, controls,
and corruptions of episodes, pairs (clean, corrupted) that differ in one thing at one round.

Both machines are held against parallel breadth-first search; a learned one against the distribution that it was trained
on, a part of which lies on all nodes reached. A claim is a question to the model, never evidence about it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from interp.algorithm import Algorithm
from interp.display import lacks
from interp.machine import Machine
from interp.task import Corruption, RoundInputs, Steering, corrupted_round, exchanged
from interp.tasks.reachability import graphs
from interp.tasks.reachability.algorithms import SPREAD, breadth_first
from interp.tasks.reachability.episodes import ReachabilityEpisodes

_Pair = tuple[ReachabilityEpisodes, ReachabilityEpisodes]
_Edit = Callable[[ReachabilityEpisodes, int], np.ndarray]
"""Episodes and a round to what an array of theirs is in that round, ``[episode, ...]``."""


def losses(predictions: Tensor, episodes: ReachabilityEpisodes, rounds: slice) -> Tensor:
    """The share of the negative candidate among the two, ``[*batch, episode, round]``; a half where both have none."""
    n_episodes, n_rounds = predictions.shape[-3:-1]

    def of(nodes: np.ndarray) -> Tensor:
        index = torch.from_numpy(nodes).to(predictions.device)[:, None, None].expand(n_episodes, n_rounds, 1)
        return predictions.gather(-1, index.expand(*predictions.shape[:-1], 1))[..., 0]

    target, negative = of(episodes.targets), of(episodes.negatives)
    total = target + negative
    return torch.where(total == 0, 0.5, negative / total.clamp_min(torch.finfo(total.dtype).tiny))


def hypothesis(model: Machine) -> Algorithm:
    """The algorithm that a model is held against."""
    return breadth_first(0.0 if model.is_handwired else SPREAD)


def round_inputs(episodes: ReachabilityEpisodes) -> RoundInputs:
    """Root, candidates and degrees; then also the children of the root: what one round says without a search."""
    edges, n = episodes.by_round("edges"), np.eye(episodes.n_nodes)
    matrix = graphs.adjacency(edges, episodes.n_nodes)
    roots, candidates = episodes.by_round("roots"), episodes.by_round("candidates")
    plain = np.concatenate([n[roots], n[candidates].sum(-2), matrix.sum(-2), matrix.sum(-1)], axis=-1)
    children = np.take_along_axis(matrix, roots[..., None, None], -2)[..., 0, :].astype(np.float64)
    return RoundInputs((plain, np.concatenate([plain, children], -1)), roots[..., None])


def aligned(model: Machine) -> tuple[tuple[str, str], ...]:
    """Subspaces to learn, (variable, site): the set reached, the answer; then a place that cannot hold it."""
    if lacks(model, "embed", "resid_post"):
        return (("reached", "latent"), ("candidates", "latent"))
    last = model.points["resid_post"].n_layers - 1
    return (("reached", "embed@<z>"), ("prediction", f"resid_post[{last}]@p?"), ("reached", "embed@<w>"))


def claims(model: Machine) -> tuple[tuple[Any, ...], ...]:
    """Where a model could hold the search's variables, by whole activations, and where it cannot."""
    if lacks(model, "embed", "resid_post"):
        return (("reached", None), ("reached", None, "state"))
    last = model.points["resid_post"].n_layers - 1
    # An update that is added to its slot holds what changes, and not the whole set.
    added = getattr(getattr(model, "config", None), "latent_update", "replace") == "add"
    return (
        ("reached", ["latent@<z>"]),
        ("member", [f"resid_post[0]@{label}" for label in ("c_1", "c_2")]),
        ("prediction", [f"resid_post[{last}]@p?"]),
        ("reached", ["embed@<w>"], "prediction", True),
        ("reached", ["latent@<z>"], "state"),
        ("root", ["embed@r"], "state"),
        *(("frontier", [f"resid_post[{layer}]@w?"], "state") for layer in range(last)),
        ("root", ["embed@p?"], "state", True),
        *((key, [f"resid_post[{last}]@w?"], "state") for key in (() if added else ("next_reached",))),
    )


def steering() -> Steering:
    """Every node written into the set at once, read in the probability of the target: 1 falls to a half."""
    return Steering(
        change=lambda shape: np.ones(shape),
        doses=(-1, 0, 1),
        outcome=lambda episodes, t: episodes.targets,
        what="every node reached",
        shows="P(target)",
    )


# Corruptions.


def _exchange_history(episodes: ReachabilityEpisodes, round: int) -> _Pair:
    """Give each episode the history of the next one: all rounds before ``round``, and so its set of nodes reached."""
    t = corrupted_round(episodes, round, history=True)
    arrays: dict[str, Any] = {name: exchanged(episodes.by_round(name), t) for name in ("edges", "roots", "candidates")}
    arrays["missing"] = exchanged(~episodes.counted, t)
    return episodes, replace(episodes, **arrays)


def _in_one_round(key: str, name: str, delay: int, array: str, edit: _Edit) -> Corruption:
    """The array changes in one round alone, so that what a latent holds and what a round says can be told apart."""

    def build(episodes: ReachabilityEpisodes, round: int) -> _Pair:
        t, changed = corrupted_round(episodes, round), episodes.by_round(array).copy()
        changed[:, t] = edit(episodes, t)
        arrays: dict[str, Any] = {array: changed}
        return episodes, replace(episodes, **arrays)

    return Corruption(key, name, delay, build, possible=False)


def _with_edge(episodes: ReachabilityEpisodes, t: int) -> np.ndarray:
    """An edge from the root to the negative in place of one that is given twice, else of one far from the root."""
    at = episodes.by_round("edges")[:, t].copy()
    code = at[..., 0] * episodes.n_nodes + at[..., 1]
    repeated = (code[:, :, None] == code[:, None, :]).sum(-1) > 1
    far = np.take_along_axis(episodes.distances, at[..., 0], -1)
    slot = np.where(repeated, 2 * episodes.n_nodes, far).argmax(-1)
    at[np.arange(len(at)), slot] = np.stack([episodes.by_round("roots")[:, t], episodes.negatives], -1)
    return at


def _without_edges(episodes: ReachabilityEpisodes, t: int) -> np.ndarray:
    """No edge into the target; a self-loop of the root, which changes nothing, fills in."""
    at, roots = episodes.by_round("edges")[:, t], episodes.by_round("roots")[:, t]
    return np.where((at[..., 1] == episodes.targets[:, None])[..., None], roots[:, None, None], at)


def _moved_target(episodes: ReachabilityEpisodes, t: int) -> np.ndarray:
    """Every edge into the target leads to the negative: the search finds the one instead of the other."""
    source, end = np.moveaxis(episodes.by_round("edges")[:, t], -1, 0)
    return np.stack([source, np.where(end == episodes.targets[:, None], episodes.negatives[:, None], end)], -1)


def _swapped_candidates(episodes: ReachabilityEpisodes, t: int) -> np.ndarray:
    """The root, which is reached, takes the place of the target."""
    at, roots = episodes.by_round("candidates")[:, t], episodes.by_round("roots")[:, t, None]
    return np.where((at == episodes.targets[:, None]) & ~(at == roots).any(-1, keepdims=True), roots, at)


def corruptions() -> tuple[Corruption, ...]:
    """The corruptions of this task.

    An edge that is taken away in one round delays what it leads to; the next round finds it again.
    """
    into, question = "lead the edges into the target to the negative", "ask about the root instead of the target"
    return (
        Corruption("exchange-history", "take another episode's history", 0, _exchange_history, changes_history=True),
        _in_one_round("swap-candidates", question, 0, "candidates", _swapped_candidates),
        _in_one_round("add-edge", "add an edge from the root to the negative", 1, "edges", _with_edge),
        _in_one_round("remove-edges", "take away the edges into the target", 1, "edges", _without_edges),
        _in_one_round("move-target", into, 1, "edges", _moved_target),
        _in_one_round("change-root", "make the negative the root", 1, "roots", lambda episodes, t: episodes.negatives),
    )
