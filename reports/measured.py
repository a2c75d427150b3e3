"""The interval plot of a page: one row a claim, its number on a scale from 0 to 1, and what it is held against.

Drawn by the page itself (HTML and CSS), so that it is as wide as the window, follows its theme and is read out: a dot
with its 95 % interval, the threshold as a tick that points to the side on which a claim holds, the untrained model as
a hollow circle and the strongest other control as a hollow diamond.

    >>> from interp.statistics import Interval
    >>> Measured(Interval(0.6, 0.5, 0.7), above=0.95, controls={"untrained": -2.0}).marks[-1]
    ('dot', 60.0, 0.0)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from interp.errors import require
from interp.statistics import Interval


@dataclass(frozen=True)
class Measured:
    """A number whose scale runs from 0 to 1, and what it is held against.

    Attributes:
        above, below: the threshold: the claim holds where the whole interval lies on that side of it. At most one;
            neither where nothing is decided by the number.
        controls: name -> value of the same number where nothing can be known; "untrained" and the strongest of the
            others are drawn.
    """

    value: Interval
    above: float | None = None
    below: float | None = None
    controls: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.above is None or self.below is None, "a number is held against one threshold: above or below it")

    @property
    def shown(self) -> dict[str, float]:
        """The controls that are drawn: the untrained model, and the strongest of the others."""
        known = {name: value for name, value in self.controls.items() if not math.isnan(value)}
        others = {name: value for name, value in known.items() if not _untrained(name)}
        best = (min if self.below is not None else max)(others, key=lambda name: others[name], default=None)
        return {name: value for name, value in known.items() if _untrained(name) or name == best}

    @property
    def marks(self) -> list[tuple[str, float, float]]:
        """(kind, where it begins, how wide it is), in percent of the scale; what lies beyond it stands at its end."""
        low, at, high = (_percent(x) for x in (self.value.low, self.value.estimate, self.value.high))
        marks: list[tuple[str, float, float]] = []
        if not (math.isnan(low) or math.isnan(high)):
            marks.append(("span", low, high - low))
        for kind, bound in (("from", self.above), ("to", self.below)):
            if bound is not None and not math.isnan(bound):
                marks.append((kind, _percent(bound), 0.0))
        for name, value in self.shown.items():
            beyond = " beyond" * (not 0 <= value <= 1)
            marks.append((("untrained" if _untrained(name) else "control") + beyond, _percent(value), 0.0))
        if not math.isnan(at):
            beyond = " beyond" * (not 0 <= self.value.estimate <= 1)
            marks.append((f"dot{beyond}", at, 0.0))
        return marks


def _untrained(name: str) -> bool:
    return "untrained" in name


def _percent(value: float) -> float:
    return value if math.isnan(value) else round(100 * min(max(value, 0.0), 1.0), 2)


@dataclass(frozen=True)
class Row:
    """A row of the plot: what is claimed, its number, the badge, and the section that shows it, as "#slug".

    ``said`` stands in the place of a number that has no scale from 0 to 1.
    """

    name: str
    measured: Measured | None
    verdict: Any = None
    target: str = ""
    said: str = ""


@dataclass(frozen=True)
class IntervalPlot:
    """The plot, a block of a section; ``beneath`` is the table of its numbers, folded."""

    rows: Sequence[Row]
    caption: str = ""
    beneath: Any = None
    kind: ClassVar[str] = "intervals"

    @property
    def kinds(self) -> set[str]:
        """What is drawn in any row, for the legend."""
        marks = [kind for row in self.rows if row.measured is not None for kind, _, _ in row.measured.marks]
        return {word for kind in marks for word in kind.split()}

    @property
    def judged(self) -> bool:
        """Whether any row has a badge."""
        return any(row.verdict is not None for row in self.rows)
