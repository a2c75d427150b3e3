"""A model that is taught Q-learning: what it is taught is Q-learning, and a move along the read-out is what it says."""

import numpy as np
import torch

import circuits
import interp
from circuits.benchmark import taught_training
from circuits.compiler import rows
from interp import tasks
from interp.model.rollout import rollout


def test_the_step_that_is_taught_is_the_algorithms():
    episodes = tasks.get("qlearning").sample(6, 8, seed=0, n_states=3, n_actions=2)
    values = tasks.get("qlearning").algorithm("q_learning", beta=10.0).run(episodes)
    told = [values[key].reshape(48) for key in ("state", "action", "reward", "next_state")]
    met = taught_training._Round(*map(torch.from_numpy, told))
    before, after = (torch.from_numpy(values[key].reshape(48, 3, 2)) for key in ("table", "next_table"))
    assert torch.allclose(met.learned(before), after) and not torch.allclose(before, after)
    assert np.allclose(met.policy(before), values["policy"].reshape(48, 2))


def test_a_latent_that_is_moved_is_read_as_moved():
    taught = taught_training.Taught(interp.load("qlearning-learned"))
    rng = torch.Generator().manual_seed(0)
    latents, change = torch.randn(5, 3, 128, generator=rng), torch.randn(5, 4, 3, generator=rng)
    moved = taught.tables(taught.moved(latents, change), 4) - taught.tables(latents, 4)
    assert torch.allclose(moved, change, atol=1e-4)


def test_maps_that_are_fitted_anew_read_the_tables_of_episodes_that_they_have_not_seen():
    """At the usual size all latents together, at another one each latent alone; a move is read as what was asked."""
    for sizes in ({"n_states": 4, "n_actions": 3}, {"n_states": 5, "n_actions": 2}):
        model = interp.load("qlearning-handwired", **sizes, beta=10.0)
        runs = [tasks.get("qlearning").sample(40, 12, seed=seed, **sizes) for seed in (0, 1)]
        known, test = ((rollout(model, e).latents[:, 1:].flatten(0, 1).float(), e.q_tables[:, 1:]) for e in runs)
        taught = taught_training.Taught(model)
        taught.refit(known[0], torch.from_numpy(known[1]).flatten(0, 1).float())
        assert (taught.together is not None) == (sizes["n_states"] == 4)
        read = taught.tables(test[0], sizes["n_states"])
        assert torch.allclose(read, torch.from_numpy(test[1]).flatten(0, 1).float(), atol=0.02)
        change = torch.full(read.shape, 0.1)
        moved = taught.tables(taught.moved(test[0], change), sizes["n_states"])
        assert torch.allclose(moved - read, change, atol=1e-3)


def test_what_was_taught_predicts_the_soft_policy_and_what_it_began_as_does_not():
    episodes = tasks.get("qlearning").sample(60, 20, seed=10**6, n_states=4, n_actions=3)
    algorithm = tasks.get("qlearning").algorithm("q_learning", beta=10.0)
    wanted = torch.from_numpy(algorithm.distribution(algorithm.run(episodes)))

    def missed(name):
        said = rollout(interp.load(name), episodes).predictions.double().clamp_min(1e-12)
        return float((wanted * (wanted.log() - said.log())).sum(-1).mean())

    assert missed("qlearning-taught") < 0.02 < 0.2 < missed("qlearning-learned")


def test_the_handwired_circuit_misses_nothing_of_what_is_taught_and_an_untrained_one_does(monkeypatch):
    """Policy, table, and single rounds with two next states from moved latents: all of it is Q-learning."""
    for name in ("_USUAL", "_SMALLEST", "_LARGEST"):
        monkeypatch.setattr(taught_training, name, (8, 3))
    circuit = circuits.build("qlearning-handwired", n_states=8, n_actions=3, beta=10.0, signed=True)
    model, read = circuits.compile(circuit), rows(circuit.state, circuit).float()
    missed = {}
    # By the exact directions: moves along the data also change which column a latent is, which a circuit minds.
    moved = lambda taught, latents, change: latents + change.transpose(-1, -2) @ read  # noqa: E731
    monkeypatch.setattr(taught_training.Taught, "moved", moved)
    monkeypatch.setattr(taught_training.Taught, "refit", lambda *_: None)  # its weights say where the table is
    for key, one in {"handwired": model, "untrained": model.fresh(0)}.items():
        taught = taught_training.Taught(one.float())
        with torch.no_grad():
            taught.read.weight.copy_(read)
            taught.read.bias.zero_()
            missed[key] = [float(loss) for loss in taught_training._losses(taught, 8, 12, seed=0).values()]
    assert len(missed["handwired"]) == 5
    assert max(missed["handwired"]) < 1e-3 and min(missed["untrained"]) > 1e-2
