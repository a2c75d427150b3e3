"""Ridge regression, cross-validated by episode, through one factorisation for all targets and all penalties.

For standardised inputs ``x~ = (x - mean) / std`` and a centred target, ridge minimises ``sum (y - x~ w)^2 + alpha
|w|^2``. With the eigendecomposition ``sum x~ x~' = V diag(s) V'`` every penalty and every target is one product: ``w =
V diag(1 / (s + alpha)) V' sum x~ y``. Sums are taken once per fold, and a training set is a sum of folds. The result is
that of scikit-learn's ``Pipeline(StandardScaler, Ridge)`` inside ``GridSearchCV`` inside ``cross_val_predict``, all
split by ``GroupKFold`` (a test holds the two together to 1e-6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from probes.controls import Fitted, Kind, fitted
from probes.values import TargetValues

ALPHAS = tuple(float(a) for a in np.logspace(-4, 6, 11))
"""Penalties tried, in scikit-learn's units: added to the sums of squares of standardised inputs."""

_CONSTANT = 1e-12
"""An input whose variance in a training set is below this share of its variance over all rows counts as constant."""


@dataclass(frozen=True)
class _Moments:
    """Sums over rows: of inputs and targets, and of their products."""

    n: int
    x: Float[Array, " d"]
    y: Float[Array, " k"]
    xx: Float[Array, "d d"]
    xy: Float[Array, "d k"]
    yy: Float[Array, " k"]

    @classmethod
    def of(cls, x: Float[Array, "row d"], y: Float[Array, "row k"]) -> _Moments:
        """The sums of some rows: all that a least-squares fit needs of them."""
        return cls(len(x), x.sum(0), y.sum(0), x.T @ x, x.T @ y, np.einsum("rk,rk->k", y, y))

    def __add__(self, other: _Moments) -> _Moments:
        return _Moments(
            self.n + other.n,
            *(getattr(self, name) + getattr(other, name) for name in ("x", "y", "xx", "xy", "yy")),
        )


@dataclass(frozen=True)
class _RidgePath:
    """Ridge solutions of one training set for every penalty, in the eigenbasis of its standardised inputs."""

    mean_x: Float[Array, " d"]
    mean_y: Float[Array, " k"]
    scale: Float[Array, " d"]
    eigenvalues: Float[Array, " d"]
    basis: Float[Array, "d d"]
    projected: Float[Array, "d k"]

    @classmethod
    def of(cls, train: _Moments, variance: Float[Array, " d"]) -> _RidgePath:
        """The path of a training set; ``variance`` is that of each input over all rows."""
        mean_x, mean_y = train.x / train.n, train.y / train.n
        gram = train.xx - np.outer(train.x, mean_x)
        own = gram.diagonal() / train.n
        varies = own > _CONSTANT * variance
        scale = np.sqrt(np.where(varies, own, 1.0))
        keep = np.where(varies, 1 / scale, 0.0)
        eigenvalues, basis = np.linalg.eigh(gram * np.outer(keep, keep))
        projected = basis.T @ ((train.xy - np.outer(train.x, mean_y)) * keep[:, None])
        return cls(
            mean_x,
            mean_y,
            np.where(varies, scale, np.inf),
            np.maximum(eigenvalues, 0.0),
            basis,
            projected,
        )

    def weights(self, alphas: Float[Array, " k"]) -> tuple[Float[Array, "d k"], Float[Array, " k"]]:
        """Weights on the raw inputs, and intercepts, with one penalty per output."""
        shrunk = self.projected / (self.eigenvalues[:, None] + alphas)
        weights = (self.basis @ shrunk) / self.scale[:, None]
        return weights, self.mean_y - self.mean_x @ weights

    def errors(self, test: _Moments) -> Float[Array, "alpha k"]:
        """Mean squared error on held-out rows, for every penalty and output, from their sums alone."""
        inverse = 1 / self.scale
        x = test.x - test.n * self.mean_x
        cross = np.outer(test.x, self.mean_x)
        xx = (test.xx - cross - cross.T + test.n * np.outer(self.mean_x, self.mean_x)) * np.outer(
            inverse, inverse
        )
        xy = test.xy - np.outer(x, self.mean_y) - np.outer(self.mean_x, test.y)
        yy = test.yy - 2 * self.mean_y * test.y + test.n * self.mean_y**2
        rotated_xx = self.basis.T @ xx @ self.basis
        rotated_xy = self.basis.T @ (xy * inverse[:, None])
        d, k = self.projected.shape
        w = self.projected[:, None] / (
            self.eigenvalues[:, None, None] + np.asarray(ALPHAS)[:, None]
        )
        cross = np.einsum("dak,dk->ak", w, rotated_xy)
        square = np.einsum("dm,dm->m", w.reshape(d, -1), rotated_xx @ w.reshape(d, -1)).reshape(
            -1, k
        )
        return np.maximum(yy - 2 * cross + square, 0.0) / test.n


@dataclass(frozen=True)
class _RidgeFit:
    """Out-of-fold predictions, the penalty of each outer fold for each block, and the refit on raw inputs."""

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
    """Nested cross-validation and the refit on everything; ``y`` holds all targets side by side.

    ``folds`` are numbered from 0, at least 3 of them; ``blocks`` names the target of each output, and one penalty is
    chosen per target.
    """
    n_folds, n_rounds, d = int(folds.max()) + 1, x.shape[1], x.shape[2]
    # A shift changes nothing in exact arithmetic; without it, large means would cost digits in the sums of squares.
    (centred_x, shift_x), (centred_y, shift_y) = _centre(x), _centre(y)
    variance = (
        np.einsum("erd,erd->d", centred_x, centred_x) / centred_x[..., 0].size
    )  # without a copy, as .var makes
    rows = [folds == fold for fold in range(n_folds)]
    parts = [
        _Moments.of(centred_x[r].reshape(-1, d), centred_y[r].reshape(-1, y.shape[2])) for r in rows
    ]

    def path(held_out: set[int]) -> _RidgePath:
        return _RidgePath.of(
            reduce(_Moments.__add__, (m for i, m in enumerate(parts) if i not in held_out)),
            variance,
        )

    # errors[f, g]: trained without folds f and g, tested on g; the pair's path serves both orders.
    errors = np.zeros((n_folds, n_folds, len(ALPHAS), y.shape[2]))
    for f in range(n_folds):
        for g in range(f):
            pair = path({f, g})
            errors[f, g], errors[g, f] = pair.errors(parts[g]), pair.errors(parts[f])
    outer = [path({f}) for f in range(n_folds)]
    single = np.stack([p.errors(parts[f]) for f, p in enumerate(outer)])
    per_fold = np.stack([_best(errors[f].sum(0), blocks) for f in range(n_folds)])
    predictions = np.empty((len(x), n_rounds, y.shape[2]))
    for f, p in enumerate(outer):
        weights, intercept = p.weights(per_fold[f][blocks])
        predictions[rows[f]] = centred_x[rows[f]] @ weights + intercept
    alpha = _best(single.sum(0), blocks)
    weights, intercept = path(set()).weights(alpha[blocks])
    predictions += shift_y
    return _RidgeFit(predictions, per_fold, weights, intercept + shift_y - shift_x @ weights, alpha)


def _centre(
    x: Float[Array, "episode round d"],
) -> tuple[Float[Array, "episode round d"], Float[Array, " d"]]:
    """Columns about their means, in float64; a constant column becomes exactly zero."""
    first = x[0, 0].astype(np.float64)
    moved = x - first
    mean = moved.mean((0, 1))
    moved -= mean
    return moved, first + mean


def _best(errors: Float[Array, "alpha k"], blocks: Int[Array, " k"]) -> Float[Array, " block"]:
    """The penalty with the least error of each block; the largest of those that tie."""
    summed = np.stack([np.bincount(blocks, weights=row) for row in errors])[::-1]
    return np.asarray(ALPHAS)[::-1][summed.argmin(0)]


def _fit(
    x: Float[Array, "episode round d"],
    targets: Sequence[TargetValues],
    folds: Int[Array, " episode"],
    groups: Int[Array, " episode"],
) -> list[Fitted]:
    y = np.concatenate([target.values for target in targets], axis=-1, dtype=np.float64)
    widths = [target.values.shape[-1] for target in targets]
    fit = cross_validate(x, y, folds, np.repeat(np.arange(len(targets)), widths))
    ends = np.cumsum(widths).tolist()
    found = []
    for target, end, width, alpha in zip(targets, ends, widths, fit.alpha.tolist(), strict=True):
        at, settings = slice(end - width, end), {"alphas": ALPHAS, "alpha": alpha}
        kept = partial(
            dict[str, Any],
            weights=fit.weights[:, at],
            intercept=fit.intercept[at],
            settings=settings,
        )
        found.append(fitted(target, fit.predictions[..., at], groups, kept))
    return found


RIDGE = Kind("ridge", of_classes=False, fit=_fit)
