"""Episodes longer than training's: does a model keep its quality, or does its latent drift?

One long episode is scored in windows of rounds, each against the Bayes predictor with the regime's own prior on the
same rounds: excess log-loss, and its expectation, the KL divergence from that predictor, which has far less noise (nats
a round). A model whose latent saturates or drifts shows an excess that grows with the window; the Bayes predictor's own
accuracy grows towards the oracle's, so accuracy alone would hide it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from interp.checks import checked
from interp.display import Tabled
from interp.errors import require
from interp.evaluation.plan import MODEL, lookup
from interp.model.transformer import HookedLatentTransformer
from interp.provenance import provenance
from interp.statistics import Interval, mean_interval
from interp.tasks import experts
from interp.tasks.experts import regret
from interp.tasks.experts.evaluation.by_regime import divergence, n_experts_of, predict, training_prior
from interp.tasks.experts.predictors import bayes, horizon_eta, weighted_majority

WINDOWS = (
    (0, 10), (10, 20), (20, 50), (50, 100), (100, 200), (200, 300), (300, 400), (400, 500), (500, 750), (750, 1000),
)  # fmt: skip
"""Rounds [start, stop) of a long episode."""


@dataclass(frozen=True)
class LengthResult(Tabled):
    """How good predictions are in windows of a long episode.

    ``intervals`` is by (key, metric, start, stop): "accuracy", "excess_log_loss" and "divergence" over the rounds start
    to stop, and "regret" of the first ``stop`` rounds; no log-loss for a predictor that was certain and wrong.
    """

    intervals: dict[tuple[str, str, int, int], Interval]
    settings: dict[str, Any] = field(repr=False)

    def get(self, metric: str, start: int, stop: int, key: str = MODEL) -> Interval:
        """One number."""
        return lookup(self.intervals, key, metric, start, stop)

    def to_frame(self) -> pd.DataFrame:
        """One row per predictor, metric and window."""
        rows = [
            {"key": key, "metric": metric, "start": start, "stop": stop, **vars(value)}
            for (key, metric, start, stop), value in self.intervals.items()
        ]
        return pd.DataFrame(rows)


@checked
def evaluate(
    model: HookedLatentTransformer,
    *,
    n_episodes: int = 128,
    n_rounds: int = 1000,
    n_experts: int | None = None,
    regime: str = "uniform",
    windows: Sequence[tuple[int, int]] = WINDOWS,
    seed: int = 2,
) -> LengthResult:
    """Score a model, weighted majority (eta sqrt(ln n / T)) and the Bayes predictor in windows of long episodes.

    A model that was trained on another prior than the regime's has that prior's Bayes predictor beside it, too. Windows
    (start, stop) beyond ``n_rounds`` are cut or left out.
    """
    n_experts = n_experts_of(model) if n_experts is None else n_experts
    kept = [(start, min(stop, n_rounds)) for start, stop in windows if start < min(stop, n_rounds)]
    require(len(kept) > 0, f"no window of rounds lies in episodes of {n_rounds} rounds; give windows (start, stop)")
    episodes = experts.sample(n_episodes, n_rounds, n_experts, regime=regime, seed=seed)
    best = bayes(episodes).predictions
    predictions = {
        MODEL: predict(model, episodes),
        "bayes": best,
        "weighted_majority_horizon": weighted_majority(episodes, eta=horizon_eta(n_experts, n_rounds)).predictions,
    }
    if (prior := training_prior(model)) != [regime]:
        predictions["bayes_training"] = bayes(episodes, prior).predictions
    intervals = {}
    for key, p in predictions.items():
        right, behind = 1 - regret.mistakes(p, episodes), regret.regret(p, episodes)
        excess = regret.excess_log_loss(p, best, episodes)
        for start, stop in kept:
            here = slice(start, stop)
            intervals[key, "accuracy", start, stop] = mean_interval(right[:, here].mean(1), seed=seed)
            for metric, values in {"excess_log_loss": excess, "divergence": divergence(best, p)}.items():
                if np.isfinite(values).all():
                    intervals[key, metric, start, stop] = mean_interval(values[:, here].mean(1), seed=seed)
            intervals[key, "regret", start, stop] = mean_interval(behind[:, stop - 1], seed=seed)
    settings = provenance(
        model=model.config.name, digest=model.digest(), regime=regime, n_episodes=n_episodes, n_rounds=n_rounds,
        n_experts=n_experts, seed=seed,
    )  # fmt: skip
    return LengthResult(intervals, settings)
