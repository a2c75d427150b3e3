"""The parameters of each participant: a family of algorithms fitted to the choices of one at a time.

    >>> from interp.tasks import bandit
    >>> played = bandit.sample(3, 60, 2, "reversal", seed=0)
    >>> found = by_participant(bandit.TASK.rivals()["rescorla_wagner"], played, played.choices)
    >>> list(found), len(found)
    (['participant', 'rounds', 'nats', 'rate', 'rate_low', 'rate_high', 'inverse_temperature', \
'inverse_temperature_low', 'inverse_temperature_high'], 3)

Maximum likelihood on a grid of all parameters, with 95 % profile likelihood intervals. The probability of a choice is
the family's own: a family that has no temperature is taken to draw from its distribution. A short record says little
of one participant, and an interval that ends at a bound of the search is open there.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from circuits.compare.fitting import Array, Distributions
from interp import tasks
from interp.algorithm import Family
from interp.checks import array_of, checked
from interp.errors import require

_VALUES, _COSTS = {1: 201, 2: 31, 3: 13}, 1.92
"""Number of parameters -> values of each; half the 95 % point of chi-squared, in nats."""


@checked
def by_participant(family: Family, episodes: Any, choices: Any) -> pd.DataFrame:
    """A row for each participant, or for each episode where none are known: parameters with their intervals.

    Args:
        family: with 1 to 3 parameters that are real.
        choices: the outcome chosen ``[episode, round]``, counted from 0; NaN where there is none.
    """
    chosen, wanted = array_of("choices", choices).astype(np.float64), (len(episodes), episodes.n_rounds)
    require(chosen.shape == wanted, f"choices must be [episode, round] = {wanted}, got shape {chosen.shape}")
    searched = sorted(family.searched, key=lambda one: bool(one.enters))
    require(
        len(searched) in _VALUES, f"{family.name} has {len(searched)} parameters; participants are fitted by 1 to 3"
    )
    first = tasks.of(episodes).data.first_asked
    known = (~np.isnan(chosen) & episodes.counted)[:, first:]
    asked = np.where(known, chosen[:, first:], 0).astype(np.int64)[..., None]
    whose = np.arange(len(episodes)) if episodes.participants is None else episodes.participants
    people, rows = np.unique(whose, return_inverse=True)
    grids = [
        _finer(np.array(one.grid), _VALUES[len(searched)]) if one.kind == "real" else np.array(one.grid)
        for one in searched
    ]
    members, lost = Distributions(family, [episodes]), []
    for point in product(*grids):
        parameters = {one.name: float(value) for one, value in zip(searched, point, strict=True)}
        p = np.take_along_axis(members(family.make(**parameters), parameters), asked, -1)[..., 0]
        lost.append(np.bincount(rows, weights=(-np.log(np.maximum(p, 1e-12)) * known).sum(1)))
    nats = np.moveaxis(np.reshape(lost, (*map(len, grids), len(people))), -1, 0)
    counts = np.bincount(rows, weights=known.sum(1)).astype(int)
    frame = pd.DataFrame(
        {"participant": people, "rounds": counts, "nats": nats.reshape(len(people), -1).min(1) / counts}
    )
    for axis, (one, grid) in enumerate(zip(searched, grids, strict=True)):
        profile = nats.min(tuple(i + 1 for i in range(len(grids)) if i != axis))
        frame[one.name] = grid[profile.argmin(1)]
        frame[f"{one.name}_low"], frame[f"{one.name}_high"] = np.transpose([_interval(grid, each) for each in profile])
    return frame


def _finer(grid: Array, n: int) -> Array:
    """A grid with ``n`` values, as many between any two of its own."""
    return np.interp(np.linspace(0, len(grid) - 1, n), np.arange(len(grid)), grid) if len(grid) > 1 else grid


def _interval(grid: Array, profile: NDArray[Any]) -> tuple[float, float]:
    """The values, between those of the grid, at which the likelihood is as low as an interval allows."""
    beyond = profile - profile.min() - _COSTS
    within = np.flatnonzero(beyond <= 0)
    ends = []
    for at, step in ((within[0], -1), (within[-1], 1)):
        out = at + step
        share = -beyond[at] / (beyond[out] - beyond[at]) if 0 <= out < len(grid) else 0.0
        ends.append(float(grid[at] + share * (grid[out % len(grid)] - grid[at])))
    return ends[0], ends[1]
