"""Which algorithm does the machine compute, of all that the task's comparison knows?"""

from __future__ import annotations

from collections.abc import Hashable

from circuits.benchmark.material import Material
from circuits.benchmark.method import Answer
from circuits.benchmark.question import Question, Truth
from circuits.benchmark.scores import ranking
from circuits.benchmark.subject import Subject


def truth(subject: Subject, material: Material) -> Truth:
    """Every family: "computed" for the subject's own. Families that extend it can compute it, too, and are left out."""
    families = {family.key: family for family in subject.task.rivals().values()}
    own = subject.algorithm.key
    if own not in families:
        return {}
    kept = [key for key, family in families.items() if family.extends != own]
    found: dict[Hashable, str] = {key: "computed" if key == own else "" for key in kept}
    return found


def grade(subject: Subject, material: Material, answer: Answer) -> dict[str, float]:
    """Ranking of the own algorithm above the others, and whether it alone was declared."""
    return ranking(material.truth("algorithm"), answer, "computed")


QUESTION = Question(
    key="algorithm",
    name="which algorithm",
    asked="Which of the algorithms that the task's comparison knows does the machine compute, whatever its parameters?",
    true="The algorithm that the machine was constructed, or trained, to compute.",
    scored="Its rank among all families that do not contain it (AUROC); whether it was declared (recall, precision).",
    headline="auroc",
    truth=truth,
    grade=grade,
)
