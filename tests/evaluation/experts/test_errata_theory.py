"""What appendix B of the paper prints beside its theorem, against the theorem: errata B1 to B4.

The theorem, its corollary and the lemma on the gradient are held to other computations.
"""

from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from scipy import special

from interp.tasks import experts
from interp.tasks.experts import predictors


def take_happened(values: np.ndarray, outcomes: np.ndarray) -> np.ndarray:
    """Take what belongs to the outcomes that happened, from ``[episode, round, ..., outcome]``."""
    places = outcomes.reshape(*outcomes.shape, *[1] * (values.ndim - 2))
    return np.take_along_axis(values, places, axis=-1)[..., 0]


def compute_posterior(forecasts: np.ndarray, outcomes: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Compute the probability of each expert to be the one that generates all outcomes.

    Args:
        forecasts: ``[episode, round, expert, outcome]``.
        outcomes: what happened, ``[episode, round]``.
        prior: ``[expert]``.

    Returns:
        Before each round and after the last one, ``[episode, round + 1, expert]``.
    """
    evidence = np.log(take_happened(forecasts, outcomes)).cumsum(axis=1)
    nothing = np.zeros_like(evidence[:, :1])
    evidence_before = np.concatenate([nothing, evidence], axis=1)
    return special.softmax(np.log(prior) + evidence_before, axis=-1)


OUTCOMES = np.array(list(product((0, 1), repeat=5)))
"""Every history of five rounds, in which four experts forecast the same."""
PRIOR = np.random.default_rng([0, 0]).dirichlet(np.ones(4))
FORECASTS = np.random.default_rng([0, 2]).dirichlet([2.0, 2.0], size=(1, 5, 4))
DISTRIBUTIONS = FORECASTS.repeat(len(OUTCOMES), axis=0)
LIKELIHOODS = take_happened(DISTRIBUTIONS, OUTCOMES)
WEIGHTS = compute_posterior(DISTRIBUTIONS, OUTCOMES, PRIOR)[:, :-1]
mixture = partial(np.einsum, "...i,...iy->...y")  # the forecasts of experts, by their weights


def test_the_posterior_is_updated_as_multiplicative_weights_are() -> None:
    grown = WEIGHTS * LIKELIHOODS
    updated = grown / grown.sum(axis=-1, keepdims=True)
    assert updated[:, :-1] == pytest.approx(WEIGHTS[:, 1:], abs=1e-12)


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0, 2.0])
def test_the_excess_log_loss_is_the_summed_divergence_and_never_below_it(rate: float) -> None:
    """The theorem and its corollary over every history, of a learner that updates at some rate.

    The divergence in the other direction is another number.
    """
    probabilities = LIKELIHOODS.prod(axis=1) @ PRIOR
    assert probabilities.sum() == pytest.approx(1)
    best = mixture(WEIGHTS, DISTRIBUTIONS)
    learner = special.softmax(rate * np.log(WEIGHTS), axis=-1)
    forecasts = mixture(learner, DISTRIBUTIONS)
    ratio = np.log(best / forecasts)
    excess = take_happened(ratio, OUTCOMES).sum(axis=1) @ probabilities
    divergence = (best * ratio).sum(axis=(1, 2)) @ probabilities
    assert excess == pytest.approx(divergence, abs=1e-13)
    reverse = -(forecasts * ratio).sum(axis=(1, 2)) @ probabilities
    is_exact = rate == 1.0
    assert (divergence > 1e-3) != is_exact
    assert is_exact or abs(reverse - excess) > 1e-4


def test_the_gradient_of_the_log_loss_is_the_weights_less_the_updated_ones() -> None:
    logits = torch.log(torch.from_numpy(WEIGHTS)).requires_grad_()
    likelihoods = torch.from_numpy(LIKELIHOODS)
    weights = logits.softmax(-1)
    loss = -(weights * likelihoods).sum(-1).log().sum()
    (gradient,) = torch.autograd.grad(loss, logits)
    updated = (logits + likelihoods.log()).softmax(-1)
    assert torch.allclose(gradient, weights - updated, atol=1e-12)


def test_b1_a_sum_of_forecasts_without_weights_is_no_distribution() -> None:
    printed = DISTRIBUTIONS.sum(axis=2)
    assert printed.sum(axis=-1) == pytest.approx(4.0, abs=1e-12), "n, the number of experts"
    assert mixture(WEIGHTS, DISTRIBUTIONS).sum(axis=-1) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("m", [1, 2, 3])
def test_b2_a_sum_to_fewer_experts_lacks_their_posterior_weight(m: int) -> None:
    printed = mixture(WEIGHTS[..., :m], DISTRIBUTIONS[..., :m, :]).sum(axis=-1)
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
    mixed = mixture(WEIGHTS, DISTRIBUTIONS)
    assert (mixed <= DISTRIBUTIONS.max(axis=2) + 1e-12).all()
    assert (mixed >= DISTRIBUTIONS.min(axis=2) - 1e-12).all()


def test_b4_after_one_wrong_vote_the_posterior_forgets_an_expert() -> None:
    """Votes as forecasts of 0 and 1: an expert who errs once has weight 0, and 0 / 0 follows when the other errs, too.

    Weighted Majority, whose gain is finite, ranks the expert first who was right in nine of ten rounds.
    """
    right = np.array([[1.0, 0.0], *[[0.0, 1.0]] * 9])
    advice, labels = right[None].astype(int), np.ones((1, 10), int)
    certain = np.stack([1 - right, right], -1)[None]
    with np.errstate(divide="ignore", invalid="ignore"):
        weights = compute_posterior(certain, labels, np.full(2, 0.5))[0]
    assert weights[1].tolist() == [1.0, 0.0]
    assert np.isnan(weights[2]).all()
    episodes = replace(experts.sample(1, 10, 2, seed=0), advice=advice, labels=labels)
    log_weights = predictors.log_weights(episodes, 0.5)[0, -1]
    assert log_weights[1] - log_weights[0] == pytest.approx(0.5 * 8)
