"""Variables of the algorithm: at which sites they live, in which directions, which exist, and of which algorithm.

A variable lives where the rest of the round uses it. Sites are asked for at every position of the hook points at which
a variable is known to be held: what could merely be decoded at the others is false. Of a machine without layers they
are its points, whole, and each channel of what it carries.

Among the variables that are asked for are some that cannot exist. For each variable that the machine holds there is one
that looks just like it and is nowhere: its value in another episode, at the same round. It has the same distribution
and drifts in the same way from round to round.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from circuits.benchmark.known_machine import KnownMachine
from circuits.benchmark.material import Material
from circuits.benchmark.question import Answer, Challenge, Truth, pose, ranking
from interp.display import lacks
from interp.interventions.sites import Site
from interp.interventions.swaps import Place
from interp.machine import Machine

ELSEWHERE = "another episode's "
"""What the names of variables begin with that the machine cannot hold."""


def _held(subject: KnownMachine, material: Material) -> dict[str, tuple[Place, ...]]:
    """Variable -> the places of the residual stream that hold it; variables that never vary are left out.

    Of a machine without layers, all of its places.
    """
    values, anywhere = material.variables, bool(lacks(subject.model, "resid_post"))
    places = {}
    for key, several in subject.places.items():
        inside = tuple(place for place in several if anywhere or place.site.kind.axes == "pos")
        if inside and key in values and np.ptp(values[key].astype(np.float64)) > 0:
            places[key] = inside
    return places


def _where(subject: KnownMachine, material: Material) -> Truth:
    """Every (variable, site): "held" where the variable is."""
    layout = subject.model.layout.fit(material.episodes())
    kinds: dict[Hashable, str] = {}
    for key, several in _held(subject, material).items():
        true = {str(place.site) for place in several}
        if lacks(subject.model, "resid_post"):
            kinds |= {(key, site): "held" if site in true else "" for site in _points(subject.model)}
            continue
        for component, layer in dict.fromkeys((place.site.component, place.site.layer) for place in several):
            for label in layout.labels:
                site = str(Site(component, layer, position=label))
                kinds[key, site] = "held" if site in true else ""
    return kinds


def _points(machine: Machine) -> list[str]:
    """Each channel of what a machine carries, and each of its points, as sites."""
    several = len(machine.channels) > 1
    found = [f"latent@{channel.name}" for channel in machine.channels] if several else ["latent"]
    for point in machine.points.values():
        if point.key != "latent":
            found += [f"{point.key}[{i}]" for i in range(point.n_layers)] if point.has_layer else [point.key]
    return found


def _bases(subject: KnownMachine, material: Material) -> dict[tuple[str, str], Tensor]:
    """(variable, site) -> orthonormal ``[d_model, rank]``: all places of a variable at one site together."""
    parts: dict[tuple[str, str], list[Tensor]] = {}
    for key, several in _held(subject, material).items():
        for place in several:
            if place.basis is not None:
                parts.setdefault((key, str(place.site)), []).append(place.basis.double())
    return {item: _span(torch.cat(bases, 1)) for item, bases in parts.items()}


def _grade_subspaces(subject: KnownMachine, material: Material, answer: Answer) -> dict[str, float]:
    """Mean squared cosine of the principal angles between the true subspace and the answer's.

    Directions beyond the true rank cost nothing, so of an answer only the first ones, up to that rank, count.
    """
    overlaps = [_overlap(basis, answer.subspaces.get(item)) for item, basis in _bases(subject, material).items()]
    return {"cosine2": float(np.mean(overlaps))}


def _random_subspaces(subject: KnownMachine, material: Material, generator: np.random.Generator) -> Answer:
    """Random subspaces of the true ranks."""
    shapes = {item: tuple(basis.shape) for item, basis in _bases(subject, material).items()}
    drawn = {item: torch.from_numpy(generator.standard_normal(shape)) for item, shape in shapes.items()}
    return Answer({}, subspaces={item: _span(columns) for item, columns in drawn.items()})


def _span(columns: Tensor) -> Tensor:
    vectors, sizes, _ = torch.linalg.svd(columns.double(), full_matrices=False)
    return vectors[:, sizes > 1e-9 * sizes.max()]


def _overlap(true: Tensor, answered: Tensor | None) -> float:
    if answered is None or not answered.shape[1]:
        return 0.0
    return float((true.T @ answered[:, : true.shape[1]].double()).square().sum()) / true.shape[1]


def _exist(subject: KnownMachine, material: Material) -> Truth:
    """Every variable: "held", or "" for one of another episode."""
    keys = list(_held(subject, material))
    return {**dict.fromkeys(keys, "held"), **{ELSEWHERE + key: "" for key in keys}}


def values_of(material: Material, item: str) -> NDArray[np.float64]:
    """The values that an item of "exists" or "where" asks for, ``[episode, round, element]``."""
    values = np.asarray(material.variables[item.removeprefix(ELSEWHERE)], dtype=np.float64)
    values = values.reshape(*values.shape[:2], -1)
    return np.roll(values, 1, axis=0) if item.startswith(ELSEWHERE) else values


def _grade_existing(subject: KnownMachine, material: Material, answer: Answer) -> dict[str, float]:
    """Ranking, and of what was declared: power, and 1 less the false-discovery rate (1 where nothing was declared)."""
    known = material.truth("exists")
    scores = ranking(known, answer, "held")
    if answer.chosen is not None:
        declared = [item for item in known if item in answer.chosen]
        true = sum(bool(known[item]) for item in declared)
        scores["power"] = true / sum(map(bool, known.values()))
        scores["1-fdr"] = true / len(declared) if declared else 1.0
    return scores


def _families(subject: KnownMachine, material: Material) -> Truth:
    """Every family: "computed" for the subject's own. Families that extend it can compute it, too, and are left out."""
    families = {family.key: family for family in subject.task.rivals().values()}
    computed = subject.algorithm.key
    if computed not in families:
        return {}
    kept = [key for key, family in families.items() if family.extends != computed]
    return {key: "computed" if key == computed else "" for key in kept}


pose(
    Challenge(
        key="where",
        name="where variables live",
        asked="At which sites of the residual stream is a variable held in a form that the rest of the round uses?",
        true="The construction's locations; of trained subjects the sites that interchanges tied.",
        scored="Sites that hold a variable against other positions of the same hook points, over all variables.",
        headline="ap",
        truth=_where,
        grade=lambda subject, material, answer: ranking(material.truth("where"), answer, "held"),
    ),
    Challenge(
        key="subspace",
        name="in which directions",
        asked="In which directions of a site does a variable live, given that it lives there?",
        true="The construction's directions; of trained subjects those that interchanges tied.",
        scored="Mean squared cosine of the principal angles (chance: rank over d_model).",
        headline="cosine2",
        # Every item is true, each of a kind of its own: there are no false ones.
        truth=lambda subject, material: {item: " @ ".join(item) for item in _bases(subject, material)},
        grade=_grade_subspaces,
        oracle=lambda subject, material: Answer({}, subspaces=_bases(subject, material)),
        chance=_random_subspaces,
    ),
    Challenge(
        key="exists",
        name="which variables exist",
        asked="Which variables does the machine hold anywhere in its residual stream, and which does it not?",
        true="The variables that have a location, against the same variables of another episode.",
        scored="Ranking (AUROC); power and 1 - false-discovery rate of what is declared to exist.",
        headline="auroc",
        truth=_exist,
        grade=_grade_existing,
    ),
    Challenge(
        key="algorithm",
        name="which algorithm",
        asked="Which algorithm known to the task's comparison does the machine compute, whatever its parameters?",
        true="The algorithm that the machine was constructed, or trained, to compute.",
        scored="Its rank among families that do not contain it (AUROC); whether it is declared (recall, precision).",
        headline="auroc",
        truth=_families,
        grade=lambda subject, material, answer: ranking(material.truth("algorithm"), answer, "computed"),
    ),
)
