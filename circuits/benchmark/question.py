"""What a question is: what is asked, what is true, and how answers are scored.

A question asks about items (edges, nodes, variables at sites, rounds, ...). Its truth gives each item a kind, or "" for
those that are false; an answer gives each item a score. Of all scores of answers, higher is better.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from circuits.benchmark.method import Answer

if TYPE_CHECKING:
    from circuits.benchmark.material import Material
    from circuits.benchmark.subject import Subject

Truth = Mapping[Hashable, str]
"""Every item -> its kind; "" for an item that is false."""


@dataclass(frozen=True)
class Question:
    """A question.

    Attributes:
        key, name: for arguments and tables.
        asked, true, scored: what is asked, what is true, and how answers are scored, in words.
        headline: the score that figures show.
        truth: ``(subject, material) -> truth``; empty where nobody knows it: the subject is then not asked.
        grade: ``(subject, material, answer) -> scores by name``.
        oracle: ``(subject, material) -> answer`` that the truth gives; by default the truth as scores.
        chance: an answer drawn at random; by default random scores of all items.
    """

    key: str
    name: str
    asked: str
    true: str
    scored: str
    headline: str
    truth: Callable[[Subject, Material], Truth]
    grade: Callable[[Subject, Material, Answer], dict[str, float]]
    oracle: Callable[[Subject, Material], Answer] | None = None
    chance: Callable[[Subject, Material, np.random.Generator], Answer] | None = None

    def known(self, subject: Subject, material: Material) -> Answer:
        """What the oracle answers: every true item 1, every other 0."""
        if self.oracle is not None:
            return self.oracle(subject, material)
        truth = material.truth(self.key)
        return Answer(
            {item: float(bool(kind)) for item, kind in truth.items()}, frozenset(i for i in truth if truth[i])
        )

    def drawn(self, subject: Subject, material: Material, generator: np.random.Generator) -> Answer:
        """What chance answers: a uniform number for every item; as many are declared true as are."""
        if self.chance is not None:
            return self.chance(subject, material, generator)
        truth = material.truth(self.key)
        scores = dict(zip(truth, generator.random(len(truth)).tolist(), strict=True))
        n_true = sum(map(bool, truth.values()))
        return Answer(scores, frozenset(sorted(scores, key=lambda item: -scores[item])[:n_true]))
