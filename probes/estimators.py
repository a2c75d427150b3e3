"""Probes by scikit-learn estimators: one clone of the estimator per fold and output, and one that
is fitted on all episodes.

Any preprocessing (scaling, choice of a penalty) must be part of the estimator, which is fitted
inside the fold. An estimator that searches over settings must split by episode itself.

:data:`LOGISTIC` is logistic regression with nested cross-validation, equal to
``Pipeline(StandardScaler, LogisticRegression)`` in ``GridSearchCV`` with ``GroupKFold`` (a test
compares them). It fits each pair of left-out folds only once.
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
from probes.controls import Fitted, Kind, score_predictions
from probes.values import TargetValues, as_array

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler


def _is_classifier(estimator: Any) -> bool:
    """Return True if a scikit-learn estimator is a classifier, False if a regressor; refuse other
    objects.

    >>> from sklearn.linear_model import Lasso, LogisticRegression
    >>> _is_classifier(Lasso()), _is_classifier(LogisticRegression())
    (False, True)
    """
    from sklearn.base import is_classifier, is_regressor

    is_estimator = hasattr(estimator, "get_params") and not isinstance(estimator, type)
    require(
        is_estimator and (is_classifier(estimator) or is_regressor(estimator)),
        f"method must be 'ridge', 'logistic' or a regressor or classifier of scikit-learn, got {estimator!r}",
    )
    return bool(is_classifier(estimator))


def predict(
    estimators: tuple[Any, ...], x: Float[Array, "episode round d"]
) -> Float[Array, "episode round k"]:
    """Return the predictions of fitted estimators, ``[episode, round, output]``.

    Args:
        estimators: for each output, a fitted scikit-learn estimator; or a number, which is
            predicted everywhere.
        x: activations ``[episode, round, feature]``.
    """
    rows = x.reshape(-1, x.shape[-1])
    predictions = np.zeros((len(rows), len(estimators)))
    for k, estimator in enumerate(estimators):
        if isinstance(estimator, float):
            predictions[:, k] = estimator
        else:
            predictions[:, k] = np.ravel(estimator.predict(rows))
    return predictions.reshape(*x.shape[:2], -1)


def _fit(
    estimator: Any, x: Float[Array, "episode round d"], y: Shaped[Array, "episode round k"]
) -> tuple[Any, ...]:
    """Fit a clone of the estimator for each output.

    Args:
        estimator: a scikit-learn estimator.
        x: activations ``[episode, round, feature]``.
        y: values of the target, ``[episode, round, output]``.

    Returns:
        The fitted estimators; for a classifier and an output with only one class, the number of
        this class instead.
    """
    from sklearn.base import clone

    rows = x.reshape(-1, x.shape[-1])
    columns = y.reshape(-1, y.shape[-1]).T
    is_classifier = _is_classifier(estimator)
    fits = []
    for column in columns:
        is_constant = (column == column[0]).all()
        if is_classifier and is_constant:
            fits.append(float(column[0]))
        else:
            fits.append(clone(estimator).fit(rows, column))
    return tuple(fits)


def kind(estimator: BaseEstimator) -> Kind:
    """Make a kind of probe from a scikit-learn estimator; it gets the same folds and controls as
    ridge and logistic probes.
    """

    def fit_target(x: Array, target: TargetValues, folds: Array, groups: Array) -> Fitted:
        """Fit the estimator on one target by cross-validation.

        Args:
            x: activations ``[episode, round, feature]``.
            target: the target.
            folds, groups: fold and independent group of each episode.
        """
        y = target.values
        predictions = np.zeros(y.shape)
        for fold in range(int(folds.max()) + 1):
            test = folds == fold
            estimators = _fit(estimator, x[~test], y[~test])
            predictions[test] = predict(estimators, x[test])

        def refit() -> dict[str, Any]:
            """Fit the estimator on all episodes, and return the fields of a
            :class:`~probes.result.ProbeResult` that describe the estimator: {field: value}.
            """
            return {
                "weights": np.zeros((x.shape[-1], 0)),
                "intercept": np.zeros(0),
                "estimators": _fit(estimator, x, y),
                "settings": {"estimator": repr(estimator)},
            }

        return score_predictions(target, predictions, groups, refit)

    def fit_targets(
        x: Array, targets: Sequence[TargetValues], folds: Array, groups: Array
    ) -> list[Fitted]:
        """Fit the targets one after the other; return one probe per target.

        Args:
            x: activations ``[episode, round, feature]``.
            targets: the targets.
            folds, groups: fold and independent group of each episode.
        """
        return [fit_target(x, target, folds, groups) for target in targets]

    return Kind(type(estimator).__name__, _is_classifier(estimator), fit_targets)


class _Rows(NamedTuple):
    """Arrays for scikit-learn; a row is one round of an episode.

    Attributes:
        x: activations ``[row, feature]``.
        y: values of the target, ``[row, output]``.
        groups: index of the episode of each row.
    """

    x: Float[Array, "row feature"]
    y: Shaped[Array, "row output"]
    groups: Int[Array, " row"]


@checked
def to_sklearn(activations: Any, target: TargetValues | Any) -> _Rows:
    """Convert activations and a target to the arrays that scikit-learn takes, with one row per
    round of an episode.

    Cross-validate by ``groups``, since rounds of one episode are not independent. Missing rounds
    are left out.

    Args:
        activations: ``[episode, round, ...]``.
        target: from :mod:`probes.targets`, or values ``[episode, round, output]``. A target's mask
            is ignored, since it only restricts what is scored.

    Returns:
        (x, y, groups): features ``[row, feature]``, values ``[row, output]``, and the index of the
        episode of each row.

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
    have_rounds = x.ndim >= 2 and values.ndim >= 2
    require(
        have_rounds and x.shape[:2] == values.shape[:2],
        f"activations and target are [episode, round, ...] of the same episodes and rounds, got {x.shape} and "
        f"{values.shape}",
    )
    missing = target.missing if isinstance(target, TargetValues) else None
    counted = np.ones(x.shape[:2], bool) if missing is None else ~missing
    episode, _ = np.nonzero(counted)
    n_rows = len(episode)
    return _Rows(x[counted].reshape(n_rows, -1), values[counted].reshape(n_rows, -1), episode)


_PENALTIES = (1e-2, 1.0, 1e2)  # values of C tried
_WIDE = 512  # features beyond which L-BFGS takes less time for two classes, too: a tenth at 704


class _Split(NamedTuple):
    """A split of the rows into training folds and left-out folds; inputs are standardised by the
    training rows.

    Attributes:
        left_out: the folds that are left out of training.
        train: boolean mask of the training rows, among all rows.
        scaling: the fitted scaler.
        scaled: standardised training rows, ``[row, d]``.
        tested: standardised rows of each left-out fold, by fold.
    """

    left_out: frozenset[int]
    train: Bool[Array, " row"]
    scaling: StandardScaler
    scaled: Float[Array, "row d"]
    tested: dict[int, Float[Array, "row d"]]

    @classmethod
    def of(cls, rows: Float[Array, "row d"], groups: Int[Array, " row"], *left_out: int) -> _Split:
        """Split rows by fold, and standardise them by the training rows.

        Args:
            rows: inputs ``[row, d]``.
            groups: fold of each row.
            *left_out: folds that are left out of training.
        """
        from sklearn.preprocessing import StandardScaler

        train = ~np.isin(groups, left_out)
        scaling = StandardScaler().fit(rows[train])
        scaled = (rows - scaling.mean_) / scaling.scale_
        tested = {fold: scaled[groups == fold] for fold in left_out}
        return cls(frozenset(left_out), train, scaling, scaled[train], tested)


@dataclass(frozen=True, eq=False)
class _LogisticFit:
    """Logistic probes of one output in all folds; each is fitted once and cached.

    Attributes:
        rows: inputs ``[row, d]``, without columns that do not vary.
        groups: fold of each row.
        varying: boolean mask of the columns that vary, among all columns.
        labels: class of each row.
        probabilities: class probabilities ``[row, class]``, predicted by probes that were not
            fitted on the fold of the row.
        chosen: the inverse penalty C that was chosen in each outer fold.
        losses: log-loss in a left-out fold for each value of C that is tried, by (folds left out of
            training, fold that is scored).
    """

    rows: Float[Array, "row d"]
    groups: Int[Array, " row"]
    varying: Bool[Array, " column"]
    labels: Int[Array, " row"]
    probabilities: Float[Array, "row c"]
    chosen: list[float] = field(default_factory=list)
    losses: dict[tuple[frozenset[int], int], Float[Array, " penalty"]] = field(default_factory=dict)
    _fits: dict[tuple[frozenset[int], float], LogisticRegression] = field(default_factory=dict)

    @cached_property
    def refit(self) -> tuple[Float[Array, "d m"], Float[Array, " m"], tuple[float, ...]]:
        """The probe refitted on all episodes: weights for raw inputs, intercepts, and penalties.

        Weights are ``[d, column]`` and intercepts ``[column]``. With two classes there is one
        column, for the log-odds of class 1; with more classes, one column per class. The penalties
        are the values of C in the outer folds, then that of this fit.
        """
        for fold in range(len(self.chosen)):
            self.score(_Split.of(self.rows, self.groups, fold))
        split = _Split.of(self.rows, self.groups)
        penalty = self.best_penalty(frozenset())
        regression = self.probe(split, penalty)
        assert regression is not None, "a target that is constant is refused before"
        raw = regression.coef_ / split.scaling.scale_
        raw_intercept = regression.intercept_ - raw @ split.scaling.mean_
        n_classes = self.probabilities.shape[1]
        is_binary = n_classes <= 2
        columns = np.zeros(1, dtype=int) if is_binary else regression.classes_
        if len(raw) < len(
            columns
        ):  # of several classes, two occur: the weights are those of the second
            columns = columns[1:]
        n_columns = 1 if is_binary else n_classes
        weights = np.zeros((len(self.varying), n_columns))
        weights[np.ix_(self.varying, columns)] = raw.T
        intercept = np.zeros(n_columns)
        intercept[columns] = raw_intercept
        return weights, intercept, (*self.chosen, penalty)

    def score(self, split: _Split) -> None:
        """Compute the log-loss in each left-out fold of a split, for every value of C that is
        tried, and store it in ``losses``.
        """
        smallest = np.finfo(np.float64).eps
        for fold in split.tested:
            truth = self.labels[self.groups == fold]
            losses = []
            for penalty in _PENALTIES:
                probabilities = self.predict(split, penalty, fold)
                of_truth = probabilities[np.arange(len(truth)), truth]
                losses.append(-np.log(np.maximum(of_truth, smallest)).mean())
            self.losses[split.left_out, fold] = np.array(losses)

    def best_penalty(self, left_out: frozenset[int]) -> float:
        """Return the value of C with the smallest log-loss in inner cross-validation, where
        ``left_out`` are the folds of the outer split.
        """
        inner_folds = sorted({*self.groups.tolist()} - left_out)
        losses = [self.losses[left_out | {fold}, fold] for fold in inner_folds]
        return _PENALTIES[int(np.argmin(sum(losses)))]

    def predict(self, split: _Split, penalty: float, fold: int) -> Float[Array, "row c"]:
        """Predict class probabilities ``[row, class]`` in a left-out fold.

        A class that is absent from training gets probability 0; if training has one class only,
        this class gets 1.

        Args:
            split: a split that leaves the fold out.
            penalty: the inverse penalty C of the probe.
            fold: the fold to predict.
        """
        regression = self.probe(split, penalty)
        rows = split.tested[fold]
        probabilities = np.zeros((len(rows), self.probabilities.shape[1]))
        if regression is None:
            only_class = self.labels[split.train][0]
            probabilities[:, only_class] = 1.0
            return probabilities
        # As `predict_proba`, without its checks, which take as long as a fit of few rows.
        scores = rows @ regression.coef_.T + regression.intercept_
        if scores.shape[1] == 1:
            scores = np.concatenate([-scores / 2, scores / 2], 1)
        probabilities[:, regression.classes_] = special.softmax(scores, axis=1)
        return probabilities

    def probe(self, split: _Split, penalty: float) -> LogisticRegression | None:
        """Return the logistic regression of a split's training rows; None if these have one class
        only.

        It is fitted on the first call, and cached.

        Args:
            split: the split.
            penalty: the inverse penalty C.
        """
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression

        key = (split.left_out, penalty)
        if key in self._fits:
            return self._fits[key]
        labels = self.labels[split.train]
        classes = np.unique(labels).tolist()
        if len(classes) == 1:
            return None
        # With more features than rows, the penalised weights lie in the span of the rows: fitted in its basis.
        n_rows, n_features = split.scaled.shape
        basis = None
        features = split.scaled
        if n_features > n_rows:
            basis = np.linalg.qr(split.scaled.T)[0]
            features = split.scaled @ basis
        # Newton's method takes 5 steps for 100 of L-BFGS, but its Hessian grows with the square of what is fitted.
        is_newton = len(classes) == 2 and features.shape[1] <= _WIDE
        solver = {"solver": "newton-cholesky", "tol": 1e-6} if is_newton else {"solver": "lbfgs"}
        regression = LogisticRegression(C=penalty, max_iter=1000, warm_start=True, **solver)
        # It starts where a fit ended that saw only such rows: nothing of the folds that are left out enters.
        if is_newton:
            starts = [fit for (out, _), fit in self._fits.items() if split.left_out <= out]
            if starts and starts[-1].classes_.tolist() == classes:
                start = starts[-1].coef_
                regression.coef_ = start if basis is None else start @ basis
                regression.intercept_ = starts[-1].intercept_
        with warnings.catch_warnings():
            # Separable classes have no finite optimum; the penalised fit is used where the optimiser stopped.
            warnings.simplefilter("ignore", ConvergenceWarning)
            regression.fit(features, labels)
        if basis is not None:
            regression.coef_ = regression.coef_ @ basis.T
        self._fits[key] = regression
        return regression


def _cross_validate(
    x: Float[Array, "episode round d"],
    folds: Int[Array, " episode"],
    targets: Sequence[tuple[Int[Array, "episode round"], int]],
) -> list[_LogisticFit]:
    """Fit logistic probes of several outputs by nested cross-validation.

    For each split, inputs are standardised only once for all outputs.

    Args:
        x: activations ``[episode, round, feature]``.
        folds: fold of each episode.
        targets: for each output, (classes ``[episode, round]``, number of classes).
    """
    n_folds = int(folds.max()) + 1
    _, n_rounds, n_features = x.shape
    rows = x.reshape(-1, n_features).astype(np.float64)
    groups = np.repeat(folds, n_rounds)
    # A constant column, as most of a handwired machine are, has weight 0 and costs as much as any other.
    varying = (rows != rows[0]).any(0)
    varying[0] |= not varying.any()  # scikit-learn fits no rows without columns
    rows = rows[:, varying]
    fits = []
    for labels, n_classes in targets:
        probabilities = np.zeros((len(rows), n_classes))
        fits.append(_LogisticFit(rows, groups, varying, labels.reshape(-1), probabilities))
    for pair in combinations(range(n_folds), 2):
        split = _Split.of(rows, groups, *pair)
        for fit in fits:
            fit.score(split)
    for fold in range(n_folds):
        split = _Split.of(rows, groups, fold)
        for fit in fits:
            penalty = fit.best_penalty(split.left_out)
            fit.chosen.append(penalty)
            fit.probabilities[groups == fold] = fit.predict(split, penalty, fold)
    return fits


def _fit_logistic(
    x: Array, targets: Sequence[TargetValues], folds: Array, groups: Array
) -> list[Fitted]:
    """Fit and score cross-validated logistic probes of class targets; each output of a target has
    its own probe.

    Args:
        x: activations ``[episode, round, feature]``.
        targets: the class targets.
        folds: fold of each episode.
        groups: index of the independent group of each episode.
    """
    import sklearn

    outputs = []
    for target in targets:
        n_classes = int(target.values.max()) + 1
        outputs += [(labels, n_classes) for labels in np.moveaxis(target.values, -1, 0)]
    # Inputs are finite, so that scikit-learn, which would look at every fit, need not.
    with sklearn.config_context(assume_finite=True, skip_parameter_validation=True):
        fits = iter(_cross_validate(x, folds, outputs))
    results = []
    for target in targets:
        fits_of_target = list(islice(fits, target.values.shape[-1]))
        probabilities = [fit.probabilities.reshape(*x.shape[:2], -1) for fit in fits_of_target]
        predictions = np.stack(probabilities, 2).argmax(-1)
        refit = partial(_refit, target, fits_of_target)
        results.append(score_predictions(target, predictions, groups, refit, probabilities))
    return results


def _refit(target: TargetValues, fits: Sequence[_LogisticFit]) -> dict[str, Any]:
    """Fit a target's logistic probes on all episodes, and return the fields of a result that
    describe them, by name.

    The weights of all outputs are concatenated: one column per output, or per output and class if
    there are more than two classes.

    Args:
        target: the target.
        fits: the cross-validated probe of each output.
    """
    n_classes = fits[0].probabilities.shape[1]
    columns = list(target.outputs)
    if n_classes > 2:
        columns = []
        for output in target.outputs:
            columns += [f"{output}={c}" for c in range(n_classes)]
    weights, intercepts, penalties = zip(*(fit.refit for fit in fits), strict=True)
    return {
        "weights": np.concatenate(weights, axis=-1),
        "intercept": np.concatenate(intercepts),
        "columns": tuple(columns),
        "settings": {"penalties": list(penalties)},
    }


LOGISTIC = Kind("logistic", of_classes=True, fit=_fit_logistic)
