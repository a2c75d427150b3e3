"""What the README and docs/results/replaced-or-added.md say of `wma-learned`, by scikit-learn and NumPy alone."""

import copy
from functools import cache

import numpy as np
import pytest
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import interp
from interp.model.checkpoints import save_checkpoint
from interp.tasks import experts
from probes import probe
from tests.refusals import refuses

EPISODES = experts.sample(128, 40, 4, seed=5)


def centred_hits() -> np.ndarray:
    """Return how often each expert was right after each round, less the mean over experts."""
    hits = EPISODES.correct.cumsum(1).astype(float)
    return hits - hits.mean(-1, keepdims=True)


def posterior_mean(hits: np.ndarray, misses: np.ndarray) -> np.ndarray:
    """Return the posterior mean of an accuracy, on a grid of the prior U[.3, .9]."""
    accuracies = np.linspace(0.3, 0.9, 601)
    log_hits = hits[..., None] * np.log(accuracies)
    log_misses = misses[..., None] * np.log1p(-accuracies)
    log_posterior = log_hits + log_misses
    weights = np.exp(log_posterior - log_posterior.max(-1, keepdims=True))
    posterior = weights / weights.sum(-1, keepdims=True)
    return (posterior * accuracies).sum(-1)


def bayes_accuracies() -> np.ndarray:
    """Return the posterior mean of each accuracy after each round."""
    hits = EPISODES.correct.cumsum(1)
    n_seen = np.arange(1, EPISODES.n_rounds + 1)
    return posterior_mean(hits, n_seen[:, None] - hits)


@cache
def run_of(name: str, untrained: bool = False) -> interp.Rollout:
    """Return what a model carries and predicts in the episodes; several tests read it."""
    model = interp.load(name)
    if untrained:
        model = model.untrained(0)
    return interp.rollout(model, EPISODES)


def read(values: np.ndarray, name: str, untrained: bool) -> float:
    """Return the R2 of ridge regression from the latent after each round to ``values``, [episode, round, expert]."""
    latents = run_of(name, untrained).latents[:, 1:, 0]
    x = latents.double().numpy().reshape(-1, latents.shape[-1])
    y = values.reshape(-1, 4)
    episode = np.repeat(np.arange(len(EPISODES)), EPISODES.n_rounds)
    ridge = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 3, 7)))
    predicted = cross_val_predict(ridge, x, y, cv=GroupKFold(4), groups=episode)
    squared_error = ((y - predicted) ** 2).sum()
    total = ((y - y.mean(0)) ** 2).sum()
    return 1 - squared_error / total


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "untrained", "low", "high"),
    [
        pytest.param("wma-learned", False, 0.83, 0.93, id="replaced"),
        pytest.param("wma-learned", True, 0.0, 0.25, id="replaced, untrained"),
        pytest.param("wma-learned-additive", False, 0.99, 1.0, id="added"),
        pytest.param("wma-learned-additive", True, 0.9, 1.0, id="added, untrained"),
    ],
)
def test_only_a_replaced_latent_has_to_learn_to_hold_the_log_weights(name, untrained, low, high):
    """The page's .89 and .13: an untrained latent that is added to shows the log-weights as well as a trained one."""
    assert low < read(centred_hits(), name, untrained) < high


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "untrained", "low", "high"),
    [
        pytest.param("wma-learned", False, 0.94, 0.98, id="replaced"),
        pytest.param("wma-learned", True, 0.1, 0.3, id="replaced, untrained"),
        pytest.param("wma-learned-additive", True, 0.8, 0.9, id="added, untrained"),
    ],
)
def test_a_replaced_latent_holds_the_accuracies_of_a_bayesian(name, untrained, low, high):
    """The README's .97 and .21: what it holds of an expert saturates as a Bayesian's belief does."""
    assert low < read(bayes_accuracies(), name, untrained) < high


def test_nothing_of_the_old_latent_is_kept():
    """What a round leaves is what the round wrote at its update token, the paper's recurrence, in every round."""
    model = interp.load("wma-learned")
    assert model.latent_kept == 0
    run = interp.rollout(model, EPISODES.select(slice(4)), names_filter=["hook_update"])
    written = run.cache["hook_update"].flatten(2).numpy()
    latents = run.latents[:, 1:].flatten(2).numpy()
    assert latents == pytest.approx(written, abs=1e-6)


def test_a_model_that_is_half_annealed_is_not_saved_as_another(tmp_path):
    model = copy.deepcopy(interp.load("wma-learned"))
    model.latent_kept = 0.5
    refuses(
        "keeps 0.5 of each latent, and a checkpoint would", save_checkpoint, model, tmp_path / "m"
    )
    assert not (tmp_path / "m").exists()


@pytest.mark.long
def test_an_untrained_copy_is_one_of_the_same_recurrence():
    """The same weights that add to the latent are another model: caches of controls go by the digest."""
    model = interp.load("wma-learned")
    annealed = copy.deepcopy(model)
    annealed.latent_kept = 1.0
    assert annealed.digest() != model.digest()
    episodes = EPISODES.select(slice(16)).first(20)
    controls = []
    for subject in (annealed, model):
        (probed,) = probe(
            subject, episodes, ["log_weights_centred"], sites="latents", n_untrained=1
        )
        controls.append(probed.measure.controls["an untrained copy"].number)
    added, replaced = controls
    assert added > 0.9
    assert replaced < 0.5


@pytest.mark.long
def test_it_predicts_nearly_as_the_bayes_predictor_does():
    """The loss above Bayes, whose posterior mean of an accuracy from U[.3, .9] is computed on a grid."""
    predicted = run_of("wma-learned").predictions.double().numpy()
    hits_before = EPISODES.correct.cumsum(1) - EPISODES.correct
    n_before = np.arange(EPISODES.n_rounds)
    mean = posterior_mean(hits_before, n_before[:, None] - hits_before)
    signs = 2 * EPISODES.advice - 1
    log_odds = (signs * np.log(mean / (1 - mean))).sum(-1)
    bayes = 1 / (1 + np.exp(-log_odds))

    def loss(p: np.ndarray) -> float:
        chance_of_label = np.where(EPISODES.labels == 1, p, 1 - p)
        return -np.log(chance_of_label).mean()

    assert 0 < loss(predicted) - loss(bayes) < 0.015
