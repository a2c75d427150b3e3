"""Reachability as causal models of one round: parallel breadth-first search, and searches of fewer hops.

    frontier = reached with the root      active_i = [source_i in frontier]
    next_reached = frontier with the targets of active edges
    member_k = [c_k in reached]           prediction: the candidate that is a member; 1/2 each when both or none are

The prediction reads ``reached``, as the root is told only after the question: round t answers from the nodes within t
steps. It is a distribution over nodes. ``spread`` says how much of it lies evenly on all nodes reached instead of on
the candidates: 0 for the algorithm, more for the distribution that models are trained on, whose state would otherwise
be learned from one bit a round.

Numbers off the manifold (a set with half a node) count as members above one half.

The rivals that follow one path are in :mod:`~interp.tasks.reachability.paths`, those that keep nothing in
:mod:`~interp.tasks.reachability.heuristics`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.algorithm import Algorithm, Values, Variable, numbered
from interp.checks import checked
from interp.errors import require
from interp.tasks.reachability.episodes import ReachabilityEpisodes

Array = NDArray[Any]
PER_NODE = numbered("n_")


def inputs(episodes: ReachabilityEpisodes) -> dict[str, Array]:
    """The graph, the root and the candidates, at every round."""
    edges = episodes.by_round("edges")
    return {
        "source": edges[..., 0],
        "target": edges[..., 1],
        "root": episodes.by_round("roots"),
        "candidates": episodes.by_round("candidates"),
        "nodes": np.broadcast_to(np.arange(episodes.n_nodes), (len(episodes), episodes.n_rounds, episodes.n_nodes)),
    }


def empty(episodes: ReachabilityEpisodes) -> Array:
    """The set of no nodes, Float[episode, node]."""
    return np.zeros((len(episodes), episodes.n_nodes))


def n_nodes(values: Values) -> int:
    """Number of names."""
    return int(values["nodes"].shape[-1])


def _node(key: str, symbol: str, meaning: str, labels: Any) -> Variable:
    return Variable(key, symbol, meaning, "class", "input", outputs=labels, kind="class", n_classes=n_nodes)


INPUTS = (
    _node("source", "s_i", "where each edge starts", numbered("s_")),
    _node("target", "t_i", "where each edge ends", numbered("t_")),
    _node("root", "r", "where the search starts", lambda v: ("r",)),
    _node("candidates", "c_k", "the two nodes that are asked about", numbered("c_")),
    _node("nodes", "v", "the names of the nodes", PER_NODE),
)


def indicator(key: str, symbol: str, meaning: str, parents: tuple[str, ...], equation: Any, labels: Any) -> Variable:
    """A variable of zeros and ones."""
    return Variable(key, symbol, meaning, "indicator", parents=parents, equation=equation, outputs=labels)


REACHED = Variable(
    "reached", "z_t", "the nodes that the search holds before the round", "indicator", "state", outputs=PER_NODE
)


def take(values: Array, index: Array) -> Array:
    """``values[..., node]`` at the nodes ``index[..., k]``."""
    return np.take_along_axis(values, index, -1)


def with_node(reached: Array, node: Array) -> Array:
    """A set with one node more."""
    added = np.asarray(reached, dtype=np.float64).copy()
    np.put_along_axis(added, node[..., None], 1.0, -1)
    return added


FRONTIER = indicator(
    "frontier",
    "F_t",
    "the nodes that the round expands: those reached, and the root",
    ("reached", "root"),
    lambda v: with_node(v["reached"], v["root"]),
    PER_NODE,
)
MEMBER = indicator(
    "member",
    "[c_k in z_t]",
    "whether each candidate is reached",
    ("reached", "candidates"),
    lambda v: (take(v["reached"], v["candidates"]) > 0.5).astype(np.float64),
    numbered("c_"),
)
ACTIVE = indicator(
    "active",
    "[s_i in F_t]",
    "whether each edge starts at a node that the round expands",
    ("frontier", "source"),
    lambda v: (take(v["frontier"], v["source"]) > 0.5).astype(np.float64),
    numbered("e_"),
)


def prediction(spread: float) -> Variable:
    """The distribution over nodes: reached candidates share it, but for what lies on all nodes reached."""

    def equation(v: Values) -> Array:
        answer = between(shares(v["member"]), v["candidates"], n_nodes(v))
        if not spread:
            return answer
        held = (v["reached"] > 0.5).astype(np.float64)
        number = held.sum(-1, keepdims=True)
        return np.where(number > 0, (1 - spread) * answer + spread * held / np.maximum(number, 1), answer)

    return Variable(
        "prediction", "P(v)", "the probability that each node is the answer", "probability",
        parents=("member", "candidates", "reached", "nodes"), equation=equation, outputs=PER_NODE,
    )  # fmt: skip


def shares(scores: Array) -> Array:
    """How two candidates share the answer, ``[..., 2]``: all of it for the higher score, halves on ties."""
    difference = np.sign(scores[..., :1] - scores[..., 1:])
    return np.concatenate([0.5 + difference / 2, 0.5 - difference / 2], -1)


def between(share: Array, candidates: Array, n: int) -> Array:
    """The distribution over nodes ``[..., node]`` that puts ``share`` ``[..., 2]`` on the candidates."""
    answer = np.zeros((*share.shape[:-1], n))
    np.put_along_axis(answer, candidates, share, -1)
    return answer


def expanded(v: Values) -> Array:
    """The frontier, with the targets of active edges."""
    following = np.array(np.broadcast_to(v["frontier"] > 0.5, v["frontier"].shape), dtype=np.float64)
    edges, ends = v["active"] > 0.5, v["target"]
    flat, where = following.reshape(-1, following.shape[-1]), np.broadcast_to(ends, edges.shape)
    rows, columns = np.nonzero(edges.reshape(len(flat), -1))
    flat[rows, where.reshape(len(flat), -1)[rows, columns]] = 1.0
    return flat.reshape(following.shape)


def _search(
    key: str, name: str, parameters: dict[str, Any], round_: tuple[Variable, ...], spread: float, **others: Any
) -> Algorithm:
    return Algorithm(
        key=key,
        name=name,
        task="reachability",
        parameters={**parameters, "spread": spread},
        variables=(*INPUTS, REACHED, *others.pop("state", ()), FRONTIER, MEMBER, ACTIVE, prediction(spread), *round_),
        inputs=inputs,
        initial=others.pop("initial", lambda episodes: {"reached": empty(episodes)}),
        distribution=lambda v: v["prediction"],
        memory="reached",
        written="next_reached",
    )


def _check(spread: float) -> None:
    require(0.0 <= spread < 1.0, f"spread must lie in [0, 1), got {spread!r}")


@checked
def breadth_first(spread: float = 0.0) -> Algorithm:
    """Parallel breadth-first search: every round expands all nodes reached.

    >>> breadth_first().state, breadth_first().written
    (('reached',), 'next_reached')

    Args:
        spread: share of the prediction that lies evenly on the nodes reached, in [0, 1).

    Raises:
        InputError: ``spread`` outside its range.
    """
    _check(spread)
    following = indicator(
        "next_reached",
        "z_{t+1}",
        "the nodes that the search holds after the round",
        ("frontier", "active", "target"),
        expanded,
        PER_NODE,
    )
    return _search("breadth_first", "parallel breadth-first search", {}, (following,), spread)


@checked
def depth_limited(hops: int = 2, spread: float = 0.0) -> Algorithm:
    """Breadth-first search that stops after ``hops`` rounds: it never sees farther than that.

    Raises:
        InputError: ``hops`` below 1, or ``spread`` outside its range.
    """
    _check(spread)
    require(hops >= 1, f"hops must be an integer >= 1, got {hops!r}")
    round_ = (
        indicator(
            "next_reached",
            "z_{t+1}",
            "the nodes that the search holds after the round",
            ("frontier", "active", "target", "reached", "elapsed"),
            lambda v: np.where(v["elapsed"][..., None] < hops, expanded(v), v["reached"]),
            PER_NODE,
        ),
        Variable(
            "next_elapsed",
            "t + 1",
            "rounds, this one included",
            "rounds",
            parents=("elapsed",),
            equation=lambda v: v["elapsed"] + 1,
        ),
    )
    return _search(
        "depth_limited",
        f"breadth-first search of {hops} hop{'s' * (hops > 1)}",
        {"hops": hops},
        round_,
        spread,
        state=(Variable("elapsed", "t", "rounds before this one", "rounds", "state"),),
        initial=lambda episodes: {"reached": empty(episodes), "elapsed": np.zeros(len(episodes), np.int64)},
    )
