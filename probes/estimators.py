"""Probes by scikit-learn estimators: one clone of the estimator per fold and output, and one that
is fitted on all episodes.

Any preprocessing (scaling, choice of a penalty) must be part of the estimator, which is fitted
inside the fold. An estimator that searches over settings must split by episode itself.

:data:`LOGISTIC` is logistic regression with nested cross-validation, equal to
``Pipeline(StandardScaler, LogisticRegression)`` in ``GridSearchCV`` with ``GroupKFold`` (a test
compares them). It fits each pair of left-out folds only once, and two classes by Newton's method,
which takes less than half of scikit-learn's time. Gradients are computed in float64, so that the
optimum is exact. Hessians only direct the steps, so that float32 is enough for them.
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
from probes.values import TargetValues, as_array, name_indicators

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator
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
        estimators: for each output, a fitted scikit-learn estimator; or a float, which is predicted
            in all rounds.
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


def _fit_clones(
    estimator: Any, x: Float[Array, "episode round d"], y: Shaped[Array, "episode round k"]
) -> tuple[Any, ...]:
    """Fit a clone of the estimator for each output, with one row per round of each episode.

    Args:
        estimator: a scikit-learn estimator.
        x: activations ``[episode, round, feature]``.
        y: values of the target, ``[episode, round, output]``.

    Returns:
        The fitted estimators. A classifier cannot be fitted to an output with a single class; this
        class, as a float, takes its place.
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
    """Make a kind of probe from a scikit-learn estimator, a regressor or a classifier. A clone of
    it is fitted for every output and fold.

    Such probes get the same folds and controls as ridge and logistic probes.
    """
    return Kind(
        name=type(estimator).__name__,
        predicts_classes=_is_classifier(estimator),
        fit=partial(_fit_estimator, estimator),
    )


def _fit_estimator(
    estimator: Any, x: Array, targets: Sequence[TargetValues], folds: Array, groups: Array
) -> list[Fitted]:
    """Fit and score an estimator on each target by cross-validation.

    Args:
        estimator: a scikit-learn estimator.
        x: activations ``[episode, round, feature]``.
        targets: the targets.
        folds: fold of each episode.
        groups: index of the independent group of each episode.
    """
    results = []
    for target in targets:
        y = target.values
        predictions = np.zeros(y.shape)
        for fold in range(int(folds.max()) + 1):
            test = folds == fold
            estimators = _fit_clones(estimator, x[~test], y[~test])
            predictions[test] = predict(estimators, x[test])
        refit = partial(_refit_estimator, estimator, x, y)
        results.append(score_predictions(target, predictions, groups, refit))
    return results


def _refit_estimator(estimator: Any, x: Array, y: Array) -> dict[str, Any]:
    """Fit an estimator on all episodes, and return the fields of a
    :class:`~probes.result.ProbeResult` that describe it: name of a field -> value.

    Args:
        estimator: a scikit-learn estimator.
        x: activations ``[episode, round, feature]``.
        y: values of the target, ``[episode, round, output]``.
    """
    return {
        "weights": np.zeros((x.shape[-1], 0)),
        "intercept": np.zeros(0),
        "estimators": _fit_clones(estimator, x, y),
        "settings": {"estimator": repr(estimator)},
    }


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
    """Convert activations and a target to the arrays that scikit-learn takes, with one row for each
    round of each episode.

    Missing rounds are left out. Pass ``groups`` to scikit-learn's cross-validation, since rounds of
    one episode are not independent.

    Args:
        activations: ``[episode, round, ...]``.
        target: the values to decode: the result of a target of :mod:`probes.targets`, or an array
            ``[episode, round, output]``. A mask of entries to score is ignored.

    Returns:
        The named tuple (x, y, groups): features ``[row, feature]``, values ``[row, output]``, and
        the index of each row's episode, ``[row]``.

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
_MAX_NEWTON_FEATURES = 512  # beyond it L-BFGS is faster for two classes, too: ten times at 704
_MAX_NEWTON_STEPS = 30  # it usually takes 5
_NEWTON_TOLERANCE = 1e-4  # change of a log-odds below which Newton's method has converged
_SHRINKAGE_OF_INTERCEPT = 1e-12  # keeps the Hessian invertible if all probabilities are 0 or 1


class _Split(NamedTuple):
    """A split of the rows into training folds and left-out folds; inputs are standardised by the
    training rows, and followed by a column of ones for the intercept.

    Attributes:
        left_out: the folds that are left out of training, one or two.
        train: boolean mask of the training rows, among all rows.
        scaling: the fitted scaler.
        basis: basis of the standardised training rows, ``[d, column]``, if there are fewer of them
            than features; otherwise None. Scaled rows are in this basis.
        scaled: scaled training rows, ``[row, column + 1]``.
        rounded: the scaled training rows in float32.
        tested: scaled rows of each left-out fold, by fold.
    """

    left_out: tuple[int, ...]
    train: Bool[Array, " row"]
    scaling: StandardScaler
    basis: Float[Array, "d column"] | None
    scaled: Float[Array, "row column"]
    rounded: Float[Array, "row column"]
    tested: dict[int, Float[Array, "row column"]]

    @classmethod
    def of(
        cls, rows: Float[Array, "row d"], fold_of_row: Int[Array, " row"], *left_out: int
    ) -> _Split:
        """Split rows by fold, and standardise them by the training rows.

        Args:
            rows: inputs ``[row, d]``.
            fold_of_row: fold of each row.
            *left_out: folds that are left out of training.
        """
        from sklearn.preprocessing import StandardScaler

        train = ~np.isin(fold_of_row, left_out)
        scaling = StandardScaler().fit(rows[train])
        scaled = (rows - scaling.mean_) / scaling.scale_
        # With more features than rows, the penalised weights lie in the span of the training rows.
        # In a basis of this span, there are fewer weights to fit.
        basis = None
        if scaled.shape[1] > train.sum():
            basis = np.linalg.qr(scaled[train].T)[0]
            scaled = scaled @ basis
        scaled = np.column_stack([scaled, np.ones(len(rows))])
        tested = {fold: scaled[fold_of_row == fold] for fold in left_out}
        return cls(
            left_out=left_out,
            train=train,
            scaling=scaling,
            basis=basis,
            scaled=scaled[train],
            rounded=scaled[train].astype(np.float32),
            tested=tested,
        )


class _Regression(NamedTuple):
    """A logistic regression.

    Attributes:
        classes: the classes of the training rows.
        weights: weights of the inputs, then the intercept, for each of these classes; zeros for the
            first of two classes.
    """

    classes: Int[Array, " c"]
    weights: Float[Array, "column c"]


@dataclass(frozen=True, eq=False)
class _LogisticFit:
    """Logistic probes of one output in all folds.

    Attributes:
        rows: inputs ``[row, d]``, without columns that do not vary.
        fold_of_row: fold of each row.
        varying: boolean mask of the columns that vary, among all columns.
        labels: class of each row.
        probabilities: class probabilities ``[row, class]``, predicted by probes that were not
            fitted on the fold of the row.
        losses: log-loss in fold g of a probe that was trained without folds f and g, for each value
            of C that is tried, ``[f, g, C]``; ``[f, f]`` is of a probe that was trained without f
            alone.
        chosen: the inverse penalty C that was chosen in each outer fold.
    """

    rows: Float[Array, "row d"]
    fold_of_row: Int[Array, " row"]
    varying: Bool[Array, " column"]
    labels: Int[Array, " row"]
    probabilities: Float[Array, "row c"]
    losses: Float[Array, "fold fold penalty"]
    chosen: list[float] = field(default_factory=list)

    @cached_property
    def refit(self) -> tuple[Float[Array, "d m"], Float[Array, " m"], tuple[float, ...]]:
        """The probe refitted on all episodes: weights for raw inputs, intercepts, and penalties.

        Weights are ``[d, column]`` and intercepts ``[column]``. With two classes there is one
        column, for the log-odds of class 1; with more classes, one column per class. The penalties
        are the values of C in the outer folds, then that of this fit.
        """
        # Cross-validation left out pairs of folds; here single folds are left out.
        for fold in range(len(self.chosen)):
            self.score_split(_Split.of(self.rows, self.fold_of_row, fold))
        split = _Split.of(self.rows, self.fold_of_row)
        # The trace sums losses[f, f] over folds: of probes trained on all other folds, [C].
        penalty = _PENALTIES[self.losses.trace().argmin()]
        classes, fitted = self.fit_split(split, penalty)
        scaled_weights = fitted[:-1]  # [d, class]; the last row are the intercepts
        if split.basis is not None:
            scaled_weights = split.basis @ scaled_weights
        raw_weights = scaled_weights / split.scaling.scale_[:, None]
        n_classes = self.probabilities.shape[1]
        weights = np.zeros((len(self.varying), n_classes))
        weights[np.ix_(self.varying, classes)] = raw_weights
        intercept = np.zeros(n_classes)
        intercept[classes] = fitted[-1] - split.scaling.mean_ @ raw_weights
        penalties = (*self.chosen, penalty)
        first_column = 1 if n_classes == 2 else 0  # of two classes, class 0 has weights of 0
        return weights[:, first_column:], intercept[first_column:], penalties

    def score_split(self, split: _Split) -> None:
        """Compute the log-loss in each left-out fold of a split, for every value of C that is
        tried, and store it in ``losses``.
        """
        smallest = np.finfo(float).eps
        regression = None
        for i, penalty in enumerate(_PENALTIES):
            regression = self.fit_split(split, penalty, start=regression)
            # (f, g) and (g, f) if two folds are left out; (f, f) if one is
            for outer, fold in zip(reversed(split.left_out), split.left_out, strict=True):
                truth = self.labels[self.fold_of_row == fold]
                probabilities = self.predict_fold(split, regression, fold)
                of_truth = probabilities[np.arange(len(truth)), truth]
                self.losses[outer, fold, i] = -np.log(np.maximum(of_truth, smallest)).mean()

    def predict_fold(
        self, split: _Split, regression: _Regression, fold: int
    ) -> Float[Array, "row c"]:
        """Predict class probabilities ``[row, class]`` in a left-out fold.

        A class that is absent from training gets probability 0; if training has one class only,
        this class gets 1.

        Args:
            split: a split that leaves the fold out.
            regression: a logistic regression of its training rows.
            fold: the fold to predict.
        """
        scores = split.tested[fold] @ regression.weights
        probabilities = np.zeros((len(scores), self.probabilities.shape[1]))
        probabilities[:, regression.classes] = special.softmax(scores, axis=1)
        return probabilities

    def fit_split(
        self, split: _Split, penalty: float, start: _Regression | None = None
    ) -> _Regression:
        """Fit a logistic regression of a split's training rows.

        Args:
            split: the split.
            penalty: the inverse penalty C.
            start: a regression of the same rows with another penalty, from which Newton's method
                starts; L-BFGS always starts at 0.
        """
        rows = split.scaled  # [row, column]; the last column is 1, for the intercept
        labels = self.labels[split.train]
        classes = np.unique(labels)
        weights = start.weights if start else np.zeros((rows.shape[1], len(classes)))
        if len(classes) == 1:
            return _Regression(classes, weights)
        fitted = None
        # Newton's method takes 5 steps for 100 of L-BFGS, but its Hessian grows with the square of what is fitted.
        if len(classes) == 2 and rows.shape[1] <= _MAX_NEWTON_FEATURES:
            fitted = _fit_by_newton(split, labels == classes[1], penalty, weights[:, 1])
        if fitted is None:  # too much to fit by Newton's method, or it did not converge
            fitted = _fit_by_lbfgs(rows, labels, penalty)
        if len(classes) == 2:  # one row was fitted, of class 1; the logit of class 0 is always 0
            fitted = np.vstack([np.zeros_like(fitted), fitted])
        return _Regression(classes, fitted.T)


def _fit_by_newton(
    split: _Split,
    labels: Bool[Array, " row"],
    penalty: float,
    start: Float[Array, " column"],
) -> Float[Array, " column"] | None:
    """Fit a logistic regression of two classes by Newton's method.

    It ends when a step changes no log-odds by more than a tolerance. The remaining error is far
    smaller, since near the optimum each step squares the error.

    Args:
        split: the split with the training rows.
        labels: True for training rows of the second class.
        penalty: the inverse penalty C.
        start: the weights to start from.

    Returns:
        The weights of the inputs, then the intercept; None if the method does not converge.
    """
    rows = split.scaled
    shrinkage = np.full(len(start), 1 / penalty)
    shrinkage[-1] = _SHRINKAGE_OF_INTERCEPT
    weights = start
    log_odds = rows @ weights
    for _ in range(_MAX_NEWTON_STEPS):
        probabilities = special.expit(log_odds)
        gradient = rows.T @ (probabilities - labels) + shrinkage * weights
        # The Hessian of the loss is X' diag(p (1 - p)) X.
        deviation = np.sqrt(probabilities * (1 - probabilities))
        weighted = split.rounded * deviation[:, None].astype(np.float32)
        hessian = weighted.T @ weighted + np.diag(shrinkage)
        step = np.linalg.solve(hessian, gradient)
        change = rows @ step
        weights = weights - step
        log_odds = log_odds - change
        if np.abs(change).max() < _NEWTON_TOLERANCE:
            return weights
    return None


def _fit_by_lbfgs(
    rows: Float[Array, "row column"], labels: Int[Array, " row"], penalty: float
) -> Float[Array, "m column"]:
    """Fit a logistic regression by scikit-learn.

    Args:
        rows: scaled inputs; the last column is 1.
        labels: class of each row.
        penalty: the inverse penalty C.

    Returns:
        The weights of the inputs, then the intercept: one row per class, or one of the second class
        if there are two.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    regression = LogisticRegression(C=penalty, max_iter=1000)
    with warnings.catch_warnings():
        # Separable classes have no finite optimum; the penalised fit is used where the optimiser stopped.
        warnings.simplefilter("ignore", ConvergenceWarning)
        regression.fit(rows[:, :-1], labels)  # without the 1s: it has its own intercept
    return np.column_stack([regression.coef_, regression.intercept_])


def cross_validate(
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
    fold_of_row = np.repeat(folds, n_rounds)
    # Constant columns, as most of a handwired machine are, have weight 0: leaving them out saves time.
    varying = (rows != rows[0]).any(0)
    varying[0] |= not varying.any()  # one column stays, since scikit-learn needs one
    rows = rows[:, varying]
    fits = []
    for labels, n_classes in targets:
        probabilities = np.zeros((len(rows), n_classes))
        losses = np.zeros((n_folds, n_folds, len(_PENALTIES)))
        fit = _LogisticFit(rows, fold_of_row, varying, labels.reshape(-1), probabilities, losses)
        fits.append(fit)
    for pair in combinations(range(n_folds), 2):
        split = _Split.of(rows, fold_of_row, *pair)
        for fit in fits:
            fit.score_split(split)
    for fold in range(n_folds):
        split = _Split.of(rows, fold_of_row, fold)
        for fit in fits:
            # The losses in the other folds; [fold, fold] is still 0.
            penalty = _PENALTIES[fit.losses[fold].sum(0).argmin()]
            fit.chosen.append(penalty)
            regression = fit.fit_split(split, penalty)
            fit.probabilities[fold_of_row == fold] = fit.predict_fold(split, regression, fold)
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
    outputs = []
    for target in targets:
        n_classes = int(target.values.max()) + 1
        outputs += [(labels, n_classes) for labels in np.moveaxis(target.values, -1, 0)]
    fits = iter(cross_validate(x, folds, outputs))  # one per output, target after target
    results = []
    for target in targets:
        fits_of_target = list(islice(fits, target.values.shape[-1]))
        probabilities = [fit.probabilities.reshape(*x.shape[:2], -1) for fit in fits_of_target]
        # [episode, round, output, class] -> the most probable class
        predictions = np.stack(probabilities, 2).argmax(-1)
        refit = partial(_describe_refit, target, fits_of_target)
        results.append(score_predictions(target, predictions, groups, refit, probabilities))
    return results


def _describe_refit(target: TargetValues, fits: Sequence[_LogisticFit]) -> dict[str, Any]:
    """Fit a target's logistic probes on all episodes, and return the fields of a result that
    describe them, by name.

    The weights of all outputs are concatenated: one column per output, or per output and class if
    there are more than two classes.

    Args:
        target: the target.
        fits: the cross-validated probe of each output.
    """
    n_classes = fits[0].probabilities.shape[1]
    columns = target.outputs
    if n_classes > 2:
        columns = name_indicators(columns, n_classes)
    weights, intercepts, penalties = zip(*(fit.refit for fit in fits), strict=True)
    return {
        "weights": np.concatenate(weights, axis=-1),
        "intercept": np.concatenate(intercepts),
        "columns": columns,
        "settings": {"penalties": list(penalties)},
    }


LOGISTIC = Kind("logistic", predicts_classes=True, fit=_fit_logistic)
