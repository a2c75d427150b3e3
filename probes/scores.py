"""Scores of out-of-fold predictions, with intervals over episodes.

Every score is a ratio of sums over episodes, so a bootstrap resample is a weighted sum (``interp.statistics``) and two
scores of the same episodes are compared resample by resample: a difference has its own, paired, interval.

R2 is ``1 - sum (y - y_hat)^2 / sum (y - mean y)^2``: both sums run over rounds, episodes and the outputs of a target,
with each output's mean over what is scored (scikit-learn's ``r2_score(multioutput="variance_weighted")``). 0 is what
the best constant gives; a probe that generalises badly falls below. Entries outside a mask count nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from numpy import ndarray as Array
from scipy.stats import rankdata

from interp.statistics import Interval, resample_weights

N_RESAMPLES = 1000

Weights = Float[Array, "sample episode"]
PerRound = Shaped[Array, "episode round k"]


@dataclass(frozen=True, eq=False)
class ProbeScore(Interval):
    """An estimate with its 95 % interval, and the bootstrap samples that the interval is read from.

    >>> score = ProbeScore.of(np.array([0.9, *np.linspace(0.8, 1.0, 1001)]))
    >>> print(score, "beats chance by", score.minus(ProbeScore.of(np.full(1002, 0.5))))
    0.900 [0.805, 0.995] beats chance by 0.400 [0.305, 0.495]
    """

    samples: Float[Array, " resample"] = field(repr=False)

    @classmethod
    def of(cls, values: Float[Array, " sample"]) -> ProbeScore:
        """From the estimate (first) and its bootstrap samples."""
        own = Interval.of_samples(values[1:], values[0])
        return cls(own.estimate, own.low, own.high, values[1:])

    def minus(self, other: ProbeScore) -> ProbeScore:
        """The difference from a score of the same episodes, with its paired interval."""
        return ProbeScore.of(np.concatenate([[self.estimate - other.estimate], self.samples - other.samples]))

    @property
    def interval(self) -> tuple[float, float]:
        return self.low, self.high

    def __str__(self) -> str:
        return f"{self.estimate:.3f} [{self.low:.3f}, {self.high:.3f}]"


def sample_weights(groups: Int[Array, " episode"], seed: int) -> Weights:
    """Weights of episodes: first all alike (the estimate), then one row per bootstrap resample of their groups.

    The sum of a row does not matter: every score is a ratio.
    """
    alike = np.full((1, len(groups)), 1 / len(groups))
    resampled = resample_weights(int(groups.max()) + 1, N_RESAMPLES, seed).take(groups, axis=1)
    return np.concatenate([alike, resampled])


@dataclass(frozen=True, eq=False)
class R2:
    """R2 of any predictions of some columns; what depends on the targets alone is summed once."""

    y: PerRound
    mask: Bool[Array, "episode round k"] | None
    weights: Weights
    total: Float[Array, "sample k"]

    @classmethod
    def of(cls, y: PerRound, mask: Bool[Array, "episode round k"] | None, weights: Weights) -> R2:
        used = np.ones(y.shape) if mask is None else mask.astype(np.float64)
        n = used.sum(1)
        centred = (y - (y * used).sum((0, 1)) / np.maximum(n.sum(0), 1)) * used
        n, first, second = weights @ n, weights @ centred.sum(1), weights @ np.einsum("etk,etk->ek", centred, centred)
        return cls(y, mask, weights, second - first**2 / np.where(n > 0, n, 1))

    def errors(self, predictions: Float[Array, "episode round m"]) -> Float[Array, "sample m"]:
        """Weighted sums of squared errors of the first m columns."""
        m = predictions.shape[-1]
        wrong = self.y[..., :m] - predictions
        if self.mask is not None:
            wrong *= self.mask[..., :m]
        return self.weights @ np.einsum("etk,etk->ek", wrong, wrong)

    def overall(self, errors: Float[Array, "sample m"], columns: slice) -> ProbeScore:
        """R2 of some columns together; NaN where nothing varies."""
        total = self.total[:, columns].sum(1)
        return ProbeScore.of(1 - errors[:, columns].sum(1) / np.where(total > 0, total, np.nan))

    def each(self, errors: Float[Array, "sample m"], columns: slice) -> list[ProbeScore]:
        """R2 of each of some columns."""
        return [self.overall(errors, slice(i, i + 1)) for i in range(columns.start, columns.stop)]


def _with_all(sums: Float[Array, "sample k"]) -> Float[Array, "sample k_plus_1"]:
    return np.concatenate([sums, sums.sum(1, keepdims=True)], axis=1)


def mean_scores(values: PerRound, mask: Bool[Array, "episode round k"] | None, weights: Weights) -> list[ProbeScore]:
    """Means of ``values`` (absolute errors, hits, losses) over scored entries: each output and, last, all together."""
    used = np.ones(values.shape) if mask is None else mask.astype(np.float64)
    n, total = (_with_all(weights @ part.sum(1)) for part in (used, values * used))
    return [ProbeScore.of(column) for column in (total / np.where(n > 0, n, np.nan)).T]


def rank_correlation(
    y: PerRound,
    predictions: Float[Array, "episode round k"],
    mask: Bool[Array, "episode round k"] | None,
    weights: Weights,
) -> list[ProbeScore]:
    """Spearman's correlation of each output and, last, their mean; ranks are those of the whole sample."""
    columns = []
    for k in range(y.shape[-1]):
        used = np.ones(y.shape[:2], dtype=bool) if mask is None else mask[..., k]
        a, b = (_ranks(values[..., k], used) for values in (y, predictions))
        n, sa, sb, saa, sbb, sab = (weights @ part.sum(1) for part in (used, a, b, a * a, b * b, a * b))
        n = np.where(n > 0, n, np.nan)
        spread = (saa - sa**2 / n) * (sbb - sb**2 / n)
        columns.append((sab - sa * sb / n) / np.sqrt(np.where(spread > 0, spread, np.nan)))
    defined = [column for column in columns if np.isfinite(column[0])]
    mean = np.mean(defined, axis=0) if defined else np.full(len(weights), np.nan)
    return [ProbeScore.of(column) for column in (*columns, mean)]


def _ranks(values: Float[Array, "episode round"], used: Bool[Array, "episode round"]) -> Float[Array, "episode round"]:
    """Centred ranks, scaled to about 1, of the used entries; 0 elsewhere."""
    ranks = np.zeros(values.shape)
    if used.any():
        # Rounding first: predictions that agree to 12 digits must not be ranked by their rounding errors.
        rounded = np.round(values[used], 12 - int(np.ceil(np.log10(np.abs(values[used]).max() + 1e-300))))
        ranks[used] = rankdata(rounded) / used.sum() - 0.5
    return ranks


def class_scores(
    y: Int[Array, "episode round k"],
    probabilities: Sequence[Float[Array, "episode round c"]],
    mask: Bool[Array, "episode round k"] | None,
    weights: Weights,
) -> tuple[list[ProbeScore], list[ProbeScore]]:
    """Accuracy and log-loss (nats) of class probabilities: each output and, last, all together."""
    hits = np.stack([p.argmax(-1) == y[..., k] for k, p in enumerate(probabilities)], axis=-1)
    of_truth = [np.take_along_axis(p, y[..., [k]], axis=-1)[..., 0] for k, p in enumerate(probabilities)]
    losses = -np.log(np.maximum(np.stack(of_truth, axis=-1), np.finfo(np.float64).tiny))
    return mean_scores(hits.astype(np.float64), mask, weights), mean_scores(losses, mask, weights)
