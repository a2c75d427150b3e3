"""Adjacency, distances and ancestors equal networkx on random digraphs."""

import networkx as nx
import numpy as np
import pytest

from interp.tasks.reachability import graphs, sample

REGIMES = ("uniform", "path", "prosqa", "matched", "stranded", "repeated")


def as_networkx(edges: np.ndarray, n_nodes: int) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(n_nodes))
    graph.add_edges_from(map(tuple, edges))
    return graph


@pytest.mark.parametrize("regime", REGIMES)
def test_distances_are_those_of_networkx(regime: str) -> None:
    episodes = sample(30, 4, 12, 20, regime=regime, seed=1)
    for e in range(len(episodes)):
        known = nx.single_source_shortest_path_length(as_networkx(episodes.edges[e], 12), int(episodes.roots[e]))
        assert episodes.distances[e].tolist() == [known.get(node, 12) for node in range(12)]


@pytest.mark.parametrize("regime", REGIMES)
def test_degrees_and_ancestors_are_those_of_networkx(regime: str) -> None:
    episodes = sample(20, 4, 12, 20, regime=regime, seed=2)
    ancestors = graphs.closure(episodes.adjacency).sum(-2)
    for e in range(len(episodes)):
        graph = as_networkx(episodes.edges[e], 12)
        assert episodes.adjacency.sum(-2)[e].tolist() == [graph.in_degree(v) for v in range(12)]
        assert episodes.adjacency.sum(-1)[e].tolist() == [graph.out_degree(v) for v in range(12)]
        # networkx leaves a node out of its own ancestors; on a cycle it is one.
        cycles = {v for v in range(12) if graph.has_edge(v, v) or any(v in nx.descendants(graph, w) for w in graph[v])}
        assert ancestors[e].tolist() == [len(nx.ancestors(graph, v)) + (v in cycles) for v in range(12)]
