"""Logistic regression for class targets, by scikit-learn: scaling, penalty and every split inside the folds.

``Pipeline(StandardScaler, LogisticRegression)``; C is the one with the least log-loss when each of the other folds of
episodes is held out in turn (a test holds this to ``GridSearchCV`` in ``GroupKFold``). Slower than the closed form: for
single probes; sweeps fit the indicators of the classes by ridge.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

PENALTIES = (1e-2, 1.0, 1e2)
"""Values of C tried."""

_MAX_ITER = 1000


@dataclass(frozen=True, eq=False)
class LogisticFit:
    """What cross-validation gave for one class target.

    Attributes:
        probabilities: out-of-fold, ``[episode, round, class]``.
        penalties: C chosen by each outer fold, and by the refit (last).
        weights, intercept: of the probe refitted on all episodes, on raw inputs; for two classes one column, the
            log-odds of class 1, else one per class.
    """

    probabilities: Float[Array, "episode round c"]
    penalties: tuple[float, ...]
    weights: Float[Array, "d m"]
    intercept: Float[Array, " m"]


def cross_validate(
    x: Float[Array, "episode round d"],
    y: Int[Array, "episode round"],
    folds: Int[Array, " episode"],
    n_classes: int,
    refit: bool = True,
) -> LogisticFit:
    """Nested cross-validation of one class target, and the refit on all episodes (zeros when not asked for)."""
    n_episodes, n_rounds, d = x.shape
    rows, labels, groups = x.reshape(-1, d).astype(np.float64), y.reshape(-1), np.repeat(folds, n_rounds)
    probabilities, penalties = np.zeros((len(rows), n_classes)), []
    for fold in range(folds.max() + 1):
        train, test = groups != fold, groups == fold
        penalties.append(_best(rows[train], labels[train], groups[train], n_classes))
        probe = _fit(rows[train], labels[train], penalties[-1])
        probabilities[test] = _probabilities(probe, rows[test], labels[train], n_classes)
    m = 1 if n_classes <= 2 else n_classes
    weights, intercept = np.zeros((d, m)), np.zeros(m)
    if refit:
        penalties.append(_best(rows, labels, groups, n_classes))
        probe = _fit(rows, labels, penalties[-1])
        assert probe is not None, "a target that is constant is refused before"
        scaler, regression = probe[0], probe[-1]
        raw = regression.coef_ / scaler.scale_
        classes = regression.classes_ if len(raw) > 1 else regression.classes_[1:]
        columns = classes if m > 1 else np.zeros(1, dtype=int)
        weights[:, columns] = raw.T
        intercept[columns] = regression.intercept_ - raw @ scaler.mean_
    return LogisticFit(probabilities.reshape(n_episodes, n_rounds, -1), tuple(penalties), weights, intercept)


def _fit(x: Float[Array, "row d"], y: Int[Array, " row"], penalty: float) -> Pipeline | None:
    """The fitted pipeline; None where only one class is there."""
    if (y == y[0]).all():
        return None
    with warnings.catch_warnings():
        # Separable classes have no finite optimum; the penalised fit is used where the optimiser stopped.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return make_pipeline(StandardScaler(), LogisticRegression(C=penalty, max_iter=_MAX_ITER)).fit(x, y)


def _probabilities(
    probe: Pipeline | None, x: Float[Array, "row d"], seen: Int[Array, " seen"], n_classes: int
) -> Float[Array, "row c"]:
    """Probabilities of all classes; 0 for one that was not in training, 1 for the only one that was."""
    result = np.zeros((len(x), n_classes))
    if probe is None:
        result[:, seen[0]] = 1.0
    else:
        result[:, probe.classes_] = probe.predict_proba(x)
    return result


def _best(x: Float[Array, "row d"], y: Int[Array, " row"], groups: Int[Array, " row"], n_classes: int) -> float:
    """The penalty with the least log-loss over held-out groups."""
    losses = np.zeros(len(PENALTIES))
    for group in np.unique(groups):
        train, test = groups != group, groups == group
        for i, penalty in enumerate(PENALTIES):
            p = _probabilities(_fit(x[train], y[train], penalty), x[test], y[train], n_classes)
            of_truth = np.maximum(p[np.arange(len(p)), y[test]], np.finfo(np.float64).eps)
            losses[i] -= np.log(of_truth).mean()
    return PENALTIES[int(losses.argmin())]
