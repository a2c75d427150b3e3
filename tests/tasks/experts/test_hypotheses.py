"""What a model of expert advice is held against, and what is asked of it."""

import numpy as np
import torch

import interp
from interp.tasks import experts
from interp.tasks.experts import analysis


def test_a_model_is_held_against_its_own_algorithm_or_bayes():
    own = interp.tasks.of(handwired := interp.load("wma-handwired", n_experts=3, log_gamma=0.7)).explains(handwired)
    assert own.key == "weighted_majority" and own.parameters == {"gain": 0.7}
    assert interp.tasks.get("experts").explains(interp.load("wma-learned")).key == "bayes"


def test_losses_are_the_probability_of_a_mistake():
    episodes = experts.sample(2, 3, 2, seed=0)
    predictions = torch.full((4, 2, 2), 0.9, dtype=torch.float64)
    measured = analysis.losses(predictions, episodes, slice(1, 3))
    np.testing.assert_allclose(measured, np.broadcast_to(np.abs(0.9 - episodes.labels[:, 1:]), (4, 2, 2)))


def test_a_round_says_votes_label_and_matches():
    episodes = experts.sample(2, 3, 2, seed=0)
    inputs = analysis.round_inputs(episodes)
    plain, products = inputs.features
    np.testing.assert_array_equal(plain, np.concatenate([episodes.advice, episodes.labels[..., None]], -1))
    np.testing.assert_array_equal(products[..., :3], plain)
    np.testing.assert_array_equal(products[..., 3:], episodes.advice == episodes.labels[..., None])
    np.testing.assert_array_equal(inputs.kinds, plain)


def test_steering_raises_the_first_experts_weight():
    steering, episodes = analysis.steering(), experts.sample(2, 3, 2, seed=0)
    assert steering.change((2,)).tolist() == [1, 0]
    assert steering.outcome(episodes, 1).tolist() == episodes.advice[:, 1, 0].tolist()
