"""What reachability episodes are drawn from: random graphs, each with a rule that chooses root and candidates.

* ``uniform``: every edge is drawn from all pairs of nodes (self-loops, cycles and parallel edges occur), the root and
  the candidates from all nodes. For verification: both candidates may be reachable, or none.
* ``path``: a path with edges back to earlier nodes; depth up to the number of nodes. For verification.
* ``prosqa``: acyclic graphs with the statistics of ProsQA (Hao et al., arXiv 2412.06769, as used by Zhu et al., arXiv
  2505.12514): two roots, 1 to 3 parents a node; the candidates are sinks, the negative one cannot be reached.
* ``matched``: the same graphs, but the candidates agree in in-degree, in being a sink and in the number of ancestors,
  which leave no shortcut of these kinds; the depth of the target is 1 to 4. Another shortcut is left: the target is
  nearly always nearer the root than the other candidate where edges run both ways (``interp audit`` tests it).
* ``repeated``: acyclic graphs of few different edges, some given far more often than others; a third of the roots have
  no edge. A model that is trained on them, too, cannot follow an edge for being given often.
* ``stranded``: the root has no edge, so that nothing is reached; one candidate ends a chain, the other has no edge, and
  a sixth of the list are different edges, which fill it up. A search answers one half, and stays there.

In every regime names are permuted and edges shuffled, so that neither a name nor a place in the list says anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from interp.tasks.reachability import graphs

_Generator = np.random.Generator
_PARENTS = (0.4, 0.4, 0.2)
"""Probability that a node is asked to get 1, 2 or 3 parents."""
_RECENT = 0.3
"""How much more likely a parent becomes per step towards the node, on a log scale: drawn below this for each graph
(of 28 names; more for fewer)."""
_BELOW_FIRST, _CROSSING = 0.6, 0.03
"""Share of the nodes that grow below the first root; odds of a parent from the other side for one of these."""

_UNEVEN = 2.0
"""How uneven the repeats of ``repeated`` are: an edge is drawn again by the place of a uniform number to this power."""
_WITHOUT = 1 / 3
"""The share of roots of ``repeated`` that have no edge, where the graph has a name without one."""
_REPEATED = 6
"""How often, on average, each edge of a stranded graph is given."""


class Drawn(NamedTuple):
    """Graphs before names are permuted: edges ``[graph, edge, 2]``, roots ``[graph]``, candidates ``[graph, 2]``."""

    edges: NDArray[np.int64]
    roots: NDArray[np.int64]
    candidates: NDArray[np.int64]


@dataclass(frozen=True)
class Regime:
    """A regime.

    Attributes:
        depths: depths of the target that are drawn equally often; empty where depth is whatever comes.
        draw: (generator, graphs, nodes, edges) to graphs with root and candidates; for regimes without depths.
        pairs: (adjacency, distances) to Bool[graph, target, negative], the pairs of candidates that are allowed; for
            regimes with depths.
    """

    key: str
    name: str
    depths: tuple[int, ...] = ()
    draw: Callable[[_Generator, int, int, int], Drawn] | None = None
    pairs: Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]] | None = None


def _uniform(rng: _Generator, n_graphs: int, n_nodes: int, n_edges: int) -> Drawn:
    """Edges, roots and candidates from all nodes."""
    nodes = rng.random((n_graphs, n_nodes)).argsort(-1)
    return Drawn(rng.integers(0, n_nodes, (n_graphs, n_edges, 2)), rng.integers(0, n_nodes, n_graphs), nodes[:, :2])


def _path(rng: _Generator, n_graphs: int, n_nodes: int, n_edges: int) -> Drawn:
    """A path from node 0 through as many nodes as there are edges for, and edges from a later to an earlier node."""
    length = min(n_nodes - 1, n_edges)
    forward = np.stack([np.arange(length), np.arange(1, length + 1)], -1)
    later = rng.integers(1, length + 1, (n_graphs, n_edges - length))
    back = np.stack([later, (rng.random(later.shape) * later).astype(np.int64)], -1)
    edges = np.concatenate([np.broadcast_to(forward, (n_graphs, *forward.shape)), back], 1)
    candidates = 1 + rng.random((n_graphs, n_nodes - 1)).argsort(-1)[:, :2]
    return Drawn(edges, np.zeros(n_graphs, np.int64), candidates)


def grow(rng: _Generator, n_graphs: int, n_nodes: int, n_edges: int) -> NDArray[np.int64]:
    """Acyclic graphs Int[graph, edge, 2] that grow from the roots 0 and 1: each later node has 1 to 3 earlier parents.

    A node grows below the first root, with a few parents from the other side, or below the second one alone. A graph
    has half as many nodes as there are names, or more, and as many edges as fit; the rest repeats edges.
    """
    most = min(n_nodes, n_edges + 2)
    sizes = rng.integers(min(most, max(4, -(-n_nodes // 2))), most + 1, n_graphs)
    child = np.arange(n_nodes)
    below_first = (rng.random((n_graphs, n_nodes)) < _BELOW_FIRST) & (child != 1) | (child == 0)
    crossing = np.where(below_first[:, None, :], np.log(_CROSSING), -np.inf)
    recent = _RECENT * (28 / n_nodes) * rng.random((n_graphs, 1, 1)) * child[:, None]
    appeal = np.where(below_first[:, :, None] == below_first[:, None, :], 0.0, crossing) + recent
    appeal = np.where(child[:, None] < child, appeal, -np.inf) + rng.gumbel(size=(n_graphs, n_nodes, n_nodes))
    parents = np.argsort(-appeal, axis=1)[:, :3].swapaxes(1, 2)
    possible = np.isfinite(appeal).sum(1)
    number = np.minimum(1 + (rng.random((n_graphs, n_nodes, 1)) > np.cumsum(_PARENTS[:2])).sum(-1), possible)
    exists = (child >= 2) & (child < sizes[:, None])
    kept = exists[..., None] & (np.arange(3) < number[..., None])
    # First parents always stay; further ones as far as there are edges for them.
    priority = np.where(kept, rng.random(kept.shape) + np.array([0, 1, 1]), 3.0).reshape(n_graphs, -1)
    order = np.argsort(priority, -1)[:, :n_edges]
    count = np.minimum(kept.sum((1, 2)), n_edges)
    slot = np.arange(n_edges)
    spare = (rng.random((n_graphs, n_edges)) * count[:, None]).astype(np.int64)
    chosen = np.take_along_axis(order, np.where(slot < count[:, None], slot, spare), -1)
    sources = np.take_along_axis(parents.reshape(n_graphs, -1), chosen, -1)
    return np.stack([sources, chosen // 3], -1)


def _separated(matrix: NDArray[Any], steps: NDArray[Any]) -> NDArray[Any]:
    """Bool[graph, target, negative]: the target is reached, the negative is not; neither is a root."""
    n_nodes = matrix.shape[-1]
    reached = (steps > 0) & (steps < n_nodes)
    child = matrix.any(-2)
    return reached[:, :, None] & (child & (steps == n_nodes))[:, None, :]


def _both_sinks(matrix: NDArray[Any], steps: NDArray[Any]) -> NDArray[Any]:
    """The pairs of ProsQA: both candidates are sinks, one is reached."""
    sinks = matrix.sum(-1) == 0
    return _separated(matrix, steps) & sinks[:, :, None] & sinks[:, None, :]


def _alike(matrix: NDArray[Any], steps: NDArray[Any]) -> NDArray[Any]:
    """The matched pairs: equal in-degree, equal out-degree (so both are sinks or none is), equally many ancestors."""
    allowed = _separated(matrix, steps)
    for number in (matrix.sum(-2), matrix.sum(-1), graphs.closure(matrix).sum(-2)):
        allowed &= number[:, :, None] == number[:, None, :]
    return allowed


def _repeated(rng: _Generator, n_graphs: int, n_nodes: int, n_edges: int) -> Drawn:
    """A part of the edges of an acyclic graph, a sixth to all, fill the list; any candidates but the root."""
    edges = grow(rng, n_graphs, n_nodes, n_edges)
    different = rng.integers(max(1, n_edges // _REPEATED), n_edges + 1, (n_graphs, 1))
    again = (rng.random((n_graphs, n_edges)) ** _UNEVEN * different).astype(np.int64)
    slot = np.arange(n_edges)
    edges = np.take_along_axis(edges, np.where(slot < different, slot, again)[..., None], 1)
    without = graphs.adjacency(edges, n_nodes).sum(-1) == 0
    stays = (rng.random(n_graphs) > _WITHOUT) | ~without.any(1)
    roots = np.where(stays, edges[:, 0, 0], (without * rng.random((n_graphs, n_nodes))).argmax(1))
    order = rng.random((n_graphs, n_nodes))
    order[np.arange(n_graphs), roots] = 2.0
    return Drawn(edges, roots, order.argsort(-1)[:, :2])


def _stranded(rng: _Generator, n_graphs: int, n_nodes: int, n_edges: int) -> Drawn:
    """Node 0 is the root and 1 a candidate, both without edges; the other candidate ends a chain from node 2 on."""
    length = min(4, n_nodes - 3, n_edges)
    chain = np.stack([np.arange(2, 2 + length), np.arange(3, 3 + length)], -1)
    others = rng.integers(2, n_nodes, (n_graphs, max(n_edges // _REPEATED - length, 0), 2))
    edges = np.concatenate([np.broadcast_to(chain, (n_graphs, length, 2)), others], 1)
    spare = rng.integers(0, edges.shape[1], (n_graphs, n_edges - edges.shape[1], 1))
    edges = np.concatenate([edges, np.take_along_axis(edges, spare, 1)], 1)
    candidates = np.broadcast_to(np.array([2 + length, 1]), (n_graphs, 2))
    return Drawn(edges, np.zeros(n_graphs, np.int64), candidates)


REGIMES = {
    regime.key: regime
    for regime in (
        Regime("matched", "acyclic graphs whose candidates look alike, depth 1 to 4", (1, 2, 3, 4), pairs=_alike),
        Regime("prosqa", "acyclic graphs like ProsQA's, depth 3 or 4", (3, 4), pairs=_both_sinks),
        Regime("uniform", "any edges, any candidates", draw=_uniform),
        Regime("repeated", "acyclic graphs whose edges are repeated, some roots without edges", draw=_repeated),
        Regime("path", "a path with edges back", draw=_path),
        Regime("stranded", "a root without edges, few edges, repeated", draw=_stranded),
    )
}
