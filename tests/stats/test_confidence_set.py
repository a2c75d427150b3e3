"""The model confidence set: coverage by simulation, napkin cases, ties and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from interp.stats.confidence_set import model_confidence_set
from interp.support.errors import InputError

N_SIMULATIONS = 200


def draw_losses(
    rng: np.random.Generator, n_units: int, means: list[float], skewed: bool
) -> np.ndarray:
    """Losses [unit, model] with a part that all models of a unit share, as those of an episode have."""
    noise = rng.exponential(size=(n_units, len(means))) - 1
    if not skewed:
        noise = rng.normal(size=(n_units, len(means)))
    shared = rng.normal(size=(n_units, 1))
    return 3 * shared + noise + np.array(means)


@pytest.mark.parametrize("skewed", [False, True], ids=["normal", "skewed"])
@pytest.mark.parametrize("n_units", [12, 48])
@pytest.mark.parametrize(
    "means", [[0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.3, 0.6, 3.0]], ids=str
)
def test_the_best_model_is_in_the_set_as_often_as_the_level_says(
    means: list[float], n_units: int, skewed: bool
) -> None:
    rng = np.random.default_rng([n_units, len(means), skewed])
    n_covered = 0
    for simulation in range(N_SIMULATIONS):
        losses = draw_losses(rng, n_units, means, skewed)
        result = model_confidence_set(losses, n_resamples=300, seed=simulation)
        n_covered += result.included[0]
    # 3 standard errors below .95: .95 - 3 * sqrt(.95 * .05 / 200) = .904
    assert n_covered / N_SIMULATIONS >= 0.904


def test_a_model_that_loses_in_every_unit_is_rejected_and_the_best_has_p_1() -> None:
    rng = np.random.default_rng(0)
    best = rng.normal(size=(30, 1))
    noise = rng.normal(0, 0.1, size=(30, 2))
    losses = np.hstack([best, best + 1 + noise])
    result = model_confidence_set(losses)
    assert result.included.tolist() == [True, False, False]
    assert result.p_values[0] == 1
    assert (result.p_values[1:] < 0.05).all()


def test_a_difference_without_any_spread_rejects() -> None:
    losses = np.array([[0.0, 0.5]] * 5)
    assert model_confidence_set(losses).included.tolist() == [True, False]


@pytest.mark.parametrize("seed", [21, 49, 55])
def test_a_difference_with_the_spread_of_rounding_alone_rejects(seed: int) -> None:
    rng = np.random.default_rng(seed)
    best = rng.random(int(rng.integers(5, 60))) * rng.choice([1, 10, 100])
    losses = np.stack([best, best + rng.choice([0.1, 0.3, 1.0, 2.0])], 1)
    assert model_confidence_set(losses).included.tolist() == [True, False]


def test_a_p_value_of_exactly_1_minus_the_level_is_in_the_set() -> None:
    rng = np.random.default_rng(9)
    shared = rng.normal(size=(20, 1))
    losses = shared + np.array([0, 0.2]) + rng.normal(0, 0.4, (20, 2))
    result = model_confidence_set(losses, n_resamples=199)
    assert result.p_values[1] == 10 / 200
    assert result.included.all()


def test_equal_models_tie_and_a_duplicate_changes_nothing_for_the_others() -> None:
    rng = np.random.default_rng(1)
    losses = draw_losses(rng, 40, [0.0, 0.2, 1.5], skewed=False)
    alone = model_confidence_set(losses)
    doubled = model_confidence_set(losses[:, [0, 1, 2, 0, 2]])
    assert doubled.p_values[:3].tolist() == alone.p_values.tolist()
    assert doubled.p_values[3] == doubled.p_values[0]
    assert doubled.included[4] == doubled.included[2]


def test_all_models_equal_are_all_in_the_set() -> None:
    losses = np.repeat(np.arange(6.0)[:, None], 3, axis=1)
    assert model_confidence_set(losses).p_values.tolist() == [1, 1, 1]


def test_noise_in_few_units_rejects_no_one_that_many_units_reject() -> None:
    rng = np.random.default_rng(2)
    losses = draw_losses(rng, 400, [0.0, 0.3], skewed=False)
    assert model_confidence_set(losses[:8]).included.all()
    assert model_confidence_set(losses).included.tolist() == [True, False]


def test_a_higher_level_gives_a_larger_set() -> None:
    rng = np.random.default_rng(3)
    losses = draw_losses(rng, 24, [0.0, 0.4, 0.8, 1.2], skewed=False)
    sizes = [model_confidence_set(losses, level).included.sum() for level in (0.5, 0.9, 0.999)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[2]


@pytest.mark.parametrize(
    ("losses", "level", "message"),
    [
        ([1.0, 2.0], 0.95, r"\[unit, model\]"),
        ([[1.0, 2.0]], 0.95, "at least 2 units, got 1"),
        (np.zeros((3, 0)), 0.95, "at least 1 model"),
        ([[1.0, np.inf], [1.0, 2.0]], 0.95, "finite"),
        ([[1.0, 2.0], [2.0, 1.0]], 1.0, "between 0 and 1, got 1"),
    ],
    ids=["shape", "one unit", "no model", "infinite", "level"],
)
def test_what_has_no_confidence_set_is_refused(losses: object, level: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        model_confidence_set(losses, level)  # type: ignore[arg-type]
