r"""Are predicted probabilities the frequencies they claim? The reliability table and its error.

Predictions fall into bins of equal width. A bin is calibrated when the frequency of label 1 in it equals the mean
prediction in it, and the expected calibration error is :math:`sum_b share_b |frequency_b - prediction_b|`. Intervals
resample episodes.

The error cannot be negative, so even a perfect predictor shows some: ``chance`` is what labels drawn from the
predictions themselves would show, and only an error beyond it is evidence of miscalibration. (A bootstrap interval of
the error would inherit that bias, so there is none.) A calibrated predictor need not be a good one: the base rate is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import ArrayLike

from interp.checks import checked
from interp.display import Tabled
from interp.errors import require
from interp.provenance import provenance
from interp.statistics import Interval, percentile_bounds, resample_weights
from interp.tasks.experts import ExpertEpisodes
from interp.tasks.experts.regret import check_predictions

_N_DRAWS = 200  # sets of labels drawn to see what calibrated predictions show by chance

PerBin = Float[np.ndarray, " bin"]


@dataclass(frozen=True, eq=False)
class Calibration(Tabled):
    """The reliability of predictions.

    Attributes:
        edges: the bins' edges, one more than bins.
        share: share of the rounds in each bin.
        prediction, frequency: mean prediction and frequency of label 1 in each bin; NaN in an empty bin.
        low, high: 95 % bootstrap interval of the frequency.
        error: expected calibration error.
        chance: the error under perfect calibration: mean and 95 % range over drawn labels.
        settings: regime, sizes, seed, versions, git revision.
    """

    edges: Float[np.ndarray, " edge"]
    share: PerBin
    prediction: PerBin
    frequency: PerBin
    low: PerBin
    high: PerBin
    error: float
    chance: Interval
    settings: dict[str, Any] = field(repr=False)

    def to_frame(self) -> pd.DataFrame:
        """One row per bin."""
        return pd.DataFrame(
            {
                "from": self.edges[:-1],
                "to": self.edges[1:],
                "share": self.share,
                "prediction": self.prediction,
                "frequency": self.frequency,
                "low": self.low,
                "high": self.high,
            }
        )


@checked
def calibration(
    predictions: ArrayLike,
    episodes: ExpertEpisodes,
    *,
    n_bins: int = 10,
    n_resamples: int = 1000,
    n_draws: int = 200,
    seed: int = 0,
) -> Calibration:
    """The reliability table of ``predictions`` P(y=1) [episode, round].

    Raises:
        InputError: bad predictions, or fewer than one bin.
    """
    require(n_bins >= 1, f"n_bins must be >= 1, got {n_bins}")
    p = check_predictions(predictions, episodes)
    b = len(p)
    cells = np.minimum((p * n_bins).astype(int), n_bins - 1) + n_bins * np.arange(b)[:, None]

    def per_episode(values: np.ndarray) -> np.ndarray:
        sums = np.bincount(cells.ravel(), weights=values.ravel(), minlength=b * n_bins)
        return sums.reshape(b, n_bins)

    count, predicted = per_episode(np.ones_like(p)), per_episode(p)
    observed = per_episode(episodes.labels.astype(float))

    def error(labels: np.ndarray) -> float:
        return float(np.abs((per_episode(labels) - predicted).sum(axis=0)).sum() / p.size)

    resampled = resample_weights(b, seed=seed)
    with np.errstate(invalid="ignore"):
        total = count.sum(axis=0)
        frequencies = (resampled @ observed) / (resampled @ count)
        low, high = percentile_bounds(frequencies)
        prediction, frequency = predicted.sum(axis=0) / total, observed.sum(axis=0) / total
    rng = np.random.default_rng([seed, 1])
    drawn = [error((rng.random(p.shape) < p).astype(float)) for _ in range(_N_DRAWS)]
    return Calibration(
        edges=np.linspace(0, 1, n_bins + 1),
        share=total / total.sum(),
        prediction=prediction,
        frequency=frequency,
        low=low,
        high=high,
        error=error(episodes.labels.astype(float)),
        chance=Interval.of_samples(drawn, float(np.mean(drawn))),
        settings=provenance(regime=episodes.regime, n_episodes=b, n_rounds=episodes.n_rounds, seed=episodes.seed),
    )
