r"""Which discount do a policy's choices follow? Read from behaviour alone, no decoding.

The tables that Q-learning makes of the same transitions are built for a range of discounts, and the policy's choices
are compared with each: the mean chance that a greedy action of Q^gamma, drawn uniformly from its ties, is the one
chosen. A learner with discount gamma agrees best with its own tables, so

    gamma_hat = argmax_gamma  mean_t  1[a_t in G^gamma_t] / |G^gamma_t|

with a bootstrap over episodes of both the curve and its argmax. The regression on decoded tables
(:mod:`interp.tasks.qlearning.evaluation.tables`) answers the same question from inside; this one needs no linear code.
Most steps do not depend on gamma, so the curve is flat and a poor imitator gives a wide interval: that is the honest
answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd

from interp.checks import checked
from interp.display import Tabled
from interp.errors import require
from interp.provenance import provenance
from interp.statistics import Interval, percentile_bounds, resample_weights
from interp.tasks.qlearning import bellman
from interp.tasks.qlearning.sampling import MDPEpisodes

_GAMMAS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99)
TIE_TOLERANCE = 1e-12


@dataclass(frozen=True)
class DiscountResult(Tabled):
    """Agreement of choices with the tables of many discounts.

    Attributes:
        gammas: the discounts.
        agreement: one estimate with its interval per discount.
        best: the discount that the choices follow best: the middle of those that tie, and an interval over all of them.
        settings: table, sizes, seed, versions.
    """

    gammas: tuple[float, ...]
    agreement: tuple[Interval, ...]
    best: Interval
    settings: dict[str, Any] = field(repr=False)

    def to_frame(self) -> pd.DataFrame:
        """One row per discount; ``best`` repeats the one followed best."""
        rows = [{"gamma": gamma, **vars(value)} for gamma, value in zip(self.gammas, self.agreement, strict=True)]
        frame = pd.DataFrame(rows)
        return frame.assign(best=self.best.estimate, best_low=self.best.low, best_high=self.best.high)


@checked
def followed_discount(
    choices: Sequence[np.ndarray],
    batches: Sequence[MDPEpisodes],
    *,
    table: Literal["after", "before"] = "after",
    gammas: Sequence[float] = _GAMMAS,
    seed: int = 0,
) -> DiscountResult:
    """Compare choices ``[episode, round]``, one array per batch, with the tables of each discount.

    Raises:
        InputError: no discount, or choices that do not belong to the batches.
    """
    require(len(gammas) > 0, "no discount to compare with; give at least one")
    require(
        [c.shape for c in choices] == [b.states.shape for b in batches],
        "choices must be [episode, round] for every batch",
    )
    columns = []
    for gamma in gammas:
        parts = [_hits(c, b.relearned(gamma=gamma), table) for c, b in zip(choices, batches, strict=True)]
        columns.append(np.concatenate(parts))
    hits = np.stack(columns, 1)
    rounds = np.concatenate([np.full(len(b), b.n_rounds, np.float64) for b in batches])
    weights = resample_weights(len(hits), seed=seed)
    curve, samples = hits.sum(0) / rounds.sum(), (weights @ hits) / (weights @ rounds)[:, None]
    low, high = percentile_bounds(samples)
    lowest, highest = _followed(samples, gammas)
    first, last = _followed(curve[None], gammas)
    best = Interval(
        float((first[0] + last[0]) / 2), float(percentile_bounds(lowest)[0]), float(percentile_bounds(highest)[1])
    )
    intervals = tuple(Interval(*map(float, row)) for row in zip(curve, low, high, strict=True))
    return DiscountResult(
        tuple(gammas), intervals, best, provenance(table=table, n_episodes=len(hits), bootstrap_seed=seed)
    )


def _followed(curves: np.ndarray, gammas: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and the largest of the discounts that each row of ``curves`` agrees with best."""
    order = np.argsort(gammas)
    tied = (curves >= curves.max(1, keepdims=True) - TIE_TOLERANCE)[:, order]
    ranked = np.asarray(gammas, np.float64)[order]
    return ranked[tied.argmax(1)], ranked[::-1][tied[:, ::-1].argmax(1)]


def _hits(choices: np.ndarray, episodes: MDPEpisodes, table: str) -> np.ndarray:
    """Per episode, the expected number of rounds where a greedy action of its tables is the one chosen."""
    values = episodes.next_values_after if table == "after" else episodes.next_values_before
    greedy = bellman.greedy_sets(values)
    chosen = np.take_along_axis(greedy, choices[..., None], -1)[..., 0]
    return (chosen / greedy.sum(-1)).sum(1)
