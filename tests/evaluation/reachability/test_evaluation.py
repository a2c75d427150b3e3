"""What evaluation and the critics' controls say of the handwired machine, where the answers are known."""

import numpy as np
import pytest
import torch

import interp
from interp.evaluation import suite
from interp.evaluation.reachability import (
    codec,
    measure_moved_sets,
    score_decoded_sets,
    score_with_controls,
)
from interp.model.transformer import HookedLatentTransformer
from interp.tasks.reachability import ReachabilityEpisodes, algorithms, sample
from tests.refusals import refuses

SIZES = {"n_nodes": 10, "n_edges": 14}


@pytest.fixture(scope="module")
def model() -> HookedLatentTransformer:
    return interp.load("reachability-handwired", **SIZES)


def last(run: interp.Rollout, episodes: ReachabilityEpisodes) -> np.ndarray:
    return episodes.correct(run.predictions.double().numpy())[:, -1]


@pytest.mark.long
def test_without_its_recurrence_the_machine_knows_nothing_beyond_one_step(
    model: HookedLatentTransformer,
) -> None:
    episodes = sample(24, 5, **SIZES, seed=0, depths=(1, 2, 3))
    runs = score_with_controls(model, episodes)
    assert (last(runs["cut"], episodes) == 0.5).all()
    one_step = episodes.depths == 1
    assert (last(runs["frozen"], episodes)[one_step] == 1).all()
    assert (last(runs["frozen"], episodes)[~one_step] == 0.5).all()
    # Reset in round 2: rounds 3 and 4 find what is within two steps.
    reset = last(runs["reset"], episodes)
    assert (reset[episodes.depths <= 2] == 1).all()
    assert (reset[episodes.depths == 3] == 0.5).all()


@pytest.mark.long
def test_committing_to_one_node_a_round_finds_less_than_the_frontier(
    model: HookedLatentTransformer,
) -> None:
    episodes = sample(24, 5, **SIZES, seed=1, depths=(2, 3))
    run = score_with_controls(model, episodes)["discrete"]
    states = model.read_state(run.latents)
    assert last(run, episodes).mean() < 0.9
    assert (
        states[:, 1:-1].round().numpy()
        <= algorithms.breadth_first().run(episodes)["reached"][:, 1:]
    ).all()


def test_sets_can_be_decoded_and_written_where_the_weights_do_not_say_how(
    model: HookedLatentTransformer,
) -> None:
    # The same weights without the map that reads their state: what a fitted map has to find.
    blind = HookedLatentTransformer(model.config).double().requires_grad_(False)
    blind.load_state_dict({**model.state_dict(), "state_map": blind.state_map}, strict=True)
    read, write = codec(blind, sample(60, 4, **SIZES, seed=2, depths=(1, 2)))
    test = sample(20, 4, **SIZES, seed=3, depths=(1, 2))
    assert (score_decoded_sets(blind, test, read)["estimate"] == 1).all()
    latents = interp.rollout(model, test).latents[:, 2]
    none = torch.zeros(20, 10, dtype=torch.float64)
    assert np.allclose(model.read_state(write(latents, none)), 0, atol=1e-6)
    refuses("give episodes to fit it on", codec, blind)


@pytest.mark.long
def test_moved_nodes_change_answers_as_they_change_the_search(
    model: HookedLatentTransformer,
) -> None:
    episodes = sample(30, 5, **SIZES, seed=4, depths=(2, 3))
    table = measure_moved_sets(model, episodes)
    assert np.allclose(table["model"], table["search"], atol=1e-9)
    share_by_move = table.set_index(["move", "later"])["model"]
    assert (
        share_by_move["nothing", 0]
        == share_by_move["another node is added", 1]
        == share_by_move["a parent of the negative is added", 0]
        == 1
    )
    assert share_by_move["the negative takes the target's place", 0] == 0
    assert (
        share_by_move["the negative is added", 0]
        == share_by_move["a parent of the negative is added", 1]
        == 0.5
    )
    assert (table[table["move"] != "nothing"]["n"] <= 30).all()
    assert algorithms.breadth_first().run(episodes)["reached"].shape == (30, 5, 10)
    refuses(
        "need a round after the deepest target",
        measure_moved_sets,
        model,
        sample(4, 3, **SIZES, seed=4, depths=(2,)),
    )


@pytest.mark.long
def test_tables_hold_the_jump_at_the_depth_of_the_target(model: HookedLatentTransformer) -> None:
    tables = suite.evaluate(model, n_episodes=16, seed=0).tables
    frame = tables["by_round"]
    model_rows = frame[frame["key"] == "model"]
    assert (model_rows[model_rows["round"] >= model_rows["depth"]]["estimate"] == 1).all()
    assert (model_rows[model_rows["round"] < model_rows["depth"]]["estimate"] == 0.5).all()
    assert (tables["sets"]["estimate"] == 1).all()
    assert np.allclose(tables["moved"]["model"], tables["moved"]["search"])
    assert {"breadth_first", "more_ancestors", "cut", "frozen", "discrete"} < set(
        tables["summary"].columns
    )
