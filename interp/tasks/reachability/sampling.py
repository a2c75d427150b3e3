"""Sample episodes of reachability: the regimes, and sets of episodes on which different search
algorithms answer differently.

A regime consists of random graphs, and a rule for the root and the candidates.

* ``uniform``: edges are random pairs of nodes (self-loops, cycles and parallel edges occur); root
  and candidates are random nodes. Both candidates may be reachable, or neither. For verification.
* ``path``: a path with edges back to earlier nodes; depths up to the number of nodes. For
  verification.
* ``prosqa``: acyclic graphs with the statistics of ProsQA (Hao et al., arXiv 2412.06769, as used by
  Zhu et al., arXiv 2505.12514): two roots, and 1 to 3 parents per node. Candidates are sinks; the
  wrong one cannot be reached.
* ``matched``: the same graphs, with candidates of equal in-degree, equal out-degree and equally
  many ancestors, so that these give no shortcut. The target is 1 to 4 steps away. One shortcut
  remains: if edges could be followed in both directions, the target would nearly always be nearer
  to the root (``interp audit`` tests it).
* ``repeated``: acyclic graphs with few different edges, some listed far more often than others; a
  third of the roots have no edge. It keeps models that are trained on it, too, from relying on how
  often an edge is listed.
* ``stranded``: the root has no edge, so no node is reached. One candidate ends a chain, and the
  other has no edge. Only a sixth of the listed edges are different. A search answers 1/2 in every
  round.

In every regime nodes are renamed and edges shuffled at random, so that names and the order of edges
carry no information. Equal arguments give equal arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from interp.support.checks import checked, integer, refuse_beyond_machine, refuse_slow
from interp.support.errors import require, require_known
from interp.tasks.reachability import graphs
from interp.tasks.reachability.episodes import ReachabilityEpisodes

_GRAPH_STREAM, _NAME_STREAM, _ORDER_STREAM = 0, 1, 2
"""One random stream per stage, so that changes in one stage do not affect the others."""
_BATTERY = ("matched", "prosqa", "uniform", "path")  # regimes on which searches answer differently
_MOST_AT_ONCE = 2048
"""Largest number of graphs sampled at once."""
_MOST_SLOW_ATTEMPTS = 12
"""Number of attempts in a row with hardly any graph before a depth is given up."""
_Generator = np.random.Generator
_PARENT_COUNT_SHARES = (0.4, 0.4, 0.2)  # probability that a node is to get 1, 2 or 3 parents
_MOST_RECENCY = 0.3
"""Upper limit of a graph's preference for recent parents, in log-odds per node, for 28 nodes.

Each graph draws its preference below this limit, which is larger for fewer nodes.
"""
_SHARE_BELOW_FIRST = 0.6
"""Share of the nodes that descend from the first root."""
_CROSSING_ODDS = 0.03
"""Odds, for these nodes, of a parent that does not descend from the first root."""
_REPEAT_EXPONENT = 2.0
"""How uneven repeats are in ``repeated``: a repeated edge's index is proportional to a uniform
number to this power.
"""
_SHARE_WITHOUT_EDGES = 1 / 3
"""Share of the roots in ``repeated`` without an edge, if the graph has a node without one."""
_MEAN_REPEATS = 6
"""Mean number of repeats of each edge in ``stranded``; the largest mean in ``repeated``."""


class _Drawn(NamedTuple):
    """Sampled graphs with roots and candidates, before their nodes are renamed.

    Attributes:
        edges: source and target of each edge, ``[graph, edge, 2]``.
        roots: node at which the search starts, ``[graph]``.
        candidates: the two nodes that are asked about, ``[graph, 2]``.
    """

    edges: NDArray[np.int64]
    roots: NDArray[np.int64]
    candidates: NDArray[np.int64]


@dataclass(frozen=True)
class _Regime:
    """A distribution of random graphs, each with a root, where the search starts, and two
    candidates, the nodes that the question is about.

    There are two kinds of regimes. In one, the function ``draw`` samples graphs, roots and
    candidates. In the other, :func:`_grow_graphs` samples graphs, and two candidates are chosen:
    the target can be reached from the root, the negative cannot. The function ``pairs`` must allow
    them, and the target's distance from the root must be one of ``depths``.

    Attributes:
        key: name in code and on the command line.
        name: description in words.
        depths: distances of the target from the root, sampled equally often; empty if ``draw`` is a
            function.
        draw: function ``(generator, n_graphs, n_nodes, n_edges)`` -> graphs with roots and
            candidates; None for the other kind.
        pairs: function ``(matrices, distances)`` -> Bool[graph, target, negative], True for pairs
            of nodes that may be the candidates. It takes adjacency matrices ``[graph, from, to]``
            and the nodes' distances from the root, ``[graph, node]``. None if ``draw`` is a
            function.
    """

    key: str
    name: str
    depths: tuple[int, ...] = ()
    draw: Callable[[_Generator, int, int, int], _Drawn] | None = None
    pairs: Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]] | None = None


def _draw_uniform(rng: _Generator, n_graphs: int, n_nodes: int, n_edges: int) -> _Drawn:
    """Sample edges, roots and candidates uniformly from all nodes.

    Args:
        rng: the random generator.
        n_graphs, n_nodes, n_edges: numbers of graphs, and of nodes and edges of each.
    """
    shuffled_nodes = rng.random((n_graphs, n_nodes)).argsort(-1)
    edges = rng.integers(0, n_nodes, (n_graphs, n_edges, 2))
    roots = rng.integers(0, n_nodes, n_graphs)
    return _Drawn(edges, roots, candidates=shuffled_nodes[:, :2])


def _make_path(start: int, length: int, n_graphs: int) -> NDArray[np.int64]:
    """Return the edges of a path through consecutive nodes, ``[graph, edge, 2]``, the same in every
    graph.

    Args:
        start: first node of the path.
        length: number of edges.
        n_graphs: number of graphs.
    """
    sources = np.arange(start, start + length)
    path = np.stack([sources, sources + 1], -1)
    return np.broadcast_to(path, (n_graphs, length, 2))


def _draw_path(rng: _Generator, n_graphs: int, n_nodes: int, n_edges: int) -> _Drawn:
    """Sample graphs of the regime ``path``: a path from node 0, the root, that is as long as
    possible, and random edges from nodes of the path back to earlier ones.

    Args:
        rng: the random generator.
        n_graphs, n_nodes, n_edges: numbers of graphs, and of nodes and edges of each.
    """
    length = min(n_nodes - 1, n_edges)
    later = rng.integers(1, length + 1, (n_graphs, n_edges - length))
    earlier = (rng.random(later.shape) * later).astype(np.int64)  # uniform from 0 to later - 1
    edges_back = np.stack([later, earlier], -1)
    edges = np.concatenate([_make_path(0, length, n_graphs), edges_back], 1)
    roots = np.zeros(n_graphs, np.int64)
    shuffled_others = rng.random((n_graphs, n_nodes - 1)).argsort(-1) + 1  # all nodes except 0
    return _Drawn(edges, roots, candidates=shuffled_others[:, :2])


def _grow_graphs(rng: _Generator, n_graphs: int, n_nodes: int, n_edges: int) -> NDArray[np.int64]:
    """Sample acyclic graphs that grow from the roots 0 and 1, ``[graph, edge, 2]``.

    Later nodes get 1 to 3 earlier nodes as parents. A node either descends from root 0, with few
    parents among the descendants of root 1, or from root 1 only. A graph uses at least half of the
    nodes, if ``n_edges`` suffices for that, and as many different edges as fit. The rest of its
    list repeats edges.

    Args:
        rng: the random generator.
        n_graphs, n_nodes, n_edges: numbers of graphs, and of nodes and edges of each.
    """
    largest = min(n_nodes, n_edges + 2)  # every node except the two roots needs an edge
    smallest = min(largest, max(4, (n_nodes + 1) // 2))
    sizes = rng.integers(smallest, largest + 1, n_graphs)
    scores = _draw_parent_scores(rng, n_graphs, n_nodes)
    parents = np.argsort(-scores, axis=1)[:, :3].swapaxes(1, 2)  # [graph, child, rank of parent]
    # Each node wants 0, 1 or 2 parents besides the first one.
    thresholds = np.cumsum(_PARENT_COUNT_SHARES[:2])
    n_further = (rng.random((n_graphs, n_nodes, 1)) > thresholds).sum(-1)
    n_possible = np.isfinite(scores).sum(1)  # of other scores, the node is no possible parent
    n_parents = np.minimum(1 + n_further, n_possible)  # [graph, child]
    child = np.arange(n_nodes)
    has_parents = (child >= 2) & (child < sizes[:, None])
    is_edge = has_parents[..., None] & (np.arange(3) < n_parents[..., None])
    # Index of an edge among all pairs (child, rank of parent): 3 child + rank.
    chosen = _choose_edges(rng, is_edge, n_edges)
    sources = np.take_along_axis(parents.reshape(n_graphs, -1), chosen, -1)
    targets = chosen // 3
    return np.stack([sources, targets], -1)


def _draw_parent_scores(rng: _Generator, n_graphs: int, n_nodes: int) -> NDArray[np.float64]:
    """Return random scores by which every node chooses its parents, ``[graph, parent, child]``: the
    parents are the nodes with the highest scores.

    A score is the log-weight of the parent plus Gumbel noise: the highest scores are then those of
    a draw without replacement with these weights (Gumbel top-k trick). The score is -inf for nodes
    that do not come before the child.

    Args:
        rng: the random generator.
        n_graphs, n_nodes: numbers of graphs, and of nodes of each.
    """
    node = np.arange(n_nodes)
    is_below_first = rng.random((n_graphs, n_nodes)) < _SHARE_BELOW_FIRST
    is_below_first[:, 0], is_below_first[:, 1] = True, False  # the two roots
    # Only descendants of the first root may have a parent from the other side.
    crossing = np.where(is_below_first[:, None, :], np.log(_CROSSING_ODDS), -np.inf)
    # Log-odds by which a parent is preferred to the node before it. The limit is for 28 nodes.
    recency = _MOST_RECENCY * (28 / n_nodes) * rng.random((n_graphs, 1, 1))
    is_same_side = is_below_first[:, :, None] == is_below_first[:, None, :]
    log_weights = np.where(is_same_side, 0.0, crossing) + recency * node[:, None]
    noise = rng.gumbel(size=(n_graphs, n_nodes, n_nodes))
    is_earlier = node[:, None] < node  # [parent, child]
    return np.where(is_earlier, log_weights, -np.inf) + noise


def _choose_edges(rng: _Generator, is_edge: NDArray[Any], n_edges: int) -> NDArray[np.int64]:
    """Choose the edges of each graph from the possible ones: first the edge from the preferred
    parent of every node, then as many edges from other parents as fit.

    Args:
        rng: the random generator.
        is_edge: True for possible edges, ``[graph, child, parent]``. Index 0 of the last axis is the
            preferred parent.
        n_edges: length of the list of edges; edges are repeated if a graph has fewer.

    Returns:
        For each edge of the list, the index of its pair (child, parent) in the flattened last two
        axes of ``is_edge``, ``[graph, edge]``.
    """
    n_graphs = len(is_edge)
    # Smaller numbers come first: edges from first parents in [0, 1), from further ones in [1, 2),
    # and pairs without an edge last.
    rank = rng.random(is_edge.shape) + np.array([0, 1, 1])
    ranked = np.where(is_edge, rank, 3.0).reshape(n_graphs, -1)
    order = np.argsort(ranked, -1)[:, :n_edges]
    n_different = np.minimum(is_edge.sum((1, 2)), n_edges)[:, None]
    edge_of_slot = _repeat_edges(rng.random((n_graphs, n_edges)), n_different)
    return np.take_along_axis(order, edge_of_slot, -1)


def _repeat_edges(positions: NDArray[np.float64], n_different: NDArray[Any]) -> NDArray[np.int64]:
    """Return the index of the edge in each slot of a graph's list, ``[graph, slot]``. The list has
    every edge once, followed by repeated edges.

    Args:
        positions: random numbers in [0, 1), ``[graph, slot]``, which choose the repeated edges: near
            0 the first edge, near 1 the last.
        n_different: number of different edges, ``[graph, 1]``.
    """
    repeated = (positions * n_different).astype(np.int64)
    slot = np.arange(positions.shape[1])
    return np.where(slot < n_different, slot, repeated)


def _find_separate_pairs(matrix: NDArray[Any], steps: NDArray[Any]) -> NDArray[Any]:
    """Mark the pairs of nodes (target, negative) that differ in one point: the target can be
    reached from the root, the negative cannot.

    The target is not the root. The negative has a parent, so that it is neither a root nor an
    unused node.

    Args:
        matrix: adjacency matrices, ``[graph, from, to]``.
        steps: distance of each node from the root, ``[graph, node]``; the number of nodes if there
            is no path.

    Returns:
        Bool[graph, target, negative].
    """
    n_nodes = matrix.shape[-1]
    is_target = (steps > 0) & (steps < n_nodes)
    # Roots and unused names have no parents.
    is_negative = matrix.any(-2) & (steps == n_nodes)
    return is_target[:, :, None] & is_negative[:, None, :]


def _find_pairs_of_sinks(matrix: NDArray[Any], steps: NDArray[Any]) -> NDArray[Any]:
    """Mark the pairs (target, negative) that ProsQA could ask about: both nodes are sinks (without
    outgoing edges), and only the target can be reached from the root.

    Args:
        matrix: adjacency matrices, ``[graph, from, to]``.
        steps: distance of each node from the root, ``[graph, node]``; the number of nodes if there
            is no path.

    Returns:
        Bool[graph, target, negative].
    """
    is_sink = matrix.sum(-1) == 0
    return _find_separate_pairs(matrix, steps) & is_sink[:, :, None] & is_sink[:, None, :]


def _find_matched_pairs(matrix: NDArray[Any], steps: NDArray[Any]) -> NDArray[Any]:
    """Mark the pairs (target, negative) of the regime ``matched``, of which only the target can be
    reached from the root.

    Both nodes have the same in-degree, the same out-degree and the same number of ancestors.

    Args:
        matrix: adjacency matrices, ``[graph, from, to]``.
        steps: distance of each node from the root, ``[graph, node]``; the number of nodes if there
            is no path.

    Returns:
        Bool[graph, target, negative].
    """
    allowed = _find_separate_pairs(matrix, steps)
    n_ancestors = graphs.closure(matrix).sum(-2)
    in_degree, out_degree = matrix.sum(-2), matrix.sum(-1)
    for number in (in_degree, out_degree, n_ancestors):
        allowed &= number[:, :, None] == number[:, None, :]
    return allowed


def _draw_repeated(rng: _Generator, n_graphs: int, n_nodes: int, n_edges: int) -> _Drawn:
    """Sample graphs of the regime ``repeated``: the list of edges has few different edges, some
    repeated far more often than others, and candidates are random.

    The number of different edges is random, between a sixth of the list's length and its full
    length. The root is not a candidate.

    Args:
        rng: the random generator.
        n_graphs, n_nodes, n_edges: numbers of graphs, and of nodes and edges of each.
    """
    grown = _grow_graphs(rng, n_graphs, n_nodes, n_edges)
    n_different = rng.integers(max(1, n_edges // _MEAN_REPEATS), n_edges + 1, (n_graphs, 1))
    # A power above 1 makes small indices more frequent, so that some edges are repeated far more.
    uneven = rng.random((n_graphs, n_edges)) ** _REPEAT_EXPONENT
    edge_of_slot = _repeat_edges(uneven, n_different)
    edges = np.take_along_axis(grown, edge_of_slot[..., None], 1)
    is_sink = graphs.adjacency(edges, n_nodes).sum(-1) == 0  # [graph, node]
    # A root is the source of the first edge or, in some graphs, a node without outgoing edges.
    wants_edges = rng.random(n_graphs) > _SHARE_WITHOUT_EDGES
    has_edges = wants_edges | ~is_sink.any(1)
    # A random sink: the one with the largest random number.
    random_sinks = (is_sink * rng.random((n_graphs, n_nodes))).argmax(1)
    first_sources = edges[:, 0, 0]
    roots = np.where(has_edges, first_sources, random_sinks)
    order = rng.random((n_graphs, n_nodes))
    order[np.arange(n_graphs), roots] = 2.0  # last in the order, and so not a candidate
    return _Drawn(edges, roots, candidates=order.argsort(-1)[:, :2])


def _draw_stranded(rng: _Generator, n_graphs: int, n_nodes: int, n_edges: int) -> _Drawn:
    """Sample graphs of the regime ``stranded``: root 0 and candidate 1 have no edges.

    The other candidate is at the end of a chain that starts at node 2.

    Args:
        rng: the random generator.
        n_graphs, n_nodes, n_edges: numbers of graphs, and of nodes and edges of each.
    """
    length = min(4, n_nodes - 3, n_edges)  # edges of the chain, which has nodes 2, 3, ...
    # The list has few different edges, each repeated about six times.
    n_others = max(n_edges // _MEAN_REPEATS - length, 0)
    others = rng.integers(2, n_nodes, (n_graphs, n_others, 2))
    different_edges = np.concatenate([_make_path(2, length, n_graphs), others], 1)
    n_different = different_edges.shape[1]
    chosen = rng.integers(0, n_different, (n_graphs, n_edges - n_different, 1))
    repeated_edges = np.take_along_axis(different_edges, chosen, 1)
    edges = np.concatenate([different_edges, repeated_edges], 1)
    candidates = np.broadcast_to([2 + length, 1], (n_graphs, 2))
    return _Drawn(edges, np.zeros(n_graphs, np.int64), candidates)


_ALL_REGIMES = (
    _Regime(
        "matched",
        "acyclic graphs whose candidates look alike, depth 1 to 4",
        (1, 2, 3, 4),
        pairs=_find_matched_pairs,
    ),
    _Regime(
        "prosqa", "acyclic graphs like ProsQA's, depth 3 or 4", (3, 4), pairs=_find_pairs_of_sinks
    ),
    _Regime("uniform", "any edges, any candidates", draw=_draw_uniform),
    _Regime(
        "repeated",
        "acyclic graphs whose edges are repeated, some roots without edges",
        draw=_draw_repeated,
    ),
    _Regime("path", "a path with edges back", draw=_draw_path),
    _Regime("stranded", "a root without edges, few edges, repeated", draw=_draw_stranded),
)
REGIMES = {regime.key: regime for regime in _ALL_REGIMES}


@checked
def sample(
    n_episodes: int,
    n_rounds: int,
    n_nodes: int = 16,
    n_edges: int = 24,
    regime: str = "matched",
    seed: int = 0,
    depths: Sequence[int] | None = None,
) -> ReachabilityEpisodes:
    """Sample episodes of a regime (a distribution of graphs). The same arguments always give the
    same arrays.

    >>> episodes = sample(n_episodes=6, n_rounds=4, n_nodes=12, n_edges=18, seed=0)
    >>> episodes.edges.shape, sorted(set(episodes.depths.tolist()))
    ((6, 18, 2), [1, 2, 3])

    Args:
        n_episodes: number of episodes.
        n_rounds: number of rounds of each episode. A search can tell from round d on (counted from
            0) that a target d steps from the root is the correct candidate.
        n_nodes: number of node names. Graphs of regimes with ``depths`` use at least half of them,
            if ``n_edges`` suffices for that.
        n_edges: length of the list of edges; shorter lists are padded by repeating edges.
        regime: a key of :data:`REGIMES`.
        seed: seed of all random draws.
        depths: distances of the target (the correct candidate) from the root, in steps; all occur
            equally often. None takes the regime's distances up to ``n_rounds - 1``, so that a
            search reaches the target within ``n_rounds`` rounds. A distance that hardly ever occurs
            in graphs of this size is replaced by the largest distance that occurs often enough.

    Raises:
        InputError: the regime has no depths but ``depths`` is not None, or no graph of this size
            has any of the depths.
    """
    integer("n_episodes", n_episodes, 1)
    integer("n_rounds", n_rounds, 1)
    integer("n_nodes", n_nodes, 4)
    integer("n_edges", n_edges, 3)
    what = f"graphs with {n_nodes} nodes and {n_edges} edges"
    refuse_beyond_machine(f"{n_episodes} {what}", 8.0 * n_episodes * (n_nodes**2 + 4 * n_edges))
    # 10**6 edges took 35 seconds: graphs are drawn 64 at a time, whatever the number of episodes.
    refuse_slow(what, 64 * 5e-7 * (n_nodes**2 + n_edges))
    require_known("regime", regime, REGIMES)
    record = REGIMES[regime]
    rng = np.random.default_rng([seed, _GRAPH_STREAM])
    if record.draw is not None:
        require(depths is None, f"regime {regime!r} has whatever depth comes; leave depths out")
        drawn = record.draw(rng, n_episodes, n_nodes, n_edges)
    else:
        chosen_depths = _choose_depths(record, n_rounds, depths)
        drawn = _draw_depths(record, rng, n_episodes, (n_nodes, n_edges), chosen_depths)
    episodes = ReachabilityEpisodes(
        *drawn, n_nodes=n_nodes, n_rounds=n_rounds, regime=regime, seed=seed
    )
    shuffled = episodes.shuffled(np.random.default_rng([seed, _ORDER_STREAM]))
    name_draws = np.random.default_rng([seed, _NAME_STREAM]).random((n_episodes, n_nodes))
    random_names = name_draws.argsort(-1)  # a permutation for each episode, [episode, node]
    return shuffled.renamed(random_names)


def _choose_depths(record: _Regime, n_rounds: int, depths: Sequence[int] | None) -> tuple[int, ...]:
    """Return the distances of the target that are sampled; refuse an empty list and repeated
    distances.

    Args:
        record: the regime.
        n_rounds: number of rounds of each episode.
        depths: the distances that the user named. None for the regime's distances below
            ``n_rounds``, which can be answered in time. If the regime has none of these, the result
            is ``n_rounds - 1``, but at least 1.
    """
    if depths is None:
        answerable = tuple(depth for depth in record.depths if depth < n_rounds)
        return answerable or (max(1, n_rounds - 1),)
    require(len(depths) > 0, "depths is empty; give at least one, or leave it out")
    require(
        len(set(depths)) == len(depths),
        f"depths must differ, each is drawn as often as the others; got {depths}",
    )
    return tuple(depths)


def battery(
    n_episodes: int, n_rounds: int, *, n_nodes: int, n_edges: int, seed: int
) -> dict[str, ReachabilityEpisodes]:
    """Sample one set of episodes for each of the regimes (distributions of graphs) "matched",
    "prosqa", "uniform" and "path", on which different search algorithms answer differently.

    Args:
        n_episodes: number of episodes of each regime.
        n_rounds, n_nodes, n_edges: numbers of rounds, of nodes and of edges of each episode.
        seed: seed of the random draws.

    Returns:
        A mapping {name of the regime: episodes}.
    """
    return {
        regime: sample(n_episodes, n_rounds, n_nodes, n_edges, regime, seed) for regime in _BATTERY
    }


def _draw_depths(
    record: _Regime,
    rng: np.random.Generator,
    n_episodes: int,
    sizes: tuple[int, int],
    depths: tuple[int, ...],
) -> _Drawn:
    """Sample graphs of a regime with each depth of the target equally often, in random order.

    Args:
        record: the regime.
        rng: the random generator.
        n_episodes: number of graphs.
        sizes: numbers of nodes and edges.
        depths: distances of the target from the root.
    """
    equal_parts = np.array_split(np.arange(n_episodes), len(depths))
    wanted = {depth: len(part) for depth, part in zip(depths, equal_parts, strict=True)}
    batches: list[_Drawn] = []
    n_slow = 0
    while n_missing := sum(wanted.values()):
        # More graphs than are needed, since not all have a target at a depth that is needed.
        n_grown = min(_MOST_AT_ONCE, max(64, 3 * n_missing))
        grown = _grow_graphs(rng, n_grown, *sizes)
        new_batches = _select_depths(record, rng, grown, n_nodes=sizes[0], wanted=wanted)
        batches += new_batches
        n_taken = sum(len(batch.roots) for batch in new_batches)
        # Depths that are found too rarely, several times in a row, are given up.
        is_slow = 100 * n_taken <= n_missing
        n_slow = n_slow + 1 if is_slow else 0
        if n_slow == _MOST_SLOW_ATTEMPTS:
            _replace_rare_depths(wanted, has_some=bool(batches), record=record, sizes=sizes)
            n_slow = 0
    # The batches are sorted by depth; the result is not.
    order = rng.permutation(n_episodes)
    edges, roots, candidates = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    return _Drawn(edges[order], roots[order], candidates[order])


def _select_depths(
    record: _Regime,
    rng: np.random.Generator,
    edges: NDArray[np.int64],
    n_nodes: int,
    wanted: dict[int, int],
) -> list[_Drawn]:
    """Select graphs with a target at a depth that is still needed, choose their candidates, and
    return these graphs, one batch per depth.

    Args:
        record: the regime, which defines the allowed pairs of candidates.
        rng: random generator that chooses among the allowed pairs of a graph, uniformly.
        edges: edges of the graphs, ``[graph, edge, 2]``.
        n_nodes: number of nodes.
        wanted: number of graphs that are still needed, by depth; it is reduced in place.
    """
    assert record.pairs is not None
    matrix = graphs.adjacency(edges, n_nodes)
    root_is_node_0 = np.zeros(len(edges), np.int64)
    steps = graphs.distances(matrix, root_is_node_0)  # [graph, node]
    open_depths = [depth for depth, number in wanted.items() if number]
    is_useful = np.isin(steps, open_depths).any(-1)
    edges, steps = edges[is_useful], steps[is_useful]
    allowed = record.pairs(matrix[is_useful], steps)  # [graph, target, negative]
    is_free = np.ones(len(edges), dtype=bool)  # False for graphs that were selected
    batches = []
    for depth in sorted(wanted, reverse=True):  # first the deepest targets, which are rarest
        at_depth = allowed & (steps == depth)[:, :, None]
        rows = np.flatnonzero(is_free & at_depth.any((1, 2)))[: wanted[depth]]
        n_selected = len(rows)
        if n_selected == 0:
            continue
        is_free[rows] = False
        is_pair = at_depth[rows]
        # The largest of uniform numbers is at a random one of the allowed pairs.
        scores = np.where(is_pair, rng.random(is_pair.shape), -1.0)
        pair_index = scores.reshape(n_selected, -1).argmax(-1)  # n_nodes * target + negative
        candidates = np.stack(np.divmod(pair_index, n_nodes), -1)
        roots = np.zeros(n_selected, np.int64)
        batches.append(_Drawn(edges[rows], roots, candidates))
        wanted[depth] -= n_selected
    return batches


def _replace_rare_depths(
    wanted: dict[int, int], has_some: bool, record: _Regime, sizes: tuple[int, int]
) -> None:
    """Replace depths of which too few graphs were found by the largest depth of which enough were
    found. Raise InputError if there is no such depth.

    Args:
        wanted: number of graphs that are still needed, by depth; it is changed in place.
        has_some: True if any graph was found.
        record: the regime.
        sizes: numbers of nodes and edges.
    """
    n_nodes, n_edges = sizes
    complete = [depth for depth, number in wanted.items() if number == 0]
    require(
        complete,
        f"{'too few' if has_some else 'no'} {record.key!r} graphs of {n_nodes} nodes and {n_edges} edges have a "
        f"target of depth {' or '.join(map(str, wanted))}; take more nodes and edges, or smaller depths",
    )
    for depth in list(wanted):
        if depth not in complete:
            wanted[max(complete)] += wanted.pop(depth)
