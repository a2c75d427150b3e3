"""Findings: claims that could be false of a model, and how each came out. A page opens with the table of them.

A part of a report returns its findings (``Part.summary``). A claim is worded so that "pass" says it is true; "fail"
says that it is false, "cannot tell" that this sample decides neither way, "uninformative" that a control does as well,
so that the evidence says nothing about this model.

    >>> Finding("It is exact", judged(Interval(0.9, 0.8, 1.0), 0.5), "0.900", "chance 0.5").word
    'pass'
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import pandas as pd

from interp.statistics import Interval
from reports.blocks import Verdict

Word = Literal["pass", "fail", "cannot tell", "uninformative"]
"""How a claim came out."""
NEAR = 0.05
"""A control that comes this close to a score makes it uninformative."""
WORDS: tuple[Word, ...] = ("pass", "fail", "cannot tell", "uninformative")


@dataclass(frozen=True)
class Finding:
    """One line of the table.

    Attributes:
        claim: what could be false of the model.
        word: how it came out.
        evidence: what decided it, with its interval, in a few words.
        control: the strongest of what it was held against; empty where the evidence needs none.
        expected: whether the model was made to satisfy it, so that a "fail" is drawn as a fault.
    """

    claim: str
    word: Word
    evidence: str
    control: str = ""
    expected: bool = True

    @property
    def verdict(self) -> Verdict:
        """The badge."""
        passed = {"pass": True, "fail": False if self.expected else None}.get(self.word)
        return Verdict(passed, self.word)


@dataclass(frozen=True)
class Findings:
    """The table, a block of a section: findings, each with the section that it comes from as (slug, title)."""

    rows: Sequence[tuple[Finding, tuple[str, str]]]
    kind: ClassVar[str] = "findings"

    @property
    def frame(self) -> pd.DataFrame:
        """The same as data."""
        columns = ("claim", "evidence", "control", "word")
        rows = [[*(getattr(finding, name) for name in columns), title] for finding, (_, title) in self.rows]
        return pd.DataFrame(rows, columns=["claim", "evidence", "strongest control", "verdict", "see"])

    @property
    def counts(self) -> str:
        """How many came out in each way, such as "3 pass, 1 cannot tell"."""
        words = [finding.word for finding, _ in self.rows]
        return ", ".join(f"{words.count(word)} {word}" for word in WORDS if word in words)


def judged(value: Interval, above: float, control: float = math.nan) -> Word:
    """Whether a number is above a bound, by its whole interval; without one, or astride the bound, nobody can tell.

    Args:
        control: what a control reaches, where there is one; a number that is not false and within :data:`NEAR` of it,
            or below it, is uninformative.
    """
    if value.high < above:
        return "fail"
    if control >= value.estimate - NEAR:
        return "uninformative"
    return "pass" if value.low > above else "cannot tell"
