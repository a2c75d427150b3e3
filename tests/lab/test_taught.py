"""A model that is taught Q-learning by single rounds: what it is taught is Q-learning, and what came out carries it."""

import numpy as np
import pytest
import torch
from scipy import special

import circuits
import interp
import lab
from circuits.compiler import stack_rows
from lab import taught_training as taught
from tests.refusals import refuses

SIZES = {"n_states": 4, "n_actions": 3}


def make_circuit(**settings):
    """The handwired circuit, and the directions of its table."""
    options = {"beta": 10.0, **settings}
    circuit = circuits.build("qlearning-handwired", **SIZES, signed=True, **options)
    return circuits.compile_circuit(circuit).float(), stack_rows(circuit.state, circuit).float()


def measure_losses(model, directions, largest=3.0):
    """The losses of 200 rounds."""
    rng = np.random.default_rng(0)
    with torch.no_grad():
        rounds = taught.single_rounds(200, **SIZES, rng=rng, largest=largest)
        losses = taught.losses(model, directions, rounds, rng)
    return {key: loss.item() for key, loss in losses.items()}


@pytest.mark.parametrize("largest", [3.0, 10.0])
def test_the_handwired_circuit_misses_nothing_of_what_is_taught(largest):
    model, directions = make_circuit()
    losses = measure_losses(model, directions, largest)
    assert losses.keys() == {"policy", "update", "distance"}
    assert max(losses.values()) < 1e-4


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"gamma": 0.8}, {"update", "distance"}),
        ({"alpha": 0.09}, {"update", "distance"}),
        ({"beta": 9.0}, {"policy"}),
    ],
    ids=["discount", "rate", "beta"],
)
def test_a_circuit_of_another_rate_discount_or_beta_is_told_where_it_differs(settings, expected):
    model, directions = make_circuit(**settings)
    losses = measure_losses(model, directions)
    assert {key for key, loss in losses.items() if loss > 1e-3} == expected


def test_the_code_is_orthonormal_and_the_seeds_own():
    first = taught.code(0)
    second = taught.code(1)
    assert torch.allclose(first @ first.T, torch.eye(8), atol=1e-6)
    assert (first @ second.T).abs().max() < 0.6


def test_single_rounds_start_from_tables_early_and_late_and_of_both_signs():
    rounds = taught.single_rounds(2000, **SIZES, rng=np.random.default_rng(0))
    tables = rounds.q_tables[:, 0]
    is_early = tables.max((1, 2)) < 0.5
    assert 0.5 < is_early.mean() < 0.8
    assert tables.max() > 2
    assert (tables < 0).mean() > 0.02
    rewards = rounds.rewards
    assert (rewards == 0).mean() == pytest.approx(0.4, abs=0.05)
    assert rewards.min() >= 0
    assert rewards.max() <= 1


@pytest.mark.long
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
    assert whole.name == "qlearning-taught-3"
    assert whole.origin["training"]["imitating"] is imitating
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


def compare_with_circuit(model, seed, n_rounds=30, regime="grid", sizes=SIZES):
    """Mean divergence from the circuit's policy, and the largest error of the table by a seed's code, of episodes.

    Args:
        model: the model.
        seed: of the code.
        n_rounds: rounds of an episode.
        regime: of the episodes.
        sizes: states and actions.
    """
    task = interp.tasks.get("qlearning")
    episodes = task.sample(16, n_rounds, seed=10**6, regime=regime, **sizes)
    initial = model.initial(1, model.layout.fit(episodes)).detach()
    run = interp.rollout(model, episodes)
    predictions = run.predictions.double().clamp_min(1e-12)
    policy = torch.from_numpy(special.softmax(10 * episodes.next_values_before, -1))
    divergence = (policy * (policy.log() - predictions.log())).sum(-1).mean()
    code = taught.code(seed)[: episodes.n_states]
    tables = ((run.latents - initial) @ code.T).mT
    error = (tables - torch.from_numpy(episodes.q_tables).float()).square()
    error_by_round = error.mean((0, 2, 3)).sqrt()
    return divergence.item(), error_by_round.max().item()


def load_taught(seed):
    return lab.load(f"qlearning-taught-{seed}" if seed else "qlearning-taught")


@pytest.mark.long
@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_what_was_taught_single_rounds_carries_the_table_through_episodes(seed):
    model = load_taught(seed)
    divergence, error = compare_with_circuit(model, seed)
    assert divergence < 0.001
    assert error < 0.01
    divergence, error = compare_with_circuit(model, seed, 100, "ladder")  # tables grow to 6
    assert divergence < 0.001
    assert error < 0.05
    _, error = compare_with_circuit(model, seed + 1)
    assert error > 0.1  # by another seed's code there is no table to be read
    untaught = taught.untaught(seed).eval()
    refuses("is not a number from round", compare_with_circuit, untaught, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("n_states", "n_actions"), [(2, 2), (4, 3), (8, 4)])
@pytest.mark.parametrize("regime", ["grid", "deterministic", "ladder"])
def test_the_policy_of_what_was_taught_holds_for_50_rounds_in_every_size_and_regime(
    seed, n_states, n_actions, regime
):
    sizes = {"n_states": n_states, "n_actions": n_actions}
    divergence, _ = compare_with_circuit(load_taught(seed), seed, 50, regime, sizes)
    assert divergence < 0.008
