"""Confidence intervals for scores of cross-validated fits. They are wide enough to include that the
fit varies with its training data.

A score is 1 minus a ratio of sums over episodes, ``sum L / sum R``. L is an episode's loss by the
fit to the other folds of a cross-validation (its *out-of-fold* loss), and R is its *reference*
loss, that of a constant prediction. For R2, L is the squared error and R the sum of squares about
the mean of all episodes. For accuracy, L is the number of misses and R the number of steps.

:func:`interval` is for the score, on new episodes, of the fit to all episodes. :func:`difference`
compares two scores on the same episodes. Episodes are independent and identically distributed, and
each belongs to one fold. If :func:`is_biased_low` returns True, a small score does not show that no
value can be decoded. For means without a fit use :mod:`interp.stats.intervals`.

How the interval is made, and its measured coverage: docs/method/intervals.md.

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
"""Results from fewer episodes than this should carry a warning.

With 8 episodes, coverage fell to 88 % where rounds depend on each other (before effective episodes
were counted, which widens intervals). Where no value can be decoded, intervals of 6 to 12 episodes
covered 91 to 98 % of 250 data sets. The true score, just below 0, was below the interval in up to 7
% of them, which leads to no wrong verdict.
"""

PLATEAU = 256
"""The least number of episodes for an untrained control: a fit to fewer reads less than can be
decoded.
"""

_MIN_EFFECTIVE = 2.0
"""The least effective number of episodes: Student's t then has one degree of freedom, and bounds
stay finite.
"""

_CONSTANT_SHARE = 0.9
"""A target hardly varies within episodes if episode means make up this share of its sum of
squares.
"""

_EPISODES_PER_FEATURE = 2.0
"""Effective episodes per feature below which :func:`is_biased_low` is True for a target that is
constant within episodes.

With 16 features, the coverage of R2 was 90 and 92 % at 1.1 episodes per feature, and 93 and 94 % at
1.4 (200 data sets).
"""

_MAX_LOG_WIDTH = 100.0  # half widths of a log beyond this are cut, so that no bound overflows


def inflation(n_episodes: int, n_folds: int, n_effective: float | None = None) -> float:
    """Return the half width of a 95 % interval, divided by the standard error for a fixed fit.

    A fixed fit is one that does not vary with its training data. The result is more than 1.96, the
    value for the mean of many episodes, because a cross-validated fit does vary.

    Args:
        n_episodes: number of episodes.
        n_folds: number of folds of the cross-validation.
        n_effective: the effective number of episodes, which is smaller if few episodes make up most
            of the reference losses (:func:`effective_sample_size`); ``n_episodes`` when None.

    >>> round(inflation(8, 5), 3), round(inflation(64, 5), 3), round(inflation(64, 5, n_effective=8), 3)
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
    # Student's t, times the two factors that docs/method/intervals.md derives: one for the training
    # data, which folds share, and one for the reference mean, which is estimated.
    student_quantile = float(stdtrit(m - 1, 0.975))
    refitting = sqrt(1 + n_folds / (n_folds - 1))
    return student_quantile * refitting * m / (m - 1)


def effective_sample_size(references: ArrayLike) -> float:
    """Return the effective number of episodes, at least 2: how many episodes of equal weight would
    be as informative as these.

    It is ``(sum R)^2 / sum R^2``. R is an episode's reference loss: the loss by which a score
    divides, such as the sum of squared deviations from the mean. The result is the number of
    episodes if all R are equal. It is smaller if few episodes make up most of the sum.

    Args:
        references: reference loss of each episode, ``[episode]``; or ``[episode, output]``, which
            is summed over outputs.

    >>> [effective_sample_size(x) for x in ([3.0, 3.0, 3.0, 3.0], [3.0, 3.0, 0.0, 0.0], [3.0, 0.0, 0.0, 0.0])]
    [4.0, 2.0, 2.0]
    """
    totals_of_episodes = _sum_per_episode(references)
    relative = np.ones(len(totals_of_episodes))
    if totals_of_episodes.any():
        # The result does not depend on the scale. With a maximum of 1, no square overflows.
        relative = totals_of_episodes / totals_of_episodes.max()
    n_effective = float(relative.sum() ** 2 / (relative @ relative))
    return max(n_effective, _MIN_EFFECTIVE)


def is_biased_low(
    values: Float[Array, "episode round k"],
    n_features: int,
    mask: Bool[Array, "episode round k"] | None = None,
) -> bool:
    """Return True if a cross-validated score of this target is likely too low, because there are
    too many features for too few episodes.

    The result is True if both hold: some output is nearly constant within each episode, and there
    are fewer than 2 effective episodes (:func:`effective_sample_size`) per feature. In simulations of this
    case, intervals lay below the true score too often. So a low score does not show that the target
    cannot be decoded. Scores of targets that change within an episode were not too low, even with
    64 features.

    Args:
        values: the target, ``[episode, round, output]``.
        n_features: number of features that the fit reads.
        mask: True for the entries that count, ``[episode, round, output]``; None counts all.

    >>> per_episode = np.random.default_rng(0).normal(size=(16, 1, 1)) * np.ones((1, 10, 1))
    >>> drifting = np.cumsum(per_episode, axis=1)
    >>> is_biased_low(per_episode, 16), is_biased_low(per_episode, 2), is_biased_low(drifting, 16)
    (True, False, False)
    """
    used = np.ones(values.shape, dtype=bool) if mask is None else mask
    n_steps = used.sum(1)  # [episode, output]
    centred = _subtract_mean(values, used, n_steps)
    total_squares = np.einsum("etk,etk->k", centred, centred)
    # Between episodes: n (mean of the episode)^2 = (sum of the episode)^2 / n.
    squares_between = (centred.sum(1) ** 2 / np.maximum(n_steps, 1)).sum(0)  # [output]
    varies = total_squares > 0
    is_constant_within = varies & (squares_between >= _CONSTANT_SHARE * total_squares)
    needed = n_features * _EPISODES_PER_FEATURE
    # Squared errors of the best constant prediction, [episode, output]. Few episodes with most of
    # the sum of squares are as informative as few episodes.
    squares_of_episodes = sum_squared_deviations(values, mask)
    return any(
        effective_sample_size(squares_of_episodes[:, k]) < needed
        for k in np.flatnonzero(is_constant_within)
    )


def _subtract_mean(
    values: Float[Array, "episode round k"],
    used: Bool[Array, "episode round k"],
    n_steps: Shaped[Array, "group k"],
) -> Float[Array, "episode round k"]:
    """Return each used entry minus the mean of its output over all used entries; 0 for unused
    entries.

    Args:
        values: the target, ``[episode, round, output]``.
        used: True for the entries that count.
        n_steps: number of used entries, ``[group, output]``, where groups partition the episodes.
    """
    y = np.where(used, values, 0.0).astype(np.float64)
    mean = y.sum((0, 1)) / np.maximum(n_steps.sum(0), 1)
    centred: Array = (y - mean) * used
    return centred


def sum_squared_deviations(
    values: Float[Array, "episode round k"],
    mask: Bool[Array, "episode round k"] | None = None,
    groups: Int[Array, " episode"] | None = None,
) -> Float[Array, "group k"]:
    """Estimate the squared error of the best constant prediction (the true mean) in each episode,
    summed over rounds. The sum of the result over episodes is the denominator of R2.

    The mean of the data is nearer to the data than the true mean is. Squared distances from the
    mean of the data are therefore too small, by up to a share 1/n for n episodes. This function
    corrects for that: each value's distance from the overall mean is multiplied by its distance
    from the mean of the *other* episodes. For values y with overall mean m, an episode gets
    ``sum (y - m)^2 + (sum (y - m))^2 / N``, where N is the number of values in the other episodes.
    The result is unbiased for episodes of equal length. All episodes of a group count as one long
    episode.

    Args:
        values: the target, ``[episode, round, output]``.
        mask: True for the entries that count, ``[episode, round, output]``; None counts all.
        groups: number of each episode's group, such as its participant, counted from 0; when None,
            each episode is one group.

    Returns:
        The squared errors, ``[group, output]``.

    >>> two_episodes = np.array([[[1.0], [1.0]], [[-1.0], [-1.0]]])  # their means are 1 and -1
    >>> sum_squared_deviations(two_episodes).ravel().tolist()  # of 2 rounds each, with variance 2
    [4.0, 4.0]
    """
    used = np.ones(values.shape, dtype=bool) if mask is None else mask
    groups = np.arange(len(values)) if groups is None else groups
    n_steps = sum_by_group(used.sum(1), groups)
    centred = _subtract_mean(values, used, n_steps)
    n_steps_of_others = n_steps.sum(0) - n_steps
    # If there is no other episode, nothing is added: the sum that is divided by 1 is then 0.
    divisor = np.where(n_steps_of_others > 0, n_steps_of_others, 1)
    correction = sum_by_group(centred.sum(1), groups) ** 2 / divisor
    squares = sum_by_group(np.einsum("etk,etk->ek", centred, centred), groups)
    references: Array = squares + correction
    return references


def sum_by_group(
    sums: Shaped[Array, "episode k"], groups: Int[Array, " episode"]
) -> Float[Array, "group k"]:
    """Add up ``sums`` over the episodes of each group, such as all episodes of one participant.

    Args:
        sums: one row per episode, ``[episode, k]``.
        groups: the group number of each episode, counted from 0.

    Returns:
        The sums, one row per group, ``[group, k]``.
    """
    n_groups = int(groups.max()) + 1
    result = np.zeros((n_groups, *sums.shape[1:]))
    np.add.at(result, groups, sums)  # adds also where a group repeats, unlike result[groups] +=
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
    """Return the score of a cross-validated fit with its 95 % confidence interval.

    The score is computed from the ratio ``q = sum losses / sum references``, with sums over
    episodes and outputs. If all references are 0 (the target does not vary), the score and both
    bounds are NaN.

    Args:
        losses: loss of the fit on each episode, summed over the rounds of the episode:
            ``[episode]`` or ``[episode, output]``. An episode is predicted by the fit to the other
            folds of the cross-validation (out-of-fold).
        references: what losses are divided by, in the same shape. For R2, pass :func:`sum_squared_deviations`. For
            accuracy, losses are numbers of misses, and references numbers of steps. They can also
            be the losses of a baseline.
        n_folds: number of folds of the cross-validation; the number of episodes if each fold leaves
            out one episode.
        score: "skill" (``1 - q``, as R2), "accuracy" (``1 - q``, with bounds within 0 and 1) or
            "ratio" (``q``).
        smallest: used only if all losses are 0. A rare error could then have gone unseen, so the
            upper bound of q is computed as if one episode had this loss. If ``smallest`` is 0, both
            bounds of q are 0. For accuracies, the loss is always half a miss (0.5), whatever
            ``smallest`` is.
        width: half width of the interval of log q, divided by the standard error of log q for a
            fixed fit. When None, :func:`inflation` computes it, from ``n_folds`` and the effective
            number of episodes. It is then more than 1.96, because the fit varies with its training
            data.

    >>> print(interval([0] * 8, [16] * 8, 5, "accuracy"))
    1 [0.775, 1]
    """
    log_interval = _LogInterval.of(losses, references, n_folds, score, smallest, width)
    # Its `low` and `high` are bounds of the ratio q itself, computed on the log scale.
    ratio = Interval(log_interval.ratio, log_interval.low, log_interval.high)
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
    """Return by how much a fit is better than a control, with the 95 % interval of this paired
    difference. A positive number means that the fit is better.

    The difference is the control's ratio ``q = sum losses / sum references`` minus the fit's. For
    "skill" and "accuracy", which are ``1 - q``, this is the fit's score minus the control's. Fit
    and control must be cross-validated in the same folds of the same episodes.

    Args:
        losses: loss of the fit on each episode, summed over the rounds of the episode:
            ``[episode]`` or ``[episode, output]``. An episode is predicted by the fit to the other
            folds of the cross-validation (out-of-fold).
        control_losses: out-of-fold losses of the control, in the same form.
        references: what losses are divided by, in the same form: :func:`sum_squared_deviations` for R2, numbers of
            steps for accuracy (its losses are numbers of misses), or the losses of a baseline.
        n_folds: number of folds of the cross-validation.
        score: "skill" (``1 - q``, as R2), "accuracy" (also ``1 - q``, if losses are numbers of
            misses, so that q is at most 1) or "ratio" (``q``).
        control_references: what the control's losses are divided by, if the control has another
            target, such as a shuffled one; ``references`` when None.
    """
    if control_references is None:
        control_references = references
    fit = _LogInterval.of(losses, references, n_folds, score)
    control = _LogInterval.of(control_losses, control_references, n_folds, score)
    # What each episode contributes to the sampling errors of the two ratios, [episode], with the
    # sum 0. Their correlation is that of the two errors.
    of_fit, of_control = fit.contributions, control.contributions
    require(len(of_fit) == len(of_control), "a fit and its control share their episodes")
    spread = sqrt(float(of_fit @ of_fit) * float(of_control @ of_control))
    correlation = min(max(float(of_fit @ of_control) / spread, -1.0), 1.0) if spread > 0 else 0.0

    def combine(x: float, y: float) -> float:
        """Return how far a bound of the gain lies from the gain. ``x`` and ``y`` say how far a
        bound of each ratio lies from that ratio.

        They are combined like the standard errors of two correlated numbers, for the standard error
        of their difference (MOVER, Zou and Donner 2008).
        """
        squared = x * x + y * y - 2 * correlation * x * y
        return sqrt(max(squared, 0.0))

    fit_ratio, control_ratio = fit.ratio, control.ratio
    gain = control_ratio - fit_ratio
    # The gain is smallest if the fit's ratio is high and the control's is low.
    below = combine(fit.high - fit_ratio, control_ratio - control.low)
    above = combine(fit_ratio - fit.low, control.high - control_ratio)
    return Interval(gain, gain - below, gain + above)


def smallest_detectable_score(losses: ArrayLike, references: ArrayLike, n_folds: int) -> float:
    """Return the smallest score that data like these could tell from 0: the lowest score whose 95 %
    interval is above 0. The score is ``1 - sum losses / sum references``, such as R2.

    It is ``1 - exp(-h)``, where h is the half width of the interval of the log of this ratio,
    computed from the observed losses. If the true score has this size, about half of such data sets
    have an interval above 0. The result is NaN if the target does not vary.

    Args:
        losses: loss of the fit on each episode, summed over the rounds of the episode:
            ``[episode]`` or ``[episode, output]``. An episode is predicted by the fit to the other
            folds of the cross-validation (out-of-fold).
        references: what losses are divided by, in the same shape: :func:`sum_squared_deviations` for R2.
        n_folds: number of folds of the cross-validation.

    >>> round(smallest_detectable_score([1.0, 2.0, 3.0, 2.0], [8.0] * 4, n_folds=2), 3)
    0.777
    """
    return -expm1(-_LogInterval.of(losses, references, n_folds).half)


@dataclass(frozen=True, eq=False)
class _LogInterval:
    """The summed losses of a fit, divided by the summed reference losses, such as those of a
    constant prediction. The 95 % interval of this ratio is symmetric on the log scale.

    Attributes:
        ratio: the ratio.
        low, high: bounds of its interval.
        half: half width of the interval of the log of the ratio.
        contributions: what each episode contributes to the sampling error of the log of the ratio,
            ``[episode]``.
    """

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
    ) -> _LogInterval:
        """Compute the ratio and its interval from losses and references.

        Args:
            losses: out-of-fold losses, summed over the rounds of each episode: ``[episode]`` or
                ``[episode, output]``.
            references: the losses to divide by, in the same shape.
            n_folds: number of folds of the cross-validation.
            score: "accuracy" if losses are misses and references are steps, so that the ratio is at
                most 1; otherwise "skill" or "ratio".
            smallest: loss that is assumed in one episode, for a bound, if all losses are 0.
            width: half width of the interval of the log of the ratio, divided by the standard error
                for a fixed fit; when None, :func:`inflation` computes it.
        """
        episode_losses = _sum_per_episode(losses)
        episode_references = _sum_per_episode(references)
        n_episodes = len(episode_losses)
        is_accuracy = score == "accuracy"
        require(
            n_episodes == len(episode_references),
            f"losses are of {n_episodes} episodes and references of {len(episode_references)}",
        )
        if is_accuracy:
            require(
                (episode_losses <= episode_references).all(),
                "an episode has more misses than steps",
            )
        factor = width
        if factor is None:
            factor = inflation(n_episodes, n_folds, effective_sample_size(episode_references))
        loss = float(episode_losses.sum())
        reference = float(episode_references.sum())
        nothing = np.zeros(n_episodes)
        if reference == 0:
            return cls(ratio=nan, low=nan, high=nan, half=nan, contributions=nothing)
        highest = inf
        if is_accuracy:
            smallest, highest = 0.5, 1.0  # half a miss, all steps missed
        if loss == 0:  # assume that one episode has all of the loss: a standard error of 1
            high = smallest / reference * exp(min(factor, _MAX_LOG_WIDTH))
            half = factor if smallest else 0.0
            return cls(
                ratio=0.0, low=0.0, high=min(high, highest), half=half, contributions=nothing
            )
        # Delta method: log(sum L) - log(sum R) is, to first order, a constant plus the mean over
        # episodes of n (L / sum L - R / sum R).
        contributions = n_episodes * (episode_losses / loss - episode_references / reference)
        half = factor * float(contributions.std(ddof=1)) / sqrt(n_episodes)
        ratio = loss / reference
        high = ratio * exp(min(half, _MAX_LOG_WIDTH))
        return cls(
            ratio=ratio,
            low=ratio * exp(-half),
            high=min(high, highest),
            half=half,
            contributions=contributions,
        )


def _sum_per_episode(values: ArrayLike) -> Float[Array, " episode"]:
    """Sum ``values``, ``[episode]`` or ``[episode, output]``, over outputs; return one number per
    episode. Refuse negative and infinite values.
    """
    array = np.asarray(values, dtype=np.float64)
    require(
        array.ndim >= 1,
        "sums are given per episode, [episode] or [episode, output]; got one number",
    )
    require(array.size > 0, f"sums are given per episode, at least one; got shape {array.shape}")
    is_valid = (array >= 0) & (array < inf)
    require(is_valid.all(), "sums per episode must be finite and not negative")
    return array.reshape(len(array), -1).sum(1)
