"""Does a model use the set of nodes that its latent seems to hold? Nodes are moved in it, and the answers are read.

A latent from which a set can be decoded may still be idle. Here the set is changed in the round that first knows of the
target, one node at a time, and the model's answer is held against what parallel breadth-first search answers with the
same change: with the negative in the set as well, a half; with a *parent* of the negative in it, nothing at once, and a
half a round later, since the search expands that parent itself. Another node, which leads to no candidate, is the
control: its direction is as long and changes nothing.

    >>> import interp
    >>> from interp.tasks import reachability
    >>> model = interp.load("reachability-handwired", n_nodes=12, n_edges=18)
    >>> table = moved(model, reachability.sample(24, 4, 12, 18, seed=0, depths=(2,)))
    >>> table.set_index(["move", "later"])["model"].round(2).to_dict()[("a parent of the negative is added", 1)]
    0.5
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp.checks import checked
from interp.decoder import Affine
from interp.errors import require
from interp.interventions.steering import write_state
from interp.model.rollout import rollout
from interp.model.transformer import HookedLatentTransformer
from interp.statistics import mean_interval
from interp.tasks.reachability import graphs
from interp.tasks.reachability.algorithms import breadth_first
from interp.tasks.reachability.episodes import ReachabilityEpisodes
from interp.tasks.reachability.hypotheses import losses

Read = Callable[[Tensor], Tensor]
Write = Callable[[Tensor, Tensor], Tensor]
Set = NDArray[Any]
_HOOK = "hook_latents"
PARENT, OTHER = "a parent of the negative is added", "another node is added"
"""The sharpest move, and its control."""


@checked
def codec(model: HookedLatentTransformer, episodes: ReachabilityEpisodes | None = None) -> tuple[Read, Write]:
    """How sets are read from a model's latents, and written into them: two maps.

    ``read`` takes latents ``[..., latent, d_model]`` to ``[..., node]``, above a half where reached; ``write`` takes
    latents and a set to latents that hold it. A handwired model's are exact. A learned model's are least squares, in
    both directions, over a rollout: what varies with a node's membership is what is written.

    Args:
        episodes: what a learned model's maps are fitted on; others than those that are studied.

    Raises:
        InputError: a learned model without episodes.
    """
    if model.is_handwired:
        return model.read_state, partial(write_state, model)
    require(episodes is not None, "a learned model's sets are read by a fitted map; give episodes to fit it on")
    assert episodes is not None
    held = torch.from_numpy(reached(episodes)).flatten(0, 1)
    latents = rollout(model, episodes).latents[:, :-1, 0].flatten(0, 1).double().cpu()
    reading, writing = Affine.fit(latents, held), Affine.fit(held, latents)

    def read(given: Tensor) -> Tensor:
        return reading(given[..., 0, :].double().cpu()).to(given)

    def write(given: Tensor, state: Tensor) -> Tensor:
        change = (state - (read(given) > 0.5).to(state)).double().cpu() @ writing.slopes
        return given + change.unsqueeze(-2).to(given)

    return read, write


def reached(episodes: ReachabilityEpisodes) -> NDArray[np.float64]:
    """The set before every round, Float[episode, round, node]."""
    sets: NDArray[np.float64] = breadth_first().run(episodes)["reached"]
    return sets


# Moves: the set to another set, [episode, node].


def _others(episodes: ReachabilityEpisodes) -> NDArray[np.bool_]:
    """Bool[episode, node]: nodes that are never reached, nor lead to a candidate, nor are one."""
    paths = graphs.closure(graphs.adjacency(episodes.edges, episodes.n_nodes))
    rows = np.arange(len(episodes))
    free = episodes.distances >= episodes.n_nodes
    for candidate in (episodes.targets, episodes.negatives):
        free &= ~paths[rows, :, candidate]
        free[rows, candidate] = False
    return free


def _parents(episodes: ReachabilityEpisodes) -> NDArray[np.bool_]:
    """Bool[episode, node]: nodes with an edge to the negative; none of them is ever reached."""
    matrix = graphs.adjacency(episodes.edges, episodes.n_nodes)
    return np.asarray(matrix[np.arange(len(episodes)), :, episodes.negatives])


def _one(allowed: NDArray[np.bool_], seed: int) -> NDArray[np.float64]:
    """One of the allowed nodes of each episode, all equally likely; none where none is allowed."""
    luck = np.where(allowed, np.random.default_rng(seed).random(allowed.shape), -1.0)
    return np.eye(allowed.shape[-1])[luck.argmax(-1)] * allowed.any(-1, keepdims=True)


def moves(episodes: ReachabilityEpisodes, seed: int = 0) -> dict[str, tuple[Set, Set]]:
    """What is added to the set and what is taken out, by name, each ``[episode, node]``."""
    nodes = np.eye(episodes.n_nodes)
    target, negative, nothing = nodes[episodes.targets], nodes[episodes.negatives], np.zeros_like(nodes[episodes.roots])
    return {
        "nothing": (nothing, nothing),
        "the negative is added": (negative, nothing),
        "the target is taken out": (nothing, target),
        "the negative takes the target's place": (negative, target),
        PARENT: (_one(_parents(episodes), seed), nothing),
        OTHER: (_one(_others(episodes), seed), nothing),
    }


@checked
def moved(
    model: HookedLatentTransformer,
    episodes: ReachabilityEpisodes,
    read: Read | None = None,
    write: Write | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """The target's share of the answer after each move, at once and a round later, beside parallel search's.

    Sets are moved in round d of an episode whose target is d steps away.

    Args:
        episodes: with a round more than the deepest target needs; those in which a move finds no node are left out.
        read, write: as :func:`codec` gives them; a handwired model's own when None.
        seed: of the nodes that are chosen, and of the bootstrap.

    Returns:
        a row a move and delay: ``move``, ``later`` (rounds), ``model`` with ``low`` and ``high`` (95 % over episodes),
        ``search`` (what parallel breadth-first search answers), ``n``.

    Raises:
        InputError: too few rounds, or a learned model without ``read`` and ``write``.
    """
    depths = episodes.depths
    require(
        episodes.n_rounds > depths.max() + 1,
        f"episodes need a round after the deepest target is known, {depths.max() + 2} in all, got {episodes.n_rounds}; "
        "use episodes.with_rounds(...)",
    )
    if read is None or write is None:
        read, write = codec(model)
    before = reached(episodes)[np.arange(len(episodes)), depths]
    rows = []
    for name, (added, removed) in moves(episodes, seed).items():
        possible = (added + removed).any(-1) | (name == "nothing")
        if not possible.any():
            continue
        wanted = np.clip(before + added - removed, 0, 1)
        predictions = _with(model, episodes, wanted, read, write)
        share = 1 - losses(predictions, episodes, slice(None)).double().numpy(force=True)
        for later, searched in enumerate(_searched(episodes, wanted)):
            at = share[np.arange(len(episodes)), depths + later][possible]
            found = mean_interval(at, seed=seed)
            rows.append(
                {
                    "move": name,
                    "later": later,
                    "model": found.estimate,
                    "low": found.low,
                    "high": found.high,
                    "search": float(searched[possible].mean()),
                    "n": int(possible.sum()),
                }
            )
    return pd.DataFrame(rows)


def _with(
    model: HookedLatentTransformer, episodes: ReachabilityEpisodes, wanted: Set, read: Read, write: Write
) -> Tensor:
    """The model's predictions where each episode's set is ``wanted`` in the round of its target's depth."""

    def change(t: int) -> Callable[..., Tensor]:
        now = torch.from_numpy(episodes.depths == t)

        def move(latents: Tensor, hook: Any) -> Tensor:
            chosen = now.to(latents.device)[:, None, None]
            return torch.where(chosen, write(latents, torch.from_numpy(wanted).to(latents)), latents)

        return move

    hooks = {int(t): [(_HOOK, change(int(t)))] for t in np.unique(episodes.depths)}
    return rollout(model, episodes, fwd_hooks=hooks).predictions


def _searched(episodes: ReachabilityEpisodes, wanted: Set) -> tuple[Set, Set]:
    """The target's share after parallel search read the set ``wanted``: at once, and a round later."""
    search, rows = breadth_first(), np.arange(len(episodes))
    inputs = {key: value[:, 0] for key, value in search.read(episodes).items()}
    after, now = search.step({"reached": wanted}, inputs)
    _, then = search.step(after, inputs)
    pairs = ((v["prediction"][rows, episodes.targets], v["prediction"][rows, episodes.negatives]) for v in (now, then))
    first, second = (target / (target + negative) for target, negative in pairs)
    return first, second


@checked
def exact_sets(
    model: HookedLatentTransformer, episodes: ReachabilityEpisodes, read: Read, seed: int = 0
) -> pd.DataFrame:
    """By round, the share of sets that are decoded without an error in any node, with 95 % intervals."""
    held = read(rollout(model, episodes).latents[:, 1:-1]).numpy(force=True) > 0.5
    right = (held == (reached(episodes)[:, 1:] > 0.5)).all(-1)
    return pd.DataFrame(
        [{"round": t + 1, **vars(mean_interval(right[:, t], seed=seed))} for t in range(right.shape[1])]
    )
