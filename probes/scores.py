"""Scores of out-of-fold predictions, with intervals over episodes that count the luck of the probe's own fit.

Every score is a ratio of sums over episodes (or over groups of them, where several are not independent), and what it
estimates is *that score, on new episodes, of this very probe, refitted on all episodes*. Its 95 % interval, and the
paired one of a difference from a control, are those of :mod:`interp.refit`, where they are explained and calibrated.

R2 is ``1 - sum (y - y_hat)^2 / sum of totals``: both sums run over rounds, episodes and the outputs of a target. The
totals (:func:`interp.refit.totals`) are the squares about each output's mean over what is scored, without the
optimism of taking that mean from the same episodes. They are larger than the plain squares of scikit-learn's
``r2_score(multioutput="variance_weighted")``, by a share of at most 1/(n - 1) for n episodes, so that R2 is higher by
at most ``(1 - R2) / n``. 0 is what the best constant gives; a probe that generalises badly falls below. Entries outside
a mask count nowhere. A rank correlation is no ratio of sums and has no interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isnan, nan
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from numpy import ndarray as Array

from interp import refit
from interp.checks import checked
from interp.statistics import Interval
from probes.values import N_FOLDS, TargetValues

_Mask = Bool[Array, "episode round k"] | None
_PerGroupSum = Float[Array, " group"]
_PerRound = Shaped[Array, "episode round k"]


class Difference(Interval):
    """How much higher a probe's score is than a control's; or a statistic without an interval, whose bounds are NaN."""

    def __str__(self) -> str:
        bounds = "(no interval)" if isnan(self.low) else f"[{self.low:.3f}, {self.high:.3f}]"
        return f"{self.estimate:.3f} {bounds}"


@dataclass(frozen=True, eq=False)
class ProbeScore(Difference):
    """An estimate with its 95 % interval, and the sums over episodes that the interval is read from.

    Attributes:
        losses: out-of-fold, per independent group of episodes: squared errors (R2), misses (accuracy).
        references: what they are divided by: totals (R2), scored steps (accuracy).
        kind: "skill" (R2: one minus the ratio), "accuracy" (the same, within 0 and 1) or "ratio" (the ratio itself).
        constant: losses of the best constant: the references of R2, the misses of the most frequent class.

    >>> losses = np.array([[1.0, 2.0, 3.0, 2.0, 2.0], [7.0, 8.0, 7.0, 8.0, 8.0]])
    >>> score, control = (ProbeScore.of(lost, np.full(5, 8.0)) for lost in losses)
    >>> print(score, "beats the control by", score.minus(control))
    0.750 [0.431, 0.890] beats the control by 0.700 [0.349, 0.923]
    """

    losses: Float[Array, " group"] = field(repr=False)
    references: Float[Array, " group"] = field(repr=False)
    kind: refit.Score = "skill"
    constant: Float[Array, " group"] = field(default_factory=lambda: np.zeros(0), repr=False)

    @classmethod
    @checked
    def of(
        cls,
        losses: Shaped[Array, " group"],
        references: Shaped[Array, " group"],
        kind: refit.Score = "skill",
        constant: Shaped[Array, " group"] | None = None,
    ) -> ProbeScore:
        """From sums per independent group of episodes; the constant's losses are the references when None."""
        lost, scale = (np.asarray(part, np.float64) for part in (losses, references))
        own = refit.interval(lost, scale, N_FOLDS, kind)
        return cls(own.estimate, own.low, own.high, lost, scale, kind, scale if constant is None else constant)

    @property
    def skill(self) -> Interval:
        """One minus the losses over those of the best constant: R2 itself, or what an accuracy is above guessing."""
        if self.kind == "skill":
            return Interval(self.estimate, self.low, self.high)
        return refit.interval(self.losses, self.constant, N_FOLDS, smallest=0.5)

    @checked
    def minus(self, other: ProbeScore) -> Difference:
        """The difference from a score of the same kind, with its paired interval where both have the same episodes."""
        lost, of_control, scale, references = self.losses, other.losses, self.references, other.references
        if len(lost) != len(of_control):
            return Difference(self.estimate - other.estimate, nan, nan)
        paired = refit.difference(lost, of_control, scale, N_FOLDS, self.kind, control_references=references)
        return Difference(paired.estimate, paired.low, paired.high)

    @property
    def detectable(self) -> float:
        """The smallest skill whose interval would have excluded 0 in this sample."""
        return refit.detectable(self.losses, self.constant, N_FOLDS)


@dataclass(frozen=True, eq=False)
class Fitted:
    """A cross-validated probe of one target: its score, and the other fields of a result, made when they are needed."""

    score: ProbeScore
    details: Callable[[], dict[str, Any]]


def fitted(
    target: TargetValues,
    predictions: _PerRound,
    groups: Int[Array, " episode"],
    refitted: Callable[[], dict[str, Any]],
    probabilities: Sequence[Float[Array, "episode round c"]] = (),
) -> Fitted:
    """A probe of one target from its out-of-fold predictions: R2 of numbers, the accuracy of classes.

    ``refitted`` gives what belongs to the probe that was fitted on all episodes.
    """
    mask, of_classes = target.mask, target.kind == "class"
    y = target.values if of_classes else target.values.astype(np.float64)
    if of_classes:
        *each, score = accuracies(y, predictions, mask, groups)
    else:
        *sums, together = squares(y, predictions, mask, groups)
        score = ProbeScore.of(together[0], together[1])

    def details() -> dict[str, Any]:
        by_output = each if of_classes else [ProbeScore.of(of[0], of[1]) for of in sums]
        metrics: dict[str, Interval] = {"accuracy" if of_classes else "r2": score}
        if not of_classes:
            metrics["rank_correlation"] = rank_correlation(y, predictions, mask)
            metrics["mae"] = mean_scores(np.abs(y - predictions), mask, groups)[-1]
        if probabilities:
            truth = y.astype(np.int64)
            of_truth = [np.take_along_axis(p, truth[..., [k]], axis=-1)[..., 0] for k, p in enumerate(probabilities)]
            losses = -np.log(np.maximum(np.stack(of_truth, axis=-1), np.finfo(np.float64).tiny))
            metrics["log_loss"] = mean_scores(np.maximum(losses, 0.0), mask, groups)[-1]
        found = {"by_output": dict(zip(target.outputs, by_output, strict=True)), "metrics": metrics}
        return {**found, "predictions": predictions.astype(np.float64), "columns": target.outputs, **refitted()}

    return Fitted(score, details)


def squares(
    y: _PerRound, predictions: Float[Array, "episode round k"], mask: _Mask, groups: Int[Array, " episode"]
) -> list[tuple[_PerGroupSum, ...]]:
    """Squared errors and totals by group, whose :meth:`ProbeScore.of` is R2: each output and, last, all together."""
    wrong = y - predictions if mask is None else (y - predictions) * mask
    errors = refit.in_groups(np.einsum("etk,etk->ek", wrong, wrong), groups)
    return _each(errors, refit.totals(y, mask, groups))


def mean_scores(values: _PerRound, mask: _Mask, groups: Int[Array, " episode"]) -> list[ProbeScore]:
    """Means of losses (absolute errors, log-losses) over scored entries: each output and, last, all together."""
    return [ProbeScore.of(lost, steps, "ratio") for lost, steps in _summed(mask, groups, values)]


def accuracies(
    y: Int[Array, "episode round k"], predictions: _PerRound, mask: _Mask, groups: Int[Array, " episode"]
) -> list[ProbeScore]:
    """The share of hits: each output and, last, all together."""
    used = np.ones(y.shape, dtype=bool) if mask is None else mask
    most = [np.bincount(y[..., k][used[..., k]], minlength=1).argmax() for k in range(y.shape[-1])]
    sums = _summed(mask, groups, predictions != y, y != np.array(most))
    return [ProbeScore.of(misses, steps, "accuracy", constant) for misses, constant, steps in sums]


def _summed(mask: _Mask, groups: Int[Array, " episode"], *values: _PerRound) -> list[tuple[_PerGroupSum, ...]]:
    """Sums of values and, last, of scored entries by group."""
    used = np.ones(values[0].shape) if mask is None else mask.astype(np.float64)
    return _each(*(refit.in_groups((part * used).sum(1), groups) for part in (*values, np.ones(used.shape))))


def _each(*parts: Float[Array, "group k"]) -> list[tuple[_PerGroupSum, ...]]:
    """Sums ``[group, output]`` of each output and, last, of all together."""
    return [tuple(p[:, k] for p in parts) for k in range(parts[0].shape[1])] + [tuple(p.sum(1) for p in parts)]


def rank_correlation(y: _PerRound, predictions: Float[Array, "episode round k"], mask: _Mask) -> Difference:
    """Spearman's correlation, the mean over outputs; it has no interval, being no ratio of sums."""
    values = []
    for k in range(y.shape[-1]):
        used = np.ones(y.shape[:2], dtype=bool) if mask is None else mask[..., k]
        a, b = (_ranks(column[..., k][used]) for column in (y, predictions))
        spread = np.sqrt((a @ a) * (b @ b))
        if spread > 0:
            values.append(float(a @ b / spread))
    return Difference(float(np.mean(values)) if values else nan, nan, nan)


def _ranks(values: Float[Array, " entry"]) -> Float[Array, " entry"]:
    """Ranks about their mean."""
    if not values.any():
        return np.zeros(len(values))
    # Rounding first: predictions that agree to 12 digits must not be ranked by their rounding errors.
    rounded = np.round(values, 12 - int(np.ceil(np.log10(np.abs(values).max()))))
    # As scipy's rankdata, whose import takes a second: ties share the mean of their ranks.
    _, which, counts = np.unique(rounded, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum() - (counts - 1) / 2)[which]
    return np.asarray(ranks - ranks.mean())
