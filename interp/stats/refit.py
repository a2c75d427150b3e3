"""Intervals of refitted quantities: scores of cross-validated fits, with the luck of the training
episodes counted.

A score is 1 minus a ratio of sums over episodes, ``sum L / sum R`` (R2: squared errors over squares
about the mean; accuracy: misses over steps), of the out-of-fold errors of a K-fold
cross-validation. :func:`interval` is about the score, on new episodes, of this very fit, refitted
on all episodes; :func:`difference` joins two scores of the same episodes. Episodes are independent
and identically distributed, and folds are made of whole episodes. Where :func:`leans_low` is True,
a small score does not show that no value can be decoded. Means without a fit:
:mod:`interp.stats.intervals`.

How the interval is made, and what it was measured to cover: docs/method/intervals.md.

    >>> print(interval([1.0, 2.0, 3.0, 2.0], [8.0, 8.0, 8.0, 8.0], n_folds=2))
    0.75 [-0.1207, 0.9442]
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1, inf, nan, sqrt
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from numpy import ndarray as Array
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from interp.stats.intervals import Interval
from interp.support.checks import checked
from interp.support.errors import require

Score = Literal["skill", "accuracy", "ratio"]
FEW_EPISODES = 16
"""Below this many episodes a result should warn: at 8, coverage fell to 88 % where rounds depend on each other (before
effective episodes were counted, which widens intervals). Where nothing is decoded intervals of 6 to 12 episodes covered
91 to 98 % of 250 data sets, with the truth, just below 0, below up to 7 % of them: no false word follows."""

PLATEAU = 256
"""Episodes from which an untrained model is decoded, at least: of few, a fit to it reads less than can be read."""

_FEWEST = 2.0
"""The least effective number of episodes: Student's t has one degree of freedom, and no bound is beyond all numbers."""

_CONSTANT = 0.9
"""A target varies hardly within an episode where this share of its sum of squares is that of episodes' means."""

_PER_FEATURE = 2.0
"""Fewer effective episodes for each feature than this lean low for a target that is constant within episodes: of
16 features, coverage of R2 was 90 and 92 % at 1.1 of them for each, and 93 and 94 % at 1.4 (200 data sets)."""

_WIDEST = 100.0  # half widths of a log beyond this are cut, so that no bound overflows


def _inflation(n_episodes: int, n_folds: int, n_effective: float | None = None) -> float:
    """Return the half width of an interval over the standard error of fixed errors; 1.96 for a mean of many episodes.

    Args:
        n_episodes: all of them.
        n_folds: K of the cross-validation.
        n_effective: of :func:`effective`; all episodes when None.

    >>> round(_inflation(8, 5), 3), round(_inflation(64, 5), 3), round(_inflation(64, 5, n_effective=8), 3)
    (4.054, 3.045, 4.054)
    """
    require(
        n_episodes >= 2, f"an interval over episodes needs at least 2 episodes, got {n_episodes}"
    )
    require(
        2 <= n_folds <= n_episodes,
        f"folds of {n_episodes} episodes are 2 to {n_episodes}, got {n_folds}",
    )
    m = n_episodes if n_effective is None else n_effective
    require(m > 1, f"an interval needs more than 1 effective episode, got {m}")
    student_quantile = float(stdtrit(m - 1, 0.975))
    refitting = sqrt(1 + n_folds / (n_folds - 1))
    return student_quantile * refitting * m / (m - 1)


def effective(references: ArrayLike) -> float:
    """Return over how many episodes a total is spread: ``(sum R)^2 / sum R^2``, 2 at least; n where all are equal.

    >>> effective([3.0, 3.0, 3.0, 3.0]), effective([3.0, 3.0, 0.0, 0.0]), effective([3.0, 0.0, 0.0, 0.0])
    (4.0, 2.0, 2.0)
    """
    totals_of_episodes = _per_episode(references)
    relative = np.ones(len(totals_of_episodes))
    if totals_of_episodes.any():
        relative = totals_of_episodes / totals_of_episodes.max()
    n_effective = float(relative.sum() ** 2 / (relative @ relative))
    return max(n_effective, _FEWEST)


def leans_low(
    values: Float[Array, "episode round k"],
    n_features: int,
    mask: Bool[Array, "episode round k"] | None = None,
) -> bool:
    """Return whether a score made by fits on a part of the episodes is likely too low: too many
    features for them.

    This is so where some output is constant within episodes, or nearly, and has fewer than 2
    effective episodes for each feature: an interval's truth is then above it more often than 2.5 %
    (not below), so that a small score does not show that no value can be decoded. Targets that
    change within an episode did not show this with 64 features.

    Args:
        values: the target.
        n_features: that the fit reads.
        mask: entries that count; all when None.

    >>> per_episode = np.random.default_rng(0).normal(size=(16, 1, 1)) * np.ones((1, 10, 1))
    >>> leans_low(per_episode, 16), leans_low(per_episode, 2), leans_low(np.cumsum(per_episode, axis=1), 16)
    (True, False, False)
    """
    used = np.ones(values.shape, dtype=bool) if mask is None else mask
    n_steps = used.sum(1)
    centred = _centred(values, used, n_steps)
    total_squares = np.einsum("etk,etk->k", centred, centred)
    squares_between = (centred.sum(1) ** 2 / np.maximum(n_steps, 1)).sum(0)
    varies = total_squares > 0
    is_constant_within = varies & (squares_between >= _CONSTANT * total_squares)
    needed = n_features * _PER_FEATURE
    references = totals(values, mask)
    return any(effective(references[:, k]) < needed for k in np.flatnonzero(is_constant_within))


def _centred(
    values: Float[Array, "episode round k"],
    used: Bool[Array, "episode round k"],
    n_steps: Shaped[Array, "group k"],
) -> Float[Array, "episode round k"]:
    """Return the distance of every used entry from the mean of all; 0 elsewhere.

    Args:
        values: the target.
        used: entries that count.
        n_steps: number of used entries, by group.
    """
    y = np.where(used, values, 0.0).astype(np.float64)
    mean = y.sum((0, 1)) / np.maximum(n_steps.sum(0), 1)
    return np.asarray((y - mean) * used)


def totals(
    values: Float[Array, "episode round k"],
    mask: Bool[Array, "episode round k"] | None = None,
    groups: Int[Array, " episode"] | None = None,
) -> Float[Array, "group k"]:
    """Return what a constant would leave on new episodes: per episode, squares about the mean,
    without its optimism.

    Squares about the mean of the same episodes are too small, by a share 1/n where whole episodes
    differ. Multiplying each value's distance from the mean of all by its distance from the mean of
    the *other* episodes has no such bias (exactly for episodes of equal length): an episode gets
    ``sum (y - m)^2 + (sum (y - m))^2 / steps of the rest``. The episodes of a group, one after
    another, are one long episode.

    Args:
        values: the target.
        mask: entries that count; all when None.
        groups: the number of the group of each episode; every episode is one when None.

    >>> totals(np.array([[[1.0], [1.0]], [[-1.0], [-1.0]]])).ravel().tolist()  # variance 2, of two means 1 and -1
    [4.0, 4.0]
    """
    used = np.ones(values.shape, dtype=bool) if mask is None else mask
    groups = np.arange(len(values)) if groups is None else groups
    n_steps = in_groups(used.sum(1), groups)
    centred = _centred(values, used, n_steps)
    n_steps_of_others = n_steps.sum(0) - n_steps
    divisor = np.where(n_steps_of_others > 0, n_steps_of_others, 1)
    bias = in_groups(centred.sum(1), groups) ** 2 / divisor
    squares = in_groups(np.einsum("etk,etk->ek", centred, centred), groups)
    return np.asarray(squares + bias)


def in_groups(
    sums: Shaped[Array, "episode k"], groups: Int[Array, " episode"]
) -> Float[Array, "group k"]:
    """Add sums per episode to sums per group."""
    n_groups = int(groups.max()) + 1
    result = np.zeros((n_groups, *sums.shape[1:]))
    np.add.at(result, groups, sums)
    return result


@checked
def interval(
    losses: ArrayLike,
    references: ArrayLike,
    n_folds: int,
    score: Score = "skill",
    *,
    smallest: float = 0.0,
    width: float | None = None,
) -> Interval:
    """Return a score of refitted fits with its interval.

    Where all references are 0 the target does not vary and all three are NaN. Where all losses are
    0 the fit is exact, and so are the bounds of a skill (1). The lower bound of an accuracy is then
    that of half a miss in one episode: a rare miss could not have been seen in so few episodes.

    Args:
        losses: out-of-fold, summed over the rounds of each episode: ``[episode]`` or ``[episode,
            output]``.
        references: what they are divided by, in the same shape: :func:`totals` (R2), scored steps
            (accuracy, where the losses are misses), the losses of a baseline.
        n_folds: K of the cross-validation; n for leaving one episode out.
        score: "skill" (R2: one minus the ratio of the sums), "accuracy" (the same, within 0 and 1)
            or "ratio".
        smallest: the loss to assume in one episode for a bound where all are 0; half a miss for an
            accuracy.
        width: half width over the standard error of fixed errors; that of :func:`_inflation` when
            None.

    >>> print(interval([0] * 8, [16] * 8, 5, "accuracy"))
    1 [0.775, 1]
    """
    part = _Part.of(losses, references, n_folds, score, smallest, width)
    ratio = Interval(part.ratio, part.low, part.high)
    return ratio if score == "ratio" else ratio.complement


def difference(
    losses: ArrayLike,
    control_losses: ArrayLike,
    references: ArrayLike,
    n_folds: int,
    score: Score = "skill",
    *,
    control_references: ArrayLike | None = None,
) -> Interval:
    """Return how much higher a score is than a control's; paired, as both are fitted in the same
    folds.

    Args:
        losses: out-of-fold, summed over the rounds of each episode.
        control_losses: the control's, of the same episodes.
        references: what losses are divided by (:func:`interval`).
        n_folds: K of the cross-validation.
        score: as in :func:`interval`.
        control_references: those of the control, where its target differs (shuffled, say);
            ``references`` when None.
    """
    if control_references is None:
        control_references = references
    fit = _Part.of(losses, references, n_folds, score)
    control = _Part.of(control_losses, control_references, n_folds, score)
    a, b = fit.contributions, control.contributions
    require(len(a) == len(b), "a fit and its control share their episodes")
    spread = sqrt(float(a @ a) * float(b @ b))
    r = min(max(float(a @ b) / spread, -1.0), 1.0) if spread > 0 else 0.0

    def distance(x: float, y: float) -> float:
        squared = x * x + y * y - 2 * r * x * y
        return sqrt(max(squared, 0.0))

    gain = control.ratio - fit.ratio
    below = distance(fit.high - fit.ratio, control.ratio - control.low)
    above = distance(fit.ratio - fit.low, control.high - control.ratio)
    return Interval(gain, gain - below, gain + above)


def detectable(losses: ArrayLike, references: ArrayLike, n_folds: int) -> float:
    """Return the smallest skill with an interval that would have excluded 0 in this sample: ``1 -
    exp(-h)``.

    It assumes the relative spread of the observed losses; NaN where the target does not vary. A
    true skill of this size is found in about half of such samples.

    Args:
        losses, references, n_folds: as in :func:`interval`.

    >>> round(detectable([1.0, 2.0, 3.0, 2.0], [8.0] * 4, n_folds=2), 3)
    0.777
    """
    return -expm1(-_Part.of(losses, references, n_folds).half)


@dataclass(frozen=True, eq=False)
class _Part:
    """A ratio of sums with its interval on the log scale, and each episode's contribution to the log of the ratio."""

    ratio: float
    low: float
    high: float
    half: float
    contributions: Float[Array, " episode"]

    @classmethod
    def of(
        cls,
        losses: ArrayLike,
        references: ArrayLike,
        n_folds: int,
        score: Score = "skill",
        smallest: float = 0.0,
        width: float | None = None,
    ) -> _Part:
        """Make the part of losses and references.

        Args:
            losses, references, n_folds, score: as in :func:`interval`.
            smallest: the loss to assume in one episode for a bound where all are 0.
            width: half width over the standard error; that of :func:`_inflation` when None.
        """
        lost = _per_episode(losses)
        possible = _per_episode(references)
        n = len(lost)
        is_accuracy = score == "accuracy"
        require(n == len(possible), f"losses are of {n} episodes and references of {len(possible)}")
        if is_accuracy:
            require(bool((lost <= possible).all()), "an episode has more misses than steps")
        factor = _inflation(n, n_folds, effective(possible)) if width is None else width
        loss = float(lost.sum())
        reference = float(possible.sum())
        if reference == 0:
            return cls(nan, nan, nan, nan, np.zeros(n))
        if is_accuracy:
            smallest = 0.5
        highest = 1.0 if is_accuracy else inf
        if loss == 0:  # one episode with all of the loss has the standard error 1
            high = smallest / reference * exp(min(factor, _WIDEST))
            half = factor if smallest else 0.0
            return cls(0.0, 0.0, min(high, highest), half, np.zeros(n))
        contributions = n * (lost / loss - possible / reference)
        half = factor * float(contributions.std(ddof=1)) / sqrt(n)
        ratio = loss / reference
        high = ratio * exp(min(half, _WIDEST))
        return cls(
            ratio=ratio,
            low=ratio * exp(-half),
            high=min(high, highest),
            half=half,
            contributions=contributions,
        )


def _per_episode(values: ArrayLike) -> Float[Array, " episode"]:
    """Return sums per episode, added over the outputs."""
    array = np.asarray(values, dtype=np.float64)
    require(
        array.ndim >= 1,
        "sums are given per episode, [episode] or [episode, output]; got one number",
    )
    require(array.size > 0, f"sums are given per episode, at least one; got shape {array.shape}")
    are_finite = np.isfinite(array).all()
    is_valid = bool((array >= 0).all() and are_finite)
    require(is_valid, "sums per episode must be finite and not negative")
    return array.reshape(len(array), -1).sum(1)
