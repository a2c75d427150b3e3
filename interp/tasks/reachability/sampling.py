"""Drawing reachability episodes, and the battery that tells searches apart; same arguments, same bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from interp.checks import checked, integer, refuse_beyond_machine, refuse_slow
from interp.errors import require, unknown_name
from interp.tasks.reachability import graphs
from interp.tasks.reachability.episodes import ReachabilityEpisodes
from interp.tasks.reachability.regimes import REGIMES, Drawn, Regime, grow

_GRAPHS, _NAMES, _ORDER = range(3)
"""One random stream a stage: what one stage draws never moves another."""
_BATTERY = ("matched", "prosqa", "uniform", "path")
"""Regimes on which searches answer differently."""
_CHUNK, _PATIENCE = 2048, 12
"""Graphs that are drawn at once at most, and how many draws without a new depth are waited for."""


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
    sizes = {"n_episodes": (n_episodes, 1), "n_rounds": (n_rounds, 1), "n_nodes": (n_nodes, 4), "n_edges": (n_edges, 3)}
    for name, (size, smallest) in sizes.items():
        integer(name, size, smallest)
    refuse_beyond_machine(
        f"{n_episodes} graphs with {n_nodes} nodes and {n_edges} edges", 8.0 * n_episodes * (n_nodes**2 + 4 * n_edges)
    )
    # 10**6 edges took 35 seconds: graphs are drawn 64 at a time, whatever the number of episodes.
    refuse_slow(f"graphs with {n_nodes} nodes and {n_edges} edges", 64 * 5e-7 * (n_nodes**2 + n_edges))
    require(depths is None or len(depths) > 0, "depths is empty; give at least one, or leave it out")
    once = depths is None or len(set(depths)) == len(depths)
    require(once, f"depths must differ, each is drawn as often as the others; got {depths}")
    if regime not in REGIMES:
        raise unknown_name("regime", regime, REGIMES)
    record, rng = REGIMES[regime], np.random.default_rng([seed, _GRAPHS])
    if record.draw is not None:
        require(depths is None, f"regime {regime!r} has whatever depth comes; leave depths out")
        drawn = record.draw(rng, n_episodes, n_nodes, n_edges)
    else:
        answered = tuple(depth for depth in record.depths if depth < n_rounds) or (max(1, n_rounds - 1),)
        asked = answered if depths is None else tuple(depths)
        drawn = _of_depths(record, rng, n_episodes, (n_nodes, n_edges), asked)
    names = np.random.default_rng([seed, _NAMES]).random((n_episodes, n_nodes)).argsort(-1)
    episodes = ReachabilityEpisodes(*drawn, n_nodes, n_rounds, regime, seed)
    return episodes.shuffled(np.random.default_rng([seed, _ORDER])).renamed(names)


@checked
def battery(
    n_episodes: int, n_rounds: int, *, n_nodes: int, n_edges: int, seed: int
) -> dict[str, ReachabilityEpisodes]:
    """Episodes on which searches answer differently: a batch of each regime that tells them apart, by its name.

    >>> list(battery(4, 5, n_nodes=16, n_edges=24, seed=0))
    ['matched', 'prosqa', 'uniform', 'path']
    """
    return {regime: sample(n_episodes, n_rounds, n_nodes, n_edges, regime, seed) for regime in _BATTERY}


def _of_depths(
    record: Regime, rng: np.random.Generator, n_episodes: int, sizes: tuple[int, int], depths: tuple[int, ...]
) -> Drawn:
    """Graphs of a regime whose targets have each of the depths equally often, in random order."""
    assert record.pairs is not None
    wanted = {
        depth: len(part) for depth, part in zip(depths, np.array_split(np.arange(n_episodes), len(depths)), strict=True)
    }
    parts: list[Drawn] = []
    waited = 0
    while missing := sum(wanted.values()):
        edges = grow(rng, min(_CHUNK, max(64, 3 * missing)), *sizes)
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
                scores = np.where(pairs[rows], rng.random(pairs[rows].shape), -1.0).reshape(len(rows), -1)
                candidates = np.stack(np.divmod(scores.argmax(-1), sizes[0]), -1)
                parts.append(Drawn(edges[rows], np.zeros(len(rows), np.int64), candidates))
                wanted[depth] -= len(rows)
                taken += len(rows)
        waited = 0 if 100 * taken > missing else waited + 1  # what comes one by one would take for ever
        if waited == _PATIENCE:
            depths, waited = _give_up(wanted, depths, parts, record, sizes), 0
    order = rng.permutation(n_episodes)
    return Drawn(*(np.concatenate(arrays)[order] for arrays in zip(*parts, strict=True)))


def _give_up(
    wanted: dict[int, int], depths: tuple[int, ...], parts: list[Drawn], record: Regime, sizes: tuple[int, int]
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
