"""Estimators of scikit-learn as probes: a clone for every fold and output, and one refitted on all episodes.

What the estimator does to its inputs (scaling, choosing a penalty) it does inside the fold; a search over settings
must split by episode itself. A pipeline is an estimator, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Int, Shaped
from numpy import ndarray as Array

from interp.errors import require


def classifies(estimator: Any) -> bool:
    """Whether it predicts classes rather than numbers.

    Raises:
        InputError: neither a regressor nor a classifier of scikit-learn.

    >>> from sklearn.linear_model import Lasso, LogisticRegression
    >>> classifies(Lasso()), classifies(LogisticRegression())
    (False, True)
    """
    from sklearn.base import is_classifier, is_regressor

    known = hasattr(estimator, "get_params") and not isinstance(estimator, type)
    require(
        known and (is_classifier(estimator) or is_regressor(estimator)),
        f"method must be 'ridge', 'logistic' or a regressor or classifier of scikit-learn, got {estimator!r}",
    )
    return bool(is_classifier(estimator))


def cross_validate(
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


def fit(estimator: Any, x: Float[Array, "episode round d"], y: Shaped[Array, "episode round k"]) -> tuple[Any, ...]:
    """A fitted clone for each output; where training has one class only, that class itself, which needs no fit."""
    from sklearn.base import clone

    rows, columns = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1]).T
    constant = classifies(estimator)
    return tuple(
        float(column[0]) if constant and (column == column[0]).all() else clone(estimator).fit(rows, column)
        for column in columns
    )


def predict(fitted: tuple[Any, ...], x: Float[Array, "episode round d"]) -> Float[Array, "episode round k"]:
    """What the clones of :func:`fit` predict."""
    rows = x.reshape(-1, x.shape[-1])
    columns = [np.full(len(rows), e) if isinstance(e, float) else np.asarray(e.predict(rows)).ravel() for e in fitted]
    return np.stack(columns, axis=-1).astype(np.float64).reshape(*x.shape[:2], -1)
