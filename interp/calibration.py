"""Four linear-Gaussian designs with known truth, and how often intervals of refitted scores cover it in them.

A data set is n episodes of T rounds: features x, their target ``y = x w + noise`` and a label, ``y > 0``. Every design
gives each feature variance 1 and the best predictor the same R2 (:data:`_TRUE_R2`); they differ in what episodes share:

* ``iid``: nothing; rounds are independent.
* ``episode_effects``: half the variance of every feature, and of the noise, is one draw per episode.
* ``random_walk``: features and noise are sums over the rounds so far, as counts and log-weights are.
* ``uneven_noise``: the noise of an episode has its own scale, log-normal with sigma 1/2.

Each data set is fitted by the given cross-validation, from all features (the probe), from either half of them (a
control that holds part, and its equal: the difference of the halves is about 0) and from features that have
nothing to do with the target. The truth of *this* data set's refits is their score on one large fresh sample. Intervals
are those of :mod:`interp.refit` ("refit") and, for comparison, the bootstrap of fixed out-of-fold errors ("resampled").

What this is NOT: a proof for other designs, other numbers of features or rounds, or other fits.

    >>> from interp.calibration import DESIGNS
    >>> sorted(DESIGNS)
    ['episode_effects', 'iid', 'random_walk', 'uneven_noise']
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from interp import refit
from interp.checks import checked, integer, refuse_beyond_machine
from interp.errors import require_known
from interp.statistics import Interval, resample_weights

_TRUE_R2, _N_ROUNDS, _N_FEATURES, _N_FOLDS = 0.7, 16, 6, 5
SIZES = (8, 16, 32, 64)
_PAIRS = {"part": ("probe", "first_half"), "equal": ("first_half", "second_half"), "nothing": ("probe", "unrelated")}
"""Differences that are covered: the two fits by the name of the control."""

_Features = Float[Array, "episode round d"]
Fit = Callable[[_Features, Float[Array, "episode round k"], Int[Array, " episode"]], tuple[Any, Any, Any]]
"""``fit(x, y, folds)`` gives out-of-fold predictions, and weights ``[d, k]`` and intercept ``[k]`` of the refit; each
output of y has its own penalty."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Episodes of a design: features, features that have nothing to do with the target, and the target."""

    x: _Features
    unrelated: _Features
    y: Float[Array, "episode round"]

    @property
    def targets(self) -> Float[Array, "episode round 2"]:
        """The target, and its sign."""
        return np.stack([self.y, np.where(self.y > 0, 1.0, -1.0)], axis=-1)

    @property
    def inputs(self) -> dict[str, _Features]:
        """What each fit is made from."""
        half = self.x.shape[-1] // 2
        parts = {"probe": self.x, "first_half": self.x[..., :half], "second_half": self.x[..., half:]}
        return {**parts, "unrelated": self.unrelated}


@dataclass(frozen=True)
class Coverage:
    """One cell: how often an interval held the truth of its data set, on which side it missed, and its mean width."""

    design: str
    n_episodes: int
    score: str
    method: str
    n_sets: int
    coverage: float
    truth_below: float
    truth_above: float
    width: float
    median_width: float
    bias: float


_Noise = Float[Array, "episode round d"]


def _shared(z: _Noise, rng: np.random.Generator) -> _Noise:
    return np.asarray((z + rng.normal(size=(len(z), 1, z.shape[-1]))) / np.sqrt(2))


def _walk(z: _Noise) -> _Noise:
    return np.asarray(np.cumsum(z, axis=1) / np.sqrt((z.shape[1] + 1) / 2))


def _uneven(z: _Noise, rng: np.random.Generator) -> _Noise:
    sigma = 0.5
    return np.asarray(z * np.exp(sigma * rng.normal(size=(len(z), 1, 1)) - sigma**2))


DESIGNS: Mapping[str, Callable[[_Noise, _Noise, np.random.Generator], tuple[_Noise, _Noise]]] = {
    "iid": lambda x, noise, rng: (x, noise),
    "episode_effects": lambda x, noise, rng: (_shared(x, rng), _shared(noise, rng)),
    "random_walk": lambda x, noise, rng: (_walk(x), _walk(noise)),
    "uneven_noise": lambda x, noise, rng: (x, _uneven(noise, rng)),
}
"""How independent draws (features and, apart, noise) become those of a design."""


@checked
def draw(design: str, n_episodes: int, rng: np.random.Generator) -> Sample:
    """Episodes of a design."""
    require_known("design", design, DESIGNS)
    integer("n_episodes", n_episodes, 1)
    refuse_beyond_machine(f"{n_episodes} episodes", 24.0 * n_episodes * _N_ROUNDS * 2 * _N_FEATURES)
    x = rng.normal(size=(n_episodes, _N_ROUNDS, 2 * _N_FEATURES))
    x, noise = DESIGNS[design](x, rng.normal(size=(n_episodes, _N_ROUNDS, 1)), rng)
    used, unrelated = x[..., :_N_FEATURES], x[..., _N_FEATURES:]
    y = used.sum(-1) / np.sqrt(_N_FEATURES) + noise[..., 0] * np.sqrt((1 - _TRUE_R2) / _TRUE_R2)
    return Sample(used, unrelated, y)


@checked
def coverage(
    fit: Fit,
    designs: Iterable[str] = tuple(DESIGNS),
    sizes: Sequence[int] = SIZES,
    *,
    n_sets: int = 400,
    n_fresh: int = 4000,
    n_folds: int = _N_FOLDS,
    seed: int = 0,
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
            rng = np.random.default_rng([seed, n, list(DESIGNS).index(design)])
            fresh, weights, folds = draw(design, n_fresh, rng), resample_weights(n), np.arange(n) % min(n_folds, n)
            sets = [_intervals(fit, draw(design, n, rng), fresh, weights, folds) for _ in range(n_sets)]
            for score, method in sets[0]:
                cells.append(_cell(design, n, score, method, [of_set[score, method] for of_set in sets]))
    return cells


def _cell(design: str, n: int, score: str, method: str, pairs: Sequence[tuple[Interval, float]]) -> Coverage:
    low, high, estimate, truth = np.array([(i.low, i.high, i.estimate, truth) for i, truth in pairs]).T
    shares = (low <= truth) & (truth <= high), truth < low, truth > high
    covered, below, above = (float(share.mean()) for share in shares)
    width, median, bias = float((high - low).mean()), float(np.median(high - low)), float((estimate - truth).mean())
    return Coverage(design, n, score, method, len(pairs), covered, below, above, width, median, bias)


def _intervals(
    fit: Fit, sample: Sample, fresh: Sample, weights: Float[Array, "resample episode"], folds: Int[Array, " episode"]
) -> dict[tuple[str, str], tuple[Interval, float]]:
    """Every score's interval by every method, with the truth, for one data set."""
    n_folds, targets, label = int(folds.max()) + 1, sample.targets, fresh.y > 0
    squares, misses, r2, accuracy = {}, {}, {}, {}
    for name, x in sample.inputs.items():
        predictions, slope, intercept = fit(x, targets, folds)
        squares[name] = ((sample.y - predictions[..., 0]) ** 2).sum(1)
        misses[name] = ((predictions[..., 1] > 0) != (sample.y > 0)).sum(1).astype(np.float64)
        of_fresh = fresh.inputs[name] @ slope + intercept
        r2[name] = 1 - float(((fresh.y - of_fresh[..., 0]) ** 2).mean() / fresh.y.var())
        accuracy[name] = float(((of_fresh[..., 1] > 0) == label).mean())
    total, steps = refit.totals(sample.y[..., None])[:, 0], np.full(len(sample.y), float(_N_ROUNDS))
    fixed = {name: 1 - weights @ lost / _resampled_total(sample.y, weights) for name, lost in squares.items()}
    plain = ((sample.y - sample.y.mean()) ** 2).sum()
    fixed_r2 = {name: 1 - float(lost.sum() / plain) for name, lost in squares.items()}
    fixed_hits = {name: 1 - weights @ lost / _N_ROUNDS for name, lost in misses.items()}
    resampled = Interval.of_samples(fixed_hits["probe"], 1 - float(misses["probe"].mean()) / _N_ROUNDS)
    found = {
        ("r2", "refit"): (refit.skill(squares["probe"], total, n_folds), r2["probe"]),
        ("r2", "resampled"): (Interval.of_samples(fixed["probe"], fixed_r2["probe"]), r2["probe"]),
        ("accuracy", "refit"): (refit.accuracy(steps - misses["probe"], steps, n_folds), accuracy["probe"]),
        ("accuracy", "resampled"): (resampled, accuracy["probe"]),
    }
    for key, (one, other) in _PAIRS.items():
        truth, score = r2[one] - r2[other], f"r2 - {key}"
        found[score, "refit"] = refit.skill_difference(squares[one], squares[other], total, n_folds), truth
        differences, estimate = fixed[one] - fixed[other], fixed_r2[one] - fixed_r2[other]
        found[score, "resampled"] = Interval.of_samples(differences, estimate), truth
    hits = steps - misses["probe"], steps - misses["first_half"]
    truth = accuracy["probe"] - accuracy["first_half"]
    found["accuracy - part", "refit"] = refit.accuracy_difference(*hits, steps, n_folds), truth
    differences = fixed_hits["probe"] - fixed_hits["first_half"]
    estimate = float((hits[0] - hits[1]).mean()) / _N_ROUNDS
    found["accuracy - part", "resampled"] = Interval.of_samples(differences, estimate), truth
    return found


def _resampled_total(
    y: Float[Array, "episode round"], weights: Float[Array, "resample episode"]
) -> Float[Array, " resample"]:
    """Squares about each resample's own mean, per episode."""
    centred = y - y.mean()
    first, second = weights @ centred.sum(1), weights @ (centred**2).sum(1)
    return np.asarray(second - first**2 / y.shape[1])
