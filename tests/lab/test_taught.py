"""A model that is taught Q-learning by single rounds: what it is taught is Q-learning, and what came out carries it."""

import numpy as np
import pytest
import torch
from scipy import special

import circuits
import interp
import lab
from circuits.compiler import rows
from lab import taught_training as taught
from tests.cases import by_cases
from tests.refusals import refuses

SIZES = {"n_states": 4, "n_actions": 3}


def _circuit(**settings):
    circuit = circuits.build(
        "qlearning-handwired", **SIZES, signed=True, **{"beta": 10.0, **settings}
    )
    return circuits.compile_circuit(circuit).float(), rows(circuit.state, circuit).float()


def _missed(model, directions, seed=0, largest=3.0):
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        rounds = taught.single_rounds(200, **SIZES, rng=rng, largest=largest)
        found = taught.losses(model, directions, rounds, rng)
    return {key: float(loss) for key, loss in found.items()}


@pytest.mark.parametrize("largest", [3.0, 10.0])
def test_the_handwired_circuit_misses_nothing_of_what_is_taught(largest):
    found = _missed(*_circuit(), largest=largest)
    assert found.keys() == {"policy", "update", "distance"} and max(found.values()) < 1e-4


@by_cases("settings, seen")
def test_a_circuit_of_another_rate_discount_or_beta_is_told_where_it_differs(settings, seen):
    found = _missed(*_circuit(**settings))
    assert {key for key, loss in found.items() if loss > 1e-3} == set(seen)


def test_the_code_is_orthonormal_and_the_seeds_own():
    first, second = taught.code(0), taught.code(1)
    assert torch.allclose(first @ first.T, torch.eye(8), atol=1e-6)
    assert (first @ second.T).abs().max() < 0.6


def test_single_rounds_start_from_tables_early_and_late_and_of_both_signs():
    rounds = taught.single_rounds(2000, **SIZES, rng=np.random.default_rng(0))
    tables, rewards = rounds.q_tables[:, 0], rounds.rewards
    assert (
        0.5 < (tables.max((1, 2)) < 0.5).mean() < 0.8
        and tables.max() > 2
        and (tables < 0).mean() > 0.02
    )
    assert abs((rewards == 0).mean() - 0.4) < 0.05 and rewards.min() >= 0 and rewards.max() <= 1


@pytest.mark.parametrize("imitating", [False, True])
def test_a_run_that_was_killed_ends_at_the_same_weights(tmp_path, monkeypatch, imitating):
    monkeypatch.setattr(taught, "_BATCHES", ((1.0, 50),))
    whole = interp.load(taught.train(tmp_path / "whole", 3, 4, imitating=imitating, every=2))
    advance = taught.Run.advance

    def killed(run):
        if run.step == 3:
            raise KeyboardInterrupt
        return advance(run)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(taught.Run, "advance", killed)
        taught.train(tmp_path / "killed", 3, 4, imitating=imitating, every=2)
    again = interp.load(taught.train(tmp_path / "killed", 3, 4, imitating=imitating, every=2))
    assert whole.name == "qlearning-taught-3" and whole.origin["training"]["imitating"] is imitating
    before = taught.untaught(3).state_dict()
    for key, weight in whole.state_dict().items():
        assert torch.equal(weight, again.state_dict()[key])
    assert not torch.equal(whole.W_U, before["unembed.W_U"])


def test_a_folder_of_another_run_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(taught, "_BATCHES", ((1.0, 50),))
    taught.train(tmp_path, 0, 1)
    refuses(
        r"holds a run of .*'seed': 0.*this one is .*'seed': 1.*another folder",
        taught.train,
        tmp_path,
        1,
        1,
    )


def _carried(model, seed, n_rounds=30, regime="grid", **sizes):
    """Mean divergence from the circuit's policy, and the largest error of the table by a seed's code, of episodes."""
    episodes = interp.tasks.get("qlearning").sample(
        16, n_rounds, seed=10**6, regime=regime, **(SIZES | sizes)
    )
    run, initial = (
        interp.rollout(model, episodes),
        model.initial(1, model.layout.fit(episodes)).detach(),
    )
    said = run.predictions.double().clamp_min(1e-12)
    wanted = torch.from_numpy(special.softmax(10 * episodes.next_values_before, -1))
    read = ((run.latents - initial) @ taught.code(seed)[: episodes.n_states].T).mT
    missed = (read - torch.from_numpy(episodes.q_tables).float()).square().mean((0, 2, 3)).sqrt()
    return float((wanted * (wanted.log() - said.log())).sum(-1).mean()), float(missed.max())


@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_what_was_taught_single_rounds_carries_the_table_through_episodes(seed):
    model = lab.load(f"qlearning-taught{f'-{seed}' * bool(seed)}")
    divergence, missed = _carried(model, seed)
    assert divergence < 0.001 and missed < 0.01
    divergence, missed = _carried(model, seed, 100, "ladder")  # tables grow to 6
    assert divergence < 0.001 and missed < 0.05
    assert _carried(model, seed + 1)[1] > 0.1  # by another seed's code there is no table to be read
    refuses("is not a number from round", _carried, taught.untaught(seed).eval(), seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_policy_of_what_was_taught_holds_for_50_rounds_in_every_size_and_regime(seed):
    model = lab.load(f"qlearning-taught{f'-{seed}' * bool(seed)}")
    for n_states, n_actions in ((2, 2), (4, 3), (8, 4)):
        for regime in ("grid", "deterministic", "ladder"):
            assert (
                _carried(model, seed, 50, regime, n_states=n_states, n_actions=n_actions)[0] < 0.008
            )
