"""Estimators of scikit-learn as probes: a clone for every fold and output, and one refitted on all episodes.

What the estimator does to its inputs (scaling, choosing a penalty) it does inside the fold; a search over settings must
split by episode itself. Logistic regression, :data:`LOGISTIC`, is nested ``Pipeline(StandardScaler,
LogisticRegression)`` (a test holds it to ``GridSearchCV`` in ``GroupKFold``), in which one fit serves every pair of
folds that is left out.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import combinations, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from numpy import ndarray as Array
from scipy import special

from interp.support.checks import checked
from interp.support.errors import require
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


def predict(
    fitted: tuple[Any, ...], x: Float[Array, "episode round d"]
) -> Float[Array, "episode round k"]:
    """What fitted estimators of scikit-learn, one per output, predict."""
    rows = x.reshape(-1, x.shape[-1])
    columns = [
        np.full(len(rows), e) if isinstance(e, float) else np.asarray(e.predict(rows)).ravel()
        for e in fitted
    ]
    return np.stack(columns, axis=-1).astype(np.float64).reshape(*x.shape[:2], -1)


def _fit(
    estimator: Any, x: Float[Array, "episode round d"], y: Shaped[Array, "episode round k"]
) -> tuple[Any, ...]:
    """A fitted clone for each output; where training has one class only, that class itself, which needs no fit."""
    from sklearn.base import clone

    rows, columns = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1]).T
    constant = _classifies(estimator)
    return tuple(
        float(column[0])
        if constant and (column == column[0]).all()
        else clone(estimator).fit(rows, column)
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


class _Split(NamedTuple):
    """Inputs scaled as the rows of all folds but some are: these rows (``train``), and those of each fold left out."""

    left_out: frozenset[int]
    train: Bool[Array, " row"]
    scaling: StandardScaler
    scaled: Float[Array, "row d"]
    tested: dict[int, Float[Array, "row d"]]

    @classmethod
    def of(cls, rows: Float[Array, "row d"], groups: Int[Array, " row"], *left_out: int) -> _Split:
        """The split of rows by the fold (``groups``) that each belongs to."""
        from sklearn.preprocessing import StandardScaler

        train = ~np.isin(groups, left_out)
        scaling = StandardScaler().fit(rows[train])
        scaled = (rows - scaling.mean_) / scaling.scale_
        tested = {fold: scaled[groups == fold] for fold in left_out}
        return cls(frozenset(left_out), train, scaling, scaled[train], tested)


@dataclass(frozen=True, eq=False)
class _LogisticFit:
    """Probes of one target, each fitted once: by the folds that it was not fitted on, and its penalty.

    Attributes:
        rows: of inputs, without the columns that do not vary (``varying``); groups: the fold of each.
        losses: log-loss in a fold that was left out, for each penalty.
        probabilities: out of fold; chosen: C of each outer fold.
    """

    rows: Float[Array, "row d"]
    groups: Int[Array, " row"]
    varying: Bool[Array, " column"]
    labels: Int[Array, " row"]
    probabilities: Float[Array, "row c"]
    chosen: list[float] = field(default_factory=list)
    losses: dict[tuple[frozenset[int], int], Float[Array, " penalty"]] = field(default_factory=dict)
    _fitted: dict[tuple[frozenset[int], float], LogisticRegression] = field(default_factory=dict)

    @cached_property
    def refit(self) -> tuple[Float[Array, "d m"], Float[Array, " m"], tuple[float, ...]]:
        """Weights on raw inputs, and intercepts: one column for two classes (log-odds of class 1), else one a class;
        and C of each outer fold and, last, of this fit, which is made of all episodes when it is read."""
        for fold in range(len(self.chosen)):
            self.score(_Split.of(self.rows, self.groups, fold))
        split, penalty = _Split.of(self.rows, self.groups), self.best_penalty(frozenset())
        regression, n_classes = self.probe(split, penalty), self.probabilities.shape[1]
        assert regression is not None, "a target that is constant is refused before"
        m = 1 if n_classes <= 2 else n_classes
        weights, intercept = np.zeros((len(self.varying), m)), np.zeros(m)
        raw = regression.coef_ / split.scaling.scale_
        classes = regression.classes_ if len(raw) > 1 else regression.classes_[1:]
        columns = classes if m > 1 else np.zeros(1, dtype=int)
        weights[np.ix_(self.varying, columns)] = raw.T
        intercept[columns] = regression.intercept_ - raw @ split.scaling.mean_
        return weights, intercept, (*self.chosen, penalty)

    def score(self, split: _Split) -> None:
        """Keep the log-losses of all penalties in the folds that a split leaves out."""
        for fold in split.tested:
            truth = self.labels[self.groups == fold]
            given = [
                self.predicted(split, penalty, fold)[np.arange(len(truth)), truth]
                for penalty in _PENALTIES
            ]
            losses = [-np.log(np.maximum(p, np.finfo(np.float64).eps)).mean() for p in given]
            self.losses[split.left_out, fold] = np.array(losses)

    def best_penalty(self, left_out: frozenset[int]) -> float:
        """The penalty with the least log-loss when each of the folds that are not left out is held out in turn."""
        others = sorted({*self.groups.tolist()} - left_out)
        return _PENALTIES[
            int(np.argmin(sum(self.losses[left_out | {fold}, fold] for fold in others)))
        ]

    def predicted(self, split: _Split, penalty: float, fold: int) -> Float[Array, "row c"]:
        """Probabilities of all classes in a fold: 0 for one that was not in training, 1 for the only one that was."""
        regression = self.probe(split, penalty)
        result = np.zeros((len(split.tested[fold]), self.probabilities.shape[1]))
        if regression is None:
            result[:, self.labels[split.train][0]] = 1.0
        else:
            # As `predict_proba`, without its checks, which take as long as a fit of few rows.
            scores = split.tested[fold] @ regression.coef_.T + regression.intercept_
            scores = (
                np.concatenate([-scores / 2, scores / 2], 1) if scores.shape[1] == 1 else scores
            )
            result[:, regression.classes_] = special.softmax(scores, axis=1)
        return result

    def probe(self, split: _Split, penalty: float) -> LogisticRegression | None:
        """The probe of scaled inputs, fitted on all other folds; None where only one class is there."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression

        key, scaled, labels = (split.left_out, penalty), split.scaled, self.labels[split.train]
        if key in self._fitted or (labels == labels[0]).all():
            return self._fitted.get(key)
        # With more features than rows, the penalised weights lie in the span of the rows: fitted in its basis.
        basis = np.linalg.qr(scaled.T)[0] if scaled.shape[1] > len(scaled) else None
        fed = scaled if basis is None else scaled @ basis
        # Newton's method takes 5 steps for 100 of L-BFGS, but its Hessian grows with the square of what is fitted.
        classes = np.unique(labels).tolist()
        newton = len(classes) == 2 and fed.shape[1] <= _WIDE
        solver = {"solver": "newton-cholesky", "tol": 1e-6} if newton else {"solver": "lbfgs"}
        regression = LogisticRegression(C=penalty, max_iter=1000, warm_start=True, **solver)
        # It starts where a fit ended that saw only such rows: nothing of the folds that are left out enters.
        near = [fit for (out, _), fit in self._fitted.items() if newton and split.left_out <= out]
        if near and near[-1].classes_.tolist() == classes:
            regression.coef_ = near[-1].coef_ if basis is None else near[-1].coef_ @ basis
            regression.intercept_ = near[-1].intercept_
        with warnings.catch_warnings():
            # Separable classes have no finite optimum; the penalised fit is used where the optimiser stopped.
            warnings.simplefilter("ignore", ConvergenceWarning)
            self._fitted[key] = regression.fit(fed, labels)
        if basis is not None:
            regression.coef_ = regression.coef_ @ basis.T
        return regression


def _cross_validate(
    x: Float[Array, "episode round d"],
    folds: Int[Array, " episode"],
    targets: Sequence[tuple[Int[Array, "episode round"], int]],
) -> list[_LogisticFit]:
    """Nested cross-validation of targets, each with its number of classes; inputs are scaled once for all of them."""
    rows, groups = x.reshape(-1, x.shape[-1]).astype(np.float64), np.repeat(folds, x.shape[1])
    # A constant column, as most of a handwired machine are, has weight 0 and costs as much as any other.
    varying = (rows != rows[0]).any(0)
    varying[0] |= not varying.any()  # scikit-learn fits no rows without columns
    rows = rows[:, varying]
    fits = [
        _LogisticFit(rows, groups, varying, y.reshape(-1), np.zeros((len(rows), n)))
        for y, n in targets
    ]
    for pair in combinations(range(folds.max() + 1), 2):
        split = _Split.of(rows, groups, *pair)
        for one in fits:
            one.score(split)
    for fold in range(folds.max() + 1):
        split = _Split.of(rows, groups, fold)
        for one in fits:
            one.chosen.append(one.best_penalty(split.left_out))
            one.probabilities[groups == fold] = one.predicted(split, one.chosen[-1], fold)
    return fits


def _logistic(
    x: Array, targets: Sequence[TargetValues], folds: Array, groups: Array
) -> list[Fitted]:
    import sklearn

    outputs = [
        (y, int(one.values.max()) + 1) for one in targets for y in np.moveaxis(one.values, -1, 0)
    ]
    # Inputs are finite, so that scikit-learn, which would look at every fit, need not.
    with sklearn.config_context(assume_finite=True, skip_parameter_validation=True):
        fits, found = iter(_cross_validate(x, folds, outputs)), []
    for target in targets:
        own = list(islice(fits, target.values.shape[-1]))
        probabilities = [one.probabilities.reshape(*x.shape[:2], -1) for one in own]
        predictions = np.stack([p.argmax(-1) for p in probabilities], axis=-1)
        found.append(
            fitted(target, predictions, groups, partial(_refitted, target, own), probabilities)
        )
    return found


def _refitted(target: TargetValues, fits: Sequence[_LogisticFit]) -> dict[str, Any]:
    n_classes = fits[0].probabilities.shape[1]
    columns = tuple(target.outputs)
    if n_classes > 2:
        columns = tuple(f"{output}={c}" for output in target.outputs for c in range(n_classes))
    weights = [fit.refit[0] for fit in fits]
    intercepts = [fit.refit[1] for fit in fits]
    penalties = [fit.refit[2] for fit in fits]
    return {
        "weights": np.concatenate(weights, axis=-1),
        "intercept": np.concatenate(intercepts),
        "columns": columns,
        "settings": {"penalties": penalties},
    }


LOGISTIC = Kind("logistic", of_classes=True, fit=_logistic)
