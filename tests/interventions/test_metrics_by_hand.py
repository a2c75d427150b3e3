"""Every metric on numbers that are given: two cells, two episodes, two rounds and three outcomes."""

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.testing import assert_close

from interp.interventions.pairs import Metric, Pair, Readout, find_metric, prepare
from interp.tasks import mdp
from interp.tasks.qlearning.layout import QLearningRound
from tests.machines import transformer
from tests.refusals import refuses


@pytest.fixture(scope="module")
def pair() -> Pair:
    """A real pair, read in the second of two rounds, whose readouts are replaced; the second episode's are equal."""
    model = transformer(QLearningRound(2, 3), d_model=8, n_layers=1, n_heads=1).double()
    clean = mdp.sample(n_episodes=2, n_rounds=5, n_states=2, n_actions=3, seed=0)
    real = prepare(model, clean, clean, 3, 4)
    before = [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1]]
    latents = torch.ones(2, 3, 8, dtype=torch.float64)
    shifted = latents.clone()
    shifted[0, 0, 0] += 3
    shifted[0, 1, 1] += 4
    for key, last, state in (
        ("clean", [0.1, 0.2, 0.7], shifted),
        ("corrupted", [0.6, 0.2, 0.2], latents),
    ):
        by_round = torch.tensor([before, [last, [0.2, 0.3, 0.5]]], dtype=torch.float64)
        real.__dict__[f"{key}_readout"] = Readout(by_round.transpose(0, 1), state)
    return real


@pytest.fixture(scope="module")
def cells(pair) -> Readout:
    """Two cells: what some intervention gave."""
    last = [[[0.2, 0.3, 0.5], [0.4, 0.3, 0.3]], [[0.5, 0.4, 0.1], [0.1, 0.1, 0.8]]]
    predictions = torch.stack([pair.clean_readout.predictions] * 2)
    predictions[:, :, 1] = torch.tensor(last)
    latents = torch.ones(2, 2, 3, 8, dtype=torch.float64)
    latents[0, :, 0, 0] += 1
    latents[0, :, 1, 1] += 2
    latents[1, :, 1, 1] -= 5
    return Readout(predictions, latents)


@pytest.mark.parametrize(
    ("key", "by_hand"),
    [
        (
            "logit_diff",
            [[math.log(0.5 / 0.2), 0], [math.log(0.1 / 0.5), 0]],
        ),  # nothing rises in the second episode
        ("probability", [[0.5, 0.4], [0.1, 0.1]]),
        ("agreement", [[1, 0], [0, 1]]),
        ("state", [[(1 * 3 + 2 * 4) / 5, 0], [-5 * 4 / 5, 0]]),
    ],
)
def test_each_cell_episode_and_outcome_is_measured_by_itself(pair, cells, key, by_hand):
    """Outcome 2 rises most and outcome 0 falls most; the state moves by (3, 4), and only what lies along it counts."""
    measured = find_metric(key).measure(cells, pair)
    assert measured.numpy() == pytest.approx(np.array(by_hand), rel=1e-6)


def test_the_correct_outcome_is_that_of_the_smallest_loss(pair, cells):
    """The action with the highest Q-value in the table before the round: log P - log(1 - P)."""
    episodes = pair.clean_episodes
    values = [episodes.q_tables[i, 4, episodes.next_states[i, 4]] for i in range(2)]
    assert np.ptp(values, axis=1).min() > 0
    probabilities = cells.predictions[:, [0, 1], 1, np.argmax(values, 1)]
    measured = find_metric("correct_logit_diff").measure(cells, pair)
    assert_close(measured, probabilities.logit())


def test_a_loss_is_summed_over_the_rounds(pair, cells):
    """max_a Q(s', a) - sum_a pi(a) Q(s', a) of both rounds, in the tables before them."""
    episodes = pair.clean_episodes
    tables = np.zeros((2, 2, 3))
    for i in range(2):
        for j, t in enumerate((3, 4)):
            tables[i, j] = episodes.q_tables[i, t, episodes.next_states[i, t]]
    values = (cells.predictions.numpy() * tables).sum(-1)
    loss = tables.max(-1) - values
    assert np.ptp(tables) > 0
    regret = find_metric("regret").measure(cells, pair)
    assert_allclose(regret, loss.sum(-1))


def test_log_probabilities_are_clipped(pair, cells):
    certain = cells.predictions[0].clone()
    certain[0, 1] = torch.tensor([0, 0, 1])
    measured = find_metric("logit_diff").measure(Readout(certain, cells.latents[0]), pair)
    clipped = -math.log(1e-6)
    assert measured[0].item() == pytest.approx(clipped, rel=1e-6)


def test_a_metric_of_ones_own_is_taken_as_it_is_and_others_go_by_their_keys():

    def sum_latents(readout, pair):
        return readout.latents.sum((-1, -2))

    custom = Metric("mine", "mine", "", sum_latents)
    assert find_metric(custom) is custom
    assert find_metric("state").key == "state"
    refuses("did you mean 'regret'", find_metric, "regrets")
