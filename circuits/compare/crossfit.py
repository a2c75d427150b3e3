"""Maps that never saw the episodes they are scored on, and scores whose intervals count the luck of the fit.

A comparison's known and test episodes are one pool, cut into :data:`~interp.decoder.N_FOLDS` folds: episode i is in
fold i modulo their number. What an episode holds is mapped, or decoded, by a fit to the other folds, so that every
episode serves for both. A score is ``1 - q`` with ``q = sum missed / sum asked`` over episodes. Its interval is that of
log q by the delta method over episodes, with the quantile of Student's t:

    q exp(+-h),   h = a . t(n - 1) . sd(z) / sqrt(n),   z = n (missed / sum missed - asked / sum asked)

The estimand is the score, on new episodes, of maps that are fitted to as many episodes as the folds leave. The best
affine map scores more: on a noisy machine by a fifth of an interval, but on ``wma-learned`` by more than one (update
.9974 at quick effort and .9981 with 7 times the episodes; the second lies above the interval in 59 of 60 small
comparisons): intervals say nothing about maps of more episodes. The allowance a is :data:`_ALLOWANCE`. Coverage is
measured: the table "deciding" of ``lab/deciding.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit
from torch import Tensor

from circuits.compare.question import Participant, Samples
from interp import refit
from interp.algorithm import Algorithm
from interp.decoder import N_FOLDS, RIDGE, Decoder
from interp.interventions.moves import Writer
from interp.model.run import Rollout
from interp.session import remembered
from interp.statistics import NO_NUMBER, Interval

_ALLOWANCE = sqrt(2)
"""Widens intervals as though the luck of the fit were as large as that of the episodes scored. It covers .95 to 1 of 60
small comparisons of ``wma-learned``, nominally .95, by number; sqrt(1.25), which was enough at quick effort, .83 to .98
of those at full effort."""


def folds(n_episodes: int) -> NDArray[np.int64]:
    """The fold of every episode of a pool."""
    return np.arange(n_episodes) % N_FOLDS


def scored(missed: ArrayLike, asked: ArrayLike) -> Interval:
    """``1 - sum missed / sum asked`` of cross-fitted maps, from ``[episode]`` each, with its 95 % interval.

    Where nothing is missed the score is 1 exactly; where nothing is asked, or a sum is not finite, all three are NaN.

    >>> print(scored([1.0, 2.0, 3.0, 2.0], [8.0, 8.0, 8.0, 8.0]))
    0.75 [0.3735, 0.9002]
    """
    if not np.isfinite([np.sum(missed), np.sum(asked)]).all():
        return NO_NUMBER
    return refit.interval(missed, asked, N_FOLDS, width=_ALLOWANCE * float(stdtrit(len(np.asarray(missed)) - 1, 0.975)))


@remembered
def pooled(subject: Participant) -> Rollout:
    """The subject's rollouts of the known episodes and of the test episodes as one."""
    runs = [subject.run(episodes) for episodes in (subject.samples.known, subject.samples.test)]
    predictions, latents = (torch.cat([getattr(run, of) for run in runs]) for of in ("predictions", "latents"))
    fed = type(runs[0].fed).joined([run.fed for run in runs])
    return replace(runs[0], predictions=predictions, latents=latents, fed=fed)


def pooled_values(algorithm: Algorithm, samples: Samples) -> dict[str, NDArray[Any]]:
    """The algorithm's variables on the known and then the test episodes, ``[episode, round, ...]``."""
    known, test = algorithm.run(samples.known), algorithm.run(samples.test)
    return {key: np.concatenate([known[key], test[key]]) for key in known}


@dataclass(frozen=True)
class CrossFitted(Decoder):
    """A decoder of a pool, the first axis: every episode is read, and moved, by the fit that has not seen it.

    Attributes:
        fits: one decoder a fold, fitted on the other folds.
        fold: of each episode.
    """

    fits: tuple[Decoder, ...] = ()
    fold: tuple[int, ...] = ()

    @classmethod
    def of(cls, fits: list[Decoder], n_episodes: int) -> CrossFitted:
        """For the whole pool."""
        return cls(fits[0].maps, fits[0].shape, tuple(fits), tuple(folds(n_episodes).tolist()))

    def cut(self, episodes: slice) -> CrossFitted:
        """For some episodes of the pool."""
        return replace(self, fold=self.fold[episodes])

    def __call__(self, latents: Tensor) -> Tensor:
        """The state that ``latents [episode, ..., latent, d_model]`` hold."""
        return self._each(lambda fit, rows: fit(latents[rows]))

    def move(self, latents: Tensor, change: Tensor) -> Tensor:
        """:meth:`Decoder.move` of every episode by its own fit."""
        return self._each(lambda fit, rows: fit.move(latents[rows], change[rows]))

    def _each(self, apply: Callable[[Decoder, Tensor], Tensor]) -> Tensor:
        """What each fit makes of the episodes of its fold, in the order of the episodes."""
        rows = [torch.from_numpy(np.flatnonzero(np.array(self.fold) == k)) for k in range(len(self.fits))]
        parts = torch.cat([apply(fit, own) for fit, own in zip(self.fits, rows, strict=True)])
        return parts[torch.cat(rows).argsort().to(parts.device)]


@remembered
def crossed_decoder(subject: Participant, algorithm: Algorithm, variable: str) -> CrossFitted:
    """Latents to a variable of the algorithm's state, for the pool, cross-fitted."""
    latents, values = pooled(subject).latents[:, :-1], pooled_values(algorithm, subject.samples)[variable]
    others = [folds(len(latents)) != k for k in range(N_FOLDS)]
    fits = [Decoder.fit(latents[torch.from_numpy(rows)], values[rows], ridge=RIDGE) for rows in others]
    return CrossFitted.of(fits, len(latents))


@remembered
def crossed_writer(subject: Participant, algorithm: Algorithm, keys: tuple[str, ...]) -> Writer:
    """A writer of ``keys`` for the pool, cross-fitted."""
    run, values, writers = pooled(subject), pooled_values(algorithm, subject.samples), []
    for k in range(N_FOLDS):
        others = folds(run.n_episodes) != k
        held = {key: values[key][others] for key in keys}
        writers.append(Writer.fit(subject.model, run.select(torch.from_numpy(others)), held, keys, ridge=RIDGE))
    return replace(writers[0], decoder=CrossFitted.of([w.decoder for w in writers], run.n_episodes))
