"""What interventions and probes ask of a model of reachability: its algorithm, where its variables could be, controls.

Both machines are held against parallel breadth-first search; a learned one against the distribution that it was trained
on, a part of which lies on all nodes reached. A claim is a question to the model, never evidence about it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from interp.algorithm import Algorithm
from interp.display import lacks
from interp.machine import Machine
from interp.task import RoundInputs, Steering
from interp.tasks.reachability import graphs
from interp.tasks.reachability.algorithms import SPREAD, breadth_first
from interp.tasks.reachability.episodes import ReachabilityEpisodes


def losses(predictions: Tensor, episodes: ReachabilityEpisodes, rounds: slice) -> Tensor:
    """The share of the negative candidate among the two, ``[*batch, episode, round]``; a half where both have none."""
    n_episodes, n_rounds = predictions.shape[-3:-1]

    def of(nodes: np.ndarray) -> Tensor:
        index = torch.from_numpy(nodes).to(predictions.device)[:, None, None].expand(n_episodes, n_rounds, 1)
        return predictions.gather(-1, index.expand(*predictions.shape[:-1], 1))[..., 0]

    target, negative = of(episodes.targets), of(episodes.negatives)
    total = target + negative
    return torch.where(total > 0, negative / total.clamp_min(torch.finfo(total.dtype).tiny), 0.5)


def hypothesis(model: Machine) -> Algorithm:
    """The algorithm that a model is held against."""
    return breadth_first(0.0 if model.is_handwired else SPREAD)


def round_inputs(episodes: ReachabilityEpisodes) -> RoundInputs:
    """Root, candidates and degrees; then also the children of the root: what one round says without a search."""
    edges, n = episodes.by_round("edges"), np.eye(episodes.n_nodes)
    matrix = graphs.adjacency(edges, episodes.n_nodes)
    roots, candidates = episodes.by_round("roots"), episodes.by_round("candidates")
    plain = np.concatenate(
        [n[roots], n[candidates].sum(-2), graphs.in_degrees(matrix), graphs.out_degrees(matrix)], axis=-1
    )
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
    written = () if added else ("next_reached",)
    return (
        ("reached", ["latent@<z>"]),
        ("member", [f"resid_post[0]@{label}" for label in ("c_1", "c_2")]),
        ("prediction", [f"resid_post[{last}]@p?"]),
        ("reached", ["embed@<w>"], "prediction", True),
        ("reached", ["latent@<z>"], "state"),
        ("root", ["embed@r"], "state"),
        *(("frontier", [f"resid_post[{layer}]@w?"], "state") for layer in range(last)),
        ("root", ["embed@p?"], "state", True),
        *((key, [f"resid_post[{last}]@w?"], "state") for key in written),
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
