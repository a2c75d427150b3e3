"""In which directions of a site does a variable live, where it is known to live there?"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from circuits.benchmark.material import Material
from circuits.benchmark.method import Answer
from circuits.benchmark.question import Question, Truth
from circuits.benchmark.questions.where import held
from circuits.benchmark.subject import Subject


def bases(subject: Subject, material: Material) -> dict[tuple[str, str], Tensor]:
    """(variable, site) -> orthonormal ``[d_model, rank]``: all places of a variable at one site together."""
    found: dict[tuple[str, str], list[Tensor]] = {}
    for key, several in held(subject, material).items():
        for place in several:
            if place.basis is not None:
                found.setdefault((key, str(place.site)), []).append(place.basis.double())
    return {item: _span(torch.cat(parts, 1)) for item, parts in found.items()}


def truth(subject: Subject, material: Material) -> Truth:
    """Every (variable, site) that holds one, each of a kind of its own: there are no false ones."""
    return {item: " @ ".join(item) for item in bases(subject, material)}


def grade(subject: Subject, material: Material, answer: Answer) -> dict[str, float]:
    """Mean squared cosine of the principal angles between the true subspace and the answer's.

    Directions beyond the true rank cost nothing, so of an answer only the first ones, up to that rank, count.
    """
    known = bases(subject, material)
    found = [_overlap(basis, answer.subspaces.get(item)) for item, basis in known.items()]
    return {"cosine2": float(np.mean(found))}


def oracle(subject: Subject, material: Material) -> Answer:
    """The true subspaces."""
    return Answer({}, subspaces=bases(subject, material))


def chance(subject: Subject, material: Material, generator: np.random.Generator) -> Answer:
    """Random subspaces of the true ranks."""
    drawn = {
        item: _span(torch.from_numpy(generator.standard_normal(tuple(basis.shape))))
        for item, basis in bases(subject, material).items()
    }
    return Answer({}, subspaces=drawn)


def _span(columns: Tensor) -> Tensor:
    vectors, sizes, _ = torch.linalg.svd(columns.double(), full_matrices=False)
    return vectors[:, sizes > 1e-9 * sizes.max()]


def _overlap(true: Tensor, given: Tensor | None) -> float:
    if given is None or not given.shape[1]:
        return 0.0
    return float((true.T @ given[:, : true.shape[1]].double()).square().sum()) / true.shape[1]


QUESTION = Question(
    key="subspace",
    name="in which directions",
    asked="In which directions of a site does a variable live, given that it lives there?",
    true="The construction's directions; of trained subjects those that interchanges tied.",
    scored="Mean squared cosine of the principal angles (chance: rank over d_model).",
    headline="cosine2",
    truth=truth,
    grade=grade,
    oracle=oracle,
    chance=chance,
)
