"""Can the algorithm's memory be read from the state? Beside use, as what can be read need not be used.

A ridge map from everything that is carried to the algorithm's memory, fitted on some episodes and scored on others; the
controls are untrained copies, read alike, and memories of other episodes. Few episodes fit a poor map: a memory is
called unread only where twice as many episodes, by what they gain over half as many, would not read it either.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.audit.changes import donors
from interp.audit.thresholds import THRESHOLDS
from interp.audit.trial import Array, Trial
from interp.decoder import N_FOLDS, RIDGE, cross_fitted
from interp.measure import FEW, Control, Measure, Word
from interp.statistics import Interval, ratio_interval


def decoded(trial: Trial) -> Measure:
    """R2 of the algorithm's memory, decoded from the state of every round but the first."""
    claim, bound, algorithm = "The algorithm's memory can be read from it", THRESHOLDS["decoded"].value, trial.algorithm
    if algorithm is None or not algorithm.memory:
        return Measure("decoded", claim, lacking="no algorithm with a memory to look for")
    if not _varies(trial):
        return Measure("decoded", claim, lacking="no state that differs between episodes")
    memory = np.asarray(algorithm.run(trial.episodes)[algorithm.memory], np.float64)[:, 1:]
    number, half = _r2(trial, memory), np.nan
    if len(memory) >= 2 * N_FOLDS:
        half = _r2(trial, memory[: len(memory) // 2]).estimate
    unless: dict[Word, str] = {}
    if not 2 * number.estimate - half <= bound:
        unless = {"no": f"{FEW}: from half of them R2 is {half:.2f}; more of them might read it"}
    return Measure(
        "decoded",
        claim,
        number,
        bound,
        unit=f"R2 of {algorithm.memory}",
        controls={
            **trial.untrained(lambda copy: _r2(copy, memory) if _varies(copy) else None),
            "memories of other episodes": Control(_r2(trial, memory[donors(len(memory), trial.effort.seed)]).estimate),
        },
        yes="holds the algorithm's memory",
        no="does not hold the algorithm's memory",
        unless=unless,
        caution="use: what can be read need not be used",
    )


def _varies(trial: Trial) -> bool:
    return bool(trial.run.latents[:, 1:].std(0).any())


def _r2(trial: Trial, memory: Array) -> Interval:
    flat = memory.reshape(*memory.shape[:2], -1)
    features, ridge = spanned(trial.run.latents[: len(flat), 1:-1].flatten(2).double(), RIDGE)
    read = cross_fitted(features.unsqueeze(2), flat, ridge=ridge, seed=trial.effort.seed).numpy(force=True)
    missed = ((read - flat) ** 2).sum((1, 2))
    varied = ((flat - flat.mean(0)) ** 2).sum((1, 2))
    return ratio_interval(missed, varied).complement


def spanned(
    features: Float[Tensor, "episode round feature"], ridge: float
) -> tuple[Float[Tensor, "episode round coordinate"], float]:
    """Features in coordinates of the space that they span, and the penalty there: no map of ridge reads them otherwise.

    A cache of all rounds has ten thousand features of two hundred samples; a map of all of them takes minutes to fit.
    """
    flat = features.flatten(0, 1)
    if flat.shape[0] >= flat.shape[1]:
        return features, ridge
    axes, spread, _ = torch.linalg.svd(flat, full_matrices=False)
    # The penalty is in units of the mean variance of a feature, and there are fewer features now.
    return (axes * spread).unflatten(0, features.shape[:2]), ridge * len(spread) / flat.shape[1]
