"""Calibration: true probabilities pass, distorted ones fail, and the table is what its bins hold."""

import numpy as np

from interp.evaluation.experts.regret import calibration
from interp.tasks.experts import ExpertEpisodes, sample
from interp.tasks.experts import predictors as algorithms
from tests.refusals import refuses


def test_a_table_that_fits_on_a_napkin():
    """Two rounds at .25 with labels 0, 1 and two at .75 with labels 1, 1: frequencies 1/2 and 1, error 1/4."""
    episodes = ExpertEpisodes(np.zeros((1, 4, 1), int), np.array([[0, 1, 1, 1]]), np.array([[0.5]]))
    result = calibration(np.array([[0.25, 0.25, 0.75, 0.75]]), episodes, n_bins=2)
    table = result.to_frame()
    assert table.frequency.tolist() == [0.5, 1.0] and table.prediction.tolist() == [0.25, 0.75]
    assert table.share.tolist() == [0.5, 0.5] and result.error == 0.25


def test_empty_bins_have_no_frequency():
    episodes = sample(5, 4, 1)
    table = calibration(np.full((5, 4), 1.0), episodes, n_bins=4).to_frame()
    assert table.frequency.isna().tolist() == [True, True, True, False] and table.share.tolist() == [0, 0, 0, 1]


def test_the_true_conditional_passes_and_a_sharpened_one_fails():
    episodes = sample(500, 60, 4, seed=3)
    true = algorithms.bayes(episodes).predictions
    sharp = true**2 / (true**2 + (1 - true) ** 2)
    passed, failed = calibration(true, episodes), calibration(sharp, episodes)
    assert passed.error < passed.chance.high
    assert failed.error > 5 * failed.chance.high
    table = passed.to_frame()
    covered = (table.low <= table.prediction) & (table.prediction <= table.high)
    assert covered.sum() >= 8  # of 10 bins at 95 %


def test_no_bins_are_refused():
    refuses("n_bins must be >= 1, got 0", calibration, np.full((2, 3), 0.5), sample(2, 3, 1), n_bins=0)
