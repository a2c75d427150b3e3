"""The model confidence set: the models of which one has the least mean loss, with a chosen
probability.

The method is that of Hansen, Lunde and Nason (2011), with their statistic T_max. Each model's loss
is compared with the mean loss of the remaining models. If the largest difference, in standard
errors, is larger than a bootstrap explains, its model is eliminated, and the test is repeated on
the rest. The set contains the best model with probability ``level``, whatever the number of models.
The bootstrap resamples independent units: episodes, participants or blocks of trials. The standard
error is computed anew in each resample, since there may be few units.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> losses = rng.normal(size=(40, 1)) + np.array([0.0, 0.0, 0.5]) + rng.normal(0, 0.1, size=(40, 3))
    >>> model_confidence_set(losses).included
    array([ True,  True, False])
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from interp.stats.intervals import resample_weights
from interp.support.checks import array_of, checked
from interp.support.errors import require

_ROUNDING = 1e-9
"""Losses that differ by at most this share of the largest loss are treated as equal."""


class ModelConfidenceSet(NamedTuple):
    """Result of :func:`model_confidence_set`: which models the test does not reject.

    Attributes:
        included: True for each model in the set, ``[model]``.
        p_values: p-value of each model, ``[model]``. A model is in the set if its p-value is at
            least ``1 - level``. The test eliminates models one by one; the last one has p-value 1.
    """

    included: NDArray[np.bool_]
    p_values: NDArray[np.float64]


@checked
def model_confidence_set(
    losses: ArrayLike, level: float = 0.95, *, n_resamples: int = 1000, seed: int = 0
) -> ModelConfidenceSet:
    """Return the models that may have the lowest mean loss, from losses of all models on the same
    units.

    Args:
        losses: finite losses, ``[unit, model]``. Units, such as participants, are independent of
            each other, and every model is scored on the same units.
        level: the probability that the set contains the best model.
        n_resamples: number of bootstrap resamples.
        seed: seed of the bootstrap.

    Returns:
        Which models are in the set, and their p-values. Models with equal losses share a p-value.

    Raises:
        InputError: fewer than 2 units, no model, losses that are not finite, or a level outside of
            (0, 1).
    """
    table = array_of("losses", losses).astype(np.float64)
    require(table.ndim == 2, f"losses must be [unit, model], got shape {table.shape}")
    n_units, n_models = table.shape
    require(n_units >= 2, f"losses must be of at least 2 units, got {n_units}")
    require(n_models >= 1, "losses must be of at least 1 model, got none")
    require(
        np.isfinite(table).all(),
        "losses must be finite; leave out a model with an infinite loss: it is rejected",
    )
    require(0 < level < 1, f"level must be between 0 and 1, got {level}")
    representative = _find_representatives(table)
    weights = resample_weights(n_units, n_resamples, seed)
    # Test whether all remaining models are equally good, remove the worst one, and repeat. A removed
    # model's p-value is the largest of the tests so far; the last model keeps 1.
    p_values = np.ones(n_models)
    remaining = np.unique(representative)
    p_value = 0.0
    while len(remaining) > 1:
        worst, p_of_equality = _test_equality(table[:, remaining], weights)
        p_value = max(p_value, p_of_equality)
        p_values[remaining[worst]] = p_value
        remaining = np.delete(remaining, worst)
    p_values = p_values[representative]
    return ModelConfidenceSet(included=1 - p_values <= level, p_values=p_values)


def _find_representatives(losses: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return, for each model, the index of the first model with the same losses up to rounding,
    ``[model]``.

    Args:
        losses: losses, ``[unit, model]``.
    """
    tolerance = _ROUNDING * np.abs(losses).max()
    n_models = losses.shape[1]
    representative = np.arange(n_models)
    for model in range(n_models):
        # Largest difference from each model up to this one, which differs from itself by 0.
        distances = np.abs(losses[:, : model + 1] - losses[:, [model]]).max(0)
        first_equal = np.argmax(distances <= tolerance)  # index of the first True
        # A model may equal the next one, and this one a third that differs from the first: such a
        # chain gets one representative.
        representative[model] = representative[first_equal]
    return representative


def _test_equality(losses: NDArray[np.float64], weights: NDArray[np.float64]) -> tuple[int, float]:
    """Test whether all models have the same mean loss.

    Args:
        losses: losses of the remaining models, ``[unit, model]``.
        weights: weight of each unit in each bootstrap resample, ``[resample, unit]``.

    Returns:
        The index of the worst model, the one that exceeds the mean loss of all models by the most
        standard errors, and the p-value of the test.
    """
    n_units = len(losses)
    differences = losses - losses.mean(1, keepdims=True)
    means = differences.mean(0)
    # Rounding is set to 0: a difference that is the same for every unit then has a standard error of
    # exactly 0. Models that are equal up to rounding were merged before.
    rounding = _ROUNDING * np.abs(losses).max()
    centred = differences - means  # as if all models had the same mean loss: the null hypothesis
    centred[np.abs(centred) <= rounding] = 0.0
    squares = np.square(centred)
    t_values = _divide_by_error(means, squares.mean(0), n_units)
    worst = int(np.argmax(t_values))
    resampled_means = weights @ centred  # [resample, model]
    # The variance is E[x^2] - E[x]^2, at least 0 but for rounding.
    resampled_variances = np.maximum(weights @ squares - resampled_means**2, 0.0)
    resampled_t = _divide_by_error(resampled_means, resampled_variances, n_units)
    n_as_large = (resampled_t.max(1) >= t_values[worst]).sum()
    # The data count as one more resample, so that no p-value is 0.
    return worst, (1 + n_as_large) / (1 + len(weights))


def _divide_by_error(
    means: NDArray[np.float64], variances: NDArray[np.float64], n_units: int
) -> NDArray[np.float64]:
    """Return means divided by their standard errors, in the shape of ``means``. The ratio is 0 if
    the mean is 0, and infinite if only the error is 0.

    Args:
        means: mean over units of each quantity.
        variances: variance over units of each quantity (squares divided by ``n_units``), in the
            same shape.
        n_units: number of independent units.
    """
    errors = np.sqrt(variances / (n_units - 1))  # the unbiased variance, divided by n_units
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = means / errors
    return np.where(means == 0, 0.0, ratios)
