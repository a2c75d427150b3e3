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
from itertools import combinations, compress
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


def _newton(
    rows: Float[Array, "row d"], labels: Bool[Array, " row"], folds: Int[Array, " row"]
) -> dict[tuple[frozenset[int], float], tuple[Array, Array]]:
    """Weights and intercept of two classes by the folds left out (up to two) and the penalty, all fitted at once.

    A Hessian costs as much as dozens of gradients, so one is kept until a step leaves more than a tenth of the way. The
    first ones are sums over folds at the weights of the first fit, which serve all fits until that one has converged:
    every optimum is unique, so that where a fit started, and by which steps it came, is less than the tolerance.
    """
    every = [frozenset(out) for n in range(3) for out in combinations(range(folds.max() + 1), n)]
    inside = np.array([[fold not in out for fold in range(folds.max() + 1)] for out in every])
    ones, n = (inside[:, folds] @ which for which in (labels, np.ones(len(rows))))
    every, inside = list(compress(every, both := (ones > 0) & (ones < n))), inside[both]
    mean, scale = rows.mean(0), rows.std(0)
    scale[scale == 0] = 1.0
    x = np.insert((rows - mean) / scale, len(mean), 1.0, axis=1)
    used = inside[:, folds] / n[both, None]
    ridge = used @ np.square(x) - np.square(used @ x)
    ridge = np.where(ridge > 1e-12, ridge, 1e30)  # what is constant in some folds gets no weight from them
    ridge[:, -1] = 0.0
    used, weights, at = inside[:, folds].T, np.zeros(ridge.shape), np.arange(ridge.shape[1])
    fits = dict[tuple[frozenset[int], float], tuple[Array, Array]]()
    for penalty in _PENALTIES:
        inverse, step, left = np.tile(np.eye(len(at)), (len(ridge), 1, 1)), 0.0 * ridge, 0.0 * n[both]
        together, enough = True, 1e-14 * penalty * len(x)
        for _ in range(1000):
            p = special.expit(x @ (weights + step).T)
            gradient = penalty * (((p - labels[:, None]) * used).T @ x) + ridge * (weights + step)
            over = ((gradient * step).sum(1) > left / 2) & (left > enough)
            if over.any():
                step[over] /= 2
                continue
            weights = weights + step
            still = (gradient * (inverse @ gradient[..., None])[..., 0]).sum(1)
            stale = (still > left / 10) & (still > enough)
            together = together and bool(stale[0])
            stale |= together
            if stale.any():
                each = [(i, used[:, i]) for i in np.flatnonzero(stale).tolist()]
                each = [(0, folds == fold) for fold in range(inside.shape[1])] if together else each
                scaled = [x[of] * np.sqrt(penalty * p[of, i] * (1 - p[of, i]))[:, None] for i, of in each]
                hessian = np.array([one.T @ one for one in scaled])
                hessian = np.tensordot(inside, hessian, 1) if together else hessian
                hessian[:, at, at] += ridge[stale]
                inverse[stale] = np.linalg.inv(hessian)
            step = -(inverse @ gradient[..., None])[..., 0]
            left = -(step * gradient).sum(1)  # twice of what a step lowers the loss by
            if (left <= enough).all():
                break
        raw = weights[:, :-1] / scale
        constant = weights[:, -1] - raw @ mean
        fits |= {(out, penalty): (raw[[i]], constant[[i]]) for i, out in enumerate(every)}
    return fits


@dataclass(frozen=True, eq=False)
class _LogisticFit:
    """Nested cross-validation: each probe is fitted once, by the folds that it was not fitted on, and its penalty."""

    rows: Float[Array, "row d"]
    labels: Int[Array, " row"]
    folds: Int[Array, " row"]
    n_classes: int
    varying: Bool[Array, " feature"]
    _fitted: dict[tuple[frozenset[int], float], tuple[Array, Array, Array]] = field(default_factory=dict)

    @cached_property
    def out_of_fold(self) -> tuple[Float[Array, "row c"], tuple[float, ...]]:
        """Probabilities of every class, each by the fit that left its fold out, and C as each of these chose it."""
        made, chosen = np.zeros((len(self.rows), self.n_classes)), []
        for fold in range(self.folds.max() + 1):
            chosen.append(self._best_penalty(frozenset([fold])))
            made[self.folds == fold] = self._predict(frozenset([fold]), chosen[-1], fold)
        return made, tuple(chosen)

    @cached_property
    def refit(self) -> tuple[Float[Array, "d m"], Float[Array, " m"], tuple[float, ...]]:
        """The fit on all episodes: weights on raw inputs, and intercepts, one column for two classes (log-odds of class
        1), else one a class; and C of each outer fold and, last, of this fit."""
        penalty = self._best_penalty(frozenset())
        self._predict(frozenset(), penalty, 0)
        raw, constant, classes = self._fitted[frozenset(), penalty]
        columns = np.zeros(1, int) if self.n_classes <= 2 else classes[len(classes) - len(raw) :]
        shape = len(self.varying), 1 if self.n_classes <= 2 else self.n_classes
        weights, intercept = np.zeros(shape), np.zeros(shape[1])
        weights[np.ix_(self.varying, columns)], intercept[columns] = raw.T, constant
        return weights, intercept, (*self.out_of_fold[1], penalty)

    def _best_penalty(self, left_out: frozenset[int]) -> float:
        """The penalty with the least log-loss when each of the folds that are not left out is held out in turn."""
        losses = np.zeros(len(_PENALTIES))
        for fold in sorted({*self.folds.tolist()} - left_out):
            truth = self.labels[self.folds == fold]
            for i, penalty in enumerate(_PENALTIES):
                p = self._predict(left_out | {fold}, penalty, fold)
                losses[i] -= np.log(np.maximum(p[np.arange(len(p)), truth], np.finfo(np.float64).eps)).mean()
        return _PENALTIES[int(losses.argmin())]

    def _predict(self, left_out: frozenset[int], penalty: float, fold: int) -> Float[Array, "row c"]:
        """Probabilities of all classes in a fold: 0 for one that was not in training, 1 for the only one that was.

        The fit on all folds that are not left out is kept: weights ``[class, d]`` (of two classes one row, those of the
        log-odds of the second), intercepts and classes.
        """
        train, d = ~np.isin(self.folds, list(left_out)), self.rows.shape[1]
        classes = np.unique(self.labels[train])
        if len(classes) == 1:
            self._fitted[left_out, penalty] = np.zeros((1, d)), np.zeros(1), classes
        if (left_out, penalty) not in self._fitted and len(np.unique(self.labels)) == 2 and d <= min(_WIDE, sum(train)):
            at_once = _newton(self.rows, self.labels == classes[1], self.folds)
            self._fitted.update({key: (*fit, classes) for key, fit in at_once.items()})
        if (left_out, penalty) not in self._fitted:
            import sklearn
            from sklearn.exceptions import ConvergenceWarning
            from sklearn.linear_model import LogisticRegression

            mean, scale = self.rows[train].mean(0), self.rows[train].std(0)
            scale = np.where(scale > 1e-12 * np.abs(self.rows).max(0), scale, 1.0)
            scaled = (self.rows[train] - mean) / scale
            # With more features than rows, the penalised weights lie in the span of the rows: fitted in its basis.
            basis = np.linalg.qr(scaled.T)[0] if scaled.shape[1] > len(scaled) else np.eye(d)
            # Newton's method takes few steps for 100 of L-BFGS, but its Hessian grows with the square of the features.
            newton = len(classes) == 2 and basis.shape[1] <= _WIDE
            solver = {"solver": "newton-cholesky", "tol": 1e-6} if newton else {"solver": "lbfgs"}
            regression = LogisticRegression(C=penalty, max_iter=1000, **solver)
            # Inputs are finite, so that scikit-learn, which would look at every fit, need not.
            finite = sklearn.config_context(assume_finite=True, skip_parameter_validation=True)
            with finite, warnings.catch_warnings():
                # Separable classes have no finite optimum; the penalised fit is used where the optimiser stopped.
                warnings.simplefilter("ignore", ConvergenceWarning)
                regression.fit(scaled @ basis, self.labels[train])
            raw = regression.coef_ @ basis.T / scale
            self._fitted[left_out, penalty] = raw, regression.intercept_ - raw @ mean, classes
        weights, intercept, classes = self._fitted[left_out, penalty]
        rows = self.rows[self.folds == fold]
        result, scores = np.zeros((len(rows), self.n_classes)), rows @ weights.T + intercept
        scores = np.concatenate([-scores / 2, scores / 2], 1) if len(classes) == 2 else scores
        result[:, classes] = special.softmax(scores, axis=1)
        return result


def _cross_validate(
    x: Float[Array, "episode round d"], y: Int[Array, "episode round"], folds: Int[Array, " episode"], n_classes: int
) -> _LogisticFit:
    rows = x.reshape(-1, x.shape[-1]).astype(np.float64)
    # A constant column, as most of a handwired machine are, has weight 0 and costs as much as any other.
    varying = (rows != rows[0]).any(0)
    varying[0] |= not varying.any()  # scikit-learn fits no rows without columns
    return _LogisticFit(rows[:, varying], y.reshape(-1), np.repeat(folds, x.shape[1]), n_classes, varying)


def _logistic(x: Array, target: TargetValues, folds: Array, groups: Array) -> Fitted:
    y, n_classes = target.values, int(target.values.max()) + 1
    fits = [_cross_validate(x, y[..., k], folds, n_classes) for k in range(y.shape[-1])]

    def refitted() -> dict[str, Any]:
        names = [(name, c) for name in target.outputs for c in range(n_classes)]
        return {
            "weights": np.concatenate([one.refit[0] for one in fits], axis=-1),
            "intercept": np.concatenate([one.refit[1] for one in fits]),
            "columns": target.outputs if n_classes <= 2 else tuple(f"{name}={c}" for name, c in names),
            "settings": {"penalties": [one.refit[2] for one in fits]},
        }

    probabilities = [one.out_of_fold[0].reshape(*y.shape[:2], -1) for one in fits]
    return fitted(target, np.stack([p.argmax(-1) for p in probabilities], axis=-1), groups, refitted, probabilities)


LOGISTIC = Kind(
    "logistic",
    of_classes=True,
    fit=lambda x, targets, folds, groups: [_logistic(x, one, folds, groups) for one in targets],
)
