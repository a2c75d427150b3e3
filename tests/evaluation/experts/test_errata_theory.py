"""What appendix B of the paper prints beside its theorem, against the theorem: errata B1 to B4."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from interp.tasks import experts
from interp.tasks.experts import predictors
from tests.evaluation.experts import appendix_b as theory

EPISODES, _ = theory._every_history(n_rounds=5, n_experts=4)
WEIGHTS = theory._posterior(EPISODES)[:, :-1]
mixture = partial(np.einsum, "...i,...iy->...y")  # the forecasts of experts, by their weights


def test_b1_a_sum_of_forecasts_without_weights_is_no_distribution() -> None:
    printed = EPISODES.distributions.sum(axis=2)
    assert printed.sum(axis=-1) == pytest.approx(4.0, abs=1e-12), "n, the number of experts"
    assert mixture(WEIGHTS, EPISODES.distributions).sum(axis=-1) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("m", [1, 2, 3])
def test_b2_a_sum_to_fewer_experts_lacks_their_posterior_weight(m: int) -> None:
    printed = mixture(WEIGHTS[..., :m], EPISODES.distributions[..., :m, :]).sum(axis=-1)
    assert printed == pytest.approx(1.0 - WEIGHTS[..., m:].sum(axis=-1), abs=1e-12)
    assert printed.max() < 1.0
    assert printed.min() < 0.99


def test_b3_experts_who_agree_are_right_more_often_than_any_mixture_of_them_says() -> None:
    """On a napkin, and in the experiments' episodes: no accuracy is above .9, so no mixture of experts is either."""
    agree = predictors.vote(np.full((1, 1, 3), 0.9), np.ones((1, 1, 3)))
    assert agree.item() == pytest.approx(0.9**3 / (0.9**3 + 0.1**3))
    assert agree.item() > 0.998
    episodes = experts.sample(400, 100, 4, seed=5)
    assert episodes.accuracies.max() <= 0.9
    forecast = predictors.bayes(episodes).predictions
    sure = np.maximum(forecast, 1 - forecast) > 0.95
    right = ((forecast > 0.5) == episodes.labels)[sure]
    standard_error = right.std() / np.sqrt(len(right))
    assert len(right) > 1000
    assert right.mean() - 5 * standard_error > 0.9
    # In the appendix's own model no forecast leaves what the experts say.
    mixed, distributions = mixture(WEIGHTS, EPISODES.distributions), EPISODES.distributions
    assert (mixed <= distributions.max(axis=2) + 1e-12).all()
    assert (mixed >= distributions.min(axis=2) - 1e-12).all()


def test_b4_after_one_wrong_vote_the_posterior_forgets_an_expert() -> None:
    """Votes as forecasts of 0 and 1: an expert who errs once has weight 0, and 0 / 0 follows when the other errs, too.

    Weighted Majority, whose gain is finite, ranks the expert first who was right in nine of ten rounds.
    """
    right = np.array([[1.0, 0.0], *[[0.0, 1.0]] * 9])
    advice, labels = right[None].astype(int), np.ones((1, 10), int)
    surprised = theory._LatentExpertEpisodes(
        np.stack([1 - right, right], -1)[None], labels, labels[:, 0], np.full(2, 0.5)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        weights = theory._posterior(surprised)[0]
    assert weights[1].tolist() == [1.0, 0.0]
    assert np.isnan(weights[2]).all()
    episodes = replace(experts.sample(1, 10, 2, seed=0), advice=advice, labels=labels)
    log_weights = predictors.log_weights(episodes, 0.5)[0, -1]
    assert log_weights[1] - log_weights[0] == pytest.approx(0.5 * 8)
