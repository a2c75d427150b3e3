"""Controls: the same fit where it cannot succeed, or where success would mean nothing.

* ``shuffled``: each episode is given the target of an episode of another group. What remains is what all share.
* ``untrained``: the same architecture with fresh random weights: what any random features of the inputs hold.
* ``inputs``: the current round's tokens and payloads, or these and their products, instead of activations.
* ``round``: the round index alone (one indicator per round): a target that grows with time is half decoded by it.
* ``control_task`` (Hewitt and Liang 2019): every kind of round (its tokens) is given a target drawn at random, the same
  wherever it occurs; a probe that can memorise does well. The difference from it is the probe's *selectivity*.

Each has the folds, penalties and score of the probe itself, so that differences are paired by episode.

A verdict compares the probe's score with every control that counts, and R2 with 0 (the best constant):

* ``represented``: every difference has a lower bound above 0, and the inputs control was run;
* ``uninformative``: the probe beats all others in that way, but an untrained model comes within 0.05
  of its score, by the estimates, or exceeds it: what is decoded is there without training, so that the score says
  nothing about what was learned, even where the interval says that a little more is decoded;
* ``not represented``: the upper bound of some difference is below :data:`SMALLEST_EFFECT` of what that control leaves
  (``1 - score`` of the control; 1 where the control is below 0), and this sample would have shown an effect of that
  size; or the upper bound is below 0: the control says more than the probe;
* ``undecided``: everything else. ``detectable`` says which difference this sample would have shown. So it is, too, in
  place of ``not represented`` where the score leans low (:func:`interp.refit.leans_low`): a target that is constant
  within an episode, and fewer than two episodes for each feature. The result's ``warning`` says so.

What a verdict is NOT: corrected for several targets or sites; about use (see :mod:`probes.fit`); a statement about a
model other than this one. "Not represented" means: not by a linear map (or the given estimator), beyond that control.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from math import isnan, nan
from typing import Literal

import numpy as np
from jaxtyping import Float, Int, Shaped
from numpy import ndarray as Array

from interp.statistics import Interval
from probes.scores import Difference, ProbeScore
from probes.values import TargetValues

DESCRIPTIONS = {
    "shuffled": "targets shuffled between episodes",
    "untrained": "an untrained model of the same architecture",
    "inputs": "the current round's inputs alone",
    "round": "the round index alone",
    "control_task": "a random target for every kind of round",
}
"""What each control is, in the order of tables."""

_SHUFFLE, _TASK = 1, 2


@dataclass(frozen=True, eq=False)
class Control:
    """The score of a control, how much higher the probe's score is, and whether the verdict depends on it.

    A control that holds the target by construction (the inputs, for a target that is one of them) is shown, not asked.
    """

    name: str
    score: ProbeScore
    difference: Difference
    counted: bool = True

    def __str__(self) -> str:
        note = "" if self.counted else " (holds the target by construction)"
        return f"{self.score}, probe - control {self.difference}{note}"


def shuffled(
    values: Shaped[Array, episode * rest], seed: int, groups: Int[Array, " episode"] | None = None
) -> Shaped[Array, episode * rest]:
    """Every episode gets the values of an episode of another group; every episode is a group when None.

    Groups are laid out one after another in random order, and values move on by as many places as the largest group
    has episodes; no group may hold more than half of them.
    """
    groups = np.arange(len(values)) if groups is None else groups
    places = np.random.default_rng([seed, _SHUFFLE]).permutation(int(groups.max()) + 1)
    order = np.argsort(np.argsort(places)[groups], kind="stable")
    result = np.empty_like(values)
    result[order] = values[np.roll(order, np.bincount(groups).max())]
    return result


def control_task(
    values: Shaped[Array, "episode round k"], types: Int[Array, "episode round"], seed: int
) -> Shaped[Array, "episode round k"]:
    """Every kind of round gets the values of a random round, wherever it occurs."""
    rows = values.reshape(-1, values.shape[-1])
    draws = np.random.default_rng([seed, _TASK]).integers(len(rows), size=int(types.max()) + 1)
    return rows[draws][types]


def round_index(n_episodes: int, n_rounds: int) -> Float[Array, "episode round index"]:
    """One indicator per round."""
    return np.broadcast_to(np.eye(n_rounds), (n_episodes, n_rounds, n_rounds))


def higher(one: ProbeScore | None, other: ProbeScore) -> ProbeScore:
    """The higher of two scores of a control that has several forms."""
    return other if one is None or other.estimate > one.estimate else one


def controls_of(target: TargetValues, score: ProbeScore, others: dict[str, ProbeScore]) -> dict[str, Control]:
    """Controls with their differences from the probe's score, in the order of tables."""
    return {
        name: Control(name, others[name], score.minus(others[name]), name not in target.implied_by)
        for name in DESCRIPTIONS
        if name in others
    }


def lacks_inputs(target: TargetValues, names: Container[str]) -> bool:
    """Whether the inputs control is needed for a verdict but was not run; the verdict is then undecided at most."""
    return "inputs" not in names and "inputs" not in target.implied_by


@dataclass(frozen=True, eq=False)
class Data:
    """What probes are fitted to: activations ``x`` of the model and of its untrained copy, ``blank``.

    ``blank`` is None where that control is left out; ``folds`` and ``groups`` hold a number for each episode.
    """

    x: Float[Array, "episode round d"]
    blank: Float[Array, "episode round d"] | None
    folds: Int[Array, " episode"]
    groups: Int[Array, " episode"]
    seed: int

    def controls(
        self, target: TargetValues, score: ProbeScore, scored: Callable[[Array, Array, Array | None], ProbeScore]
    ) -> dict[str, Control]:
        """The controls of a probe of one target: ``scored(inputs, labels, mask)`` fits and scores it anew."""
        y, mask = target.values, target.mask
        moved = None if mask is None else shuffled(mask, self.seed, self.groups)
        others = {"shuffled": scored(self.x, shuffled(y, self.seed, self.groups), moved)}
        if self.blank is not None:
            others["untrained"] = scored(self.blank, y, mask)
        for inputs in target.inputs:
            others["inputs"] = higher(others.get("inputs"), scored(inputs, y, mask))
        others["round"] = scored(round_index(*y.shape[:2]), y, mask)
        if target.types is not None:
            others["control_task"] = scored(self.x, control_task(y, target.types, self.seed), mask)
        return controls_of(target, score, others)


VerdictWord = Literal["represented", "not represented", "undecided", "uninformative"]

SMALLEST_EFFECT = 0.1
"""The smallest effect of interest: this share of what a control leaves to be explained."""

_CONSTANT = "constant"
"""The name under which a score is compared with the best constant."""

_UNINFORMATIVE = 0.05
"""An untrained control that comes this close to the score makes it uninformative (R2 or accuracy)."""


def verdict_of(
    score: ProbeScore, controls: Mapping[str, Control], limited: bool = False, leans_low: bool = False
) -> VerdictWord:
    """The verdict.

    ``limited`` says that the inputs control is missing, so that "represented" cannot be said; ``leans_low``, that the
    score is likely below that of the refit, so that "not represented" cannot.
    """
    counted = {name: control for name, control in controls.items() if control.counted}
    differences: dict[str, Interval] = {name: control.difference for name, control in counted.items()}
    if score.kind == "skill":
        differences[_CONSTANT] = score
    unlike = all(difference.low > 0 for name, difference in differences.items() if name != "untrained")
    blank = counted.get("untrained")
    if unlike and blank is not None and blank.difference.estimate <= _UNINFORMATIVE:
        return "uninformative"
    if all(difference.low > 0 for difference in differences.values()):
        return "undecided" if limited else "represented"
    absent = not leans_low and any(
        _absent(score, difference, counted.get(name)) for name, difference in differences.items()
    )
    return "not represented" if absent else "undecided"


def _absent(score: ProbeScore, difference: Interval, control: Control | None) -> bool:
    """Whether the probe beats a control (None: the constant) by no effect of interest that the sample would show."""
    if difference.high < 0:
        return True
    level, shown = (
        (0.0, score.detectable()) if control is None else (control.score.estimate, score.detectable(control.score))
    )
    smallest = SMALLEST_EFFECT * min(1 - level, 1.0)
    return difference.high < smallest and shown <= smallest


def detectable_of(score: ProbeScore, controls: Mapping[str, Control]) -> float:
    """The smallest difference that this sample would have shown from whichever counted control is hardest to beat."""
    values = [score.detectable(control.score) for control in controls.values() if control.counted]
    if score.kind == "skill":
        values.append(score.detectable())
    known = [value for value in values if not isnan(value)]
    return max(known, default=nan)
