"""The lines of an audit: each with its number, interval, control and threshold; all thresholds stand here.

A number decides only with its whole 95 % interval, and only where it has a control. What lies between, or has none, is
"undecided", and the line says why.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from interp.statistics import NO_NUMBER, Interval

UNDECIDED, NOT_APPLICABLE = "undecided", "not applicable"


@dataclass(frozen=True)
class Threshold:
    """A number that a verdict rests on; ``why`` says where it comes from, and what was measured at it."""

    value: float
    why: str


THRESHOLDS = {
    "effect": Threshold(
        0.02,
        "predictions that move by less than two points of probability on average carry no conclusion; planted machines "
        "that do not read their state give 0, those that do .07 and more",
    ),
    "lasts": Threshold(
        0.1,
        "the share of an effect that is left one round on; a state that is made anew from each round's inputs gives 0, "
        "handwired machines .5 and more",
    ),
    "decoded": Threshold(
        0.5, "half of the variation, and more than the better control; planted machines' own memories .78"
    ),
    "kept": Threshold(0.9, "directions count as enough where nine tenths of the whole effect pass them"),
    "in time": Threshold(
        0.1, "a tenth of the loss between knowing nothing and knowing: machines that search or count are within .01"
    ),
    "side": Threshold(
        0.75,
        "halfway between a model that takes either side by chance and one that always takes the algorithm's, where the "
        "two disagree; planted heuristics give 0, handwired machines 1",
    ),
    "settled": Threshold(1e-3, "a step as small as this share of how far states lie apart counts as no step"),
    "common": Threshold(
        0.9,
        "the share of a step's square that all episodes make alike; a drift gives 1, a random map's orbit .2 at most",
    ),
    "stays": Threshold(
        0.1, "what predictions move, on average, after the algorithm has come to rest; handwired search moves 0"
    ),
}
"""Name -> the threshold. They were chosen with the planted machines that ``tests/audit`` calls seen; the others were
judged once they stood."""


@dataclass(frozen=True)
class Verdict:
    """A line of an audit.

    Attributes:
        key: of the question; ``about`` what part of the machine, such as a channel, it is asked of.
        word: the answer; "undecided" and "not applicable" are answers, too.
        number: what decided, which is ``what``; None where nothing could be measured.
        control: the same number of what should not show it, which is ``control_is``; None where there is none.
        threshold: what the number was held against.
        note: what else a reader must know.
    """

    key: str
    question: str
    word: str
    number: Interval | None = None
    what: str = ""
    control: float | None = None
    control_is: str = ""
    threshold: float | None = None
    about: str = ""
    note: str = ""

    def __str__(self) -> str:
        if self.number is None:
            return f"{self.asked}: {self.word}. {self.note}".rstrip()
        held = "no control" if self.control is None else f"{self.control_is} {self.control:.3g}"
        number = f"{self.what} {self.number.estimate:.3f} [{self.number.low:.3f}, {self.number.high:.3f}]"
        bound = "" if self.threshold is None else f"; threshold {self.threshold:g}"
        return f"{self.asked}: {self.word}. {number}; {held}{bound}. {self.note}".rstrip()

    @property
    def asked(self) -> str:
        """The question, with what it is asked of."""
        return self.question + (f" ({self.about})" if self.about else "")


def placed(number: Interval, threshold: float, above: str, below: str, has_control: bool = True) -> str:
    """The word for a number whose interval lies above or below a threshold; "undecided" between, or without a control.

    >>> placed(Interval(0.5, 0.4, 0.6), 0.3, "used", "not used")
    'used'
    >>> placed(Interval(0.2, 0.1, 0.3), 0.3, "used", "not used"), placed(Interval(0.2, 0.1, 0.25), 0.3, "used", "not")
    ('undecided', 'not')
    >>> placed(Interval(0.5, 0.4, 0.6), 0.3, "used", "not used", has_control=False)
    'undecided'
    """
    if not has_control:
        return UNDECIDED
    return above if number.low > threshold else below if number.high < threshold else UNDECIDED


def to_frame(verdicts: tuple[Verdict, ...]) -> pd.DataFrame:
    """A row for each line."""
    rows = []
    for line in verdicts:
        number = line.number or NO_NUMBER
        rows.append(
            {
                "key": line.key,
                "question": line.question,
                "about": line.about,
                "verdict": line.word,
                "number_is": line.what,
                **number.columns("number"),
                "control_is": line.control_is,
                "control": float("nan") if line.control is None else line.control,
                "threshold": float("nan") if line.threshold is None else line.threshold,
                "note": line.note,
            }
        )
    return pd.DataFrame(rows)
