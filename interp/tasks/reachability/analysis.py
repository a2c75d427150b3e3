"""What interventions and probes need of a model of this task: where variables could be, controls,
corrupted episodes.

All models are compared with parallel breadth-first search. For a learned one its prediction is the
distribution that was trained on, which puts a part on all nodes reached.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp.core.algorithm import Algorithm
from interp.core.machine import Machine
from interp.core.task import Corruption, RoundInputs, Steering, exchange_history, in_one_round
from interp.tasks.places import Model, Place
from interp.tasks.reachability import graphs
from interp.tasks.reachability.algorithms import SPREAD, breadth_first
from interp.tasks.reachability.episodes import ReachabilityEpisodes


def losses(predictions: Tensor, episodes: ReachabilityEpisodes, rounds: slice) -> Tensor:
    """Return the share of the negative candidate among the two; a half where both have none.

    What is below 0, as an untrained copy of a handwired model may give, counts as none.

    Args:
        predictions: ``[*batch, episode, round, node]``.
        episodes: have the candidates.
        rounds: those that were predicted.

    Returns:
        The losses, ``[*batch, episode, round]``.
    """
    target = _chances_of(predictions, episodes.targets)
    negative = _chances_of(predictions, episodes.negatives)
    total = target + negative
    smallest = torch.finfo(total.dtype).tiny
    return torch.where(total == 0, 0.5, negative / total.clamp_min(smallest))


def _chances_of(predictions: Tensor, nodes: NDArray[np.int64]) -> Tensor:
    """Return what predictions ``[..., episode, round, node]`` put on one node of each episode, at least 0."""
    index = torch.from_numpy(nodes).to(predictions.device)[:, None, None]
    shape = (*predictions.shape[:-1], 1)
    chances = predictions.gather(-1, index.expand(shape))
    return chances[..., 0].clamp_min(0)


def hypothesis(model: Machine) -> Algorithm:
    """Return the algorithm that a model is compared with."""
    return breadth_first(0.0 if model.is_handwired else SPREAD)


def round_inputs(episodes: ReachabilityEpisodes) -> RoundInputs:
    """Return root, candidates and degrees, then also the children of the root: what a round says without a search."""
    matrix = graphs.adjacency(episodes.by_round("edges"), episodes.n_nodes)
    indicators = np.eye(episodes.n_nodes)
    roots = episodes.by_round("roots")
    candidates = indicators[episodes.by_round("candidates")].sum(-2)
    degrees = [matrix.sum(-2), matrix.sum(-1)]
    plain = np.concatenate([indicators[roots], candidates, *degrees], axis=-1)
    children = np.take_along_axis(matrix, roots[..., None, None], -2)[..., 0, :]
    return RoundInputs((plain, np.concatenate([plain, children], -1)), roots[..., None])


def claims(machine: Machine) -> tuple[Place, ...]:
    """List where the variables of a round are claimed to be, and where they cannot be."""
    model = Model(machine)
    if not model.has_layers:
        return Place("reached"), Place("reached", outcome="state")
    places = [
        Place("reached", ("latent@<z>",)),
        Place("member", ("resid_post[0]@c_1", "resid_post[0]@c_2")),
        Place("prediction", (model.final("p?"),)),
        Place("reached", ("embed@<w>",), control=True),
        Place("reached", ("latent@<z>",), "state"),
        Place("root", ("embed@r",), "state"),
        *model.below("frontier", "w?", "state"),
        Place("root", ("embed@p?",), "state", control=True),
    ]
    if model.replaces:
        places.append(Place("next_reached", (model.final("w?"),), "state"))
    return tuple(places)


def aligned(machine: Machine) -> tuple[tuple[str, str], ...]:
    """List the variables and sites for learned subspaces; the last is a place that cannot hold the variable."""
    model = Model(machine)
    if not model.has_layers:
        return ("reached", "latent"), ("candidates", "latent")
    return (
        ("reached", "embed@<z>"),
        ("prediction", model.final("p?")),
        ("reached", "embed@<w>"),
    )


def steering() -> Steering:
    """Return the default steering: every node is written into the set, measured by the target's
    probability, which falls from 1 to a half.
    """
    return Steering(
        change=lambda shape: np.ones(shape),
        doses=(-1, 0, 1),
        outcome=lambda episodes, t: episodes.targets,
        what="every node reached",
        shows="P(target)",
    )


# Corruptions.


def _with_edge(episodes: ReachabilityEpisodes, t: int) -> NDArray[np.int64]:
    """Replace an edge by one from the root to the negative: an edge that is listed twice, or the
    one farthest from the root.
    """
    edges = episodes.by_round("edges")[:, t].copy()
    code = edges[..., 0] * episodes.n_nodes + edges[..., 1]
    is_repeated = (code[:, :, None] == code[:, None, :]).sum(-1) > 1
    distance = np.take_along_axis(episodes.distances, edges[..., 0], -1)
    slot = np.where(is_repeated, 2 * episodes.n_nodes, distance).argmax(-1)
    roots = episodes.by_round("roots")[:, t]
    new_edges = np.stack([roots, episodes.negatives], -1)
    edges[np.arange(len(edges)), slot] = new_edges
    return edges


def _without_edges(episodes: ReachabilityEpisodes, t: int) -> NDArray[np.int64]:
    """Replace the edges into the target by self-loops of the root, which have no effect."""
    edges = episodes.by_round("edges")[:, t]
    roots = episodes.by_round("roots")[:, t, None, None]
    is_into_target = edges[..., 1:] == episodes.targets[:, None, None]
    return np.where(is_into_target, roots, edges)


def _moved_target(episodes: ReachabilityEpisodes, t: int) -> NDArray[np.int64]:
    """Move the end of every edge into the target to the negative, so that the search finds the
    negative.
    """
    edges = episodes.by_round("edges")[:, t].copy()
    ends = edges[..., 1]
    is_into_target = ends == episodes.targets[:, None]
    edges[..., 1] = np.where(is_into_target, episodes.negatives[:, None], ends)
    return edges


def _swapped_candidates(episodes: ReachabilityEpisodes, t: int) -> NDArray[np.int64]:
    """Replace the target by the root, which is reached."""
    candidates = episodes.by_round("candidates")[:, t]
    roots = episodes.by_round("roots")[:, t, None]
    is_asked = (candidates == roots).any(-1, keepdims=True)
    is_target = candidates == episodes.targets[:, None]
    return np.where(is_target & ~is_asked, roots, candidates)


def _in_round(
    key: str,
    name: str,
    array: str,
    edit: Callable[[ReachabilityEpisodes, int], NDArray[np.int64]],
    delay: int = 1,
) -> Corruption:
    """Return a corruption of an array in one round alone.

    Args:
        key: of the corruption.
        name: in words.
        array: that is changed.
        edit: episodes and a round to what stands in the array there.
        delay: rounds until a prediction can differ.
    """
    build = in_one_round(array, edit, ReachabilityEpisodes.by_round)
    return Corruption(key, name, delay, build, possible=False)


def corruptions() -> tuple[Corruption, ...]:
    """List the corruptions of this task.

    All but the first change a single round, to separate what a latent holds from what a round
    shows. An edge that is removed there delays what it leads to; the next round finds it again.
    """
    history = partial(
        exchange_history,
        names=("edges", "roots", "candidates"),
        held=ReachabilityEpisodes.by_round,
    )
    return (
        Corruption(
            "exchange-history", "take another episode's history", 0, history, changes_history=True
        ),
        _in_round(
            "swap-candidates",
            "ask about the root instead of the target",
            "candidates",
            _swapped_candidates,
            delay=0,
        ),
        _in_round("add-edge", "add an edge from the root to the negative", "edges", _with_edge),
        _in_round("remove-edges", "take away the edges into the target", "edges", _without_edges),
        _in_round(
            "move-target",
            "lead the edges into the target to the negative",
            "edges",
            _moved_target,
        ),
        _in_round("change-root", "make the negative the root", "roots", lambda e, t: e.negatives),
    )
