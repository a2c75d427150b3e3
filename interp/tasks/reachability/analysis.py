"""Probes and interventions for this task: hypotheses about sites, controls, corruptions, steering.

All models are compared with parallel breadth-first search. For a learned model, the search has the
``spread`` of the model's training target: the share of its prediction that is uniform over all
reached nodes.
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
from interp.core.task import Corruption, RoundInputs, Steering, corrupt_one_round, exchange_history
from interp.tasks.places import Model, Place
from interp.tasks.reachability import graphs
from interp.tasks.reachability.algorithms import SPREAD, breadth_first
from interp.tasks.reachability.episodes import ReachabilityEpisodes


def losses(predictions: Tensor, episodes: ReachabilityEpisodes, rounds: slice) -> Tensor:
    """Return the loss of predictions: the probability of the wrong candidate, divided by the
    probability of both candidates together; 1/2 if both have probability 0.

    Negative predictions, which an untrained copy of a handwired model may make, count as 0.

    Args:
        predictions: predicted probability of each node, ``[*batch, episode, round, node]``.
        episodes: the episodes, which have the candidates.
        rounds: slice of the episodes' rounds to which the predictions belong; not used, since
            candidates are the same in all rounds.

    Returns:
        The losses, ``[*batch, episode, round]``.
    """
    target = _gather_chances(predictions, episodes.targets)
    negative = _gather_chances(predictions, episodes.negatives)
    total = target + negative
    smallest = torch.finfo(total.dtype).tiny  # instead of a division by 0, whose gradient is NaN
    return torch.where(total == 0, 0.5, negative / total.clamp_min(smallest))


def _gather_chances(predictions: Tensor, nodes: NDArray[np.int64]) -> Tensor:
    """Return the predicted probability of one node per episode, at least 0,
    ``[..., episode, round]``.

    Args:
        predictions: predicted probability of each node, ``[..., episode, round, node]``.
        nodes: index of the node in each episode, ``[episode]``.
    """
    index = torch.from_numpy(nodes).to(predictions.device)[:, None, None]
    shape = (*predictions.shape[:-1], 1)
    chances = predictions.gather(-1, index.expand(shape))
    return chances[..., 0].clamp_min(0)


def hypothesis(model: Machine) -> Algorithm:
    """Return the algorithm with which a model is compared: breadth-first search.

    The algorithm's ``spread`` is the share of the predicted probability that is divided evenly
    among all reached nodes. It is 0 for a handwired model; for other models it is .6, as in the
    target of training.
    """
    return breadth_first(0.0 if model.is_handwired else SPREAD)


def round_inputs(episodes: ReachabilityEpisodes) -> RoundInputs:
    """Return what a model reads in each round, for two controls of probes. A probe decodes a
    target, such as a variable of the algorithm, from latents.

    The control without memory decodes the target from the inputs of the round alone, by the same
    method as the probe, such as ridge regression. If this control succeeds, the probe's success is
    no evidence of memory. A round's input is a graph, the root from which a search starts, and
    two candidates, of which one can be reached. Since some methods cannot combine inputs, the
    control tries two encodings and uses the better one: (1) codes of the root and of the
    candidates, and the in-degree and out-degree of all nodes; (2) all of these and the children of
    the root. No search is needed to compute them.

    The other control, the control task, replaces the target by random values that are equal in
    rounds with equal inputs (``kinds``).

    Args:
        episodes: the episodes, with n nodes.

    Returns:
        ``features``: the two encodings, ``[episode, round, 4 n]`` and ``[episode, round, 5 n]``.
        ``kinds``: the root's index, ``[episode, round, 1]``.
    """
    n_nodes, by_round = episodes.n_nodes, episodes.by_round
    matrix = graphs.adjacency(by_round("edges"), n_nodes)  # [episode, round, source, target]
    indicators = np.eye(n_nodes)
    roots = by_round("roots")
    candidates = indicators[by_round("candidates")].sum(-2)  # 1 at both candidates
    degrees = [matrix.sum(-2), matrix.sum(-1)]  # in-degree, out-degree
    plain = np.concatenate([indicators[roots], candidates, *degrees], axis=-1)
    # The root's row of each adjacency matrix, [episode, round, node].
    children = np.take_along_axis(matrix, roots[..., None, None], -2)[..., 0, :]
    with_children = np.concatenate([plain, children], -1)
    # Graphs and candidates hardly ever repeat: with them, each episode would be a kind of its own.
    return RoundInputs(features=(plain, with_children), kinds=roots[..., None])


def claims(machine: Machine) -> tuple[Place, ...]:
    """Return the hypotheses that interchange interventions test on a model, with controls.

    Each hypothesis is a :class:`~interp.tasks.places.Place`. It says that activation sites of the
    model, such as the embedding at position ``r``, hold a variable of the algorithm, such as the
    root. Exchanging the activations should change the round's prediction or, with
    ``outcome="state"``, the state after the round. A control is a hypothesis about sites that
    cannot hold the variable.

    Args:
        machine: the model. If it has no layers, the hypotheses are about its whole state.
    """
    model = Model(machine)
    if not model.has_layers:
        return Place("reached"), Place("reached", outcome="state")
    # Positions: <w> is an attention sink, <z> the latent, c_1 and c_2 the candidates, p? where the
    # model predicts, r the root, and w? where it writes the new latent.
    places = [
        Place("reached", ("latent@<z>",)),
        Place("member", ("resid_post[0]@c_1", "resid_post[0]@c_2")),
        Place("prediction", (model.name_last_residual("p?"),)),
        Place("reached", ("embed@<w>",), control=True),
        Place("reached", ("latent@<z>",), outcome="state"),
        Place("root", ("embed@r",), outcome="state"),
        *model.list_places_before_last("frontier", "w?", outcome="state"),
        Place("root", ("embed@p?",), outcome="state", control=True),
    ]
    if model.replaces_latents:  # otherwise an update writes only the change
        places.append(Place("next_reached", (model.name_last_residual("w?"),), outcome="state"))
    return tuple(places)


def aligned(machine: Machine) -> tuple[tuple[str, str], ...]:
    """Return pairs (variable of the algorithm, activation site) such as ``("prediction",
    "resid_post[1]@p?")``, for distributed alignment search. The search fits the subspace of the site's
    activations that holds the variable. This example's site is the residual stream after block 1,
    at position ``p?`` of the round.

    The last pair is a control: its site cannot hold its variable.

    Args:
        machine: the model.
    """
    model = Model(machine)
    if not model.has_layers:
        return ("reached", "latent"), ("candidates", "latent")
    return (
        ("reached", "embed@<z>"),
        ("prediction", model.name_last_residual("p?")),
        ("reached", "embed@<w>"),
    )


def steering() -> Steering:
    """Return the default steering, which changes the state in a model's latents and measures the
    effect on predictions. It adds the dose (-1, 0 or 1) to every node's entry in the set of reached
    nodes, and measures the predicted probability of the correct candidate.

    With dose 1 all nodes are in the set. In a handwired model the probability then falls from 1 to
    1/2, since both candidates are reached.
    """
    return Steering(
        change=lambda shape: np.ones(shape),
        doses=(-1, 0, 1),
        outcome=lambda episodes, t: episodes.targets,
        what="every node reached",
        shows="P(target)",
    )


# Corruptions.


def _add_edge(episodes: ReachabilityEpisodes, t: int) -> NDArray[np.int64]:
    """Return the edges of round ``t``, ``[episode, edge, 2]``, with one of them replaced by an edge
    from the root to the wrong candidate.

    If an edge is listed more than once, one of its copies is replaced, so that the graph loses no
    edge. Otherwise the edge is replaced whose source is farthest from the root.
    """
    edges = episodes.by_round("edges")[:, t].copy()
    # One number for each edge, equal for equal edges, [episode, edge].
    code = edges[..., 0] * episodes.n_nodes + edges[..., 1]
    is_repeated = (code[:, :, None] == code[:, None, :]).sum(-1) > 1
    distance = np.take_along_axis(episodes.distances, edges[..., 0], -1)  # of each edge's source
    beyond_all = 2 * episodes.n_nodes  # more than any distance: repeated edges come first
    slot = np.where(is_repeated, beyond_all, distance).argmax(-1)
    roots = episodes.by_round("roots")[:, t]
    new_edges = np.stack([roots, episodes.negatives], -1)
    edges[np.arange(len(edges)), slot] = new_edges
    return edges


def _remove_edges(episodes: ReachabilityEpisodes, t: int) -> NDArray[np.int64]:
    """Return the edges of round ``t``, ``[episode, edge, 2]``, with a self-loop of the root, which
    has no effect, in place of each edge into the target.
    """
    edges = episodes.by_round("edges")[:, t]
    roots = episodes.by_round("roots")[:, t, None, None]
    is_into_target = edges[..., 1:] == episodes.targets[:, None, None]
    return np.where(is_into_target, roots, edges)


def _move_target(episodes: ReachabilityEpisodes, t: int) -> NDArray[np.int64]:
    """Return the edges of round ``t``, ``[episode, edge, 2]``, in which all edges into the target
    lead to the wrong candidate instead, so that a search finds it.
    """
    edges = episodes.by_round("edges")[:, t].copy()
    ends = edges[..., 1]
    is_into_target = ends == episodes.targets[:, None]
    edges[..., 1] = np.where(is_into_target, episodes.negatives[:, None], ends)
    return edges


def _swap_candidates(episodes: ReachabilityEpisodes, t: int) -> NDArray[np.int64]:
    """Return the candidates of round ``t``, ``[episode, 2]``, with the target replaced by the root,
    which is always reached. Candidates that include the root already are unchanged.
    """
    candidates = episodes.by_round("candidates")[:, t]
    roots = episodes.by_round("roots")[:, t, None]
    has_root = (candidates == roots).any(-1, keepdims=True)
    is_target = candidates == episodes.targets[:, None]
    return np.where(is_target & ~has_root, roots, candidates)


def _corrupt_round(
    key: str,
    name: str,
    array: str,
    edit: Callable[[ReachabilityEpisodes, int], NDArray[np.int64]],
    delay: int = 1,
) -> Corruption:
    """Return a corruption that changes one array in one round.

    Args:
        key: key of the corruption.
        name: name of the corruption in sentences.
        array: name of the array: "edges", "roots" or "candidates".
        edit: function ``(episodes, round)`` -> the array's new values in that round.
        delay: number of rounds from the corrupted round to the first prediction that can differ.
    """
    build = corrupt_one_round(array, edit, ReachabilityEpisodes.by_round)
    # Not possible: the sampler gives all rounds of an episode the same graph and question.
    return Corruption(key, name, delay=delay, build=build, possible=False)


def corruptions() -> tuple[Corruption, ...]:
    """Return the corruptions with which activation patching makes pairs (clean, corrupted) of
    episodes. Each acts at one round t.

    There are two kinds, which show whether an activation in round t depends on the latents or on
    the tokens of the round:

    - "exchange-history" replaces the rounds before t by those of the next episode. Round t then
      reads other latents and the same tokens.
    - "swap-candidates", "add-edge", "remove-edges", "move-target" and "change-root" change only the
      tokens of round t. Round t then reads the same latents and other tokens.

    A change of the tokens of round t lasts for this round only. For example, if the edges into the
    target are removed in the round in which a search would reach the target, the search reaches the
    target one round later.
    """
    history = partial(
        exchange_history,
        names=("edges", "roots", "candidates"),
        get_array=ReachabilityEpisodes.by_round,
    )
    return (
        Corruption(
            "exchange-history",
            "take another episode's history",
            delay=0,
            build=history,
            changes_history=True,
        ),
        _corrupt_round(
            "swap-candidates",
            "ask about the root instead of the target",
            "candidates",
            _swap_candidates,
            delay=0,  # candidates are read before the prediction of the round
        ),
        _corrupt_round("add-edge", "add an edge from the root to the negative", "edges", _add_edge),
        _corrupt_round(
            "remove-edges", "take away the edges into the target", "edges", _remove_edges
        ),
        _corrupt_round(
            "move-target",
            "lead the edges into the target to the negative",
            "edges",
            _move_target,
        ),
        _corrupt_round(
            "change-root", "make the negative the root", "roots", lambda e, t: e.negatives
        ),
    )
