"""The four verdicts: is it the same behaviour, state, update, circuit? The rules, and every threshold with its reason.

Each verdict is decided by one number (the *bound*) against a threshold: "same" where the number's 95 % interval lies
above it, "different" where it lies below, "undecided" where it holds it, or where an untrained model does as well.

* behaviour: 1 - JS(model, reference) / JS(model, best without a memory), on episodes that tell algorithms apart;
* state: the worse direction of stitching, with what had to be supplied ("plus the round");
* update: the worst step R2 of the reference's state in the model, on and off the manifold, one round on and several,
  and the worst score of a round's input in what the round writes;
* circuit: "different" by the largest difference of a mediated share between the two, on paths that tell trained from
  untrained models; "same" by how alike their heads are, where no path differs.

The thresholds were chosen on the machines that ``tests/compare/calibration.py`` names as seen; the others there test
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from circuits.compare.circuit import CircuitPart
from circuits.compare.effects import EffectsPart
from circuits.compare.state import StatePart
from circuits.compare.update import UpdatePart
from interp.statistics import Interval

Word = Literal["same", "different", "undecided"]

ALIKE = 0.95
"""Behaviour. Handwired against itself 1; Weighted Majority against the Bayes predictor .5 to .9 by regime."""
STITCHED = 0.95
"""State. Handwired and learned Weighted Majority .998 to .999 both ways with the round; untrained models to .94."""
WORTH = 0.01
"""State. Nats a round that both memories must be worth: below it any map is perfect."""
STEPPED = 0.95
"""Update. Learned .997 and .98; a memory that forgets 2 % a round .87, a window of 10 rounds below 0."""
GRADED = 0.9
"""Update. Score of an input in what a round writes: 1 where it is handwired, .999 for the label in ``wma-learned``."""
SHARE = 0.25
"""Circuit. Difference of a mediated share: 0 between handwired R and P; .64 and .82 to ``wma-learned``."""
ROLES = 0.5
"""Circuit. Similarity of heads that "same" needs: handwired and rotated 1, R and P .8, untrained models to .3."""


@dataclass(frozen=True)
class Verdict:
    """An answer and what decided it.

    Attributes:
        question: "behaviour", "state", "update" or "circuit".
        word: "same", "different" or "undecided".
        note: what goes with it, such as "plus the round".
        decided_by: what was measured, in words.
        bound: the number that decided, with its interval.
        threshold: what it was held against.
        control: the best of the untrained models at the same; NaN where there is none.
    """

    question: str
    word: Word
    note: str
    decided_by: str
    bound: Interval
    threshold: float
    control: float = float("nan")

    def __str__(self) -> str:
        note = f" ({self.note})" if self.note else ""
        return f"{self.question}: {self.word}{note}; {self.decided_by} {self.bound}, threshold {self.threshold}"


def behaviour(alike: Interval) -> Verdict:
    """From how alike the two models predict."""
    return Verdict("behaviour", _above(alike, ALIKE), "", "predictions alike", alike, ALIKE)


def state(part: StatePart) -> Verdict:
    """From stitching both ways."""
    ways = [part.best(part.model, part.reference), part.best(part.reference, part.model)]
    worst = min(ways, key=lambda s: s.score.low)
    control = part.untrained(worst.target)
    word = _above(worst.score, STITCHED)
    if word == "same" and any(w.low < WORTH for w in part.worth.values()):
        word, note = "undecided", f"a memory is worth less than {WORTH} nats a round"
    elif word == "same" and control >= worst.score.low:
        word, note = "undecided", "an untrained model's latents do as well"
    else:
        needed = [f"{s.target} needs the {' and the '.join(s.supplied)} besides" for s in ways if s.supplied]
        note = "; ".join(needed) if word == "same" else ""
    label = f"stitched {worst.source} -> {worst.target}"
    return Verdict("state", word, note, label, worst.score, STITCHED, control)


def update(part: UpdatePart, effects: EffectsPart, algorithm: str) -> Verdict:
    """From the step R2 of ``algorithm``'s state, and the scores of inputs in what a round writes."""
    steps = part.of(algorithm)
    worst = min(steps, key=lambda u: u.r2.low)
    control = max((score for u in steps for score in u.untrained), default=float("nan"))
    word, note = _above(worst.r2, STEPPED), ""
    if word == "same" and control >= worst.r2.low:
        word, note = "undecided", "an untrained model does as well"
    label = f"step R2 of {' + '.join(worst.state)}, {worst.manifold} the manifold, {worst.horizon} rounds on"
    found = Verdict("update", word, note, label, worst.r2, STEPPED, control)
    written = [e for e in effects.effects if e.algorithm == algorithm and e.what == "input" and e.outcome == "state"]
    scored = [(e, e.score) for e in written if e.score is not None]
    if not scored:
        return found
    weakest, score = min(scored, key=lambda pair: pair[1].low)
    by_input = _above(score, GRADED)
    if by_input == "same" or word == "different":
        return found
    label = f"score of {weakest.variable} in what a round writes"
    return Verdict("update", by_input, "", label, score, GRADED, weakest.untrained)


def circuit(part: CircuitPart) -> Verdict:
    """From the shares that pass through patterns, and from how alike the heads are.

    A path tells two circuits apart only where training made it what it is; two that are the same agree on every path.
    """
    apart = [(path, _apart(path.blocked, path.reference_blocked)) for path in part.paths]
    null = max(part.untrained, default=float("nan"))
    told = [pair for pair in apart if pair[0].discriminates]
    path, worst = max(told or apart, key=lambda pair: pair[1].low)
    label = f"share through patterns at {path.at}, {path.cause} -> {path.outcome}, apart by"
    note = f"heads alike {part.similarity.estimate:.2f}, untrained {null:.2f}"
    if told and worst.low > SHARE:
        return Verdict("circuit", "different", note, label, worst, SHARE)
    if part.similarity.low >= max(ROLES, null) and all(gap.high <= SHARE for _, gap in apart):
        return Verdict("circuit", "same", "", "heads alike", part.similarity, ROLES, null)
    return Verdict("circuit", "undecided", note, label, worst, SHARE)


def _apart(a: Interval, b: Interval) -> Interval:
    """The distance of two numbers, each with its own interval."""
    gap = a.estimate - b.estimate
    below = float(np.hypot(a.estimate - a.low, b.high - b.estimate))
    above = float(np.hypot(a.high - a.estimate, b.estimate - b.low))
    low, high = gap - below, gap + above
    nearest = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
    return Interval(abs(gap), nearest, max(abs(low), abs(high)))


def _above(value: Interval, threshold: float) -> Word:
    if value.low >= threshold:
        return "same"
    return "different" if value.high < threshold else "undecided"
