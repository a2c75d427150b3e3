"""Can the algorithm's memory be read from the state? Beside use, as what can be read need not be used.

A ridge map from everything that is carried to the algorithm's memory, fitted on some episodes and scored on others; the
controls are an untrained copy, read alike, and memories of other episodes. Few episodes fit a poor map: that a memory
is not read is said only where twice as many episodes, by what they gain over half as many, would not read it either.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.audit.changes import donors
from interp.audit.subject import Array, Subject
from interp.audit.verdicts import NOT_APPLICABLE, THRESHOLDS, UNDECIDED, Verdict, placed
from interp.decoder import N_FOLDS, RIDGE, cross_fitted
from interp.statistics import Interval, ratio_interval


def decoded(subject: Subject, blank: Subject | None) -> Verdict:
    """R2 of the algorithm's memory, decoded from the state of every round but the first."""
    question = "Can the algorithm's memory be read from it?"
    algorithm = subject.algorithm
    if algorithm is None or not algorithm.memory:
        return Verdict("decoded", question, NOT_APPLICABLE, note="There is no algorithm with a memory to look for.")
    if not bool(subject.run.latents[:, 1:].std(0).any()):
        return Verdict("decoded", question, NOT_APPLICABLE, note="What is carried is the same in every episode.")
    memory = np.asarray(algorithm.run(subject.episodes)[algorithm.memory], np.float64)[:, 1:]
    number = _r2(subject, memory)
    if blank is not None and not bool(blank.run.latents[:, 1:].std(0).any()):
        blank = None
    given = donors(len(memory), subject.effort.seed)
    shuffled = _r2(subject, memory[given]).estimate
    control = None if blank is None else max(_r2(blank, memory).estimate, shuffled)
    bound, word = THRESHOLDS["decoded"].value, UNDECIDED
    if control is not None:
        word = placed(number, max(control, bound), "read", "not read")
    note = "There are too few episodes to say what more of them would read."
    half = np.nan
    if len(memory) >= 2 * N_FOLDS:
        half = _r2(subject, memory[: len(memory) // 2]).estimate
        note = f"From half of the episodes {half:.3f}."
    if word == "not read" and not 2 * number.estimate - half <= bound:
        word, note = UNDECIDED, f"{note} From more episodes it might be read."
    return Verdict(
        "decoded",
        question,
        word,
        number=number,
        what=f"R2 of {algorithm.memory}",
        control=control,
        control_is="the better of untrained and shuffled",
        threshold=bound,
        note=note,
    )


def _r2(subject: Subject, memory: Array) -> Interval:
    flat = memory.reshape(*memory.shape[:2], -1)
    features, ridge = spanned(subject.run.latents[: len(flat), 1:-1].flatten(2).double(), RIDGE)
    told = cross_fitted(features.unsqueeze(2), flat, ridge=ridge, seed=subject.effort.seed).numpy(force=True)
    missed = ((told - flat) ** 2).sum((1, 2))
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
