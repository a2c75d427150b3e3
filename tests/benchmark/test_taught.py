"""A model that is taught Q-learning: what it is taught is Q-learning, and a move along the read-out is what it says."""

import numpy as np
import torch

import interp
from circuits.benchmark import taught_training
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


def test_what_was_taught_predicts_the_soft_policy_and_what_it_began_as_does_not():
    episodes = tasks.get("qlearning").sample(60, 20, seed=10**6, n_states=4, n_actions=3)
    algorithm = tasks.get("qlearning").algorithm("q_learning", beta=10.0)
    wanted = torch.from_numpy(algorithm.distribution(algorithm.run(episodes)))

    def missed(name):
        said = rollout(interp.load(name), episodes).predictions.double().clamp_min(1e-12)
        return float((wanted * (wanted.log() - said.log())).sum(-1).mean())

    assert missed("qlearning-taught") < 0.02 < 0.2 < missed("qlearning-learned")
