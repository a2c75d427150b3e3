"""Drawing reachability episodes: their regimes, and the battery that tells searches apart; same arguments, same bytes.

A regime is random graphs with a rule that chooses root and candidates.

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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from interp.support.checks import checked, integer, refuse_beyond_machine, refuse_slow
from interp.support.errors import require, require_known
from interp.tasks.reachability import graphs
from interp.tasks.reachability.episodes import ReachabilityEpisodes

_GRAPHS, _NAMES, _ORDER = range(
    3
)  # one random stream a stage: what one stage draws never moves another
_BATTERY = ("matched", "prosqa", "uniform", "path")  # regimes on which searches answer differently
_CHUNK, _PATIENCE = 2048, 12
"""Graphs that are drawn at once at most, and how many draws without a new depth are waited for."""
_Generator = np.random.Generator
_PARENTS = (0.4, 0.4, 0.2)  # probability that a node is asked to get 1, 2 or 3 parents
_RECENT = 0.3
"""How much more likely a parent becomes per step towards the node, on a log scale: drawn below this for each graph
(of 28 names; more for fewer)."""
_BELOW_FIRST, _CROSSING = 0.6, 0.03
"""Share of the nodes that grow below the first root; odds of a parent from the other side for one of these."""
_UNEVEN = 2.0
"""How uneven the repeats of ``repeated`` are: an edge is drawn again by the place of a uniform number to this power."""
_WITHOUT = (
    1 / 3
)  # the share of roots of ``repeated`` that have no edge, where the graph has a name without one
_REPEATED = 6  # how often, on average, each edge of a stranded graph is given


class _Drawn(NamedTuple):
    """Graphs before names are permuted: edges ``[graph, edge, 2]``, roots ``[graph]``, candidates ``[graph, 2]``."""

    edges: NDArray[np.int64]
    roots: NDArray[np.int64]
    candidates: NDArray[np.int64]


@dataclass(frozen=True)
class _Regime:
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
    draw: Callable[[_Generator, int, int, int], _Drawn] | None = None
    pairs: Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]] | None = None


def _uniform(rng: _Generator, n_graphs: int, n_nodes: int, n_edges: int) -> _Drawn:
    """Edges, roots and candidates from all nodes."""
    nodes = rng.random((n_graphs, n_nodes)).argsort(-1)
    return _Drawn(
        rng.integers(0, n_nodes, (n_graphs, n_edges, 2)),
        rng.integers(0, n_nodes, n_graphs),
        nodes[:, :2],
    )


def _path(rng: _Generator, n_graphs: int, n_nodes: int, n_edges: int) -> _Drawn:
    """A path from node 0 through as many nodes as there are edges for, and edges from a later to an earlier node."""
    length = min(n_nodes - 1, n_edges)
    forward = np.stack([np.arange(length), np.arange(1, length + 1)], -1)
    later = rng.integers(1, length + 1, (n_graphs, n_edges - length))
    back = np.stack([later, (rng.random(later.shape) * later).astype(np.int64)], -1)
    edges = np.concatenate([np.broadcast_to(forward, (n_graphs, *forward.shape)), back], 1)
    return _Drawn(
        edges,
        np.zeros(n_graphs, np.int64),
        1 + rng.random((n_graphs, n_nodes - 1)).argsort(-1)[:, :2],
    )


def _grow(rng: _Generator, n_graphs: int, n_nodes: int, n_edges: int) -> NDArray[np.int64]:
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
    appeal = np.where(child[:, None] < child, appeal, -np.inf) + rng.gumbel(
        size=(n_graphs, n_nodes, n_nodes)
    )
    parents = np.argsort(-appeal, axis=1)[:, :3].swapaxes(1, 2)
    possible = np.isfinite(appeal).sum(1)
    number = np.minimum(
        1 + (rng.random((n_graphs, n_nodes, 1)) > np.cumsum(_PARENTS[:2])).sum(-1), possible
    )
    kept = ((child >= 2) & (child < sizes[:, None]))[..., None] & (np.arange(3) < number[..., None])
    # First parents always stay; further ones as far as there are edges for them.
    priority = np.where(kept, rng.random(kept.shape) + np.array([0, 1, 1]), 3.0).reshape(
        n_graphs, -1
    )
    order = np.argsort(priority, -1)[:, :n_edges]
    count = np.minimum(kept.sum((1, 2)), n_edges)
    slot = np.arange(n_edges)
    spare = (rng.random((n_graphs, n_edges)) * count[:, None]).astype(np.int64)
    chosen = np.take_along_axis(order, np.where(slot < count[:, None], slot, spare), -1)
    return np.stack(
        [np.take_along_axis(parents.reshape(n_graphs, -1), chosen, -1), chosen // 3], -1
    )


def _separated(matrix: NDArray[Any], steps: NDArray[Any]) -> NDArray[Any]:
    """Bool[graph, target, negative]: the target is reached, the negative is not; neither is a root."""
    n_nodes = matrix.shape[-1]
    return ((steps > 0) & (steps < n_nodes))[:, :, None] & (matrix.any(-2) & (steps == n_nodes))[
        :, None, :
    ]


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


def _repeated(rng: _Generator, n_graphs: int, n_nodes: int, n_edges: int) -> _Drawn:
    """A part of the edges of an acyclic graph, a sixth to all, fill the list; any candidates but the root."""
    edges = _grow(rng, n_graphs, n_nodes, n_edges)
    different = rng.integers(max(1, n_edges // _REPEATED), n_edges + 1, (n_graphs, 1))
    again = (rng.random((n_graphs, n_edges)) ** _UNEVEN * different).astype(np.int64)
    slot = np.arange(n_edges)
    edges = np.take_along_axis(edges, np.where(slot < different, slot, again)[..., None], 1)
    without = graphs.adjacency(edges, n_nodes).sum(-1) == 0
    stays = (rng.random(n_graphs) > _WITHOUT) | ~without.any(1)
    roots = np.where(stays, edges[:, 0, 0], (without * rng.random((n_graphs, n_nodes))).argmax(1))
    order = rng.random((n_graphs, n_nodes))
    order[np.arange(n_graphs), roots] = 2.0
    return _Drawn(edges, roots, order.argsort(-1)[:, :2])


def _stranded(rng: _Generator, n_graphs: int, n_nodes: int, n_edges: int) -> _Drawn:
    """Node 0 is the root and 1 a candidate, both without edges; the other candidate ends a chain from node 2 on."""
    length = min(4, n_nodes - 3, n_edges)
    chain = np.stack([np.arange(2, 2 + length), np.arange(3, 3 + length)], -1)
    others = rng.integers(2, n_nodes, (n_graphs, max(n_edges // _REPEATED - length, 0), 2))
    edges = np.concatenate([np.broadcast_to(chain, (n_graphs, length, 2)), others], 1)
    spare = rng.integers(0, edges.shape[1], (n_graphs, n_edges - edges.shape[1], 1))
    edges = np.concatenate([edges, np.take_along_axis(edges, spare, 1)], 1)
    return _Drawn(
        edges,
        np.zeros(n_graphs, np.int64),
        np.broadcast_to(np.array([2 + length, 1]), (n_graphs, 2)),
    )


REGIMES = {
    regime.key: regime
    for regime in (
        _Regime(
            "matched",
            "acyclic graphs whose candidates look alike, depth 1 to 4",
            (1, 2, 3, 4),
            pairs=_alike,
        ),
        _Regime("prosqa", "acyclic graphs like ProsQA's, depth 3 or 4", (3, 4), pairs=_both_sinks),
        _Regime("uniform", "any edges, any candidates", draw=_uniform),
        _Regime(
            "repeated",
            "acyclic graphs whose edges are repeated, some roots without edges",
            draw=_repeated,
        ),
        _Regime("path", "a path with edges back", draw=_path),
        _Regime("stranded", "a root without edges, few edges, repeated", draw=_stranded),
    )
}


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
    """Draw episodes.

    >>> episodes = sample(n_episodes=6, n_rounds=4, n_nodes=12, n_edges=18, seed=0)
    >>> episodes.edges.shape, sorted(set(episodes.depths.tolist()))
    ((6, 18, 2), [1, 2, 3])

    Args:
        n_nodes: number of names; graphs of the regimes with depths use half of them or more.
        n_edges: length of the list of edges, filled up by repeating edges.
        depths: depths of the target, each as often as the others; those of the regime that ``n_rounds`` rounds can
            answer (depth <= n_rounds - 1) when None. Where graphs of these sizes hardly ever have one of them, the
            others take its place.

    Raises:
        InputError: depths where the regime has none, or no graph of these sizes that has any of the depths.
    """
    sizes = {
        "n_episodes": (n_episodes, 1),
        "n_rounds": (n_rounds, 1),
        "n_nodes": (n_nodes, 4),
        "n_edges": (n_edges, 3),
    }
    for name, (size, smallest) in sizes.items():
        integer(name, size, smallest)
    refuse_beyond_machine(
        f"{n_episodes} graphs with {n_nodes} nodes and {n_edges} edges",
        8.0 * n_episodes * (n_nodes**2 + 4 * n_edges),
    )
    # 10**6 edges took 35 seconds: graphs are drawn 64 at a time, whatever the number of episodes.
    refuse_slow(
        f"graphs with {n_nodes} nodes and {n_edges} edges", 64 * 5e-7 * (n_nodes**2 + n_edges)
    )
    require(
        depths is None or len(depths) > 0, "depths is empty; give at least one, or leave it out"
    )
    once = depths is None or len(set(depths)) == len(depths)
    require(once, f"depths must differ, each is drawn as often as the others; got {depths}")
    require_known("regime", regime, REGIMES)
    record, rng = REGIMES[regime], np.random.default_rng([seed, _GRAPHS])
    if record.draw is not None:
        require(depths is None, f"regime {regime!r} has whatever depth comes; leave depths out")
        drawn = record.draw(rng, n_episodes, n_nodes, n_edges)
    else:
        answered = tuple(depth for depth in record.depths if depth < n_rounds) or (
            max(1, n_rounds - 1),
        )
        drawn = _of_depths(
            record,
            rng,
            n_episodes,
            (n_nodes, n_edges),
            answered if depths is None else tuple(depths),
        )
    names = np.random.default_rng([seed, _NAMES]).random((n_episodes, n_nodes)).argsort(-1)
    episodes = ReachabilityEpisodes(*drawn, n_nodes, n_rounds, regime, seed)
    return episodes.shuffled(np.random.default_rng([seed, _ORDER])).renamed(names)


def battery(
    n_episodes: int, n_rounds: int, *, n_nodes: int, n_edges: int, seed: int
) -> dict[str, ReachabilityEpisodes]:
    """Episodes on which searches answer differently: a batch of each regime that tells them apart, by its name."""
    return {
        regime: sample(n_episodes, n_rounds, n_nodes, n_edges, regime, seed) for regime in _BATTERY
    }


def _of_depths(
    record: _Regime,
    rng: np.random.Generator,
    n_episodes: int,
    sizes: tuple[int, int],
    depths: tuple[int, ...],
) -> _Drawn:
    """Graphs of a regime whose targets have each of the depths equally often, in random order."""
    assert record.pairs is not None
    wanted = {
        depth: len(part)
        for depth, part in zip(
            depths, np.array_split(np.arange(n_episodes), len(depths)), strict=True
        )
    }
    parts: list[_Drawn] = []
    waited = 0
    while missing := sum(wanted.values()):
        edges = _grow(rng, min(_CHUNK, max(64, 3 * missing)), *sizes)
        matrix = graphs.adjacency(edges, sizes[0])
        steps = graphs.distances(matrix, np.zeros(len(edges), np.int64))
        useful = np.isin(steps, [depth for depth in depths if wanted[depth]]).any(-1)
        edges, matrix, steps = edges[useful], matrix[useful], steps[useful]
        allowed = record.pairs(matrix, steps)
        free, taken = np.ones(len(edges), dtype=bool), 0
        for depth in sorted(depths, reverse=True):
            pairs = allowed & (steps == depth)[:, :, None]
            rows = np.flatnonzero(free & pairs.any((1, 2)))[: wanted[depth]]
            if len(rows):
                free[rows] = False
                # One allowed pair of each graph, all of them equally likely.
                scores = np.where(pairs[rows], rng.random(pairs[rows].shape), -1.0).reshape(
                    len(rows), -1
                )
                candidates = np.stack(np.divmod(scores.argmax(-1), sizes[0]), -1)
                parts.append(_Drawn(edges[rows], np.zeros(len(rows), np.int64), candidates))
                wanted[depth] -= len(rows)
                taken += len(rows)
        waited = (
            0 if 100 * taken > missing else waited + 1
        )  # what comes one by one would take for ever
        if waited == _PATIENCE:
            depths, waited = _give_up(wanted, depths, parts, record, sizes), 0
    order = rng.permutation(n_episodes)
    return _Drawn(*(np.concatenate(arrays)[order] for arrays in zip(*parts, strict=True)))


def _give_up(
    wanted: dict[int, int],
    depths: tuple[int, ...],
    parts: list[_Drawn],
    record: _Regime,
    sizes: tuple[int, int],
) -> tuple[int, ...]:
    """Let depths that do not come be replaced by the largest one that does; gives those that are still asked for."""
    came = [depth for depth in depths if wanted[depth] == 0]
    require(
        bool(came),
        f"{'too few' if parts else 'no'} {record.key!r} graphs of {sizes[0]} nodes and {sizes[1]} edges have a target "
        f"of depth {' or '.join(map(str, depths))}; take more nodes and edges, or smaller depths",
    )
    for depth in depths:
        if depth not in came:
            wanted[max(came)] += wanted.pop(depth)
    return tuple(came)
