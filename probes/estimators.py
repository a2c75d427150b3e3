"""Estimators of scikit-learn as probes: a clone for every fold and output, and one refitted on all episodes.

What the estimator does to its inputs (scaling, choosing a penalty) it does inside the fold; a search over settings must
split by episode itself. Logistic regression, :data:`LOGISTIC`, is nested ``Pipeline(StandardScaler,
LogisticRegression)`` (a test holds it to ``GridSearchCV`` in ``GroupKFold``), in which one fit serves every pair of
folds that is left out.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from numpy import ndarray as Array
from scipy import special

from interp.checks import checked
from interp.errors import require
from probes.controls import Fitted, Kind, fitted
from probes.values import TargetValues, as_array

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler


def _classifies(estimator: Any) -> bool:
    """Whether it predicts classes rather than numbers; what is no estimator of scikit-learn is refused.

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


def predict(fitted: tuple[Any, ...], x: Float[Array, "episode round d"]) -> Float[Array, "episode round k"]:
    """What fitted estimators of scikit-learn, one per output, predict."""
    rows = x.reshape(-1, x.shape[-1])
    columns = [np.full(len(rows), e) if isinstance(e, float) else np.asarray(e.predict(rows)).ravel() for e in fitted]
    return np.stack(columns, axis=-1).astype(np.float64).reshape(*x.shape[:2], -1)


def _fit(estimator: Any, x: Float[Array, "episode round d"], y: Shaped[Array, "episode round k"]) -> tuple[Any, ...]:
    """A fitted clone for each output; where training has one class only, that class itself, which needs no fit."""
    from sklearn.base import clone

    rows, columns = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1]).T
    constant = _classifies(estimator)
    return tuple(
        float(column[0]) if constant and (column == column[0]).all() else clone(estimator).fit(rows, column)
        for column in columns
    )


def kind(estimator: BaseEstimator) -> Kind:
    """An estimator as a kind of probe, in the same folds and with the same controls as the others."""

    def one(x: Array, target: TargetValues, folds: Array, groups: Array) -> Fitted:
        y, predictions = target.values, np.zeros(target.values.shape)
        for fold in range(int(folds.max()) + 1):
            test = folds == fold
            predictions[test] = predict(_fit(estimator, x[~test], y[~test]), x[test])

        def refitted() -> dict[str, Any]:
            made = {"estimators": _fit(estimator, x, y), "settings": {"estimator": repr(estimator)}}
            return {"weights": np.zeros((x.shape[-1], 0)), "intercept": np.zeros(0), **made}

        return fitted(target, predictions, groups, refitted)

    return Kind(
        type(estimator).__name__,
        _classifies(estimator),
        lambda x, targets, folds, groups: [one(x, target, folds, groups) for target in targets],
    )


class _Rows(NamedTuple):
    """Arrays for scikit-learn: activations, targets, and the episode of each row."""

    x: Float[Array, "row feature"]
    y: Shaped[Array, "row output"]
    groups: Int[Array, " row"]


@checked
def to_sklearn(activations: Any, target: TargetValues | Any) -> _Rows:
    """``activations`` ``[episode, round, ...]`` and a target ``[episode, round, output]`` as rows of rounds that count.

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
    missing = target.missing if isinstance(target, TargetValues) else None
    at = np.nonzero(np.ones(x.shape[:2], bool) if missing is None else ~missing)
    return _Rows(x[at].reshape(len(at[0]), -1), values[at].reshape(len(at[0]), -1), at[0])


_PENALTIES = (1e-2, 1.0, 1e2)  # values of C tried
_WIDE = 512  # features beyond which L-BFGS takes less time for two classes, too: a tenth at 704


@dataclass(frozen=True, eq=False)
class _LogisticFit:
    """Out-of-fold probabilities, C as each outer fold chose it, and the refit on all episodes, made when it is read."""

    fits: _Fits
    varying: Bool[Array, " d"]
    probabilities: Float[Array, "episode round c"]
    chosen: tuple[float, ...]

    @cached_property
    def refit(self) -> tuple[Float[Array, "d m"], Float[Array, " m"], tuple[float, ...]]:
        """Weights on raw inputs, and intercepts: one column for two classes (log-odds of class 1), else one a class;
        and C of each outer fold and, last, of this fit."""
        penalty, n_classes = self.fits.best_penalty(frozenset()), self.fits.n_classes
        probe = self.fits.probe(frozenset(), penalty)
        assert probe is not None, "a target that is constant is refused before"
        scaling, regression = probe
        m = 1 if n_classes <= 2 else n_classes
        weights, intercept = np.zeros((len(self.varying), m)), np.zeros(m)
        raw = regression.coef_ / scaling.scale_
        classes = regression.classes_ if len(raw) > 1 else regression.classes_[1:]
        columns = classes if m > 1 else np.zeros(1, dtype=int)
        weights[np.ix_(self.varying, columns)] = raw.T
        intercept[columns] = regression.intercept_ - raw @ scaling.mean_
        return weights, intercept, (*self.chosen, penalty)


def _cross_validate(
    x: Float[Array, "episode round d"],
    y: Int[Array, "episode round"],
    folds: Int[Array, " episode"],
    n_classes: int,
) -> _LogisticFit:
    n_episodes, n_rounds, d = x.shape
    rows, labels, groups = x.reshape(-1, d).astype(np.float64), y.reshape(-1), np.repeat(folds, n_rounds)
    # A constant column, as most of a handwired machine are, has weight 0 and costs as much as any other.
    varying = (rows != rows[0]).any(0)
    varying[0] |= not varying.any()  # scikit-learn fits no rows without columns
    rows = rows[:, varying]
    fits = _Fits(rows, labels, groups, n_classes)
    probabilities, penalties = np.zeros((len(rows), n_classes)), []
    for fold in range(folds.max() + 1):
        left_out = frozenset([fold])
        penalties.append(fits.best_penalty(left_out))
        probabilities[groups == fold] = fits.probabilities(left_out, penalties[-1], fold)
    return _LogisticFit(fits, varying, probabilities.reshape(n_episodes, n_rounds, -1), tuple(penalties))


@dataclass(frozen=True, eq=False)
class _Fits:
    """Probes of one target, each fitted once: by the folds that it was not fitted on, and its penalty."""

    rows: Float[Array, "row d"]
    labels: Int[Array, " row"]
    groups: Int[Array, " row"]
    n_classes: int
    _scalings: dict[frozenset[int], StandardScaler] = field(default_factory=dict)
    _fitted: dict[tuple[frozenset[int], float], LogisticRegression] = field(default_factory=dict)

    def best_penalty(self, left_out: frozenset[int]) -> float:
        """The penalty with the least log-loss when each of the folds that are not left out is held out in turn."""
        losses = np.zeros(len(_PENALTIES))
        for fold in sorted({*self.groups.tolist()} - left_out):
            truth = self.labels[self.groups == fold]
            for i, penalty in enumerate(_PENALTIES):
                p = self.probabilities(left_out | {fold}, penalty, fold)
                losses[i] -= np.log(np.maximum(p[np.arange(len(p)), truth], np.finfo(np.float64).eps)).mean()
        return _PENALTIES[int(losses.argmin())]

    def probabilities(self, left_out: frozenset[int], penalty: float, fold: int) -> Float[Array, "row c"]:
        """Probabilities of all classes in a fold: 0 for one that was not in training, 1 for the only one that was."""
        test = self.groups == fold
        result = np.zeros((int(test.sum()), self.n_classes))
        if (probe := self.probe(left_out, penalty)) is None:
            result[:, self.labels[~np.isin(self.groups, list(left_out))][0]] = 1.0
        else:
            scaling, regression = probe
            # As `predict_proba`, without its checks, which take as long as a fit of few rows.
            scaled = (self.rows[test] - scaling.mean_) / scaling.scale_
            scores = scaled @ regression.coef_.T + regression.intercept_
            scores = np.concatenate([-scores / 2, scores / 2], 1) if scores.shape[1] == 1 else scores
            result[:, regression.classes_] = special.softmax(scores, axis=1)
        return result

    def probe(self, left_out: frozenset[int], penalty: float) -> tuple[StandardScaler, LogisticRegression] | None:
        """The probe fitted on all other folds; None where only one class is there."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression
        from sklearn.preprocessing import StandardScaler

        train = ~np.isin(self.groups, list(left_out))
        rows, labels = self.rows[train], self.labels[train]
        if (labels == labels[0]).all():
            return None
        if left_out not in self._scalings:
            self._scalings[left_out] = StandardScaler().fit(rows)
        scaling = self._scalings[left_out]
        if (left_out, penalty) not in self._fitted:
            scaled = (rows - scaling.mean_) / scaling.scale_
            # With more features than rows, the penalised weights lie in the span of the rows: fitted in its basis.
            basis = np.linalg.qr(scaled.T)[0] if scaled.shape[1] > len(scaled) else None
            fed = scaled if basis is None else scaled @ basis
            # Newton's method takes 5 steps for 100 of L-BFGS, but its Hessian grows with the square of what is fitted.
            classes = np.unique(labels).tolist()
            newton = len(classes) == 2 and fed.shape[1] <= _WIDE
            solver = {"solver": "newton-cholesky", "tol": 1e-6} if newton else {"solver": "lbfgs"}
            regression = LogisticRegression(C=penalty, max_iter=1000, warm_start=True, **solver)
            # It starts where a fit ended that saw only such rows: nothing of the folds that are left out enters.
            near = [fit for (out, _), fit in self._fitted.items() if newton and left_out <= out]
            if near and near[-1].classes_.tolist() == classes:
                regression.coef_ = near[-1].coef_ if basis is None else near[-1].coef_ @ basis
                regression.intercept_ = near[-1].intercept_
            with warnings.catch_warnings():
                # Separable classes have no finite optimum; the penalised fit is used where the optimiser stopped.
                warnings.simplefilter("ignore", ConvergenceWarning)
                self._fitted[left_out, penalty] = regression.fit(fed, labels)
            if basis is not None:
                regression.coef_ = regression.coef_ @ basis.T
        return scaling, self._fitted[left_out, penalty]


def _logistic(x: Array, target: TargetValues, folds: Array, groups: Array) -> Fitted:
    import sklearn

    y, n_classes = target.values, int(target.values.max()) + 1
    # Inputs are finite, so that scikit-learn, which would look at every fit, need not.
    with sklearn.config_context(assume_finite=True, skip_parameter_validation=True):
        fits = [_cross_validate(x, y[..., k], folds, n_classes) for k in range(y.shape[-1])]

    def refitted() -> dict[str, Any]:
        names = [(name, c) for name in target.outputs for c in range(n_classes)]
        return {
            "weights": np.concatenate([one.refit[0] for one in fits], axis=-1),
            "intercept": np.concatenate([one.refit[1] for one in fits]),
            "columns": target.outputs if n_classes <= 2 else tuple(f"{name}={c}" for name, c in names),
            "settings": {"penalties": [one.refit[2] for one in fits]},
        }

    probabilities = [one.probabilities for one in fits]
    return fitted(target, np.stack([p.argmax(-1) for p in probabilities], axis=-1), groups, refitted, probabilities)


LOGISTIC = Kind(
    "logistic",
    of_classes=True,
    fit=lambda x, targets, folds, groups: [_logistic(x, one, folds, groups) for one in targets],
)
