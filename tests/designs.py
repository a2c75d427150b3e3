"""Linear-Gaussian designs with known truth, and how often intervals of refitted scores cover it in them.

A data set is n episodes of T rounds: features x, their target ``y = x w + noise`` and a label, ``y > 0``. Every feature
has variance 1 and, but in the designs that say otherwise, the best predictor has the R2 :data:`_TRUE_R2`. Designs
(:data:`DESIGNS`) differ in what episodes share, in how many features there are and in what the target is:

* ``iid``: nothing is shared; rounds are independent.
* ``episode_effects``: half the variance of every feature, and of the noise, is one draw per episode.
* ``random_walk``: features and noise are sums over the rounds so far, as counts and log-weights are.
* ``autoregressive``: features and noise keep .95 of what they were a round before.
* ``uneven_noise``: the noise of an episode has its own scale, log-normal with sigma 1/2.
* ``uneven_lengths``: episodes end after 2 to 16 rounds; what comes later is not scored.
* ``heavy_tails``: features and noise have Student's t distribution with 3 degrees of freedom.
* ``correlated``: 64 features, made of 4 with a fifth of noise.
* ``sparse``, ``sparse_walk``, ``sparse_effects``: the target is 1 in the 5 % of rounds in which y of ``iid``,
  ``random_walk`` or ``episode_effects`` is largest, and 0 in the others.
* ``constant``: 16 features and the target, all constant within an episode.
* ``constant_target``: 16 features of which half the variance is one draw per episode, and a target made of that.

Each data set is fitted by the given cross-validation, from all features (the probe), from either half of them (a
control that holds part, and its equal: the difference of the halves is about 0) and from features that have
nothing to do with the target. The truth of *this* data set's refits is their score on one large fresh sample. Intervals
are those of :mod:`interp.stats.refit` ("refit") and, for comparison, the bootstrap of fixed
out-of-fold errors ("resampled").

What this is NOT: a proof for other designs, other numbers of features or rounds, or other fits.

    >>> from tests.designs import DESIGNS
    >>> len(DESIGNS), [name for name, design in DESIGNS.items() if design.n_features != 6]
    (13, ['correlated', 'constant', 'constant_target'])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from interp.stats import refit
from interp.stats.intervals import Interval, resample_weights

_TRUE_R2, _N_ROUNDS, _N_FOLDS, _N_COMMON = 0.7, 16, 5, 4
SIZES = (8, 16, 32, 64)
_PAIRS = {
    "part": ("probe", "first_half"),
    "equal": ("first_half", "second_half"),
    "nothing": ("probe", "unrelated"),
}
"""Differences that are covered: the two fits by the name of the control."""

_Features = Float[Array, "episode round d"]
Fit = Callable[
    [_Features, Float[Array, "episode round k"], Int[Array, " episode"]], tuple[Any, Any, Any]
]
"""``fit(x, y, folds)`` gives out-of-fold predictions, and weights ``[d, k]`` and intercept ``[k]`` of the refit; each
output of y has its own penalty."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Episodes of a design: features, features that have nothing to do with the target, the target, and its label.

    ``mask`` says which rounds are scored.
    """

    x: _Features
    unrelated: _Features
    y: Float[Array, "episode round"]
    label: Bool[Array, "episode round"]
    mask: Bool[Array, "episode round"]

    @property
    def targets(self) -> Float[Array, "episode round 2"]:
        """The target, and its label as -1 or 1."""
        sign = np.where(self.label, 1.0, -1.0)
        return np.stack([self.y, sign], axis=-1)

    @property
    def inputs(self) -> dict[str, _Features]:
        """What each fit is made from."""
        half = self.x.shape[-1] // 2
        parts = {
            "probe": self.x,
            "first_half": self.x[..., :half],
            "second_half": self.x[..., half:],
        }
        return {**parts, "unrelated": self.unrelated}


@dataclass(frozen=True)
class Coverage:
    """One cell: how often an interval held the truth of its data set, and on which side it missed.

    ``leaning`` is the share of data sets of which :func:`interp.stats.refit.is_biased_low` says so:
    there no probe is told that
    something is not represented.
    """

    design: str
    n_episodes: int
    score: str
    method: str
    n_sets: int
    coverage: float
    truth_below: float
    truth_above: float
    leaning: float


_Noise = Float[Array, "episode round d"]
_Share = Callable[[_Noise, np.random.Generator], _Noise]


def _effects(z: _Noise, rng: np.random.Generator) -> _Noise:
    of_episodes = rng.normal(size=(len(z), 1, z.shape[-1]))
    return np.asarray((z + of_episodes) / np.sqrt(2))


def _walk(z: _Noise, rng: np.random.Generator) -> _Noise:
    mean_variance = (z.shape[1] + 1) / 2
    return np.asarray(np.cumsum(z, axis=1) / np.sqrt(mean_variance))


def _autoregressive(z: _Noise, rng: np.random.Generator) -> _Noise:
    correlation = 0.95
    scale_of_new = np.sqrt(1 - correlation**2)
    series = z.copy()
    for t in range(1, z.shape[1]):
        kept_part = correlation * series[:, t - 1]
        series[:, t] = kept_part + scale_of_new * z[:, t]
    return series


def _uneven(z: _Noise, rng: np.random.Generator) -> _Noise:
    sigma = 0.5
    log_scales = sigma * rng.normal(size=(len(z), 1, 1)) - sigma**2
    return np.asarray(z * np.exp(log_scales))


def _heavy(z: _Noise, rng: np.random.Generator) -> _Noise:
    draws = rng.standard_t(3, size=z.shape)
    return np.asarray(draws / np.sqrt(3))


def _with_common(z: _Noise, common: float, rng: np.random.Generator) -> _Noise:
    """A share ``common`` of the variance of each feature is one of four sources; four divides how many there are."""
    sources = rng.normal(size=(*z.shape[:2], _N_COMMON))
    of_features = np.tile(sources, z.shape[-1] // _N_COMMON)
    shared_part = np.sqrt(common) * of_features
    own_part = np.sqrt(1 - common) * z
    return np.asarray(shared_part + own_part)


def _constant(z: _Noise, rng: np.random.Generator) -> _Noise:
    return np.repeat(z[:, :1], z.shape[1], axis=1)


def _alone(z: _Noise, rng: np.random.Generator) -> _Noise:
    return z


@dataclass(frozen=True)
class Design:
    """What independent draws become: features by ``share``, the noise by ``noise`` (as features when None).

    Attributes:
        common: the share of each feature's variance that is one of four sources.
        sparse: the target is 1 in the rounds of the largest y, as many as this share of all, and else 0; a number
            when None.
        of_episode: the target is made of the features' means over many rounds, not of the round's own.
        shortest: rounds of the shortest episode, where lengths differ.
    """

    share: _Share = _alone
    noise: _Share | None = None
    n_features: int = 6
    common: float = 0.0
    sparse: float | None = None
    of_episode: bool = False
    shortest: int = _N_ROUNDS


DESIGNS: Mapping[str, Design] = {
    "iid": Design(),
    "episode_effects": Design(_effects),
    "random_walk": Design(_walk),
    "uneven_noise": Design(noise=_uneven),
    "autoregressive": Design(_autoregressive),
    "uneven_lengths": Design(shortest=2),
    "heavy_tails": Design(_heavy),
    "correlated": Design(n_features=64, common=0.8),
    "sparse": Design(sparse=0.05),
    "sparse_walk": Design(_walk, sparse=0.05),
    "sparse_effects": Design(_effects, sparse=0.05),
    "constant": Design(_constant, n_features=16),
    "constant_target": Design(_constant, n_features=16, of_episode=True),
}


def draw(design: str, n_episodes: int, rng: np.random.Generator) -> Sample:
    """Episodes of a design; drawn again where the target is the same in all rounds, which no probe takes."""
    design_record = DESIGNS[design]
    sample = _draw(design_record, n_episodes, rng)
    while n_episodes > 1 and _never_varies(sample.y):
        sample = _draw(design_record, n_episodes, rng)
    return sample


def _never_varies(y: Float[Array, "episode round"]) -> bool:
    first = y[0, 0]
    return bool((y == first).all())


def _draw(design: Design, n_episodes: int, rng: np.random.Generator) -> Sample:
    d, share = design.n_features, design.share
    shape = (n_episodes, _N_ROUNDS, d)
    used = share(rng.normal(size=shape), rng)
    unrelated = share(rng.normal(size=shape), rng)
    share_noise = design.noise or share
    noise = share_noise(rng.normal(size=(n_episodes, _N_ROUNDS, 1)), rng)[..., 0]
    if design.common:
        used = _with_common(used, design.common, rng)
        unrelated = _with_common(unrelated, design.common, rng)
    others_of_a_source = d / _N_COMMON - 1
    variance = d + design.common * d * others_of_a_source
    signal = used.sum(-1) / np.sqrt(variance)
    y = signal + noise * np.sqrt((1 - _TRUE_R2) / _TRUE_R2)
    if design.of_episode:
        used = (used + rng.normal(size=used.shape)) / np.sqrt(2)
        unrelated = (unrelated + rng.normal(size=unrelated.shape)) / np.sqrt(2)
    label = y > 0
    if design.sparse is not None:
        quantile = NormalDist().inv_cdf(1 - design.sparse)
        label = y > quantile / np.sqrt(_TRUE_R2)
        y = label.astype(np.float64)
    lengths = rng.integers(design.shortest, _N_ROUNDS + 1, size=(n_episodes, 1))
    return Sample(used, unrelated, y, label, np.arange(_N_ROUNDS) < lengths)


def coverage(
    fit: Fit,
    designs: Iterable[str] = tuple(DESIGNS),
    sizes: Sequence[int] = SIZES,
    *,
    n_sets: int = 400,
    n_fresh: int = 4000,
) -> list[Coverage]:
    """Coverage of nominal 95 % intervals in every design and size, before and after ("resampled", "refit").

    Args:
        fit: the cross-validated fit to calibrate; see :data:`Fit`.
        n_sets: data sets in a cell; 400 give a standard error of 1 % at 95 %.
        n_fresh: episodes of the fresh sample that each cell's truth is read from.
    """
    cells = []
    for design in designs:
        for n in sizes:
            rng = np.random.default_rng([0, n, list(DESIGNS).index(design)])
            fresh = draw(design, n_fresh, rng)
            weights = resample_weights(n)
            folds = np.arange(n) % min(_N_FOLDS, n)
            samples = [draw(design, n, rng) for _ in range(n_sets)]
            sets = [_intervals(fit, sample, fresh, weights, folds) for sample in samples]
            leaning = float(np.mean([_leans_low(sample) for sample in samples]))
            for score, method in sets[0]:
                pairs = [of_set[score, method] for of_set in sets]
                cells.append(_cell(design, n, score, method, pairs, leaning))
    return cells


def _leans_low(sample: Sample) -> bool:
    n_features = sample.x.shape[-1]
    return refit.is_biased_low(sample.y[..., None], n_features, sample.mask[..., None])


def _cell(
    design: str,
    n: int,
    score: str,
    method: str,
    pairs: Sequence[tuple[Interval, float]],
    leaning: float,
) -> Coverage:
    low, high, truth = np.array([(i.low, i.high, truth) for i, truth in pairs]).T
    shares = (low <= truth) & (truth <= high), truth < low, truth > high
    covered, below, above = (float(share.mean()) for share in shares)
    return Coverage(design, n, score, method, len(pairs), covered, below, above, leaning)


def _intervals(
    fit: Fit,
    sample: Sample,
    fresh: Sample,
    weights: Float[Array, "resample episode"],
    folds: Int[Array, " episode"],
) -> dict[tuple[str, str], tuple[Interval, float]]:
    """Every score's interval by every method, with the truth, for one data set."""
    n_folds = int(folds.max()) + 1
    targets = sample.targets
    scored = sample.mask
    truths = fresh.y[fresh.mask]
    squares, misses, r2, accuracy = {}, {}, {}, {}
    for name, x in sample.inputs.items():
        predictions, slope, intercept = fit(x, targets, folds)
        errors = sample.y - predictions[..., 0]
        squares[name] = (errors**2 * scored).sum(1)
        is_missed = (predictions[..., 1] > 0) != sample.label
        misses[name] = (is_missed & scored).sum(1).astype(np.float64)
        of_fresh = (fresh.inputs[name] @ slope + intercept)[fresh.mask]
        fresh_errors = truths - of_fresh[..., 0]
        r2[name] = 1 - float((fresh_errors**2).mean() / truths.var())
        is_hit = (of_fresh[..., 1] > 0) == fresh.label[fresh.mask]
        accuracy[name] = float(is_hit.mean())
    total = refit.sum_squared_deviations(sample.y[..., None], scored[..., None])[:, 0]
    steps = scored.sum(1).astype(np.float64)
    resampled_total, resampled_steps = _resampled_total(sample.y, scored, weights), weights @ steps
    fixed = {name: 1 - weights @ lost / resampled_total for name, lost in squares.items()}
    scored_y = sample.y[scored]
    plain = ((scored_y - scored_y.mean()) ** 2).sum()
    fixed_r2 = {name: 1 - float(lost.sum() / plain) for name, lost in squares.items()}
    fixed_hits = {name: 1 - weights @ lost / resampled_steps for name, lost in misses.items()}
    hits = {name: steps - lost for name, lost in misses.items()}
    share_of_hits = float(hits["probe"].sum() / steps.sum())
    intervals = {}
    refitted = refit.interval(squares["probe"], total, n_folds)
    intervals["r2", "refit"] = refitted, r2["probe"]
    resampled = Interval.of_samples(fixed["probe"], fixed_r2["probe"])
    intervals["r2", "resampled"] = resampled, r2["probe"]
    refitted = refit.interval(misses["probe"], steps, n_folds, "accuracy")
    intervals["accuracy", "refit"] = refitted, accuracy["probe"]
    resampled = Interval.of_samples(fixed_hits["probe"], share_of_hits)
    intervals["accuracy", "resampled"] = resampled, accuracy["probe"]
    for key, (first, second) in _PAIRS.items():
        truth, score = r2[first] - r2[second], f"r2 - {key}"
        intervals[score, "refit"] = (
            refit.difference(squares[first], squares[second], total, n_folds),
            truth,
        )
        differences = fixed[first] - fixed[second]
        estimate = fixed_r2[first] - fixed_r2[second]
        intervals[score, "resampled"] = Interval.of_samples(differences, estimate), truth
    truth = accuracy["probe"] - accuracy["first_half"]
    gain = refit.difference(misses["probe"], misses["first_half"], steps, n_folds, "accuracy")
    intervals["accuracy - part", "refit"] = gain, truth
    differences = fixed_hits["probe"] - fixed_hits["first_half"]
    intervals["accuracy - part", "resampled"] = (
        Interval.of_samples(differences, gain.estimate),
        truth,
    )
    return intervals


def _resampled_total(
    y: Float[Array, "episode round"],
    mask: Bool[Array, "episode round"],
    weights: Float[Array, "resample episode"],
) -> Float[Array, " resample"]:
    """Squares about each resample's own mean, per episode."""
    centred = np.where(mask, y - y[mask].mean(), 0.0)
    first = weights @ centred.sum(1)
    second = weights @ (centred**2).sum(1)
    total = second - first**2 / (weights @ mask.sum(1))
    smallest = 1e-9 * total.max()  # of resamples of episodes in which nothing varies
    return np.asarray(np.maximum(total, smallest))
