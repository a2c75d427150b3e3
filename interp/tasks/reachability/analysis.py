"""What interventions and probes ask of a model of this task: where variables could be, controls, corrupted episodes.

Both machines are held against parallel breadth-first search; a learned one against the distribution that it was trained
on, a part of which lies on all nodes reached.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from interp.core.algorithm import Algorithm
from interp.core.machine import Machine
from interp.core.task import Corruption, RoundInputs, Steering, exchange_history, in_one_round
from interp.tasks.places import Model, Place
from interp.tasks.reachability import graphs
from interp.tasks.reachability.algorithms import SPREAD, breadth_first
from interp.tasks.reachability.episodes import ReachabilityEpisodes


def losses(predictions: Tensor, episodes: ReachabilityEpisodes, rounds: slice) -> Tensor:
    """The share of the negative candidate among the two, ``[*batch, episode, round]``; a half where both have none.

    What is below 0, as an untrained copy of a handwired model may give, counts as none.
    """
    n_episodes, n_rounds = predictions.shape[-3:-1]

    def of(nodes: np.ndarray) -> Tensor:
        index = (
            torch.from_numpy(nodes)
            .to(predictions.device)[:, None, None]
            .expand(n_episodes, n_rounds, 1)
        )
        return predictions.gather(-1, index.expand(*predictions.shape[:-1], 1))[..., 0].clamp_min(0)

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
    plain = np.concatenate(
        [n[roots], n[candidates].sum(-2), matrix.sum(-2), matrix.sum(-1)], axis=-1
    )
    children = np.take_along_axis(matrix, roots[..., None, None], -2)[..., 0, :].astype(np.float64)
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
    """Every node written into the set at once, read in the probability of the target: 1 falls to a half."""
    return Steering(
        change=lambda shape: np.ones(shape),
        doses=(-1, 0, 1),
        outcome=lambda episodes, t: episodes.targets,
        what="every node reached",
        shows="P(target)",
    )


# Corruptions.


def _with_edge(episodes: ReachabilityEpisodes, t: int) -> np.ndarray:
    """An edge from the root to the negative in place of one that is given twice, else of one far from the root."""
    at = episodes.by_round("edges")[:, t].copy()
    code = at[..., 0] * episodes.n_nodes + at[..., 1]
    repeated = (code[:, :, None] == code[:, None, :]).sum(-1) > 1
    slot = np.where(
        repeated, 2 * episodes.n_nodes, np.take_along_axis(episodes.distances, at[..., 0], -1)
    ).argmax(-1)
    at[np.arange(len(at)), slot] = np.stack(
        [episodes.by_round("roots")[:, t], episodes.negatives], -1
    )
    return at


def _without_edges(episodes: ReachabilityEpisodes, t: int) -> np.ndarray:
    """No edge into the target; a self-loop of the root, which changes nothing, fills in."""
    at, roots = episodes.by_round("edges")[:, t], episodes.by_round("roots")[:, t]
    return np.where((at[..., 1] == episodes.targets[:, None])[..., None], roots[:, None, None], at)


def _moved_target(episodes: ReachabilityEpisodes, t: int) -> np.ndarray:
    """Every edge into the target leads to the negative: the search finds the one instead of the other."""
    source, end = np.moveaxis(episodes.by_round("edges")[:, t], -1, 0)
    return np.stack(
        [source, np.where(end == episodes.targets[:, None], episodes.negatives[:, None], end)], -1
    )


def _swapped_candidates(episodes: ReachabilityEpisodes, t: int) -> np.ndarray:
    """The root, which is reached, takes the place of the target."""
    at, roots = episodes.by_round("candidates")[:, t], episodes.by_round("roots")[:, t, None]
    return np.where(
        (at == episodes.targets[:, None]) & ~(at == roots).any(-1, keepdims=True), roots, at
    )


def corruptions() -> tuple[Corruption, ...]:
    """The corruptions of this task.

    All but the first change one round alone, so that what a latent holds and what a round says can be told apart. An
    edge that is taken away there delays what it leads to; the next round finds it again.
    """
    into, question = (
        "lead the edges into the target to the negative",
        "ask about the root instead of the target",
    )
    edits: tuple[tuple[tuple[str, str, int], str, Any], ...] = (
        (("swap-candidates", question, 0), "candidates", _swapped_candidates),
        (("add-edge", "add an edge from the root to the negative", 1), "edges", _with_edge),
        (("remove-edges", "take away the edges into the target", 1), "edges", _without_edges),
        (("move-target", into, 1), "edges", _moved_target),
        (
            ("change-root", "make the negative the root", 1),
            "roots",
            lambda episodes, t: episodes.negatives,
        ),
    )
    by_round = ReachabilityEpisodes.by_round
    history = partial(exchange_history, names=("edges", "roots", "candidates"), held=by_round)
    return (
        Corruption(
            "exchange-history", "take another episode's history", 0, history, changes_history=True
        ),
        *(
            Corruption(*of, in_one_round(array, edit, by_round), possible=False)
            for of, array, edit in edits
        ),
    )
