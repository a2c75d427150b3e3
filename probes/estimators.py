"""Estimators of scikit-learn as probes: a clone for every fold and output, and one refitted on all episodes.

What the estimator does to its inputs (scaling, choosing a penalty) it does inside the fold; a search over settings
must split by episode itself. A pipeline is an estimator, too. :func:`to_sklearn` gives activations and targets as the
arrays that scikit-learn takes, for fits of your own, without the controls that :func:`probes.fit` gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, Shaped
from numpy import ndarray as Array

from interp.checks import checked
from interp.errors import require
from interp.statistics import Interval
from probes.controls import Fitted, Kind
from probes.scores import R2, accuracies, mean_scores, rank_correlation
from probes.values import TargetValues, as_array


def _classifies(estimator: Any) -> bool:
    """Whether it predicts classes rather than numbers.

    >>> from sklearn.linear_model import Lasso, LogisticRegression
    >>> _classifies(Lasso()), _classifies(LogisticRegression())
    (False, True)
    """
    from sklearn.base import is_classifier, is_regressor

    known = hasattr(estimator, "get_params") and not isinstance(estimator, type)
    require(
        known and (is_classifier(estimator) or is_regressor(estimator)),
        f"method must be 'ridge', 'logistic' or a regressor or classifier of scikit-learn, got {estimator!r}",
    )
    return bool(is_classifier(estimator))


def _cross_validate(
    estimator: Any,
    x: Float[Array, "episode round d"],
    y: Shaped[Array, "episode round k"],
    folds: Int[Array, " episode"],
) -> Float[Array, "episode round k"]:
    """Out-of-fold predictions."""
    predictions = np.zeros(y.shape)
    for fold in range(int(folds.max()) + 1):
        test = folds == fold
        predictions[test] = predict(fit(estimator, x[~test], y[~test]), x[test])
    return predictions


def predict(fitted: tuple[Any, ...], x: Float[Array, "episode round d"]) -> Float[Array, "episode round k"]:
    """What fitted estimators of scikit-learn, one per output, predict."""
    rows = x.reshape(-1, x.shape[-1])
    columns = [np.full(len(rows), e) if isinstance(e, float) else np.asarray(e.predict(rows)).ravel() for e in fitted]
    return np.stack(columns, axis=-1).astype(np.float64).reshape(*x.shape[:2], -1)


def fit(estimator: Any, x: Float[Array, "episode round d"], y: Shaped[Array, "episode round k"]) -> tuple[Any, ...]:
    """A fitted clone for each output; where training has one class only, that class itself, which needs no fit."""
    from sklearn.base import clone

    rows, columns = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1]).T
    constant = _classifies(estimator)
    return tuple(
        float(column[0]) if constant and (column == column[0]).all() else clone(estimator).fit(rows, column)
        for column in columns
    )


def kind(estimator: Any) -> Kind:
    """An estimator as a kind of probe, in the same folds and with the same controls as the others."""
    of_classes = _classifies(estimator)

    def fits(x: Array, targets: Sequence[TargetValues], folds: Array, groups: Array) -> list[Fitted]:
        return [_fit_one(estimator, of_classes, x, target, folds, groups) for target in targets]

    return Kind(type(estimator).__name__, of_classes, fits)


def _fit_one(estimator: Any, of_classes: bool, x: Array, target: TargetValues, folds: Array, groups: Array) -> Fitted:
    y, mask, columns = target.values, target.mask, slice(0, target.values.shape[-1])
    predictions = _cross_validate(estimator, x, y, folds)
    if of_classes:
        *each, score = accuracies(y, predictions, mask, groups)
    else:
        r2 = R2.of(y, mask, groups)
        errors = r2.errors(predictions)
        each, score = r2.each(errors, columns), r2.overall(errors, columns)

    def details() -> dict[str, Any]:
        metrics: dict[str, Interval] = {"accuracy" if of_classes else "r2": score}
        if not of_classes:
            metrics["rank_correlation"] = rank_correlation(y, predictions, mask)
            metrics["mae"] = mean_scores(np.abs(y - predictions), mask, groups)[-1]
        return {
            "by_output": dict(zip(target.outputs, each, strict=True)),
            "metrics": metrics,
            "predictions": predictions,
            "weights": np.zeros((x.shape[-1], 0)),
            "intercept": np.zeros(0),
            "columns": target.outputs,
            "settings": {"estimator": repr(estimator)},
            "estimators": fit(estimator, x, y),
        }

    return Fitted(score, details)


class Rows(NamedTuple):
    """Arrays for scikit-learn: activations, targets, and the episode of each row."""

    x: Float[Array, "row feature"]
    y: Shaped[Array, "row output"]
    groups: Int[Array, " row"]


@checked
def to_sklearn(activations: Any, target: TargetValues | Any) -> Rows:
    """``activations`` ``[episode, round, ...]`` and a target ``[episode, round, output]`` as rows of rounds.

    Cross-validate by ``groups``: rounds of one episode say much of each other.

    Args:
        target: from :mod:`probes.targets`, or values. A target's mask is left alone: it says what is scored.

    Example:
        >>> import interp, probes
        >>> from interp.tasks import experts
        >>> from sklearn.linear_model import Ridge
        >>> from sklearn.model_selection import GroupKFold, cross_val_score
        >>> episodes = experts.sample(n_episodes=12, n_rounds=6, n_experts=2, seed=0)
        >>> run = interp.rollout(interp.load("wma-handwired", n_experts=2), episodes)
        >>> x, y, groups = to_sklearn(run.latents[:, 1:], probes.targets.log_weights(episodes))
        >>> x.shape[0], y.shape, groups[:7].tolist()
        (72, (72, 2), [0, 0, 0, 0, 0, 0, 1])
        >>> bool(cross_val_score(Ridge(1e-6), x, y, groups=groups, cv=GroupKFold(4)).min() > 0.999)
        True
    """
    x = as_array(activations, "activations")
    values = target.values if isinstance(target, TargetValues) else as_array(target, "the target")
    require(
        x.ndim >= 2 and values.ndim >= 2 and x.shape[:2] == values.shape[:2],
        f"activations and target are [episode, round, ...] of the same episodes and rounds, got {x.shape} and "
        f"{values.shape}",
    )
    rows = x.shape[0] * x.shape[1]
    groups = np.repeat(np.arange(x.shape[0]), x.shape[1])
    return Rows(x.reshape(rows, -1), values.reshape(rows, -1), groups)
