"""Mistakes, regret, and log-loss are what the paper defines; scores carry intervals and provenance."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.evaluation.experts.regret import (
    excess_log_loss,
    log_loss,
    mistakes,
    regret,
    score,
)
from interp.tasks.experts import ExpertEpisodes, sample
from interp.tasks.experts import predictors as algorithms
from interp.tasks.experts.predictors import PREDICTORS
from tests.refusals import refuses


def score_predictors(episodes, keys):
    """Predictors scored against the Bayes predictor, by key."""
    bayes = PREDICTORS["bayes"].run(episodes)
    scores = {}
    for key in keys:
        predicted = PREDICTORS[key].run(episodes)
        scores[key] = score(
            predicted.predictions, episodes, name=PREDICTORS[key].name, decision=predicted.decision,
            reference=bayes.predictions, reference_name="bayes",
        )  # fmt: skip
    return scores


def by_hand():
    """Two experts, three rounds: expert 1 is right, right, wrong; expert 2 wrong, right, right."""
    advice = np.array([[[1, 0], [0, 0], [0, 1]]])
    labels = np.array([[1, 0, 1]])
    return ExpertEpisodes(advice, labels, accuracies=np.full((1, 2), 0.7))


def test_a_regret_that_fits_on_a_napkin():
    """Mistakes 0, 1, 0; the best expert of each prefix has made 0, 0, 1: regret 0, 1, 0."""
    predictions = np.array([[0.9, 0.8, 0.7]])
    assert regret(predictions, by_hand()).tolist() == [[0, 1, 0]]


def test_regret_is_not_clipped():
    """A learner that is always right beats the best expert of three rounds by one mistake."""
    always_right = np.array([[1.0, 0.0, 1.0]])
    assert regret(always_right, by_hand()).tolist() == [[0, 0, -1]]


def test_sampled_predictions_cost_their_expectation():
    predictions = np.array([[0.9, 0.8, 0.5]])
    expected = mistakes(predictions, by_hand(), "sample")
    assert np.allclose(expected, [[0.1, 0.8, 0.5]])


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.integers(1, 5))
def test_an_expert_has_no_regret_against_itself_or_more(seed, n_experts):
    """Following one expert: regret >= 0 always, and 0 at the end for the best of them."""
    episodes = sample(3, 20, n_experts, seed=seed)
    curves = np.stack([regret(episodes.advice[..., i], episodes) for i in range(n_experts)])
    assert curves.min() == 0
    assert (curves.min(axis=0) == 0).all()


def test_log_loss_in_nats_and_infinite_when_certain_and_wrong():
    losses = log_loss(np.array([[0.25, 0.0, 0.0]]), by_hand())
    assert losses[0, :2].tolist() == [np.log(4), 0]
    assert losses[0, 2] == np.inf


def test_the_published_log_losses_of_bayes_and_oracle():
    """Uniform regime, T = 100: .4660 and .4297 over 100 episodes; the spread between episodes is .14."""
    episodes = sample(600, 100, 4, seed=5)
    for key, published in (("bayes", 0.4660), ("oracle", 0.4297)):
        run = PREDICTORS[key].run(episodes)
        losses = log_loss(run.predictions, episodes).mean(axis=1)
        standard_error = losses.std() / np.sqrt(100)
        assert abs(losses.mean() - published) < 3 * standard_error


def test_excess_needs_a_reference_that_is_finite():
    episodes = by_hand()
    flat = np.full((1, 3), 0.5)
    predictions = np.array([[0.25, 0.5, 0.5]])
    excess = excess_log_loss(predictions, flat, episodes)
    assert excess.tolist() == [[np.log(2), 0, 0]]
    certain = np.array([[0.0, 0.5, 0.5]])
    refuses("certain and wrong", excess_log_loss, flat, certain, episodes)


def test_scores_order_the_predictors_and_know_their_uncertainty():
    """Bayes is within its interval of the truth's limit: oracle < bayes < weighted majority < majority < random."""
    episodes = sample(260, 60, 4, seed=0)
    scores = score_predictors(
        episodes, ["oracle", "bayes", "weighted_majority", "majority_vote", "random"]
    )
    finals = [scored.get("regret") for scored in scores.values()]
    assert all(a.high < b.low for a, b in pairwise(finals))
    assert scores["bayes"].get("excess_log_loss").estimate == 0
    assert scores["oracle"].get("excess_log_loss").high < 0
    assert scores["weighted_majority"].get("log_loss").estimate == np.inf
    random = scores["random"]
    assert random.get("accuracy").estimate == 0.5
    assert random.get("log_loss").estimate == pytest.approx(np.log(2))
    assert random.beside["excess_log_loss",]["reference"] == "bayes"
    assert random.settings["git"]
    assert random.settings["params"]["rest"] == [0.3, 0.9]


@pytest.mark.long
def test_the_interval_covers_the_mean_of_many_more_episodes():
    large = sample(20_000, 30, 4, seed=1)
    predictions = algorithms.bayes(large).predictions
    truth = regret(predictions, large)[:, -1].mean()
    covered = 0
    for seed in range(24):
        episodes = sample(200, 30, 4, seed=100 + seed)
        interval = score(algorithms.bayes(episodes).predictions, episodes).get("regret")
        covered += interval.low <= truth <= interval.high
    assert covered >= 19  # 23 expected of 24; fewer than 19 once in a thousand


@pytest.mark.parametrize(
    ("predictions", "message"),
    [
        pytest.param(
            [[0.5, 0.5]],
            r"predictions have shape \(1, 2\) but the episodes need .* \(1, 3\)",
            id="too few",
        ),
        pytest.param(
            [[0.5, 1.5, 0.5]],
            r"predictions must be probabilities in \[0, 1\], got 1.5 at \[0, 1\]",
            id="above 1",
        ),
        pytest.param([[0.5, 0.5, np.nan]], r"got nan at \[0, 2\]", id="nan"),
    ],
)
def test_bad_predictions_are_refused(predictions, message):
    refuses(message, score, np.array(predictions), by_hand())


def test_rounding_beyond_0_and_1_is_clipped_and_no_more():
    """A float32 model's certainty may leave [0, 1] by its rounding; anything further is no probability."""
    inside = np.array([[-9e-7, 1 + 9e-7, 0.5]])
    clipped = np.array([[0.0, 1.0, 0.5]])
    np.testing.assert_array_equal(log_loss(inside, by_hand()), log_loss(clipped, by_hand()))
    for outside in (-1.1e-6, 1 + 1.1e-6):
        refuses(
            r"must be probabilities in \[0, 1\], got .* at \[0, 1\]",
            log_loss,
            np.array([[0.5, outside, 0.5]]),
            by_hand(),
        )
