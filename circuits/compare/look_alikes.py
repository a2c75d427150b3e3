"""Heads that look as if they read the carried state, and how much of it they carry.

A head whose attention, where the prediction is read, follows a variable of the algorithm looks as if it computed with
it. For every head, its attention to the positions of one kind (labels that share a prefix, such as p_1 ... p_n) is
regressed on every variable of the algorithm that has one element for each of them and is not given by the round's
inputs alone; both about their mean over the elements, so that R2 says whether the larger ones are attended to more.
Beside it stands what counts: the share of the latents' effect on the prediction that the pattern carries by itself
(:mod:`interp.interventions.mediation`). Attention is where to look, and no evidence of what is done.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from circuits.compare.subject import Effort, Subject
from interp.algorithm import Algorithm
from interp.interventions.mediation import MediationResult
from interp.interventions.sites import Site
from interp.interventions.swaps import Rows, passed
from interp.model.layout import RoundLayout
from interp.statistics import Interval, resample_weights

LOOKS, LITTLE = 0.5, 0.15
"""A look-alike has at least the first number as R2, and at most the second as upper bound of the share it carries."""


@dataclass(frozen=True)
class Look:
    """What one head's attention follows, and what it carries.

    Attributes:
        head: "layer.head", counted from 0.
        variable, positions: what it follows best, such as "counts" at "p".
        r2: with its interval over episodes.
        carried: share of the effect of the latents on the prediction, with its interval.
    """

    head: str
    variable: str
    positions: str
    r2: Interval
    carried: Interval

    @property
    def is_look_alike(self) -> bool:
        """Whether it follows the variable and carries little."""
        return self.r2.estimate >= LOOKS and self.carried.high <= LITTLE


def looks(subject: Subject, algorithm: Algorithm | None, mediated: MediationResult, effort: Effort) -> list[Look]:
    """For every head, the variable that its attention at the prediction follows best; the strongest head first.

    Args:
        algorithm: whose variables are looked for; none are where it is None.
        mediated: latents to prediction through every head's pattern at that position.
    """
    run, config = subject.run(subject.samples.test), subject.model.config
    groups = _groups(run.layout)
    variables = _variables(subject, algorithm, effort, set(map(len, groups.values()))) if algorithm else {}
    if not variables:
        return []
    rows, end = Rows.of(run, effort.at), run.layout.predict_position
    patterns = [Site("pattern", layer) for layer in range(config.n_layers)]
    _, kept = passed(subject.model, rows, run.layout, watched=patterns)
    found = []
    for layer, site in enumerate(patterns):
        for head in range(config.n_heads):
            attention = kept[site][:, head, end].double().numpy(force=True)
            scores = [
                (_r2(attention[:, at], values, run.n_episodes, effort.seed), key, prefix)
                for prefix, at in groups.items()
                for key, values in variables.items()
                if values.shape[-1] == len(at)
            ]
            r2, key, prefix = max(scores, key=lambda score: score[0].estimate)
            carried = mediated.carried(f"pattern[{layer}.{head}]@{run.layout.labels[end]}")
            found.append(Look(f"{layer}.{head}", key, prefix, r2, carried))
    return sorted(found, key=lambda look: -look.r2.estimate)


def _groups(layout: RoundLayout) -> dict[str, list[int]]:
    """Positions up to the prediction by the prefix that their labels share, two or more of them."""
    groups = defaultdict(list)
    for i, label in enumerate(layout.labels[: layout.predict_position]):
        prefix, _, number = label.rpartition("_")
        if prefix and number.isdigit():
            groups[prefix].append(i)
    return {prefix: at for prefix, at in groups.items() if len(at) > 1}


def _variables(
    subject: Subject, algorithm: Algorithm, effort: Effort, sizes: set[int]
) -> dict[str, NDArray[np.float64]]:
    """Variables before the update with one axis of a group's size, ``[episode x round, element]``."""
    values, given = algorithm.run(subject.samples.test), algorithm.of_the_inputs
    found = {}
    for variable in algorithm.variables:
        held = np.asarray(values[variable.key], dtype=np.float64)
        if variable.key not in given and held.ndim == 3 and held.shape[-1] in sizes:
            found[variable.key] = held[:, effort.at].reshape(-1, held.shape[-1])
    return found


def _r2(attention: NDArray[np.float64], values: NDArray[np.float64], n_episodes: int, seed: int) -> Interval:
    """Squared correlation of the two, about their means over elements; 0 where one of them does not differ."""
    x, y = (z - z.mean(-1, keepdims=True) for z in (values, attention))
    sums = np.stack([(a * b).reshape(n_episodes, -1).sum(1) for a, b in ((x, y), (x, x), (y, y))], -1)
    xy, xx, yy = (resample_weights(n_episodes, seed=seed, plain_first=True) @ sums).T
    r2 = np.where(xx * yy > 0, xy**2 / np.where(xx * yy > 0, xx * yy, 1.0), 0.0)
    return Interval.of_samples(r2[1:], r2[0])
