"""Intervals of refitted quantities: scores of cross-validated fits, with the luck of the training episodes counted.

A score is 1 minus a ratio of sums over episodes, ``sum L / sum R`` (R2: squared errors over squares about the mean;
accuracy: misses over steps), of the out-of-fold errors of a K-fold cross-validation. :func:`interval` is about the
score, on new episodes, of this very fit, refitted on all episodes; :func:`difference` joins two scores of the same
episodes. Episodes are independent and alike, and folds are made of whole episodes. Where :func:`leans_low` says so, a
small score is no sign that there is nothing to decode. Plain means of nothing fitted: :mod:`interp.stats.intervals`.

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
    """Half width of an interval over the standard error of fixed errors; a plain mean of many episodes has 1.96.

    Args:
        n_effective: what :func:`effective` says of the episodes; all of them when None.

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
    return float(stdtrit(m - 1, 0.975)) * sqrt(1 + n_folds / (n_folds - 1)) * m / (m - 1)


def effective(references: ArrayLike) -> float:
    """Over how many episodes a total is spread: ``(sum R)^2 / sum R^2``, 2 at least; n where all have the same.

    >>> effective([3.0, 3.0, 3.0, 3.0]), effective([3.0, 3.0, 0.0, 0.0]), effective([3.0, 0.0, 0.0, 0.0])
    (4.0, 2.0, 2.0)
    """
    given = _per_episode(references)
    share = given / given.max() if given.any() else np.ones(len(given))
    return max(float(share.sum() ** 2 / (share @ share)), _FEWEST)


def leans_low(
    values: Float[Array, "episode round k"],
    n_features: int,
    mask: Bool[Array, "episode round k"] | None = None,
) -> bool:
    """Whether a fit's score on fewer episodes says too little of its score on all: too many features for the episodes.

    So it is where some output is constant within episodes, or nearly, and has fewer than 2 effective episodes for
    each feature: an interval's truth is then above it more often than 2.5 % (not below), so that a small score is no
    sign that there is nothing to decode. Targets that change within an episode did not show this with 64 features.

    >>> per_episode = np.random.default_rng(0).normal(size=(16, 1, 1)) * np.ones((1, 10, 1))
    >>> leans_low(per_episode, 16), leans_low(per_episode, 2), leans_low(np.cumsum(per_episode, axis=1), 16)
    (True, False, False)
    """
    used = np.ones(values.shape, dtype=bool) if mask is None else mask
    y, steps = np.where(used, values, 0.0).astype(np.float64), used.sum(1)
    centred = (y - y.sum((0, 1)) / np.maximum(steps.sum(0), 1)) * used
    whole = np.einsum("etk,etk->k", centred, centred)
    between = (centred.sum(1) ** 2 / np.maximum(steps, 1)).sum(0)
    given = totals(values, mask)
    return any(
        whole[k] > 0
        and between[k] >= _CONSTANT * whole[k]
        and n_features * _PER_FEATURE > effective(given[:, k])
        for k in range(values.shape[2])
    )


def totals(
    values: Float[Array, "episode round k"],
    mask: Bool[Array, "episode round k"] | None = None,
    groups: Int[Array, " episode"] | None = None,
) -> Float[Array, "group k"]:
    """What a constant would leave on new episodes: per episode, squares about the mean, without its optimism.

    Squares about the mean of the same episodes are too small, by a share 1/n where whole episodes differ. Multiplying
    each value's distance from the mean of all by its distance from the mean of the *other* episodes has no such bias
    (exactly for episodes of equal length): an episode gets ``sum (y - m)^2 + (sum (y - m))^2 / steps of the others``.
    The episodes of a group, one after another, are one long episode; every episode is a group when None.

    >>> totals(np.array([[[1.0], [1.0]], [[-1.0], [-1.0]]])).ravel().tolist()  # variance 2, of two means 1 and -1
    [4.0, 4.0]
    """
    used = np.ones(values.shape, dtype=bool) if mask is None else mask
    y = np.where(used, values, 0.0).astype(np.float64)
    groups = np.arange(len(values)) if groups is None else groups
    steps = in_groups(used.sum(1), groups)
    centred = (y - y.sum((0, 1)) / np.maximum(steps.sum(0), 1)) * used
    others = steps.sum(0) - steps
    bias = in_groups(centred.sum(1), groups) ** 2 / np.where(others > 0, others, 1)
    return np.asarray(in_groups(np.einsum("etk,etk->ek", centred, centred), groups) + bias)


def in_groups(
    sums: Shaped[Array, "episode k"], groups: Int[Array, " episode"]
) -> Float[Array, "group k"]:
    """Sums per episode as sums per group."""
    result = np.zeros((int(groups.max()) + 1, *sums.shape[1:]))
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
    """A score of refitted fits with its interval.

    Where all references are 0 nothing varies and all three are NaN. Where all losses are 0 the fit is exact, and so are
    the bounds of a skill (1). The lower bound of an accuracy is then that of half a miss in one episode: a rare miss
    could not have been seen in so few episodes.

    Args:
        losses: out-of-fold, summed over the rounds of each episode: ``[episode]`` or ``[episode, output]``.
        references: what they are divided by, in the same shape: :func:`totals` (R2), scored steps (accuracy, where the
            losses are misses), the losses of a baseline.
        n_folds: K of the cross-validation; n for leaving one episode out.
        score: "skill" (R2: one minus the ratio of the sums), "accuracy" (the same, within 0 and 1) or "ratio".
        smallest: the loss to assume in one episode for a bound where all are 0; half a miss for an accuracy.
        width: half width over the standard error of fixed errors; that of :func:`_inflation` when None.

    >>> print(interval([0] * 8, [16] * 8, 5, "accuracy"))
    1 [0.775, 1]
    """
    part = _Part.of(losses, references, n_folds, score, smallest, width)
    found = Interval(part.ratio, part.low, part.high)
    return found if score == "ratio" else found.complement


def difference(
    losses: ArrayLike,
    control_losses: ArrayLike,
    references: ArrayLike,
    n_folds: int,
    score: Score = "skill",
    *,
    control_references: ArrayLike | None = None,
) -> Interval:
    """How much higher a score is than a control's, fitted in the same folds of the same episodes; it is paired.

    Args:
        control_references: the control's own, where its target is another one (shuffled, say); else ``references``.
    """
    own = _Part.of(losses, references, n_folds, score)
    given = references if control_references is None else control_references
    control = _Part.of(control_losses, given, n_folds, score)
    a, b = own.contributions, control.contributions
    require(len(a) == len(b), "a fit and its control share their episodes")
    spread = sqrt(float(a @ a) * float(b @ b))
    r = min(max(float(a @ b) / spread, -1.0), 1.0) if spread > 0 else 0.0

    def distance(one: float, other: float) -> float:
        return sqrt(max(one * one + other * other - 2 * r * one * other, 0.0))

    gain = control.ratio - own.ratio
    below = distance(own.high - own.ratio, control.ratio - control.low)
    return Interval(
        gain, gain - below, gain + distance(own.ratio - own.low, control.high - control.ratio)
    )


def detectable(losses: ArrayLike, references: ArrayLike, n_folds: int) -> float:
    """The smallest skill whose interval would have excluded 0 in this sample: ``1 - exp(-h)``.

    It keeps the relative spread that the losses showed; NaN where nothing varies. A true skill of this size is found in
    about half of such samples, no more.

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
        lost, given = (_per_episode(values) for values in (losses, references))
        n, is_share = len(lost), score == "accuracy"
        require(n == len(given), f"losses are of {n} episodes and references of {len(given)}")
        require(
            not is_share or bool((lost <= given).all()), "an episode has more misses than steps"
        )
        factor = _inflation(n, n_folds, effective(given)) if width is None else width
        loss, reference = float(lost.sum()), float(given.sum())
        if reference == 0:
            return cls(nan, nan, nan, nan, np.zeros(n))
        smallest, most = (0.5, 1.0) if is_share else (smallest, inf)
        if loss == 0:  # one episode with all of the loss has the standard error 1
            high = smallest / reference * exp(min(factor, _WIDEST))
            return cls(0.0, 0.0, min(high, most), factor if smallest else 0.0, np.zeros(n))
        contributions = n * (lost / loss - given / reference)
        half = factor * float(contributions.std(ddof=1)) / sqrt(n)
        value = loss / reference
        return cls(
            value,
            value * exp(-half),
            min(value * exp(min(half, _WIDEST)), most),
            half,
            contributions,
        )


def _per_episode(values: ArrayLike) -> Float[Array, " episode"]:
    array = np.asarray(values, dtype=np.float64)
    require(
        array.ndim >= 1,
        "sums are given per episode, [episode] or [episode, output]; got one number",
    )
    require(array.size > 0, f"sums are given per episode, at least one; got shape {array.shape}")
    require(
        bool((array >= 0).all() and np.isfinite(array).all()),
        "sums per episode must be finite and not negative",
    )
    return array.reshape(len(array), -1).sum(1)
