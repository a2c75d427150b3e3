"""Machines that are no transformers are evaluated by the same plans; what needs attention says that it is not there."""

import json
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import interp
from interp.evaluation import suite
from interp.evaluation.experts import by_regime
from interp.evaluation.experts.latent import attention_to_experts, latent_control
from interp.evaluation.plan import cut, patterns, round_attention
from interp.evaluation.qlearning import plan as qlearning
from interp.evaluation.qlearning import returns
from interp.evaluation.reachability import (
    codec,
    make_reader_and_writer,
    measure_moved_sets,
    score_decoded_sets,
    score_with_controls,
)
from interp.interventions.steering import has_state_direction
from interp.tasks import experts, reachability
from interp.tasks.qlearning.algorithms import q_learning
from interp.tasks.qlearning.families import acting
from lab.known import by_algorithm
from reports.evaluation import draw
from tests.machines import N_EXPERTS, adapted, cached, gru, lstm, read_round
from tests.refusals import refuses
from tests.shell import printed

pytestmark = pytest.mark.usefixtures("one_session")


class Weighed(nn.Module):
    """Numbers that a machine works with, drawn anew in a copy."""

    def __init__(self, *numbers):
        super().__init__()
        self.numbers = nn.Parameter(torch.tensor(numbers, dtype=torch.float64))


def drawn_anew(module):
    nn.init.uniform_(module.numbers)


def leader():
    """Sums the votes of each expert, weighed by how often it was right: certain, and tied where it knows nothing."""

    def step(m, carried, fed):
        advice, truth = read_round(fed)
        vote = m.numbers * (carried["hits"] * advice).sum(1, keepdim=True)
        return torch.cat([-vote, vote], 1), {"hits": carried["hits"] + (advice == truth)}

    channels = [interp.Channel("hits", (N_EXPERTS,))]
    return adapted(Weighed(1.0), step, name="leader", reset=drawn_anew, channels=channels)


def learner():
    """Tabular Q-learning with its table in one row, which is not one latent an action; it chooses after its update."""
    layout = interp.tasks.get("qlearning").layout(n_states=4, n_actions=2)
    return by_algorithm.machine(acting(q_learning(0.1, 0.9)), layout, name="learner")


SIZES = {"n_nodes": 10, "n_edges": 14}


def search(known=False):
    """Parallel search whose set is the second of two channels; the first, narrower one holds the candidates."""
    layout = interp.tasks.get("reachability").layout(**SIZES)
    first, n = layout.token_ids["n_1"], SIZES["n_nodes"]

    def step(m, carried, fed):
        nodes = (fed.tokens - first).clamp(min=0)
        source = nodes[:, 2:-5:2]
        target = nodes[:, 3:-5:2]
        candidates = nodes[:, -5:-3]
        root = nodes[:, -2]
        share = 0.5 + (carried["set"].gather(1, candidates) > 0.5).to(m.numbers) @ m.numbers.view(
            2, 2
        )
        reached = torch.maximum(carried["set"], nn.functional.one_hot(root, n))
        follows = torch.where(reached.gather(1, source) > 0.5, target, root.unsqueeze(1))
        after = reached.scatter(1, follows, 1.0)
        return torch.zeros_like(after).scatter(1, candidates, share), {
            "told": candidates.to(after),
            "set": after,
        }

    return interp.adapt(
        Weighed(0.5, -0.5, -0.5, 0.5), layout, step=step, name="search", reset=drawn_anew, output="probability",
        channels=[interp.Channel("told", (2,)), interp.Channel("set", (n,))],
        read=(lambda channels: channels["set"]) if known else None,
    )  # fmt: skip


# Expert advice.


@pytest.fixture
def small(monkeypatch):
    """Two regimes and short long episodes stand for all of them."""
    monkeypatch.setattr(by_regime, "fitting_regimes", lambda model: ["uniform", "switch-10"])
    monkeypatch.setattr(by_regime, "over_lengths", partial(by_regime.over_lengths, n_rounds=30))


def test_a_machine_that_is_cut_knows_nothing_and_swapped_knows_another_episode():
    """Cut, every vote is a tie and right half of the time, exactly; intact it beats majority vote, cut it does not."""
    control = latent_control(leader(), experts.sample(60, 40, N_EXPERTS, seed=1))
    assert control.get("accuracy, cut").estimate == 0.5
    assert control.get("accuracy, intact").low > control.get("accuracy, majority_vote").high
    assert control.get("lost when swapped").low > 0
    assert control.get("cut minus majority vote").high < 0


def test_cutting_an_lstm_cuts_both_channels():
    machine, episodes = lstm(seed=3), experts.sample(4, 6, N_EXPERTS, seed=0)
    seen = []
    hooks = [cut(machine), ("hook_latents", lambda latents, hook: seen.append(latents.clone()))]
    interp.rollout(machine, episodes, fwd_hooks=hooks)
    assert len(seen) == 6
    assert all(torch.equal(latents, machine.initial(4)) for latents in seen)


def test_what_needs_heads_is_refused_where_it_is_asked_for_itself():
    """A table of attention of a GRU is nobody's question: the error names what the machine has instead."""
    machine, episodes = gru(), experts.sample(4, 12, N_EXPERTS, seed=0)
    for ask in (round_attention, attention_to_experts):
        refuses(
            "gru has no attention heads; its points are latent, reset, update",
            ask,
            machine,
            episodes,
        )
    assert patterns(interp.load("wma-handwired", n_experts=4))[1] == "blocks.1.attn.hook_pattern"


def test_attention_over_something_else_than_a_round_s_positions_does_not_apply():
    """A point called pattern with places of its own is no attention between tokens."""

    def step(m, carried, fed):
        weights = m(carried["h"].softmax(-1))
        return weights[:, :2], {"h": carried["h"] + weights}

    module = nn.Sequential(nn.Linear(N_EXPERTS, N_EXPERTS))
    channels = [interp.Channel("h", (N_EXPERTS,))]
    machine = adapted(module, step, {"pattern": "0"}, name="slots", channels=channels)
    refuses(
        "the attention of slots is not between the positions of a round",
        round_attention,
        machine,
        experts.sample(4, 12, N_EXPERTS, seed=0),
    )


@pytest.mark.long
def test_the_command_gives_every_table_and_says_that_attention_does_not_apply(
    small, builders, tmp_path
):
    interp.register_machine("own-lstm", lstm, description="an LSTM", task="experts")
    ran, folder = (
        printed("evaluate", "own-lstm", "--episodes", "30", "--out", tmp_path),
        tmp_path / "own-lstm",
    )
    sentence = "not applicable: own-lstm has no attention heads"
    assert f"attention: {sentence}" in " ".join(ran.split())
    assert pd.read_csv(folder / "attention.csv")["note"].item() == sentence
    names = {
        "summary",
        "regimes",
        "regret_curves",
        "lengths",
        "latent_control",
        "attention",
    }
    assert {path.stem for path in folder.glob("*.csv")} == names
    settings = json.loads((folder / "settings.json").read_text())
    assert (settings["model"], settings["digest"]) == ("own-lstm", interp.load("own-lstm").digest())
    assert (folder / "regret-uniform.svg").exists()


@pytest.mark.long
def test_a_cache_with_room_for_training_s_rounds_has_no_long_episodes(monkeypatch):
    """The table and the row of long episodes say so; everything else is measured."""
    monkeypatch.setattr(by_regime, "fitting_regimes", lambda model: ["uniform"])
    machine, sentence = (
        cached(n_rounds=100),
        "not applicable: cached has room for 100 rounds, not for 1,000",
    )
    result = suite.evaluate(machine, n_episodes=30)
    assert result.notes == {
        "lengths": sentence,
        "attention": "not applicable: cached has no attention heads",
    }
    assert "length-regret" not in draw(result.tables)
    assert len(result.tables["summary"]) == 1
    refuses("no round fits after 6", suite.evaluate, cached(n_rounds=6), n_episodes=30)


# Q-learning.


def test_a_table_in_one_row_is_read_whole(monkeypatch):
    """The machine that is tabular Q-learning agrees in every untied step."""
    monkeypatch.setattr(qlearning, "_EVALUATED_REGIMES", ("grid",))
    monkeypatch.setattr(returns, "PLAYED", ("grid",))
    monkeypatch.setattr(returns, "evaluate", partial(returns.evaluate, horizons=(10,)))
    result = suite.evaluate(learner(), n_episodes=30)
    tables = result.tables
    assert result.notes == {}
    assert tables["summary"].set_index("regime")["untied"]["grid"] > 0.999


# Reachability.


def test_sets_are_read_from_all_that_is_carried_and_written_into_it():
    """The set is in the second channel, and padding beside the first: decoded without an error, and used when moved."""
    machine, few = search(), {"depths": (2, 3)}
    read, write = codec(machine, reachability.sample(80, 5, **SIZES, seed=2, **few))
    episodes = reachability.sample(24, 5, **SIZES, seed=3, **few)
    assert (score_decoded_sets(machine, episodes, read)["estimate"] == 1).all()
    table = measure_moved_sets(machine, episodes, read, write)
    np.testing.assert_allclose(table["model"], table["search"], atol=1e-6)
    runs = score_with_controls(machine, episodes, read, write)
    answered = {
        key: episodes.correct(run.predictions.double().numpy())[:, -1].mean()
        for key, run in runs.items()
    }
    assert answered["cut"] == answered["frozen"] == 0.5
    assert answered["discrete"] < 0.9
    assert set(runs) == {"cut", "reset", "frozen", "swapped", "discrete"}


def test_a_machine_with_an_exact_readout_is_evaluated_by_fitted_maps_where_nothing_says_how_to_write():
    machine = search(known=True)
    assert machine.is_handwired
    assert not has_state_direction(machine)
    assert has_state_direction(interp.load("reachability-handwired", **SIZES))
    read, _ = make_reader_and_writer(machine, 0, n_episodes=80)
    episodes = reachability.sample(10, 4, **SIZES, seed=3, depths=(1, 2))
    assert (score_decoded_sets(machine, episodes, read)["estimate"] == 1).all()
    refuses("'search' by a fitted map; give episodes to fit it on", codec, machine)


@pytest.mark.long
def test_every_table_of_a_search_that_is_no_transformer():
    result = suite.evaluate(search(), n_episodes=16)
    assert set(result.tables) == {"summary", "by_round", "moved", "sets"}
    assert result.notes == {}
    matched = result.tables["summary"].query("regime == 'matched'")
    assert (matched["model"] == matched["breadth_first"]).all()
    assert (matched["cut"] == 0.5).all()
