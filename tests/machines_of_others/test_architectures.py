"""The table of architectures: its rule can fail either way, and its page says what its numbers say."""

import io
import re
import zipfile
from itertools import combinations
from pathlib import Path

import agent as player
import architectures as measured
import numpy as np
import pandas as pd
import pytest
import same_machine as table
import torch

import interp
import lab
from circuits.compare.question import Budget
from interp.machines.recurrent import Actor
from tests.cases import by_cases

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "docs" / "results" / "architectures"


def rows(*pairs):
    """Pairs as ``architectures.py`` writes them: (kind, kind, low, high, untrained)."""
    return pd.DataFrame(
        {
            "a": f"{one}-{i}",
            "b": f"{other}-{i}",
            "kind_a": one,
            "kind_b": other,
            "measure": "state",
            "low": low,
        }
        | {"value": (low + high) / 2, "high": high, "untrained": fresh}
        for i, (one, other, low, high, fresh) in enumerate(pairs)
    )


SEEDS = [("A", "A", 0.96, 0.98, 0.5), ("B", "B", 0.90, 0.92, 0.5)]
"""Two seeds of A are nearer to each other than two of B, which are the yardstick."""


@pytest.mark.parametrize(
    ("across", "verdict"),
    [
        ([(0.90, 0.91, 0.5), (0.95, 0.97, 0.5)], "no farther"),
        ([(0.60, 0.79, 0.5), (0.75, 0.799, 0.5)], "farther"),
        (
            [(0.60, 0.79, 0.5), (0.75, 0.801, 0.5)],
            "undecided",
        ),  # one is not twice as far as the yardstick's .90
        ([(0.60, 0.79, 0.5), (0.95, 0.97, 0.5)], "undecided"),  # one pair each way
        (
            [(0.89, 0.95, 0.5), (0.95, 0.97, 0.5)],
            "undecided",
        ),  # an interval that holds the yardstick's end
        ([(0.95, 0.97, 0.96), (0.95, 0.97, 0.5)], "undecided"),  # an untrained copy comes too near
        (
            [(0.95, 0.97, np.nan), (0.95, 0.97, np.nan)],
            "no farther",
        ),  # responses have no control of their own
    ],
)
def test_two_architectures_are_held_against_the_seeds_that_lie_farthest_apart(across, verdict):
    found = table.judged(rows(*SEEDS, *(("A", "B", *each) for each in across)))
    (row,) = found.to_dict("records")
    assert row["verdict"] == verdict and row["yardstick"] == "B-1, B-1" and row["n_pairs"] == 2


def test_pairs_of_either_order_count_and_other_architectures_do_not():
    pairs = rows(
        *SEEDS, ("C", "C", 0.5, 0.6, 0.0), ("B", "A", 0.91, 0.95, 0.5), ("A", "C", -0.4, -0.2, 0.0)
    )
    found = table.judged(pairs).set_index(["a", "b"])
    assert found.loc[("A", "B"), ["verdict", "low", "n_pairs"]].tolist() == ["no farther", 0.91, 1]
    assert found.loc[("A", "C"), "verdict"] == "farther" and ("B", "C") not in found.index


def seeds(kind, far=(), n=4):
    """Pairs of seeds of one architecture, near each other but for those named in ``far``."""
    low = {two: 0.5 if two in far else 0.9 for two in combinations(range(n), 2)}
    return pd.concat(
        rows((kind, kind, at, at + 0.05, 0.0)).assign(a=f"{i}", b=f"{j}")
        for (i, j), at in low.items()
    )


@by_cases("far, n, words")
def test_seeds_of_one_architecture_are_judged_as_though_they_were_of_two(far, n, words):
    said = list(table.pretended(seeds("A", far, n), "state"))
    assert {word: said.count(("A", word)) for _, word in said} == words


def test_a_machine_by_hand_is_a_control_and_no_architecture():
    """It is farther from A, whose seeds are near each other, and not from B, whose seeds are not."""
    by_hand = rows(("by hand: C", "A", 0.4, 0.6, 0.0), ("by hand: C", "B", 0.4, 0.6, 0.0))
    pairs = pd.concat([seeds("A"), seeds("B", [(0, 1)], 2), by_hand], ignore_index=True)
    found = table.controls(pairs).set_index(["measure", "control"]).loc["state"]
    assert found.loc["by hand: C", ["farther", "no farther", "undecided"]].tolist() == [1, 0, 1]
    assert found.loc["A, as two"].sum() == 6 and "B, as two" not in found.index
    assert table.judged(table.trained(pairs)).empty


def test_steps_that_are_equal_are_alike_and_independent_ones_are_not():
    rng = np.random.default_rng(0)
    one, other = rng.normal(2.0, 1.0, (2, 400, 4, 3))
    assert (
        measured.alike(one, one).estimate == 1 and abs(measured.alike(one, other).estimate) < 0.05
    )
    assert measured.alike(one, 4 - one).estimate == pytest.approx(-1, abs=0.05)
    # What the two make of the round's mean counts as well.
    assert measured.alike(one, one + 1).estimate == pytest.approx(0.5, abs=0.05)


def test_machines_that_ship_are_told_by_their_architecture():
    machines = {
        name: lab.load(name)
        for name in ("wma-learned-additive", "wma-gru", "wma-gru-1", "wma-lstm-1")
    }
    assert [measured.architecture(m) for m in machines.values()] == [
        "transformer",
        "GRU",
        "GRU",
        "LSTM",
    ]
    wanted = [
        ("wma-learned-additive", "wma-gru"),
        ("wma-gru", "wma-gru-1"),
        ("wma-gru-1", "wma-lstm-1"),
    ]
    assert measured.pairs_of(machines) == wanted
    # Machines by hand are controls: they are not held against each other.
    by_hand = {name: measured.forgets() for name in ("forgets", "other")}
    assert measured.pairs_of({"wma-gru-1": machines["wma-gru-1"]} | by_hand) == []
    assert measured.pairs_of({"wma-gru": machines["wma-gru"]} | by_hand) == [
        ("wma-gru", name) for name in by_hand
    ]
    assert measured.architecture(by_hand["forgets"]) == "by hand: forgets"


def test_the_page_says_what_the_numbers_say():
    """Regenerated by ``python examples/same_machine.py docs/results/architectures``."""
    machines, pairs, kept = (
        pd.read_csv(KEPT / f"{name}.csv") for name in ("machines", "pairs", "judged")
    )
    judged = table.judged(table.trained(pairs))
    pd.testing.assert_frame_equal(judged, kept)
    pd.testing.assert_frame_equal(table.controls(pairs), pd.read_csv(KEPT / "controls.csv"))
    page = " ".join((ROOT / "docs" / "results" / "architectures.md").read_text("utf-8").split())
    for line in (*table.sentences(machines, pairs), *table.rows_of_counts(pairs)):
        assert line in page
    drawn = (KEPT / "matrix.svg").read_text("utf-8")
    assert all(f"<!-- {kind} -->" in drawn for kind in {*judged["a"], *judged["b"]})


@pytest.mark.slow(reason="two machines and a pair of them at small size: half a minute of one core")
def test_a_pair_is_measured_and_kept(tmp_path):
    small = Budget(
        known=16, test=8, rounds=8, starts=2, horizon=2, battery=4, scored=8, edits=60, untrained=1
    )
    made = measured.main(tmp_path, ["wma-gru", str(lab.CHECKPOINTS / "wma-gru-1")], small)
    machines, pairs = map(pd.read_csv, made)
    assert (machines["nats_above_bayes"] < 0.005).all() and list(machines["architecture"]) == [
        "GRU",
        "GRU",
    ]
    wanted = ["behaviour", "response", "state", "update on", "update off"]
    assert list(pairs["measure"]) == wanted
    held = pairs.set_index("measure")
    assert (
        held.loc["behaviour", "value"] > 0.95
        and (held["value"] > held["untrained"].fillna(-1)).all()
    )


def test_the_agent_hears_each_round_as_its_worlds_say_it(tmp_path):
    """The machine of a saved file gives what its LSTM gives for the observations of the same episodes."""
    actor = Actor(n_inputs=player.N_SEEN, width=6, policy=(5,), n_actions=player.N_ACTIONS)
    theirs = {"core": "lstm_actor", "policy": "mlp_extractor.policy_net", "action": "action_net"}
    renamed = {
        re.sub(r"^\w+", lambda m: theirs[m[0]], name): held
        for name, held in actor.state_dict().items()
    }
    tensors = io.BytesIO()
    torch.save(renamed, tensors)
    with zipfile.ZipFile(tmp_path / "agent.zip", "w") as archive:
        archive.writestr("policy.pth", tensors.getvalue())
    machine, played = player.machine(tmp_path / "agent.zip"), player.episodes(3, 5)
    interp.check_machine(machine)
    eye = [
        np.eye(n)[at]
        for n, at in ((4, played.states), (2, played.actions), (4, played.next_states))
    ]
    seen = torch.tensor(np.concatenate([*eye, played.rewards[..., None]], -1), dtype=torch.float32)
    blank = torch.zeros(3, 1, player.N_SEEN)
    with torch.no_grad():
        h, _ = actor.core(torch.cat([blank, seen], 1).transpose(0, 1))
        wanted = actor.scores(h[1:].transpose(0, 1)).softmax(-1)
    got = interp.rollout(machine, played).predictions.float()
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.slow(reason="a search over all families of Q-learning's rivals: a minute of one core")
def test_the_agents_questions_find_a_known_rate_and_discount():
    soft = player.acting(player.q_learning(**player.KNOWN), temperature=0.1)
    row = player.asked("known", soft, 16)
    assert row["answer"] == "q_learning" and row["q_alpha"] == pytest.approx(
        player.KNOWN["alpha"], abs=0.05
    )
    assert row["q_gamma"] == pytest.approx(player.KNOWN["gamma"], abs=0.1)
