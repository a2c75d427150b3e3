"""Searches that hold one path and add one node a round, as a chain of thought in discrete tokens does.

``visits`` counts when a node was visited (the root 1, the next node 2, ...; 0 for nodes that were not), so that the
last one is the largest; ``reached`` are the nodes with a visit. The first round visits the root and one child, so that
round t holds at most t steps, as breadth-first search does.

* depth-first: the next node is the first child (in the order of the edges) of the last visited node that has a child
  without a visit: it backtracks, and finds every node that can be reached, one a round;
* random walk: the next node is a child of the last one, all equally likely; at a sink it starts again at the root.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.algorithm import Algorithm, Values, Variable
from interp.checks import checked
from interp.tasks.reachability import algorithms
from interp.tasks.reachability.episodes import ReachabilityEpisodes

Array = NDArray[Any]

VISITS = Variable(
    "visits", "k_v", "when each node was visited, 0 where it was not", "count", "state", outputs=algorithms.PER_NODE
)
REACHED = algorithms.indicator(
    "reached",
    "z_t",
    "the nodes that were visited",
    ("visits",),
    lambda v: (v["visits"] > 0).astype(np.float64),
    algorithms.PER_NODE,
)
STARTED = Variable(
    "started",
    "k_v with r",
    "the visits, the root's included",
    "count",
    parents=("visits", "root", "nodes"),
    equation=lambda v: np.maximum(v["visits"], (v["nodes"] == v["root"][..., None]).astype(np.float64)),
    outputs=algorithms.PER_NODE,
)


def _from(v: Values) -> tuple[Array, Array]:
    """When the source and the target of each edge were visited, ``[..., edge]`` each."""
    return algorithms.take(v["started"], v["source"]), algorithms.take(v["started"], v["target"])


def _visited(v: Values, edge: Array, moves: Array) -> Array:
    """The visits after a step along ``edge`` ``[...]``, where there is one to take."""
    node = np.take_along_axis(np.broadcast_to(v["target"], (*edge.shape, v["target"].shape[-1])), edge[..., None], -1)
    after = v["started"].copy()
    latest = v["started"].max(-1, keepdims=True) + 1
    np.put_along_axis(after, node, np.where(moves[..., None], latest, algorithms.take(after, node)), -1)
    return after


def _deeper(v: Values) -> Array:
    """A step to the first child without a visit, from the last visited node that has one."""
    source, target = _from(v)
    rank = np.where((source > 0) & (target == 0), source, 0)
    return _visited(v, rank.argmax(-1), rank.max(-1) > 0)


def _anywhere(v: Values) -> Array:
    """A step to a random child of the last node; back to the root's children at a sink."""
    source, _ = _from(v)
    at = source == v["started"].max(-1, keepdims=True)
    home = v["source"] == v["root"][..., None]
    open_ = np.where(at.any(-1, keepdims=True), at, home)
    rank = np.floor(v["luck"] * open_.sum(-1)) + 1
    edge = (open_.cumsum(-1) >= rank[..., None]).argmax(-1)
    return _visited(v, edge, open_.any(-1))


def _path(key: str, name: str, step: Any, extra: tuple[Variable, ...], inputs: Any) -> Algorithm:
    needs = ("started", "source", "target", "root", *(variable.key for variable in extra))
    following = Variable(
        "next_visits", "k_v'", "the visits after the round", "count",
        parents=needs, equation=step, outputs=algorithms.PER_NODE,
    )  # fmt: skip
    return Algorithm(
        key=key,
        name=name,
        task="reachability",
        parameters={},
        variables=(
            *algorithms.INPUTS,
            *extra,
            VISITS,
            REACHED,
            STARTED,
            algorithms.MEMBER,
            algorithms.prediction(0.0),
            following,
        ),
        inputs=inputs,
        initial=lambda episodes: {"visits": algorithms.empty(episodes)},
        distribution=lambda v: v["prediction"],
        memory="reached",
        written="next_reached",
    )


def depth_first() -> Algorithm:
    """Depth-first search, a node a round.

    >>> depth_first().state
    ('visits',)
    """
    return _path("depth_first", "depth-first search, a node a round", _deeper, (), algorithms.inputs)


@checked
def random_walk(seed: int = 0) -> Algorithm:
    """A random walk, a node a round; ``seed`` draws its luck."""
    luck = Variable("luck", "u_t", "which child the walk takes", "probability", "input")

    def inputs(episodes: ReachabilityEpisodes) -> dict[str, Array]:
        draws = np.random.default_rng(seed).random((len(episodes), episodes.n_rounds))
        return {**algorithms.inputs(episodes), "luck": draws}

    return _path("random_walk", "a random walk, a node a round", _anywhere, (luck,), inputs)
