"""Which variables exist in the machine at all? Among those asked for are some that cannot.

For each variable that the machine holds there is one that looks just like it and is nowhere: its value in another
episode, at the same round. It has the same distribution and drifts in the same way from round to round.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from circuits.benchmark.material import Material
from circuits.benchmark.method import Answer
from circuits.benchmark.question import Question, Truth
from circuits.benchmark.questions.where import held, variables
from circuits.benchmark.scores import ranking
from circuits.benchmark.subject import Subject

ELSEWHERE = "another episode's "


def truth(subject: Subject, material: Material) -> Truth:
    """Every variable: "held", or "" for one of another episode."""
    keys = list(held(subject, material))
    return {**dict.fromkeys(keys, "held"), **{ELSEWHERE + key: "" for key in keys}}


def asked(subject: Subject, material: Material, item: str) -> NDArray[np.float64]:
    """The values that an item asks for, ``[episode, round, element]``."""
    values = np.asarray(variables(subject, material)[item.removeprefix(ELSEWHERE)], dtype=np.float64)
    values = values.reshape(*values.shape[:2], -1)
    return np.roll(values, 1, axis=0) if item.startswith(ELSEWHERE) else values


def grade(subject: Subject, material: Material, answer: Answer) -> dict[str, float]:
    """Ranking, and of what was declared: power, and 1 less the false-discovery rate (1 where nothing was declared)."""
    known = material.truth("exists")
    found = ranking(known, answer, "held")
    if answer.chosen is not None:
        declared = [item for item in known if item in answer.chosen]
        true = sum(bool(known[item]) for item in declared)
        found["power"] = true / sum(map(bool, known.values()))
        found["1-fdr"] = true / len(declared) if declared else 1.0
    return found


QUESTION = Question(
    key="exists",
    name="which variables exist",
    asked="Which variables does the machine hold anywhere in its residual stream, and which does it not?",
    true="The variables that have a location, against the same variables of another episode.",
    scored="Ranking (AUROC); power and 1 - false-discovery rate of what is declared to exist.",
    headline="auroc",
    truth=truth,
    grade=grade,
)
