"""Logistic regression for class targets, by scikit-learn: scaling, penalty and every split inside the folds.

``Pipeline(StandardScaler, LogisticRegression)``, C chosen by ``GridSearchCV`` on log-loss, inner and outer splits by
episode. Slower than the closed form: for single probes; sweeps fit the indicators of the classes by ridge.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

PENALTIES = (1e-3, 1e-1, 1e1, 1e3)
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
        probe, penalty = _search(rows[train], labels[train], groups[train])
        probabilities[np.ix_(test, probe.classes_)] = probe.predict_proba(rows[test])
        penalties.append(penalty)
    m = 1 if n_classes == 2 else n_classes
    weights, intercept = np.zeros((d, m)), np.zeros(m)
    if refit:
        probe, penalty = _search(rows, labels, groups)
        penalties.append(penalty)
        scaler, regression = probe[0], probe[-1]
        raw = regression.coef_ / scaler.scale_
        into = probe.classes_ if len(regression.coef_) > 1 else slice(0, 1) if m == 1 else probe.classes_[1:]
        weights[:, into] = raw.T
        intercept[into] = regression.intercept_ - raw @ scaler.mean_
    return LogisticFit(probabilities.reshape(n_episodes, n_rounds, -1), tuple(penalties), weights, intercept)


def _search(x: Float[Array, "row d"], y: Int[Array, " row"], groups: Int[Array, " row"]) -> tuple[Pipeline, float]:
    """The pipeline fitted with the best penalty, and that penalty."""
    search = GridSearchCV(
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=_MAX_ITER)),
        {"logisticregression__C": PENALTIES},
        scoring="neg_log_loss",
        cv=GroupKFold(len(np.unique(groups))),
    )
    with warnings.catch_warnings():
        # Separable classes have no finite optimum; the penalised fit is used where the optimiser stopped.
        warnings.simplefilter("ignore", ConvergenceWarning)
        search.fit(x, y, groups=groups)
    return search.best_estimator_, search.best_params_["logisticregression__C"]
