"""Appendix B of the paper: the update, the gradient and the KL identity, each against another computation."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.evaluation.experts import appendix_b as theory
from tests.refusals import refused, refuses


def test_all_checks_hold_on_the_defaults():
    checks = theory.check()
    assert [c.claim for c in checks] == [
        "posterior = multiplicative weights",
        "gradient of the log-loss = w - w+",
        "excess log-loss = summed KL",
        "summed KL <= excess log-loss (corollary)",
    ]
    assert all(c.holds for c in checks)
    assert checks[2].right > 3 * checks[2].bound  # the simulation could have told a wrong identity


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.integers(1, 8))
def test_the_gradient_is_autograds(seed, n_experts):
    rng = np.random.default_rng(seed)
    logits, likelihoods = (
        rng.normal(scale=3, size=(5, n_experts)),
        rng.uniform(0.01, 1, size=(5, n_experts)),
    )
    leaf = torch.tensor(logits, requires_grad=True)
    loss = -torch.log((torch.softmax(leaf, dim=-1) * torch.tensor(likelihoods)).sum(dim=-1))
    lost, closed = theory._mixture_log_loss(logits, likelihoods)
    assert np.allclose(lost, loss.detach().numpy(), rtol=0, atol=1e-12)
    (gradient,) = torch.autograd.grad(loss.sum(), leaf)
    assert np.allclose(closed, gradient.numpy(), rtol=0, atol=1e-12)


def test_the_posterior_is_the_frequency_of_the_generating_expert():
    """Where the weight of expert i is near w, expert i generated the outcomes in about a share w of the episodes."""
    episodes = theory._sample_latent_expert(20_000, 6, 3, seed=2)
    weights = theory._posterior(episodes)[:, -1].ravel()
    generated = (episodes.experts[:, None] == np.arange(3)).ravel()
    for low in np.arange(0, 1, 0.1):
        inside = (weights >= low) & (weights < low + 0.1)
        standard_error = np.sqrt((weights[inside] * (1 - weights[inside])).sum()) / inside.sum()
        assert abs(generated[inside].mean() - weights[inside].mean()) < 4 * standard_error


def test_the_corollary_over_every_history_and_not_for_the_reversed_divergence():
    """Multiplicative weights has no excess, every other rate some, and KL(q || q*) is another number."""
    check = theory._corollary()
    assert check.holds
    assert check.left > 0.1
    assert check.left == pytest.approx(check.right, abs=1e-12)
    episodes, probabilities = theory._every_history()
    weights = theory._posterior(episodes)[:, :-1]
    best = np.einsum("bti,btik->btk", weights, episodes.distributions)
    for rate in (0.0, 0.5, 1.0, 2.0):
        changed = weights**rate / (weights**rate).sum(-1, keepdims=True)
        forecasts = np.einsum("bti,btik->btk", changed, episodes.distributions)
        excess, divergence = (
            sums @ probabilities for sums in theory._excess_and_divergence(changed, episodes)
        )
        assert excess == pytest.approx(divergence, abs=1e-13)
        assert (excess > 1e-3) == (rate != 1.0)
        reverse = (forecasts * np.log(forecasts / best)).sum((1, 2)) @ probabilities
        assert rate == 1.0 or abs(reverse - excess) > 1e-4
    refuses(
        "2 outcomes in 17 rounds have more histories than the 65,536",
        theory._every_history,
        n_rounds=17,
    )


def test_the_update_is_bayes_rule_on_a_napkin():
    """Weights 1/2, 1/2 and likelihoods .9, .3 give 3/4, 1/4."""
    _, gradient = theory._mixture_log_loss(np.zeros(2), np.array([0.9, 0.3]))
    assert 0.5 - gradient == pytest.approx([0.75, 0.25])


test_bad_sizes_are_refused = refused(
    (lambda: theory.check(n_experts=0), "n_experts must be an integer >= 1, got 0")
)
