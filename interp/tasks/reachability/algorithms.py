"""Reachability as causal models of one round: parallel breadth-first search, and its rivals.

The prediction is a distribution over nodes. It reads ``reached``, as the root is told only after the question: round t
answers from the nodes within t steps. ``spread`` says how much of it lies evenly on all nodes reached instead of on the
candidates. Rivals (depth-first, random walk) hold one path and add one node a round; ``visits`` counts when a node was
visited, 0 where it was not. Heuristics search nothing and keep nothing: they are what matched graphs must forbid.

The equations, and which rules the rivals follow: docs/method/reachability.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.core.algorithm import (
    Algorithm,
    AlgorithmRecord,
    Equation,
    Family,
    Searched,
    Values,
    maker,
    variable_table,
)
from interp.support.checks import checked
from interp.support.errors import require, require_known
from interp.tasks.lapses import sometimes
from interp.tasks.reachability import graphs
from interp.tasks.reachability.episodes import ReachabilityEpisodes

_Array = NDArray[Any]
SPREAD = 0.6
"""Share of what models are trained to predict that lies on all nodes reached."""


def _n_nodes(values: Values) -> int:
    return int(values["nodes"].shape[-1])


def _take(values: _Array, index: _Array) -> _Array:
    """``values[..., node]`` at the nodes ``index[..., k]``."""
    return np.take_along_axis(values, index, -1)


# What the searches share.


def _expanded(v: Values) -> _Array:
    """The frontier, with the targets of active edges."""
    following = np.array(
        np.broadcast_to(v["frontier"] > 0.5, v["frontier"].shape), dtype=np.float64
    )
    edges, ends = v["active"] > 0.5, v["target"]
    flat, where = following.reshape(-1, following.shape[-1]), np.broadcast_to(ends, edges.shape)
    rows, columns = np.nonzero(edges.reshape(len(flat), -1))
    flat[rows, where.reshape(len(flat), -1)[rows, columns]] = 1.0
    return flat.reshape(following.shape)


def _answered(scores: _Array, v: Values) -> _Array:
    """The distribution over nodes that is all on the candidate of higher score ``[..., 2]``, halves on ties."""
    difference = np.sign(scores[..., :1] - scores[..., 1:])
    share = np.concatenate([0.5 + difference / 2, 0.5 - difference / 2], -1)
    answer = np.zeros((*share.shape[:-1], _n_nodes(v)))
    np.put_along_axis(answer, v["candidates"], share, -1)
    return answer


def _prediction(spread: float) -> Equation:
    """The distribution over nodes: reached candidates share it, but for what lies on all nodes reached."""
    require(0.0 <= spread < 1.0, f"spread must lie in [0, 1), got {spread!r}")

    def equation(v: Values) -> _Array:
        answer = _answered(v["member"], v)
        if not spread:
            return answer
        reached = (v["reached"] > 0.5).astype(np.float64)
        number = reached.sum(-1, keepdims=True)
        return np.where(
            number > 0, (1 - spread) * answer + spread * reached / np.maximum(number, 1), answer
        )

    return equation


_algorithm = maker(
    "reachability",
    variable_table(Path(__file__).with_name("variables.csv"), nodes=_n_nodes),
    {
        "source": lambda e: e.by_round("edges")[..., 0],
        "target": lambda e: e.by_round("edges")[..., 1],
        "root": lambda e: e.by_round("roots"),
        "candidates": lambda e: e.by_round("candidates"),
        "nodes": lambda e: np.broadcast_to(np.arange(e.n_nodes), (len(e), e.n_rounds, e.n_nodes)),
    },
    lambda episodes, key: np.zeros((len(episodes), episodes.n_nodes)),
    lambda v: v["prediction"],
)


# Breadth-first search.


def _search(key: str, name: str, spread: float, active: Equation, expanded: Equation) -> Algorithm:
    equations = {
        "reached": None,
        "frontier": lambda v: np.where(
            np.eye(v["reached"].shape[-1], dtype=bool)[v["root"]], 1.0, v["reached"]
        ),
        "member": lambda v: (_take(v["reached"], v["candidates"]) > 0.5).astype(np.float64),
        "active": active,
        "prediction": _prediction(spread),
        "next_reached": expanded,
    }
    return _algorithm(key, name, equations, "reached", spread=spread)


@checked
def breadth_first(spread: float = 0.0) -> Algorithm:
    """Parallel breadth-first search: every round expands all nodes reached.

    A share ``spread`` of the prediction, in [0, 1), lies evenly on the nodes reached.

    >>> breadth_first().state, breadth_first().written
    (('reached',), 'next_reached')
    """
    return _search(
        "breadth_first",
        "parallel breadth-first search",
        spread,
        lambda v: (_take(v["frontier"], v["source"]) > 0.5).astype(np.float64),
        _expanded,
    )


def depth_limited(hops: int = 2, spread: float = 0.0) -> Algorithm:
    """Breadth-first search that stops after ``hops`` rounds, at least 1: it never sees farther than that."""
    require(hops >= 1, f"hops must be an integer >= 1, got {hops!r}")
    name = f"breadth-first search of {hops} hop{'s' * (hops > 1)}"
    return sometimes(
        breadth_first(spread), lambda elapsed: elapsed < hops, {"hops": hops}, "depth_limited", name
    )


def late_search(lag: int = 1, spread: float = 0.0) -> Algorithm:
    """Breadth-first search that is ``lag`` rounds late: it holds what it should have held so many rounds before."""
    require(lag >= 0, f"lag must be an integer >= 0, got {lag!r}")
    name = "breadth-first search, some rounds late"  # the graph is the same in every round: nothing has to wait
    return sometimes(
        breadth_first(spread), lambda elapsed: elapsed >= lag, {"lag": lag}, "late_search", name
    )


def undirected(spread: float = 0.0) -> Algorithm:
    """Breadth-first search that follows every edge both ways."""

    def active(v: Values) -> _Array:
        return (_take(v["frontier"], np.concatenate([v["source"], v["target"]], -1)) > 0.5).astype(
            np.float64
        )

    return _search(
        "undirected",
        "breadth-first search along and against the edges",
        spread,
        active,
        lambda v: _expanded({**v, "target": np.concatenate([v["target"], v["source"]], -1)}),
    )


# One path.


def _stepped(v: Values, edge: _Array, moves: _Array) -> _Array:
    """The visits after a step along ``edge`` ``[...]``, where there is one to take."""
    node = np.take_along_axis(
        np.broadcast_to(v["target"], (*edge.shape, v["target"].shape[-1])), edge[..., None], -1
    )
    after = v["started"].copy()
    latest = v["started"].max(-1, keepdims=True) + 1
    np.put_along_axis(after, node, np.where(moves[..., None], latest, _take(after, node)), -1)
    return after


def _deeper(v: Values) -> _Array:
    """A step to the first child without a visit, from the last visited node that has one."""
    source, target = _take(v["started"], v["source"]), _take(v["started"], v["target"])
    rank = np.where((source > 0) & (target == 0), source, 0)
    return _stepped(v, rank.argmax(-1), rank.max(-1) > 0)


def _anywhere(v: Values) -> _Array:
    """A step to a random child of the last node; back to the root's children at a sink."""
    at = _take(v["started"], v["source"]) == v["started"].max(-1, keepdims=True)
    open_ = np.where(at.any(-1, keepdims=True), at, v["source"] == v["root"][..., None])
    rank = np.floor(v["luck"] * open_.sum(-1)) + 1
    return _stepped(v, (open_.cumsum(-1) >= rank[..., None]).argmax(-1), open_.any(-1))


def _path(
    key: str, name: str, step: Equation, spread: float, **more: Callable[[Any], _Array]
) -> Algorithm:
    equations: dict[str, Equation | None] = {
        "visits": None,
        "reached": lambda v: (v["visits"] > 0).astype(np.float64),
        "started": lambda v: np.maximum(
            v["visits"], (v["nodes"] == v["root"][..., None]).astype(np.float64)
        ),
        "member": lambda v: (_take(v["reached"], v["candidates"]) > 0.5).astype(np.float64),
        "prediction": _prediction(spread),
        "next_visits": step,
    }
    return _algorithm(key, name, equations, "reached", more=more, spread=spread)


def depth_first(spread: float = 0.0) -> Algorithm:
    """Depth-first search, a node a round."""
    return _path("depth_first", "depth-first search, a node a round", _deeper, spread)


@checked
def random_walk(seed: int = 0, spread: float = 0.0) -> Algorithm:
    """A random walk, a node a round; ``seed`` draws its luck."""

    def luck(episodes: ReachabilityEpisodes) -> _Array:
        return np.random.default_rng(seed).random((len(episodes), episodes.n_rounds))

    return _path("random_walk", "a random walk, a node a round", _anywhere, spread, luck=luck)


# Heuristics.


_NUMBERS: dict[str, Callable[[NDArray[np.bool_], _Array], _Array]] = {
    "fewer_parents": lambda m, r: -m.sum(-2),
    "more_children": lambda m, r: m.sum(-1),
    "more_ancestors": lambda m, r: graphs.closure(m).sum(-2),
    "nearer_undirected": lambda m, r: -graphs.distances(m | np.swapaxes(m, -1, -2), r),
    "larger_name": lambda m, r: np.broadcast_to(np.arange(m.shape[-1]), m.shape[:-1]),
}
"""By key: adjacency Bool[..., source, target] with roots Int[...] to the number that is compared, Int[..., node]."""
_NAMES = {
    "fewer_parents": ("the candidate with the lower in-degree", "in-degree"),
    "more_children": ("the candidate with the higher out-degree", "out-degree"),
    "more_ancestors": ("the candidate with more ancestors", "ancestors"),
    "nearer_undirected": (
        "the candidate nearer the root, whichever way edges run",
        "undirected distance",
    ),
    "larger_name": ("the candidate with the larger name", "larger name"),
}
"""By key: the name, and a short one for legends."""


def heuristic(key: str = "more_ancestors") -> Algorithm:
    """A heuristic as an algorithm that keeps nothing."""
    require_known("heuristic", key, _NUMBERS)

    def compared(v: Values) -> _Array:
        matrix = graphs.adjacency(np.stack([v["source"], v["target"]], -1), _n_nodes(v))
        return _answered(_take(_NUMBERS[key](matrix, v["root"]), v["candidates"]), v)

    return _algorithm(key, _NAMES[key][0], {"prediction": compared}, rows="heuristic")


def records() -> tuple[AlgorithmRecord, ...]:
    """The algorithms of this task, the ground truth first."""
    return (
        AlgorithmRecord("breadth_first", "parallel breadth-first search", "BFS", breadth_first),
        *(
            AlgorithmRecord(
                f"depth_limited_{n}",
                f"breadth-first search of {hops}",
                f"BFS, {hops}",
                partial(depth_limited, n),
            )
            for n, hops in ((1, "1 hop"), (2, "2 hops"), (3, "3 hops"))
        ),
        AlgorithmRecord("depth_first", "depth-first search, a node a round", "DFS", depth_first),
        AlgorithmRecord("random_walk", "a random walk, a node a round", "walk", random_walk),
        *(
            AlgorithmRecord(key, name, short_name, partial(heuristic, key))
            for key, (name, short_name) in _NAMES.items()
        ),
    )


# Where a fit looks for each parameter.
_SPREAD = Searched("spread", (0.0, 0.2, 0.4, 0.6, 0.8), enters=("prediction",))
_HOPS = Searched("hops", (1, 2, 3), kind="choice")
_LAG = Searched("lag", (1, 2), kind="choice")


def families() -> tuple[Family, ...]:
    """What a model of reachability is compared with.

    Searches may put a share of their answer on all nodes reached (``spread``), as the distribution that models are
    trained on does. The undirected distance, which needs the root and so is not memoryless, is left to ``interp
    audit``.
    """
    return (
        Family(
            "breadth_first", "parallel breadth-first search", breadth_first, searched=(_SPREAD,)
        ),
        Family(
            "depth_limited",
            "breadth-first search of few hops",
            depth_limited,
            searched=(_HOPS, _SPREAD),
        ),
        Family(
            "late_search",
            "breadth-first search, some rounds late",
            late_search,
            searched=(_LAG, _SPREAD),
            extends="breadth_first",
        ),
        Family(
            "undirected",
            "breadth-first search along and against the edges",
            undirected,
            searched=(_SPREAD,),
        ),
        Family(
            "depth_first", "depth-first search, a node a round", depth_first, searched=(_SPREAD,)
        ),
        Family("random_walk", "a random walk, a node a round", random_walk, searched=(_SPREAD,)),
        Family(
            "fewer_parents",
            "the candidate with the lower in-degree",
            partial(heuristic, "fewer_parents"),
            memoryless=True,
        ),
        Family(
            "more_children",
            "the candidate with the higher out-degree",
            partial(heuristic, "more_children"),
            memoryless=True,
        ),
        Family(
            "more_ancestors",
            "the candidate with more ancestors",
            partial(heuristic, "more_ancestors"),
            memoryless=True,
        ),
    )
