"""What regimes promise, what episodes refuse, and what stands where in a round; graphs are those of networkx."""

import json
from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from prosqa import read_prosqa

from interp.model.layout import layout_from_dict
from interp.tasks.reachability import REGIMES, ReachabilityEpisodes, graphs, sample
from interp.tasks.reachability.layout import ReachabilityRound
from tests.refusals import refuses


@pytest.mark.parametrize("regime", REGIMES)
def test_the_same_arguments_give_the_same_bytes(regime: str) -> None:
    first = sample(12, 5, 16, 24, regime=regime, seed=3)
    same_seed = sample(12, 5, 16, 24, regime=regime, seed=3)
    other_seed = sample(12, 5, 16, 24, regime=regime, seed=4)
    assert np.array_equal(first.edges, same_seed.edges)
    assert np.array_equal(first.candidates, same_seed.candidates)
    assert not np.array_equal(first.edges, other_seed.edges)


@pytest.fixture(scope="module")
def matched() -> ReachabilityEpisodes:
    return sample(200, 5, 28, 54, regime="matched", seed=0)


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(lambda adjacency: adjacency.sum(-2), id="in-degrees"),
        pytest.param(lambda adjacency: adjacency.sum(-1), id="out-degrees"),
        pytest.param(lambda adjacency: graphs.closure(adjacency).sum(-2), id="ancestors"),
    ],
)
def test_matched_candidates_look_alike(matched, count) -> None:
    counts = count(matched.adjacency)
    rows = np.arange(len(matched))
    of_targets = counts[rows, matched.targets]
    of_negatives = counts[rows, matched.negatives]
    assert np.array_equal(of_targets, of_negatives)


def test_depths_of_matched_candidates_are_equally_frequent(matched) -> None:
    _, frequencies = np.unique(matched.depths, return_counts=True)
    assert frequencies.tolist() == [50, 50, 50, 50]


@pytest.mark.parametrize("regime", ["matched", "prosqa"])
def test_one_candidate_is_reached_in_acyclic_graphs(regime: str) -> None:
    episodes = sample(100, 5, 28, 54, regime=regime, seed=1)
    farther = episodes.candidate_distances.max(-1)
    assert (farther == episodes.n_nodes).all()
    is_on_a_cycle = np.einsum("bii->b", graphs.closure(episodes.adjacency))
    assert not is_on_a_cycle.any()


def test_prosqa_graphs_have_the_published_statistics() -> None:
    """ProsQA: 14-28 nodes (mean 22.7), 36 edges, 13 nodes reached, 3.0, 4.5, 3.4 and 1.2 new ones a level."""
    episodes = sample(300, 5, 28, 54, regime="prosqa", seed=2)
    adjacency = episodes.adjacency
    has_an_edge = adjacency.any(-1) | adjacency.any(-2)
    n_used = has_an_edge.sum(-1)
    assert n_used.min() >= 14
    assert n_used.max() <= 28
    assert abs(n_used.mean() - 22.7) < 2
    n_edges = adjacency.sum((1, 2))
    assert abs(n_edges.mean() - 36.1) < 4
    n_reached = (episodes.distances < 28).sum(-1)
    assert abs(n_reached.mean() - 13.1) < 1.5
    new_nodes = []
    for step in (1, 2, 3, 4):
        is_new = episodes.distances == step
        new_nodes.append(is_new.sum(-1).mean())
    assert np.allclose(new_nodes, [3.0, 4.5, 3.4, 1.15], atol=0.6)


def test_neither_name_nor_order_says_which_candidate_it_is() -> None:
    episodes = sample(2000, 5, 16, 24, regime="matched", seed=5, depths=(1, 2))
    assert abs(episodes.answers.mean() - 0.5) < 0.04
    target_is_later = episodes.targets > episodes.negatives
    assert abs(target_is_later.mean() - 0.5) < 0.04


def test_depths_that_do_not_exist_are_refused_or_replaced() -> None:
    refuses("take more nodes", sample, 4, 9, 5, 4, depths=(8,))
    assert set(sample(20, 9, 6, 6, depths=(1, 4)).depths.tolist()) == {1}
    refuses("leave depths out", sample, 4, 4, regime="path", depths=(2,))
    refuses("did you mean 'matched'", sample, 4, 4, regime="match")


def test_episodes_refuse_what_is_no_graph() -> None:
    episodes = sample(4, 5, 16, 24, seed=0)
    off = np.where(episodes.edges == 15, 16, episodes.edges)
    refuses("edges must be whole numbers from 0 to 15, got 16", replace, episodes, edges=off)
    refuses("must differ", replace, episodes, candidates=episodes.candidates[:, :1].repeat(2, 1))
    refuses("of 5 rounds, got shape", replace, episodes, roots=np.zeros((4, 3), int))
    assert len(episodes.select([2, 0])) == 2


def test_published_graphs_are_read(tmp_path: Path) -> None:
    graph = {
        "edges": [[0, 2], [2, 3], [1, 4]],
        "root": 0,
        "target": 3,
        "neg_target": 4,
        "idx_to_symbol": list("abcde"),
    }
    small = {"edges": [[0, 1], [2, 3]], "root": 0, "target": 1, "neg_target": 3}
    path = tmp_path / "graphs.json"
    path.write_text(json.dumps([graph, small]))
    plain = read_prosqa(path)
    assert plain.n_nodes == 5
    assert plain.n_edges == 3
    assert plain.regime == "prosqa, published"
    assert plain.seed is None
    assert plain.targets.tolist() == [3, 1]
    assert plain.negatives.tolist() == [4, 3]
    assert plain.depths.tolist() == [2, 1]
    renamed = read_prosqa(path, n_nodes=9, n_edges=7, seed=1)
    assert renamed.depths.tolist() == [2, 1]
    assert renamed.edges.shape == (2, 7, 2)
    path.write_text(json.dumps([{"edges": []}]))
    refuses("lacks root, target, neg_target", read_prosqa, path)


@pytest.mark.parametrize(("n_nodes", "n_edges", "n_rounds"), [(6, 8, 5), (7, 9, 8)])
def test_depths_that_hardly_come_are_given_up_for_good(n_nodes, n_edges, n_rounds):
    """Small graphs have few deep targets: sampling ends, with the depths that come, or says why it cannot."""
    episodes = sample(16, n_rounds, n_nodes=n_nodes, n_edges=n_edges, seed=0)
    assert len(episodes) == 16
    assert episodes.depths.min() >= 1
    assert episodes.depths.max() <= 4


def test_nothing_is_reached_in_stranded_graphs_and_few_edges_fill_the_list() -> None:
    """A search answers one half in every round; smallest sizes are drawn, too."""
    episodes = sample(20, 5, 28, 54, regime="stranded", seed=1)
    n_unreached = (episodes.distances == episodes.n_nodes).sum(1)
    assert n_unreached.tolist() == [27] * 20
    in_degrees = episodes.adjacency.sum(1)
    candidates = episodes.by_round("candidates")[:, 0]
    of_candidates = np.take_along_axis(in_degrees, candidates, -1)
    ascending = np.sort(of_candidates, -1)
    assert (ascending[:, 0] == 0).all()
    assert (ascending[:, 1] > 0).all()
    assert episodes.adjacency.sum((1, 2)).max() <= 9
    assert len(sample(2, 3, 4, 3, regime="stranded", seed=1)) == 2


def test_edges_of_repeated_graphs_are_few_and_uneven_and_some_roots_have_none() -> None:
    episodes = sample(200, 5, 28, 54, regime="repeated", seed=1)
    different = episodes.adjacency.sum((1, 2))
    assert different.min() <= 12
    assert different.max() >= 40
    most_repeated = [
        np.unique(edges, axis=0, return_counts=True)[1].max() for edges in episodes.edges
    ]
    assert np.median(most_repeated) >= 4  # 54 edges of 25 different ones, evenly: 3
    has_an_edge_from = episodes.adjacency.any(2)
    rows = np.arange(len(episodes))
    root_is_alone = ~has_an_edge_from[rows, episodes.roots]
    assert 0.2 < root_is_alone.mean() < 0.45
    assert (episodes.roots[:, None] != episodes.candidates).all()
    assert len(sample(2, 3, 4, 3, regime="repeated", seed=1)) == 2


def as_networkx(edges: np.ndarray, n_nodes: int) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(n_nodes))
    graph.add_edges_from(map(tuple, edges))
    return graph


@pytest.mark.parametrize("regime", REGIMES)
def test_distances_are_those_of_networkx(regime: str) -> None:
    episodes = sample(30, 4, 12, 20, regime=regime, seed=1)
    for e in range(len(episodes)):
        graph = as_networkx(episodes.edges[e], 12)
        root = int(episodes.roots[e])
        lengths = nx.single_source_shortest_path_length(graph, root)
        expected = [lengths.get(node, 12) for node in range(12)]
        assert episodes.distances[e].tolist() == expected


@pytest.mark.parametrize("regime", REGIMES)
def test_degrees_and_ancestors_are_those_of_networkx(regime: str) -> None:
    episodes = sample(20, 4, 12, 20, regime=regime, seed=2)
    in_degrees = episodes.adjacency.sum(-2)
    out_degrees = episodes.adjacency.sum(-1)
    n_ancestors = graphs.closure(episodes.adjacency).sum(-2)
    assert in_degrees.shape == (20, 12)
    assert out_degrees.shape == (20, 12)
    assert n_ancestors.shape == (20, 12)
    for e in range(len(episodes)):
        graph = as_networkx(episodes.edges[e], 12)
        for node in range(12):
            assert in_degrees[e, node] == graph.in_degree(node)
            assert out_degrees[e, node] == graph.out_degree(node)
            assert n_ancestors[e, node] == count_ancestors(graph, node)


def count_ancestors(graph: nx.DiGraph, node: int) -> int:
    """Count a node's ancestors; networkx leaves a node out of its own, but on a cycle it is one."""
    others = nx.ancestors(graph, node)
    is_on_a_cycle = any(successor == node or successor in others for successor in graph[node])
    return len(others) + is_on_a_cycle


CHAIN = ReachabilityEpisodes(
    edges=np.array([[[0, 1], [1, 2]]]),
    roots=np.array([0]),
    candidates=np.array([[2, 3]]),
    n_nodes=4,
    n_rounds=3,
)


def words(layout: ReachabilityRound) -> list[str]:
    tokens = layout.encode(CHAIN).tokens
    return [layout.vocabulary[i] for i in tokens[0, 1].tolist()]


def test_marked_rounds_read_as_the_construction_does() -> None:
    layout = ReachabilityRound(4, 2, marks=True)
    assert layout.labels == (
        "<w>",
        "<z>",
        "s_1",
        "t_1",
        "e_1",
        "s_2",
        "t_2",
        "e_2",
        "c_1",
        "c_2",
        "p?",
        "r",
        "w?",
    )
    assert words(layout) == [
        "<w>",
        "<w>",
        "n_1",
        "n_2",
        "e",
        "n_2",
        "n_3",
        "e",
        "n_3",
        "n_4",
        "p?",
        "n_1",
        "w?",
    ]
    assert (layout.predict_position, layout.update_position) == (10, 12)


def test_rounds_without_marks_are_shorter() -> None:
    layout = ReachabilityRound(4, 2)
    assert words(layout) == [
        "<w>",
        "<w>",
        "n_1",
        "n_2",
        "n_2",
        "n_3",
        "n_3",
        "n_4",
        "p?",
        "n_1",
        "w?",
    ]
    assert "e" not in layout.vocabulary
    assert layout.n_positions == 2 * 2 + 7


@pytest.mark.parametrize("marks", [True, False])
def test_a_range_of_lengths(marks: bool) -> None:
    layout = ReachabilityRound(12, 18, (6, 18), marks)
    assert layout_from_dict(layout.to_dict()) == layout
    episodes = sample(3, 4, 12, 9, seed=0, depths=(1,))
    fitted = layout.fit(episodes)
    assert fitted.n_edges == 9
    tokens_of_an_edge = 3 if marks else 2
    n_positions = tokens_of_an_edge * 9 + 7
    assert fitted.encode(episodes).tokens.shape == (3, 4, n_positions)
    assert [x.n_edges for x in layout.family] == list(range(6, 19))
    assert {x.n_outputs for x in layout.family} == {12}


def test_what_does_not_fit_is_refused() -> None:
    layout = ReachabilityRound(12, 18)
    refuses("sample with n_nodes=12", layout.fit, sample(3, 4, 14, 18, depths=(1,)))
    refuses(
        "serves 18 edges; sample with n_edges=18", layout.fit, sample(3, 4, 12, 17, depths=(1,))
    )
