"""Breadth-first search equals networkx, and behaves as a search must; its rivals see less, and families remember."""

from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import interp
import probes
from interp.interventions import causal_tables
from interp.interventions.patching import sweep
from interp.model.transformer import HookedLatentTransformer
from interp.tasks.reachability import TASK, ReachabilityEpisodes, algorithms, sample
from interp.tasks.reachability.sampling import REGIMES, battery
from tests.refusals import refuses

SIZES = {"n_nodes": 9, "n_edges": 14}


@st.composite
def batches(draw: Any) -> ReachabilityEpisodes:
    regime = draw(st.sampled_from(["uniform", "path", "matched"]))
    depths = (1, 2) if regime == "matched" else None
    return sample(4, 6, **SIZES, regime=regime, seed=draw(st.integers(0, 10_000)), depths=depths)


@settings(max_examples=25)
@given(batches())
def test_round_t_holds_what_networkx_finds_within_t_steps(episodes: ReachabilityEpisodes) -> None:
    values = algorithms.breadth_first().run(episodes)
    for e in range(len(episodes)):
        graph = nx.DiGraph(list(map(tuple, episodes.edges[e])))
        graph.add_node(int(episodes.roots[e]))
        for t in range(1, episodes.n_rounds):
            near = nx.single_source_shortest_path_length(graph, int(episodes.roots[e]), cutoff=t)
            assert set(np.flatnonzero(values["reached"][e, t])) == set(near)
    assert not values["reached"][:, 0].any()


@settings(max_examples=25)
@given(batches())
def test_undirected_search_is_search_in_the_graph_with_every_edge_both_ways(
    episodes: ReachabilityEpisodes,
) -> None:
    edges_and_back = np.concatenate([episodes.edges, episodes.edges[..., ::-1]], 1)
    both_ways = replace(episodes, edges=edges_and_back)
    undirected_values = algorithms.undirected(0.4).run(episodes)
    plain = algorithms.breadth_first(0.4).run(both_ways)
    assert np.array_equal(undirected_values["reached"], plain["reached"])
    assert np.array_equal(undirected_values["prediction"], plain["prediction"])


@pytest.mark.parametrize("lag", [0, 2])
def test_a_late_search_holds_what_it_should_have_held_before(lag: int) -> None:
    episodes = sample(6, 6, **SIZES, regime="path", seed=3)
    late_values = algorithms.late_search(lag).run(episodes)
    plain = algorithms.breadth_first().run(episodes)
    assert np.array_equal(late_values["reached"][:, lag:], plain["reached"][:, : 6 - lag])
    assert not late_values["reached"][:, :lag].any()
    assert late_values["reached"][:, -1].any()
    refuses("lag must be an integer >= 0, got -1", algorithms.late_search, -1)


@pytest.mark.long
@settings(max_examples=25)
@given(batches(), st.integers(0, 1000))
def test_permuting_names_permutes_everything(episodes: ReachabilityEpisodes, seed: int) -> None:
    in_order = np.tile(np.arange(9), (4, 1))
    names = np.random.default_rng(seed).permuted(in_order, axis=1)
    renamed = episodes.renamed(names)
    records = {record.key: record for record in TASK.algorithms.records()}
    del records["larger_name"]  # it reads names
    registered = [record.make() for record in records.values()]
    for algorithm in (*registered, algorithms.undirected(), algorithms.late_search()):
        values, renamed_values = (algorithm.run(batch) for batch in (episodes, renamed))
        back = np.take_along_axis(renamed_values["prediction"], names[:, None], -1)
        assert np.array_equal(back, values["prediction"]), algorithm.key


@settings(max_examples=25)
@given(batches(), st.integers(0, 13), st.integers(0, 8), st.integers(0, 8))
def test_adding_an_edge_never_shrinks_the_set(
    episodes: ReachabilityEpisodes, slot: int, source: int, target: int
) -> None:
    with_edge = np.concatenate([episodes.edges, np.full((4, 1, 2), (source, target))], 1)
    before = algorithms.breadth_first().run(episodes)["reached"]
    after = algorithms.breadth_first().run(replace(episodes, edges=with_edge))["reached"]
    assert (after >= before).all()


def test_a_repeated_edge_changes_nothing() -> None:
    episodes = sample(20, 5, 12, 18, regime="uniform", seed=0)
    repeated = replace(episodes, edges=np.concatenate([episodes.edges, episodes.edges[:, :5]], 1))
    for record in TASK.algorithms.records():
        if record.key != "random_walk":  # It takes a repeated edge twice as often.
            plain = record.make().run(episodes)
            with_repeats = record.make().run(repeated)
            assert np.array_equal(plain["prediction"], with_repeats["prediction"])


def target_share(key: str, episodes: ReachabilityEpisodes) -> np.ndarray:
    prediction = TASK.algorithm(key).run(episodes)["prediction"]
    return np.take_along_axis(prediction, episodes.targets[:, None, None], -1)[..., 0]


def test_breadth_first_search_jumps_at_the_depth_of_the_target() -> None:
    episodes = sample(80, 6, 28, 54, seed=0)
    share = target_share("breadth_first", episodes)
    known = np.arange(6) >= episodes.depths[:, None]
    assert (share[known] == 1).all()
    assert (share[~known] == 0.5).all()


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_limited_search_answers_up_to_its_hops(hops: int) -> None:
    episodes = sample(80, 6, 28, 54, seed=0)
    last = target_share(f"depth_limited_{hops}", episodes)[:, -1]
    assert (last[episodes.depths <= hops] == 1).all()
    assert (last[episodes.depths > hops] == 0.5).all()


@pytest.mark.parametrize("key", ["fewer_parents", "more_children", "more_ancestors"])
def test_heuristics_are_at_chance_on_matched_graphs(key: str) -> None:
    assert (target_share(key, sample(80, 3, 28, 54, seed=0)) == 0.5).all()


def test_ancestors_answer_where_graphs_are_not_matched() -> None:
    assert (
        target_share("more_ancestors", sample(200, 3, 28, 54, regime="prosqa", seed=0)).mean() > 0.7
    )


def test_one_path_visits_one_node_a_round_within_what_can_be_reached() -> None:
    episodes = sample(60, 6, 28, 54, seed=1)
    for key in ("depth_first", "random_walk"):
        reached = TASK.algorithm(key).run(episodes)["reached"]
        steps = np.diff(reached.sum(-1), axis=1)
        assert (steps[:, 0] == 2).all()
        assert ((steps[:, 1:] >= 0) & (steps[:, 1:] <= 1)).all()
        can_be_reached = algorithms.breadth_first().run(episodes)["reached"]
        assert (reached <= can_be_reached).all()
    longer = replace(episodes, n_rounds=30)
    in_the_end = TASK.algorithm("depth_first").run(longer)["reached"][:, -1]
    assert np.array_equal(in_the_end > 0, episodes.distances < 28), (
        "depth-first search finds everything in the end"
    )


def test_selected_episodes_are_walked_as_in_their_batch() -> None:
    episodes = sample(20, 6, 28, 54, seed=1)
    rows = [7, 3, 3]
    walk = algorithms.random_walk()
    of_batch = walk.run(episodes)["reached"][rows]
    assert np.array_equal(walk.run(episodes.select(rows))["reached"], of_batch)


def test_a_walk_of_an_episode_with_a_large_number_takes_little_memory() -> None:
    episodes = replace(sample(2, 3, **SIZES, seed=1), numbers=[10**15, 3])
    reached = algorithms.random_walk().run(episodes)["reached"]
    alone = algorithms.random_walk().run(episodes.select([1]))["reached"]
    assert np.array_equal(reached[1:], alone)


def test_spread_lies_on_the_nodes_reached() -> None:
    episodes = sample(20, 5, 16, 24, seed=2, depths=(1, 2))
    plain, spread = (algorithms.breadth_first(s).run(episodes) for s in (0.0, 0.5))
    assert np.allclose(spread["prediction"].sum(-1), 1)
    reached = plain["reached"]
    number = reached.sum(-1, keepdims=True)
    even = reached / np.maximum(number, 1)
    half_each = 0.5 * plain["prediction"] + 0.5 * even
    expected = np.where(number > 0, half_each, plain["prediction"])
    assert np.allclose(spread["prediction"], expected)
    refuses(r"\[0, 1\)", algorithms.breadth_first, 1.0)


def test_setting_a_node_shows_its_children_a_round_later() -> None:
    """do(reached): an added node is expanded by the same round, and its children are there in the next."""
    chain = np.array([[[0, 1], [2, 3], [3, 4]]])
    candidates = np.array([[1, 4]])
    episodes = ReachabilityEpisodes(chain, np.zeros(1, int), candidates, n_nodes=5, n_rounds=4)
    set_values = np.zeros((1, 4, 5))
    set_values[:, :, [0, 1, 2]] = 1
    values = algorithms.breadth_first().run(episodes, do={"reached": set_values})
    assert values["next_reached"][0, 1].tolist() == [1, 1, 1, 1, 0]


def test_the_battery_holds_every_regime():
    known = [
        key for key in REGIMES if key not in ("stranded", "repeated")
    ]  # on which searches answer alike, or hardly
    assert list(battery(4, 5, n_nodes=16, n_edges=24, seed=0)) == known


def test_only_heuristics_keep_nothing():
    memoryless = {key for key, family in TASK.rivals().items() if family.memoryless}
    assert memoryless == {"fewer_parents", "more_children", "more_ancestors"}


SEED, ROUND = 0, 2


@pytest.fixture(scope="module")
def model() -> HookedLatentTransformer:
    return interp.load("reachability-handwired", n_nodes=8, n_edges=12)


def test_losses_are_shares_whatever_is_predicted(model: HookedLatentTransformer) -> None:
    """An untrained copy of a handwired model predicts less than nothing; both none is a half, and no loss of 1e306."""
    task = interp.tasks.of(model)
    episodes = task.sample_for(model, 1, 4, SEED)
    target = int(episodes.targets[0])
    negative = int(episodes.negatives[0])
    predictions = torch.zeros(1, 4, model.layout.n_nodes)
    predictions[0, :, target] = torch.tensor([-0.5, -0.5, 0.6, 0.6])
    predictions[0, :, negative] = torch.tensor([-0.7, 0.2, -0.4, 0.2])
    losses = task.data.losses(predictions, episodes, slice(None))[0]
    assert losses.tolist() == pytest.approx([0.5, 1, 0, 0.25])


@pytest.mark.long
def test_probes_decode_the_set(model: HookedLatentTransformer) -> None:
    episodes = interp.tasks.of(model).sample_for(model, 40, 4, SEED)
    (result,) = probes.probe(model, episodes, ("reached",), n_untrained=1, seed=SEED)
    assert result.r2 > 0.95
    assert result.verdict == "yes"


def test_patching_finds_the_candidates_then_the_question(model: HookedLatentTransformer) -> None:
    task = interp.tasks.of(model)
    clean, corrupted = task.corruption("swap-candidates").build(
        task.sample_for(model, 16, 4, SEED), ROUND
    )
    result = sweep(
        model,
        clean=clean,
        corrupted=corrupted,
        round=ROUND,
        sites="resid_pre",
        metric="probability",
    )
    frame = result.to_frame().set_index("site")["effect"]
    carrying = {site for site, effect in frame.items() if effect > 0.2}
    assert carrying <= {f"resid_pre[{layer}]@{c}" for layer in (0, 1) for c in ("c_1", "c_2")}
    assert carrying


@pytest.mark.long
def test_interchange_and_steering_agree_with_the_algorithm(model: HookedLatentTransformer) -> None:
    task = interp.tasks.of(model)
    base, source = (task.sample_for(model, 12, 4, seed) for seed in (0, 1))
    table = causal_tables.interchange_table(model, base, source, ROUND, SEED, None)
    controls = table[table["control"]]
    claims = table[~table["control"]]
    of_reached = claims[claims["variable"] == "reached"]
    assert np.allclose(of_reached["iia_informative"], 1)
    assert (controls["iia_informative"] == controls["chance_informative"]).all()
    steered = causal_tables.steering_table(model, base, ROUND, SEED)
    assert np.allclose(steered["model"], steered["algorithm"], atol=1e-9)
