"""Steering: a handwired latent set to a state behaves as the algorithm from that state."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import interp
from interp.interventions.steering import Doses, steer, write_state
from interp.tasks import experts, mdp
from interp.tasks.experts.algorithms import majority_vote, weighted_majority
from interp.tasks.qlearning.algorithms import q_learning
from tests.refusals import refuses

pytestmark = pytest.mark.usefixtures("one_session")


def error_of_random_directions(result):
    """At the largest dose."""
    errors = result.random[-1] - result.algorithm[-1]
    return np.abs(errors).mean()


def test_steered_wma_is_the_algorithm(wma):
    """Doses of a log-weight: the algorithm's prediction to 1e-9 at every dose, random directions not."""
    _, model = wma
    episodes = experts.sample(16, 12, 3, seed=0)
    result = steer(model, episodes, weighted_majority(0.5), Doses([1.0, 0.0, -0.5]), round=8)
    assert error_of_random_directions(result) > 0.05
    frame = result.to_frame()
    doses = frame.dose.tolist()
    assert doses == [-4, -2, -1, 0, 1, 2, 4]
    assert frame.max_error.max() < 1e-9


def test_an_experts_vote_gains_with_its_weight(wma):
    """Read per episode as expert 0's vote, the dose-response rises, in model and algorithm alike."""
    _, model = wma
    episodes = experts.sample(16, 12, 3, seed=0)
    result = steer(
        model,
        episodes,
        weighted_majority(0.5),
        Doses([1.0, 0.0, 0.0]),
        round=8,
        of=episodes.advice[:, 8, 0],
    )
    assert (np.diff(result.model, axis=0) >= -1e-12).all()
    assert result.table.max_error.max() < 1e-9
    frame = result.to_frame()
    lowest_dose, *_, highest_dose = frame.model
    assert highest_dose > lowest_dose + 0.3
    assert (frame.random_mean_error[frame.dose != 0] > 1e-3).all()


def test_steered_q_learner_is_the_algorithm(qlearning):
    """Doses of one action's values: the choice that the algorithm makes from that table, and others at random."""
    _, model = qlearning
    episodes = mdp.sample(24, 12, 3, 2, seed=0)
    change = np.zeros((3, 2))
    change[:, 0] = 0.3
    result = steer(
        model, episodes, q_learning(), Doses(change, [0.0, 0.5, 1.0, 2.0]), round=9, of=0
    )
    assert result.table.max_error.max() < 1e-9
    mean_of_doses = result.algorithm.mean(1)
    assert mean_of_doses[-1] > mean_of_doses[0] + 0.2
    assert error_of_random_directions(result) > 0.05


def test_write_state_is_exact_and_changes_nothing_else(wma):
    """Written latents hold the state, and are unmoved where the readout is blind."""
    _, model = wma
    latents = interp.rollout(model, experts.sample(4, 6, 3, seed=0)).latents[:, -1]
    wanted = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    written = write_state(model, latents, wanted)
    assert_close(model.read_state(written), wanted)
    read = torch.linalg.pinv(model.state_map) @ model.state_map
    blind = torch.eye(model.config.d_model).double() - read
    assert_close(written @ blind, latents @ blind)


def test_napkin_direction(napkin, napkin_pair):
    """A probe's direction on the napkin model: z = 1 + dose moves P = 6 (18 + 3 z^2) - 9 by hand."""
    clean, _ = napkin_pair
    direction = torch.zeros(1, 5, dtype=torch.float64)
    direction[0, 2] = 1
    result = steer(
        napkin, clean, weighted_majority(), Doses([0.0], [0, 1, 2], direction), round=0, n_random=1
    )
    at_1, at_2, at_3 = result.model[:, 0]
    assert at_1 == 117
    assert at_2 == 6 * (18 + 3 * 4) - 9
    assert at_3 == 6 * (18 + 3 * 9) - 9


def test_a_direction_may_be_an_array_as_that_of_a_probe(wma):
    _, model = wma
    episodes = experts.sample(8, 6, 3, seed=0)
    direction = np.linspace(-1, 1, model.layout.n_latents * model.cfg.d_model)
    direction = direction.reshape(model.layout.n_latents, -1)
    by_array, by_tensor = (
        steer(model, episodes, weighted_majority(0.5), Doses([1, 0, 0], direction=form), round=4)
        for form in (direction, torch.as_tensor(direction))
    )
    assert (by_array.model == by_tensor.model).all()
    assert by_array.sentence.startswith("Steering moves P(outcome) to within ")


def test_an_algorithm_without_a_memory_cannot_be_steered(wma):
    refuses(
        r"give the algorithm memory=\.\.\.",
        steer,
        wma[1],
        experts.sample(2, 5, 3, seed=0),
        majority_vote(),
        Doses([1.0, 0.0, 0.0]),
        round=3,
    )
