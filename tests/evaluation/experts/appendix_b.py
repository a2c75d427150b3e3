r"""The paper's appendix B as numeric checks: log-loss, the posterior mixture, and multiplicative weights.

A latent expert is drawn once and generates all outcomes. :func:`check` holds the posterior update, the gradient of the
log-loss, its excess and the corollary against their definitions: docs/method/regret.md has the equations. It is a
theorem about that model, NOT evidence that one trained on the experts task runs multiplicative weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Float, Int
from scipy import special

from interp.support.checks import checked, integer, refuse_beyond_machine
from interp.support.errors import require

_Weights = Float[np.ndarray, "... expert"]


@dataclass(frozen=True, eq=False)
class _LatentExpertEpisodes:
    """Episodes in which one expert, drawn once, generates every outcome."""

    distributions: Float[np.ndarray, "episode round expert outcome"]
    outcomes: Int[np.ndarray, "episode round"]
    experts: Int[np.ndarray, " episode"]
    prior: Float[np.ndarray, " expert"]

    @property
    def likelihoods(self) -> Float[np.ndarray, "episode round expert"]:
        """The probability that each expert gave to what happened."""
        happened = self.outcomes[..., None, None]
        return np.take_along_axis(self.distributions, happened, axis=-1)[..., 0]


def _sample_latent_expert(
    n_episodes: int, n_rounds: int, n_experts: int, seed: int = 0
) -> _LatentExpertEpisodes:
    """Sample the appendix's model with two outcomes, Dirichlet(2) predictions and a Dirichlet(1)
    prior.

    Args:
        n_episodes, n_rounds, n_experts: sizes, at least 1.
        seed: seed of the draws.
    """
    for name, size in {
        "n_episodes": n_episodes,
        "n_rounds": n_rounds,
        "n_experts": n_experts,
    }.items():
        integer(name, size, 1)
    refuse_beyond_machine("these distributions", 32.0 * n_episodes * n_rounds * n_experts)
    prior = np.random.default_rng([seed, 0]).dirichlet(np.ones(n_experts))
    experts = np.random.default_rng([seed, 1]).choice(n_experts, size=n_episodes, p=prior)
    distributions = np.random.default_rng([seed, 2]).dirichlet(
        [2.0, 2.0], size=(n_episodes, n_rounds, n_experts)
    )
    truth = distributions[np.arange(n_episodes)[:, None], np.arange(n_rounds), experts[:, None]]
    luck = np.random.default_rng([seed, 3]).random((n_episodes, n_rounds, 1))
    is_beyond = luck > truth.cumsum(axis=-1)
    outcomes = np.minimum(is_beyond.sum(axis=-1), 1)
    return _LatentExpertEpisodes(distributions, outcomes, experts, prior)


def _posterior(episodes: _LatentExpertEpisodes) -> Float[np.ndarray, "episode round_plus_1 expert"]:
    """Compute P(I* = i | history) before each round and after the last, from the definition: prior
    times all likelihoods.
    """
    evidence = np.log(episodes.likelihoods).cumsum(axis=1)
    start = np.zeros_like(evidence[:, :1])
    evidence_before = np.concatenate([start, evidence], axis=1)
    return special.softmax(np.log(episodes.prior) + evidence_before, axis=-1)


def _multiplicative_weights(
    episodes: _LatentExpertEpisodes,
) -> Float[np.ndarray, "episode round_plus_1 expert"]:
    """Compute the weights of multiplicative weights with eta = 1, losses ``-log p_i(Y)`` and the
    prior as start.
    """
    shape = (len(episodes.outcomes), len(episodes.prior))
    path = [np.broadcast_to(episodes.prior, shape)]
    for likelihoods in np.moveaxis(episodes.likelihoods, 1, 0):
        losses = -np.log(likelihoods)
        grown = path[-1] * np.exp(-losses)
        path.append(grown / grown.sum(axis=-1, keepdims=True))
    return np.stack(path, axis=1)


def _mixture_log_loss(
    logits: _Weights, likelihoods: _Weights
) -> tuple[Float[np.ndarray, "*any"], _Weights]:
    """Compute ``-log sum_i w_i r_i``, one round's loss of the mixture, and its gradient in the
    logits: ``w - w+``.
    """
    weights = special.softmax(logits, axis=-1)
    joint = weights * likelihoods
    loss = special.logsumexp(logits, axis=-1) - special.logsumexp(logits, b=likelihoods, axis=-1)
    updated = joint / joint.sum(axis=-1, keepdims=True)
    return np.asarray(loss), weights - updated


@dataclass(frozen=True)
class _TheoryCheck:
    """One statement checked: how far its two sides differ, against what they may.

    ``error`` is the absolute mean difference for a simulation, ``bound`` rounding, or a multiple of the simulation's
    standard error; ``left`` and ``right`` are the two sides where they are single numbers.
    """

    claim: str
    error: float
    bound: float
    left: float = np.nan
    right: float = np.nan

    @property
    def holds(self) -> bool:
        """Whether the error is within the bound."""
        return bool(self.error <= self.bound)


def _equal_means(claim: str, left: np.ndarray, right: np.ndarray) -> _TheoryCheck:
    """Check whether two numbers of every episode have one mean: the means may differ by four
    standard errors.

    Args:
        claim: in words.
        left, right: ``[episode]``.
    """
    difference = left - right
    bound = np.inf
    if len(difference) > 1:
        bound = 4 * difference.std(ddof=1) / np.sqrt(len(difference))
    error = float(abs(difference.mean()))
    left_mean = float(left.mean())
    right_mean = float(right.mean())
    return _TheoryCheck(claim, error, float(bound), left_mean, right_mean)


def _excess_and_divergence(
    weights: Float[np.ndarray, "episode round expert"], episodes: _LatentExpertEpisodes
) -> tuple[Float[np.ndarray, " episode"], Float[np.ndarray, " episode"]]:
    """Compute each episode's summed excess log-loss of ``q_t = sum_i w_{t,i} p_{t,i}`` over the
    posterior mixture, and its KL.

    Both are in nats. They are equal in expectation, not episode by episode.
    """
    mixtures = _posterior(episodes)[:, :-1], weights
    best, forecasts = (
        np.einsum("bti,btik->btk", mixed, episodes.distributions) for mixed in mixtures
    )
    ratio = np.log(best) - np.log(forecasts)
    of_outcomes = np.take_along_axis(ratio, episodes.outcomes[..., None], axis=-1)
    excess = of_outcomes[..., 0].sum(axis=1)
    return excess, (best * ratio).sum(axis=(1, 2))


def _every_history(
    n_rounds: int = 6, n_experts: int = 3, seed: int = 0
) -> tuple[_LatentExpertEpisodes, Float[np.ndarray, " episode"]]:
    """List all histories that the same forecasts of the experts can meet, one an episode, with
    their probabilities.

    ``experts`` is -1 throughout: an episode is a history, whichever expert made it.

    Args:
        n_rounds: at most 16, so at most 65,536 histories.
        n_experts: whose forecasts are drawn.
        seed: seed of the forecasts.
    """
    many = (
        f"2 outcomes in {n_rounds} rounds have more histories than the 65,536 that are gone through"
    )
    require(n_rounds <= 16, many)
    drawn = _sample_latent_expert(1, n_rounds, n_experts, seed)
    outcomes = np.array(list(product((0, 1), repeat=n_rounds)))
    forecasts = drawn.distributions.repeat(len(outcomes), axis=0)
    episodes = _LatentExpertEpisodes(forecasts, outcomes, np.full(len(outcomes), -1), drawn.prior)
    return episodes, episodes.likelihoods.prod(axis=1) @ drawn.prior


def _corollary(seed: int = 0) -> _TheoryCheck:
    """Check the corollary exactly, over every history, for five learners that are not
    multiplicative weights.

    They update at four wrong rates, and with the experts exchanged. ``error`` is the largest amount
    by which a learner's summed KL exceeds its excess risk. ``left`` and ``right`` are the two of
    the learner with the largest KL.
    """
    episodes, probabilities = _every_history(seed=seed)
    right = np.log(_posterior(episodes)[:, :-1])
    wrong = [special.softmax(rate * right, axis=-1) for rate in (0.0, 0.5, 0.9, 2.0)]
    exchanged = np.roll(special.softmax(right, axis=-1), 1, axis=-1)
    wrong.append(exchanged)
    epsilon, divergence = (
        np.array([_excess_and_divergence(weights, episodes) for weights in wrong]) @ probabilities
    ).T
    largest = int(divergence.argmax())
    error = float(max(0.0, (divergence - epsilon).max()))
    sides = (float(divergence[largest]), float(epsilon[largest]))
    return _TheoryCheck("summed KL <= excess log-loss (corollary)", error, 1e-12, *sides)


@checked
def check(
    n_episodes: int = 4000, n_rounds: int = 20, n_experts: int = 4, seed: int = 0
) -> list[_TheoryCheck]:
    """Check the four statements: three on simulated episodes of the appendix's model, the corollary
    over every history.

    The simulated identity may miss by four standard errors (false alarms: 6 in 100,000 seeds).

    Args:
        n_episodes, n_rounds, n_experts: sizes of the simulation.
        seed: seed of the draws.
    """
    episodes = _sample_latent_expert(n_episodes, n_rounds, n_experts, seed=seed)
    update = np.abs(_posterior(episodes) - _multiplicative_weights(episodes)).max()
    likelihoods = episodes.likelihoods.reshape(-1, n_experts)[:100]
    logits = np.random.default_rng([seed, 4]).normal(size=likelihoods.shape)
    shifts = 1e-5 * np.eye(n_experts)[:, None]
    up = _mixture_log_loss(logits + 1 * shifts, likelihoods)[0]
    down = _mixture_log_loss(logits + -1 * shifts, likelihoods)[0]
    numeric = np.moveaxis(up - down, 0, -1) / 2e-5
    gradient = np.abs(numeric - _mixture_log_loss(logits, likelihoods)[1]).max()
    # A learner that is wrong in an ordinary way: it updates at half the learning rate.
    posterior = _posterior(episodes)[:, :-1]
    slow = special.softmax(0.5 * np.log(posterior), axis=-1)
    identity = _equal_means("excess log-loss = summed KL", *_excess_and_divergence(slow, episodes))
    return [
        _TheoryCheck("posterior = multiplicative weights", float(update), 1e-12),
        _TheoryCheck("gradient of the log-loss = w - w+", float(gradient), 1e-9),
        identity,
        _corollary(seed=seed),
    ]
