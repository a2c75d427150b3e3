"""Scores of out-of-fold predictions, with intervals over episodes.

Every score is a ratio of sums over episodes, so a bootstrap resample is a weighted sum (``interp.statistics``) and two
scores of the same episodes can be compared resample by resample: a difference has its own, paired, interval.

R2 is ``1 - sum (y - y_hat)^2 / sum (y - mean y)^2``, both sums over rounds, episodes and the outputs of a target, with
the mean of each output over the scored entries (scikit-learn's ``r2_score(multioutput="variance_weighted")``): 0 is
what the best constant gives; a probe that generalises badly falls below. Entries outside the mask count nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Shaped
from numpy import ndarray as Array

from interp.statistics import resample_weights

N_RESAMPLES = 1000


@dataclass(frozen=True)
class Score:
    """An estimate with its 95 % interval, and the bootstrap samples that the interval came from."""

    estimate: float
    low: float
    high: float
    samples: Float[Array, " resample"]

    @classmethod
    def of(cls, estimate: float, samples: Float[Array, " resample"]) -> Score:
        low, high = np.nanquantile(samples, [0.025, 0.975])
        return cls(float(estimate), float(low), float(high), samples)

    def minus(self, other: Score) -> Score:
        """The difference of two scores of the same episodes, with its paired interval."""
        return Score.of(self.estimate - other.estimate, self.samples - other.samples)

    @property
    def interval(self) -> tuple[float, float]:
        return self.low, self.high

    def __str__(self) -> str:
        return f"{self.estimate:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class SquaredSums:
    """Per episode and output: number of scored entries, sums of y and y^2 (about the overall mean), squared errors."""

    n: Float[Array, "episode k"]
    y: Float[Array, "episode k"]
    yy: Float[Array, "episode k"]
    errors: Float[Array, "episode k"]

    @classmethod
    def of(
        cls,
        y: Shaped[Array, "episode round k"],
        predictions: Float[Array, "episode round k"],
        mask: Bool[Array, "episode round k"] | None = None,
    ) -> SquaredSums:
        used = np.ones(y.shape) if mask is None else mask.astype(np.float64)
        n = used.sum(1)
        centred = (y - (y * used).sum((0, 1)) / np.maximum(n.sum(0), 1)) * used
        errors = ((y - predictions) ** 2 * used).sum(1)
        return cls(n, centred.sum(1), (centred**2).sum(1), errors)

    def r2(self, weights: Float[Array, "resample episode"]) -> Float[Array, "resample k_plus_1"]:
        """R2 of each output and, last, of all together; NaN where a resample holds no variation."""
        n, y, yy, errors = (weights @ part for part in (self.n, self.y, self.yy, self.errors))
        total = yy - y**2 / np.where(n > 0, n, 1)
        errors, total = (np.concatenate([part, part.sum(1, keepdims=True)], axis=1) for part in (errors, total))
        return 1 - errors / np.where(total > 0, total, np.nan)


def r2_scores(sums: SquaredSums, seed: int, n_resamples: int = N_RESAMPLES) -> list[Score]:
    """R2 of each output and, last, of all together."""
    n_episodes = len(sums.n)
    estimates = sums.r2(np.full((1, n_episodes), 1 / n_episodes))[0]
    samples = sums.r2(resample_weights(n_episodes, n_resamples, seed))
    return [Score.of(estimate, samples[:, i]) for i, estimate in enumerate(estimates)]
