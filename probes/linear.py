"""Ridge regression with nested cross-validation by episode, for all targets and penalties at once.

For standardised inputs ``x~ = (x - mean) / std`` and a centred target y, ridge regression with the
penalty alpha finds the weights w that minimise ``sum (y - x~ w)^2 + alpha |w|^2``. With the
eigendecomposition ``sum x~ x~' = V diag(s) V'`` the solution is ``w = V diag(1 / (s + alpha)) V'
sum x~ y`` for any penalty and target. Sums are computed once per fold, and those of a training set
are added up from its folds. The result equals that of scikit-learn's ``Pipeline(StandardScaler,
Ridge)`` inside ``GridSearchCV`` inside ``cross_val_predict``, all split by ``GroupKFold``; a test
compares the two to 1e-6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import combinations
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from probes.controls import Fitted, Kind, score_predictions
from probes.values import TargetValues

ALPHAS = tuple(float(a) for a in np.logspace(-4, 6, 11))
"""Ridge penalties to choose from, in scikit-learn's units for standardised inputs."""

_CONSTANT_SHARE = 1e-12
"""An input counts as constant if its variance in a training set is below this share of its total
variance.
"""


@dataclass(frozen=True)
class _Moments:
    """Sums over rows of inputs x, targets y and their products: all that least squares needs.

    Attributes:
        n: number of rows.
        x, y: sums of the inputs ``[d]`` and of the targets ``[k]``.
        xx, xy: sums of the products of two inputs ``[d, d]``, and of an input and a target ``[d,
            k]``.
        yy: sums of the squared targets ``[k]``.
    """

    n: int
    x: Float[Array, " d"]
    y: Float[Array, " k"]
    xx: Float[Array, "d d"]
    xy: Float[Array, "d k"]
    yy: Float[Array, " k"]

    @classmethod
    def of(cls, x: Float[Array, "row d"], y: Float[Array, "row k"]) -> _Moments:
        """Compute the sums over some rows.

        Args:
            x: inputs ``[row, d]``.
            y: targets ``[row, k]``.
        """
        squares_of_y = np.einsum("rk,rk->k", y, y)
        return cls(n=len(x), x=x.sum(0), y=y.sum(0), xx=x.T @ x, xy=x.T @ y, yy=squares_of_y)

    def __add__(self, other: _Moments) -> _Moments:
        names = vars(self)
        return _Moments(**{name: names[name] + vars(other)[name] for name in names})


@dataclass(frozen=True)
class _RidgePath:
    """Ridge solutions of one training set for all penalties, in the eigenbasis of its standardised
    inputs.

    Attributes:
        mean_x, mean_y: means of the inputs ``[d]`` and of the targets ``[k]``.
        scale: standard deviations of the inputs ``[d]``; infinite for constant ones.
        eigenvalues, basis: eigendecomposition of the products of standardised inputs, ``[d]`` and
            ``[d, d]``.
        projected: products of standardised inputs and targets, in the eigenbasis, ``[d, k]``.
    """

    mean_x: Float[Array, " d"]
    mean_y: Float[Array, " k"]
    scale: Float[Array, " d"]
    eigenvalues: Float[Array, " d"]
    basis: Float[Array, "d d"]
    projected: Float[Array, "d k"]

    @classmethod
    def of(cls, train: _Moments, variance: Float[Array, " d"]) -> _RidgePath:
        """Compute the eigendecomposition that gives a training set's solution for every penalty.

        Args:
            train: sums over the training rows.
            variance: variance of each input over all rows; an input that varies much less in the
                training rows counts as constant.
        """
        mean_x = train.x / train.n
        mean_y = train.y / train.n
        # Sums of products of centred inputs [d, d], and of centred inputs and targets [d, k]:
        # sum (x - m)(x - m)' = sum x x' - (sum x) m'
        gram = train.xx - np.outer(train.x, mean_x)
        cross = train.xy - np.outer(train.x, mean_y)
        variance_in_training = gram.diagonal() / train.n
        varies = variance_in_training > _CONSTANT_SHARE * variance
        # A constant input is divided by infinity, so that its weight is 0.
        scale = np.sqrt(np.where(varies, variance_in_training, np.inf))
        inverse = 1 / scale
        eigenvalues, basis = np.linalg.eigh(gram * np.outer(inverse, inverse))
        return cls(
            mean_x=mean_x,
            mean_y=mean_y,
            scale=scale,
            eigenvalues=np.maximum(eigenvalues, 0.0),  # rounding may make them negative
            basis=basis,
            projected=basis.T @ (cross * inverse[:, None]),
        )

    def weights(self, alphas: Float[Array, " k"]) -> tuple[Float[Array, "d k"], Float[Array, " k"]]:
        """Return the weights ``[d, k]`` for raw inputs, and the intercepts ``[k]``.

        Args:
            alphas: ridge penalty of each target, ``[k]``.
        """
        shrunk = self.projected / (self.eigenvalues[:, None] + alphas)
        weights = (self.basis @ shrunk) / self.scale[:, None]
        return weights, self.mean_y - self.mean_x @ weights

    def errors(self, test: _Moments) -> Float[Array, "alpha k"]:
        """Compute the mean squared error on held-out rows for every penalty of :data:`ALPHAS` and
        every target, ``[alpha, k]``.

        Args:
            test: sums over the held-out rows; the rows themselves are not needed.
        """
        inverse = 1 / self.scale
        # Sums over held-out rows minus the training means m:
        # sum (x - m)(x - m)' = sum x x' - (sum x) m' - m (sum x)' + n m m', and so for x y' and y^2.
        centred_x = test.x - test.n * self.mean_x
        cross = np.outer(test.x, self.mean_x)
        xx = test.xx - cross - cross.T + test.n * np.outer(self.mean_x, self.mean_x)
        # For x y', the second and the last term are joined: (sum x - n m) m_y'.
        xy = test.xy - np.outer(centred_x, self.mean_y) - np.outer(self.mean_x, test.y)
        cross_y = 2 * self.mean_y * test.y
        yy = test.yy - cross_y + test.n * self.mean_y**2
        # The squared error is y'y - 2 w'x'y + w'x'x w, in the eigenbasis of the training inputs.
        scaled_xx = xx * np.outer(inverse, inverse)
        rotated_xx = self.basis.T @ scaled_xx @ self.basis
        rotated_xy = self.basis.T @ (xy * inverse[:, None])
        shrinkage = self.eigenvalues[:, None, None] + np.asarray(ALPHAS)[:, None]
        w = self.projected[:, None] / shrinkage  # [d, alpha, k]
        explained = np.einsum("dak,dk->ak", w, rotated_xy)
        columns = w.reshape(len(w), -1)  # [d, alpha * k]
        squares = np.einsum("dm,dm->m", columns, rotated_xx @ columns)
        errors = yy - 2 * explained + squares.reshape(explained.shape)
        return np.maximum(errors, 0.0) / test.n


@dataclass(frozen=True)
class _RidgeFit:
    """The result of nested cross-validation, and of a refit on all episodes.

    All outputs of one target share a penalty; they form a block.

    Attributes:
        predictions: predictions by probes that were not fitted on the episode, ``[episode, round,
            k]``.
        alphas: penalty that was chosen in each outer fold for each block, ``[fold, block]``.
        weights, intercept: the probe refitted on all episodes, for raw inputs, ``[d, k]`` and
            ``[k]``.
        alpha: penalty of the refit for each block.
    """

    predictions: Float[Array, "episode round k"]
    alphas: Float[Array, "fold block"]
    weights: Float[Array, "d k"]
    intercept: Float[Array, " k"]
    alpha: Float[Array, " block"]


def cross_validate(
    x: Float[Array, "episode round d"],
    y: Float[Array, "episode round k"],
    folds: Int[Array, " episode"],
    blocks: Int[Array, " k"],
) -> _RidgeFit:
    """Fit ridge probes by nested cross-validation, and refit them on all episodes.

    Args:
        x: activations ``[episode, round, d]``.
        y: the values to decode: the outputs of all targets, concatenated, ``[episode, round, k]``.
        folds: fold of each episode, ``[episode]``, numbered from 0; at least 3 folds.
        blocks: index of the target of each output, ``[k]``; one penalty is chosen per target.

    Returns:
        Predictions for every episode by probes that were not fitted on it, the chosen penalties,
        and the weights of the probe that is fitted on all episodes.
    """
    n_folds = int(folds.max()) + 1
    n_outputs = y.shape[2]
    # A shift changes nothing in exact arithmetic; without it, large means would cost digits in the sums of squares.
    centred_x, shift_x = _centre(x)
    centred_y, shift_y = _centre(y)
    n_rows = centred_x[..., 0].size
    # einsum makes no copy of the inputs, as .var does.
    variance = np.einsum("erd,erd->d", centred_x, centred_x) / n_rows
    in_fold = [folds == fold for fold in range(n_folds)]  # masks [episode]
    moments = []
    for rows in in_fold:
        x_of_fold = centred_x[rows].reshape(-1, x.shape[2])
        y_of_fold = centred_y[rows].reshape(-1, n_outputs)
        moments.append(_Moments.of(x_of_fold, y_of_fold))

    def solve_without(*held_out: int) -> _RidgePath:
        """Fit ridge regressions with all penalties on all folds except those in ``held_out``."""
        train = [part for fold, part in enumerate(moments) if fold not in held_out]
        return _RidgePath.of(reduce(_Moments.__add__, train), variance)

    # errors[f, g]: trained without folds f and g, tested on g; the pair's path serves both orders.
    errors = np.zeros((n_folds, n_folds, len(ALPHAS), n_outputs))
    for f, g in combinations(range(n_folds), 2):
        path = solve_without(f, g)
        errors[f, g] = path.errors(moments[g])
        errors[g, f] = path.errors(moments[f])
    predictions = np.empty((*x.shape[:2], n_outputs))
    alphas = []
    outer_errors = []
    for fold, rows in enumerate(in_fold):
        path = solve_without(fold)
        # Summed over the inner test folds, [alpha, k]; errors[fold, fold] is 0.
        alpha = _choose_penalties(errors[fold].sum(0), blocks)
        weights, intercept = path.weights(alpha[blocks])
        predictions[rows] = centred_x[rows] @ weights + intercept
        alphas.append(alpha)
        outer_errors.append(path.errors(moments[fold]))
    alpha = _choose_penalties(np.sum(outer_errors, 0), blocks)
    weights, intercept = solve_without().weights(alpha[blocks])  # on all folds
    return _RidgeFit(
        predictions=predictions + shift_y,
        alphas=np.stack(alphas),
        weights=weights,
        intercept=intercept + shift_y - shift_x @ weights,
        alpha=alpha,
    )


def _centre(
    x: Float[Array, "episode round d"],
) -> tuple[Float[Array, "episode round d"], Float[Array, " d"]]:
    """Return (centred inputs, means), in float64: the inputs minus their means over episodes and
    rounds, and these means.

    A constant input becomes exactly zero.
    """
    first = x[0, 0].astype(np.float64)  # subtracted first, so that constants become exactly 0
    centred = x - first
    mean = centred.mean((0, 1))
    centred -= mean
    return centred, first + mean


def _choose_penalties(
    errors: Float[Array, "alpha k"], blocks: Int[Array, " k"]
) -> Float[Array, " block"]:
    """Return the penalty with the smallest error for each target (block of outputs), ``[block]``;
    among equally good ones the largest.

    Args:
        errors: errors of the outputs for each penalty of :data:`ALPHAS`, ``[alpha, k]``.
        blocks: index of the target of each output, ``[k]``.
    """
    # For each penalty, bincount sums the errors of each target's outputs: [alpha, block].
    errors_of_blocks = np.stack([np.bincount(blocks, weights=row) for row in errors])
    # Backwards, since argmin returns the first of equal errors, and penalties ascend.
    best_from_end = errors_of_blocks[::-1].argmin(0)
    return np.asarray(ALPHAS)[::-1][best_from_end]


def _fit_ridge(
    x: Float[Array, "episode round d"],
    targets: Sequence[TargetValues],
    folds: Int[Array, " episode"],
    groups: Int[Array, " episode"],
) -> list[Fitted]:
    """Fit cross-validated ridge probes of real-valued targets, one per target.

    All targets are fitted at once, since they share the eigendecomposition of the activations.

    Args:
        x: activations ``[episode, round, d]``.
        targets: the targets.
        folds: fold of each episode.
        groups: for each episode, the index of its independent group, such as a participant.
    """
    y = np.concatenate([target.values for target in targets], axis=-1, dtype=np.float64)
    widths = [target.values.shape[-1] for target in targets]
    target_of_output = np.repeat(np.arange(len(targets)), widths)
    fit = cross_validate(x, y, folds, blocks=target_of_output)
    results = []
    start = 0
    for target, width, alpha in zip(targets, widths, fit.alpha.tolist(), strict=True):
        outputs = slice(start, start + width)
        start += width
        # A function that returns these fields; the probe on all episodes is fitted already.
        refit = partial(
            dict[str, Any],
            weights=fit.weights[:, outputs],
            intercept=fit.intercept[outputs],
            settings={"alphas": ALPHAS, "alpha": alpha},
        )
        predictions = fit.predictions[..., outputs]
        results.append(score_predictions(target, predictions, groups, refit))
    return results


RIDGE = Kind("ridge", predicts_classes=False, fit=_fit_ridge)
