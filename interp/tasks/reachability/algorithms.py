"""Algorithms for reachability as causal models of one round: breadth-first search and its rivals.

The prediction is a distribution over nodes, computed from ``reached``, the set of nodes reached so
far. The root is revealed only after the question, so round t answers from the nodes within t steps.
A share ``spread`` of the predicted probability is uniform over all reached nodes; the rest is on
the candidates. Rivals (depth-first search, random walk) follow one path and add one node per round.
Their variable ``visits`` has the number of each node's last visit: visits are numbered 1, 2, ... in
their order, and nodes without a visit have 0. Heuristics do not search and carry no state: matched
graphs must rule them out.

The equations, and the rules of the rivals: docs/method/reachability.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.core.algorithm import (
    CARRIED,
    Algorithm,
    AlgorithmRecord,
    Equation,
    Family,
    Searched,
    Values,
    algorithm_builder,
    variable_table,
)
from interp.support.checks import checked
from interp.support.errors import require, require_known
from interp.tasks.draws import draw_by_number
from interp.tasks.lapses import learn_in_some_rounds
from interp.tasks.reachability import graphs
from interp.tasks.reachability.episodes import ReachabilityEpisodes

_Array = NDArray[Any]
SPREAD = 0.6
"""Share of the training target that is uniform over all nodes reached."""


def _count_nodes(values: Values) -> int:
    return int(values["nodes"].shape[-1])


def _take_nodes(values: _Array, index: _Array) -> _Array:
    """Return the values of some nodes, ``[..., k]``.

    Args:
        values: one value per node, ``[..., node]``.
        index: the nodes, ``[..., k]``.
    """
    return np.take_along_axis(values, index, -1)


# What the searches share.


def _add_targets(v: Values) -> _Array:
    """Return the set of reached nodes after the round, ``[..., node]``, 1 or 0. It contains the
    frontier (the nodes reached before, and the root) and the targets of all active edges, which are
    the edges that start in the frontier.

    Args:
        v: values of the round's variables, by key.
    """
    expanded = np.array(v["frontier"] > 0.5, dtype=float)
    active = v["active"] > 0.5
    targets = np.broadcast_to(v["target"], active.shape)
    # Indices of the active edges: one array per leading axis (such as episode), and the edge.
    *leading, edges = np.nonzero(active)
    new_nodes = targets[(*leading, edges)]
    expanded[(*leading, new_nodes)] = 1.0
    return expanded


def _mark_active_edges(v: Values, starts: _Array) -> _Array:
    """Return 1 for every edge that starts at a node of the frontier, and 0 for the others,
    ``[..., edge]``.

    The frontier consists of the root and all nodes reached so far; the search continues from them.

    Args:
        v: values of the round's variables, by key.
        starts: the node at which each edge starts, ``[..., edge]``.
    """
    return (_take_nodes(v["frontier"], starts) > 0.5).astype(float)


def _answer_by_score(scores: _Array, v: Values) -> _Array:
    """Return the distribution over nodes that has all probability on the candidate with the higher
    score, or 1/2 on each if the scores are equal.

    Args:
        scores: score of each candidate, ``[..., 2]``.
        v: values of the round's variables.
    """
    sign = np.sign(scores[..., 0] - scores[..., 1])
    answer = np.zeros((*sign.shape, _count_nodes(v)))
    shares = np.stack([1 + sign, 1 - sign], -1) / 2  # (1, 0), (0, 1), or (1/2, 1/2) on ties
    np.put_along_axis(answer, v["candidates"], shares, -1)  # at the two candidates' nodes
    return answer


def _predict_with(spread: float) -> Equation:
    """Return a function that computes the prediction of a round, a distribution over nodes.

    A share ``spread`` of the probability is divided evenly among all reached nodes. The rest goes
    to the reached candidate; if both candidates or neither are reached, each gets half of it.
    Before any node is reached, each candidate gets 1/2.

    Args:
        spread: the share, in [0, 1).
    """
    require(0.0 <= spread < 1.0, f"spread must lie in [0, 1), got {spread!r}")

    def predict(v: Values) -> _Array:
        """Return the predicted distribution over nodes, ``[..., node]``.

        Args:
            v: values of the round's variables, by key.
        """
        answer = _answer_by_score(v["member"], v)  # member: 1 for candidates that are reached
        if not spread:
            return answer
        reached = (v["reached"] > 0.5).astype(float)
        n_reached = reached.sum(-1, keepdims=True)
        uniform = reached / np.maximum(n_reached, 1)
        mixture = (1 - spread) * answer + spread * uniform
        return np.where(n_reached > 0, mixture, answer)

    return predict


def _mark_reached_candidates(v: Values) -> _Array:
    """Return 1 for each candidate that is reached, and 0 for each that is not, ``[..., 2]``.

    Args:
        v: values of the round's variables, by key.
    """
    reached = _take_nodes(v["reached"], v["candidates"])
    return (reached > 0.5).astype(float)


def _all_nodes(episodes: ReachabilityEpisodes) -> _Array:
    """Return the indices of all nodes, 0 to n_nodes - 1, the same in every round, ``[episode,
    round, node]``.

    Args:
        episodes: the episodes, for their numbers of rounds and nodes.
    """
    shape = (len(episodes), episodes.n_rounds, episodes.n_nodes)
    return np.broadcast_to(np.arange(episodes.n_nodes), shape)


_VARIABLES = variable_table(Path(__file__).with_name("variables.csv"), nodes=_count_nodes)
_INPUTS: dict[str, Callable[[ReachabilityEpisodes], _Array]] = {
    "source": lambda e: e.by_round("edges")[..., 0],
    "target": lambda e: e.by_round("edges")[..., 1],
    "root": lambda e: e.by_round("roots"),
    "candidates": lambda e: e.by_round("candidates"),
    "nodes": _all_nodes,
}
_make_algorithm = algorithm_builder(
    "reachability",
    _VARIABLES,
    _INPUTS,
    zeros=lambda episodes, key: np.zeros((len(episodes), episodes.n_nodes)),
    distribution=lambda v: v["prediction"],
)


# Breadth-first search.


def _make_search(
    key: str, name: str, spread: float, active: Equation, expand: Equation
) -> Algorithm:
    """Make a search that, in each round, extends the set of reached nodes along the active edges.

    Args:
        key, name: key and name of the algorithm.
        spread: share of the predicted probability that is uniform over all reached nodes, in
            [0, 1).
        active: equation of the active edges, those that start at a reached node.
        expand: equation of the set of reached nodes after the round.
    """

    def frontier(v: Values) -> _Array:
        """Return 1 for every node from which the round follows edges, and 0 for the others, ``[...,
        node]``. These are the nodes reached before and the root.

        Args:
            v: values of the round's variables, by key.
        """
        reached = v["reached"]
        is_root = np.eye(reached.shape[-1], dtype=bool)[v["root"]]
        return np.where(is_root, 1.0, reached)

    equations = {
        "reached": CARRIED,
        "frontier": frontier,
        "member": _mark_reached_candidates,
        "active": active,
        "prediction": _predict_with(spread),
        "next_reached": expand,
    }
    return _make_algorithm(key, name, equations, memory="reached", spread=spread)


@checked
def breadth_first(spread: float = 0.0) -> Algorithm:
    """Return parallel breadth-first search: every round adds all children of all reached nodes to
    the set of reached nodes.

    Args:
        spread: share of the predicted probability that is divided evenly among all reached nodes,
            in [0, 1). The rest goes to the reached candidate; if both candidates or neither are
            reached, each of them gets half of the rest.

    >>> breadth_first().state, breadth_first().written
    (('reached',), 'next_reached')
    """
    return _make_search(
        "breadth_first",
        "parallel breadth-first search",
        spread,
        active=lambda v: _mark_active_edges(v, v["source"]),
        expand=_add_targets,
    )


def depth_limited(hops: int = 2, spread: float = 0.0) -> Algorithm:
    """Return breadth-first search that stops after ``hops`` rounds, and so never reaches nodes that
    are more than ``hops`` steps away from the root.

    Args:
        hops: number of rounds that expand the set of reached nodes.
        spread: share of the predicted probability that is divided evenly among all reached nodes,
            in [0, 1). The rest goes to the reached candidate; if both candidates or neither are
            reached, each of them gets half of the rest.
    """
    require(hops >= 1, f"hops must be an integer >= 1, got {hops!r}")
    plural = "" if hops == 1 else "s"
    name = f"breadth-first search of {hops} hop{plural}"
    search = breadth_first(spread)
    return learn_in_some_rounds(
        search, lambda elapsed: elapsed < hops, {"hops": hops}, "depth_limited", name
    )


def late_search(lag: int = 1, spread: float = 0.0) -> Algorithm:
    """Return breadth-first search that begins ``lag`` rounds late: the first ``lag`` rounds reach
    no node.

    Args:
        lag: number of rounds by which the search is late.
        spread: share of the predicted probability that is divided evenly among all reached nodes,
            in [0, 1). The rest goes to the reached candidate; if both candidates or neither are
            reached, each of them gets half of the rest.
    """
    require(lag >= 0, f"lag must be an integer >= 0, got {lag!r}")
    name = "breadth-first search, some rounds late"
    # Unlike `interp.tasks.lapses.late`, no input waits: the graph is the same in every round.
    search = breadth_first(spread)
    return learn_in_some_rounds(
        search, lambda elapsed: elapsed >= lag, {"lag": lag}, "late_search", name
    )


def undirected(spread: float = 0.0) -> Algorithm:
    """Return breadth-first search that follows every edge in both directions.

    Args:
        spread: share of the predicted probability that is divided evenly among all reached nodes,
            in [0, 1). The rest goes to the reached candidate; if both candidates or neither are
            reached, each of them gets half of the rest.
    """

    # The list of edges is doubled: every edge, and then every edge reversed.
    def active(v: Values) -> _Array:
        """Return 1 for every edge that starts in the frontier (the reached nodes and the root) and
        0 for others, ``[..., 2 * n_edges]``: first all edges, then all edges reversed.

        Args:
            v: values of the round's variables, by key.
        """
        starts = np.concatenate([v["source"], v["target"]], -1)
        return _mark_active_edges(v, starts)

    def expand(v: Values) -> _Array:
        """Return 1 for every node that is reached after the round, and 0 for the others, ``[...,
        node]``.

        Args:
            v: values of the round's variables, by key.
        """
        ends = np.concatenate([v["target"], v["source"]], -1)
        return _add_targets({**v, "target": ends})

    name = "breadth-first search along and against the edges"
    return _make_search("undirected", name, spread, active=active, expand=expand)


# One path.
#
# The variable "visits" has the number of each node's last visit. Visits are numbered 1, 2, ... in
# their order; nodes without a visit have 0.


def _visit_along_edge(v: Values, edge: _Array, moves: _Array) -> _Array:
    """Return the number of each node's last visit after a step along one edge, ``[..., node]``.
    Visits are numbered 1, 2, ... in their order; nodes without a visit have 0.

    Args:
        v: values of the round's variables, by key; "started" has the numbers before the step.
        edge: index of the edge, ``[...]``.
        moves: True where there is an edge to take, ``[...]``; elsewhere the numbers do not change.
    """
    visits = v["started"]
    n_edges = v["target"].shape[-1]
    targets = np.broadcast_to(v["target"], (*edge.shape, n_edges))
    node = _take_nodes(targets, edge[..., None])  # the node at the end of the edge, [..., 1]
    next_number = visits.max(-1, keepdims=True) + 1
    number = np.where(moves[..., None], next_number, _take_nodes(visits, node))
    after = visits.copy()
    np.put_along_axis(after, node, number, -1)
    return after


def _step_deeper(v: Values) -> _Array:
    """Return the number of each node's last visit after a step of depth-first search, ``[...,
    node]``.

    Of the visited nodes with an unvisited child, the step starts at the one that was visited last.
    It visits the unvisited child whose edge comes first in the list of edges.

    Args:
        v: values of the round's variables, by key.
    """
    # Numbers of the visits of each edge's source and target, [..., edge]; 0 if not visited.
    source_visit = _take_nodes(v["started"], v["source"])
    target_visit = _take_nodes(v["started"], v["target"])
    # An edge can be taken if its source is visited and its target is not. The edge with the latest
    # source is taken, the first in the list if there are several.
    rank = np.where(target_visit == 0, source_visit, 0)
    edge = rank.argmax(-1)
    return _visit_along_edge(v, edge, moves=rank.max(-1) > 0)


def _step_randomly(v: Values) -> _Array:
    """Return the number of each node's last visit after a step of a random walk, ``[..., node]``.

    The step follows a random edge from the node that was visited last or, if no edge starts there,
    from the root. All these edges have equal probability.

    Args:
        v: values of the round's variables, by key.
    """
    visits = v["started"]
    # True for edges that start at the node visited last, or at the root, [..., edge].
    from_last = _take_nodes(visits, v["source"]) == visits.max(-1, keepdims=True)
    from_root = v["source"] == v["root"][..., None]
    is_open = np.where(from_last.any(-1, keepdims=True), from_last, from_root)
    # The uniform number `luck` chooses one of the open edges: the first, the second, ...
    rank = np.floor(v["luck"] * is_open.sum(-1)) + 1
    edge = (is_open.cumsum(-1) >= rank[..., None]).argmax(-1)
    return _visit_along_edge(v, edge, moves=is_open.any(-1))


def _start_at_root(v: Values) -> _Array:
    """Return the number of each node's last visit, where the root counts as visited from the start,
    ``[..., node]``. Nodes without a visit have 0.

    Args:
        v: values of the round's variables, by key.
    """
    is_root = v["nodes"] == v["root"][..., None]
    return np.maximum(v["visits"], is_root)


def _make_path_search(
    key: str, name: str, step: Equation, spread: float, **inputs: Callable[[Any], _Array]
) -> Algorithm:
    """Make a search that follows one path, and visits at most one node per round.

    Args:
        key, name: key and name of the algorithm.
        step: function that computes the number of each node's last visit after a round. Visits are
            numbered 1, 2, ... in their order; nodes without a visit have 0.
        spread: share of the predicted probability that is uniform over all reached nodes, in [0,
            1).
        **inputs: functions that read further input variables from episodes, by key.
    """
    equations: dict[str, Equation | None] = {
        "visits": CARRIED,
        "reached": lambda v: (v["visits"] > 0).astype(float),
        "started": _start_at_root,
        "member": _mark_reached_candidates,
        "prediction": _predict_with(spread),
        "next_visits": step,
    }
    return _make_algorithm(key, name, equations, memory="reached", more=inputs, spread=spread)


def depth_first(spread: float = 0.0) -> Algorithm:
    """Return depth-first search, which visits at most one new node per round. Each round takes,
    among the visited nodes with an unvisited child, the one that was visited last, and visits its
    first unvisited child.

    Args:
        spread: share of the predicted probability that is divided evenly among all reached nodes,
            in [0, 1). The rest goes to the reached candidate; if both candidates or neither are
            reached, each of them gets half of the rest.
    """
    return _make_path_search(
        "depth_first", "depth-first search, a node a round", _step_deeper, spread
    )


@checked
def random_walk(seed: int = 0, spread: float = 0.0) -> Algorithm:
    """Return a random walk: each round follows a random edge from the node that was visited last.
    If no edge starts at this node, the round follows a random edge from the root.

    Args:
        seed: seed of the walk's random choices, which also depend on the episode's number.
        spread: share of the predicted probability that is divided evenly among all reached nodes,
            in [0, 1). The rest goes to the reached candidate; if both candidates or neither are
            reached, each of them gets half of the rest.
    """

    def luck(episodes: ReachabilityEpisodes) -> _Array:
        """Return a random number in [0, 1) for each round, ``[episode, round]``, by which the walk
        chooses the edge that it follows.

        Args:
            episodes: the episodes; the numbers depend on ``episodes.numbers`` and the seed.
        """
        return draw_by_number(seed, episodes.numbers, episodes.n_rounds)

    return _make_path_search(
        "random_walk", "a random walk, a node a round", _step_randomly, spread, luck=luck
    )


# Heuristics.


@dataclass(frozen=True)
class _Heuristic:
    """A rule that answers without a search, by choosing the candidate whose node has the larger
    score.

    Attributes:
        name: name of the rule in sentences.
        short_name: name of the rule in legends.
        score: function of the adjacency matrices, Bool[..., source, target], and the roots,
            Int[...], that returns the score of each node, ``[..., node]``.
    """

    name: str
    short_name: str
    score: Callable[[NDArray[np.bool_], _Array], _Array]


def _score_few_parents(matrix: NDArray[np.bool_], roots: _Array) -> _Array:
    return -matrix.sum(-2)


def _score_many_children(matrix: NDArray[np.bool_], roots: _Array) -> _Array:
    return matrix.sum(-1)


def _score_many_ancestors(matrix: NDArray[np.bool_], roots: _Array) -> _Array:
    return graphs.closure(matrix).sum(-2)


def _score_nearness(matrix: NDArray[np.bool_], roots: _Array) -> _Array:
    both_ways = matrix | np.swapaxes(matrix, -1, -2)
    return -graphs.distances(both_ways, roots)


def _score_larger_number(matrix: NDArray[np.bool_], roots: _Array) -> _Array:
    *shape, n_nodes = matrix.shape
    return np.broadcast_to(np.arange(n_nodes), shape)


_HEURISTICS = {
    "fewer_parents": _Heuristic(
        "the candidate with the lower in-degree", "in-degree", _score_few_parents
    ),
    "more_children": _Heuristic(
        "the candidate with the higher out-degree", "out-degree", _score_many_children
    ),
    "more_ancestors": _Heuristic(
        "the candidate with more ancestors", "ancestors", _score_many_ancestors
    ),
    "nearer_undirected": _Heuristic(
        "the candidate nearer the root, whichever way edges run",
        "undirected distance",
        _score_nearness,
    ),
    "larger_name": _Heuristic(
        "the candidate with the larger name", "larger name", _score_larger_number
    ),
}


def heuristic(key: str = "more_ancestors") -> Algorithm:
    """Return an algorithm that chooses between the two candidates by a heuristic, without a search
    and without a state.

    Args:
        key: key of the heuristic. It chooses the candidate with fewer parents ("fewer_parents"),
            more children ("more_children"), more ancestors ("more_ancestors") or the larger node
            number ("larger_name"). "nearer_undirected" chooses the candidate that would be nearer
            to the root if edges could be followed in both directions.
    """
    require_known("heuristic", key, _HEURISTICS)
    rule = _HEURISTICS[key]

    def predict(v: Values) -> _Array:
        """Return the predicted distribution over nodes, ``[..., node]``: 1 for the candidate with
        the larger score, or 1/2 for each candidate if their scores are equal.

        Args:
            v: values of the round's variables, by key.
        """
        edges = np.stack([v["source"], v["target"]], -1)
        matrix = graphs.adjacency(edges, _count_nodes(v))
        scores = rule.score(matrix, v["root"])  # of each node, [..., node]
        return _answer_by_score(_take_nodes(scores, v["candidates"]), v)

    # All heuristics share the row heuristic.prediction of variables.csv.
    return _make_algorithm(key, rule.name, {"prediction": predict}, rows="heuristic")


def records() -> tuple[AlgorithmRecord, ...]:
    """Return the task's algorithms, each as an :class:`AlgorithmRecord` (its names, and a function
    that makes it).

    The algorithms are in order of preference: if several have a variable of the same name, the first
    one defines it. The first is breadth-first search, the correct algorithm.
    """
    # Key, name in sentences, name in legends, and function.
    listed = [AlgorithmRecord("breadth_first", _BFS_NAME, "BFS", breadth_first)]
    for n, hops in ((1, "1 hop"), (2, "2 hops"), (3, "3 hops")):
        key, name = f"depth_limited_{n}", f"breadth-first search of {hops}"
        listed.append(AlgorithmRecord(key, name, f"BFS, {hops}", partial(depth_limited, n)))
    listed += [
        AlgorithmRecord("depth_first", "depth-first search, a node a round", "DFS", depth_first),
        AlgorithmRecord("random_walk", "a random walk, a node a round", "walk", random_walk),
    ]
    for key, rule in _HEURISTICS.items():
        make = partial(heuristic, key)
        listed.append(AlgorithmRecord(key, rule.name, rule.short_name, make))
    return tuple(listed)


_BFS_NAME = "parallel breadth-first search"

# The grid of each parameter in a fit.
_SPREAD = Searched("spread", (0.0, 0.2, 0.4, 0.6, 0.8), used_by=("prediction",))
_HOPS = Searched("hops", (1, 2, 3), kind="choice")
_LAG = Searched("lag", (1, 2), kind="choice")


def families() -> tuple[Family, ...]:
    """Return the families of algorithms with which a reachability model is compared. The algorithms
    of a family differ only in their parameters.

    All searches have the parameter ``spread``, a share of the predicted probability that is divided
    evenly among all reached nodes, because the target of training has such a share. The heuristic
    "nearer_undirected" is left out, because it needs the root, which a round contains only after
    the question. ``interp audit`` tests this heuristic.
    """
    # Key, name, function, parameters that a fit searches, and key of the family that it extends.
    searches = (
        ("breadth_first", _BFS_NAME, breadth_first, (_SPREAD,), ""),
        (
            "depth_limited",
            "breadth-first search of few hops",
            depth_limited,
            (_HOPS, _SPREAD),
            "",
        ),
        (
            "late_search",
            "breadth-first search, some rounds late",
            late_search,
            (_LAG, _SPREAD),
            "breadth_first",
        ),
        (
            "undirected",
            "breadth-first search along and against the edges",
            undirected,
            (_SPREAD,),
            "",
        ),
        ("depth_first", "depth-first search, a node a round", depth_first, (_SPREAD,), ""),
        ("random_walk", "a random walk, a node a round", random_walk, (_SPREAD,), ""),
    )
    listed = []
    for key, name, make, searched, extends in searches:
        listed.append(Family(key, name, make, searched, extends=extends))
    for key in ("fewer_parents", "more_children", "more_ancestors"):
        answer = partial(heuristic, key)
        listed.append(Family(key, _HEURISTICS[key].name, answer, memoryless=True))
    return tuple(listed)
