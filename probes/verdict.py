"""Four verdicts on a probe: represented, not represented, undecided, uninformative.

A verdict compares the probe's score with every control that counts, and R2 with 0 (the best constant):

* ``represented``: every difference has a lower bound above 0, and the inputs control was run;
* ``uninformative``: the probe beats all others in that way, but an untrained model comes within :data:`UNINFORMATIVE`
  of its score, by the estimates, or exceeds it: what is decoded is there without training, so that the score says
  nothing about what was learned, even where the interval says that a little more is decoded;
* ``not represented``: the upper bound of some difference is below :data:`SMALLEST_EFFECT` of what that control leaves
  (``1 - score`` of the control; 1 where the control is below 0), and this sample would have shown an effect of that
  size; or the upper bound is below 0: the control says more than the probe;
* ``undecided``: everything else. ``detectable`` says which difference this sample would have shown.

What a verdict is NOT: corrected for several targets or sites; about use (see :mod:`probes.fit`); a statement about a
model other than this one. "Not represented" means: not by a linear map (or the given estimator), beyond that control.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan, nan
from typing import Literal

from interp.statistics import Interval
from probes.controls import Control
from probes.scores import ProbeScore

VerdictWord = Literal["represented", "not represented", "undecided", "uninformative"]

SMALLEST_EFFECT = 0.1
"""The smallest effect of interest: this share of what a control leaves to be explained."""

CONSTANT = "constant"
"""The name under which a score is compared with the best constant."""

UNINFORMATIVE = 0.05
"""An untrained control that comes this close to the score makes it uninformative (R2 or accuracy)."""


def verdict_of(score: ProbeScore, controls: Mapping[str, Control], limited: bool = False) -> VerdictWord:
    """The verdict, from the score and its controls.

    Args:
        limited: the inputs control is missing, so that "represented" cannot be said.
    """
    counted = {name: control for name, control in controls.items() if control.counted}
    differences: dict[str, Interval] = {name: control.difference for name, control in counted.items()}
    if score.kind == "skill":
        differences[CONSTANT] = score
    unlike = all(difference.low > 0 for name, difference in differences.items() if name != "untrained")
    blank = counted.get("untrained")
    if unlike and blank is not None and blank.difference.estimate <= UNINFORMATIVE:
        return "uninformative"
    if all(difference.low > 0 for difference in differences.values()):
        return "undecided" if limited else "represented"
    absent = any(_absent(score, difference, counted.get(name)) for name, difference in differences.items())
    return "not represented" if absent else "undecided"


def _absent(score: ProbeScore, difference: Interval, control: Control | None) -> bool:
    """Whether the probe beats a control by no effect of interest, in a sample that would have shown one.

    The control is the constant where it is None.
    """
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
