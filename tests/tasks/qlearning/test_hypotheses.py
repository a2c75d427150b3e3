"""What a model of Q-learning is held against, and what is asked of it."""

import numpy as np
import torch

import interp
from interp.tasks import mdp
from interp.tasks.qlearning import analysis


def test_a_model_is_held_against_q_learning_at_its_own_rates():
    handwired = interp.load("qlearning-handwired", n_states=2, n_actions=2, alpha=0.3, gamma=0.5)
    assert analysis.rates(handwired) == {"alpha": 0.3, "gamma": 0.5}
    assert analysis.rates(interp.load("qlearning-learned")) == {"alpha": 0.1, "gamma": 0.9}
    own_algorithm = interp.tasks.of(handwired).explains(handwired)
    assert own_algorithm.key == "q_learning"
    assert own_algorithm.parameters["alpha"] == 0.3
    assert own_algorithm.parameters["gamma"] == 0.5
    episodes = interp.tasks.of(handwired).sample_for(handwired, 2, 4, seed=0)
    assert (episodes.alpha, episodes.gamma) == (0.3, 0.5)


def test_losses_are_what_a_policy_gives_away():
    """By hand: the row of the state reached, its maximum less the policy's mean."""
    episodes = mdp.sample(3, 5, 3, 2, seed=0)
    policy = torch.full((3, 5, 2), 0.5, dtype=torch.float64)
    rows, rounds = np.indices((3, 5))
    values = episodes.q_tables[rows, rounds, episodes.next_states]
    expected = values.max(-1) - values.mean(-1)
    losses = analysis.losses(policy, episodes, slice(0, 5))
    np.testing.assert_allclose(losses, expected, atol=1e-12)
    losses = analysis.losses(policy[:, 2:4], episodes, slice(2, 4))
    np.testing.assert_allclose(losses, expected[:, 2:4], atol=1e-12)


def test_a_round_says_its_transition_and_the_pairs_reward():
    episodes = mdp.sample(2, 3, 3, 2, seed=0)
    inputs = analysis.round_inputs(episodes)
    plain, products = inputs.features
    assert plain.shape == (2, 3, 3 + 2 + 3 + 1)
    assert products.shape == (2, 3, 9 + 6 + 6)
    states = plain[..., :3].argmax(-1)
    np.testing.assert_array_equal(states, episodes.states)
    rewards = products[..., -6:].sum(-1)
    np.testing.assert_array_equal(rewards, episodes.rewards)
    np.testing.assert_array_equal(inputs.kinds[..., 2], episodes.next_states)


def test_steering_raises_the_first_actions_values():
    steering = analysis.steering()
    assert steering.change((2, 2)).tolist() == [[0.2, 0], [0.2, 0]]
    assert steering.outcome(None, 3) == 0
