"""The questions of the benchmark: of edges and nodes, of variables, and of rounds.

What is true of each, and how answers are scored: ``docs/method/benchmark.md``.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from circuits.benchmark.known_machine import KnownMachine, span
from circuits.benchmark.material import ANOTHER, EXITS, Material
from circuits.benchmark.question import QUESTIONS as QUESTIONS
from circuits.benchmark.question import Answer, Challenge, Truth, pose, ranking, scores_of
from interp.core.display import lacks
from interp.interventions.ablation import SHARES
from interp.interventions.sites import Place, Site
from interp.support.files import read_tables

_KINDS = ("content", "constant", "clean-up")  # the kinds of edges, the one that matters most first
_INERT = "inert"  # the kind of a true edge of which no cut changes anything on the episodes that methods are given
_UNCHANGED = 1e-12  # a change that is rounding, of predictions in float64


def _edges(subject: KnownMachine, material: Material) -> Truth:
    """Every candidate edge by the names of its ends, and its kind; "inert" where a cut changes nothing
    (:func:`_changes`).
    """
    if subject.edges is None:
        return {}
    changes = _changes(material)
    kinds = {name: subject.edges.get(name, "") for name in material.edge_names}
    return {
        name: _INERT if kind and changes[name] <= _UNCHANGED else kind
        for name, kind in kinds.items()
    }


def _changes(material: Material) -> dict[tuple[str, str], float]:
    """By how much each candidate edge's cuts change a prediction or a latent, at the most."""
    largest = np.zeros(len(material.candidates))
    for t in (material.effort.round, material.effort.early):
        clean = material.pair(ANOTHER, t).clean_readout
        for ablation in ("zero", "resample"):
            cut = material.cut(ANOTHER, ablation, t)
            for changed, kept in (
                (cut.predictions, clean.predictions),
                (cut.latents, clean.latents),
            ):
                apart = (changed - kept).abs().flatten(1).amax(1).nan_to_num(nan=np.inf)
                largest = np.maximum(largest, apart.double().numpy(force=True))
    return dict(zip(material.edge_names, largest.tolist(), strict=True))


def _grade_edges(subject: KnownMachine, material: Material, answer: Answer) -> dict[str, float]:
    known = material.truth("edges")
    scores = ranking(known, answer, "content", ("constant", "clean-up"))
    order = np.argsort(-scores_of(known, answer), kind="stable")
    curves, edges = [], material.candidates
    sizes = [0, *(round(share * len(edges)) for share in SHARES)]
    for case in filter(
        None, map(material.case, EXITS)
    ):  # faithfulness of the best edges, at MIB's shares of all
        scorer = material.scorer(case, "resample", "grades")
        circuits = [scorer.graph.mask([edges[i] for i in order[:size]]) for size in sizes]
        scorer.run(circuits)
        empty, *measured = (
            float(torch.from_numpy(scorer.values(circuit)).mean()) for circuit in circuits
        )
        curves.append((np.array(measured) - empty) / (measured[-1] - empty))
    if curves:
        scores["cpr"] = float(np.mean([np.trapezoid(curve, SHARES) for curve in curves]))
        scores["1-cmd"] = float(
            np.mean([1 - np.trapezoid(np.abs(1 - curve), SHARES) for curve in curves])
        )
    return scores


def _true_edges(subject: KnownMachine, material: Material) -> Answer:
    """Content edges above constant wiring, this above clean-up, and all above edges that do not exist."""
    worth = {"content": 3.0, "constant": 2.0, "clean-up": 1.0, _INERT: 0.0, "": 0.0}
    known = material.truth("edges")
    return Answer(
        {edge: worth[kind] for edge, kind in known.items()},
        frozenset(e for e in known if worth[known[e]]),
    )


def _nodes(subject: KnownMachine, material: Material) -> Truth:
    """Every node that has weights -> the kind that matters most of the edges that leave it, "" where none does."""
    if subject.edges is None:
        return {} if subject.nodes is None else dict(subject.nodes.items())
    nodes = dict.fromkeys(source for source, _ in material.edge_names)
    leaving = {
        node: {kind for (source, _), kind in subject.edges.items() if source == node}
        for node in nodes
    }
    return {
        node: next((kind for kind in _KINDS if kind in kinds), "")
        for node, kinds in leaving.items()
    }


def _grade_nodes(subject: KnownMachine, material: Material, answer: Answer) -> dict[str, float]:
    """Ranking: nodes of any kind against nodes that nothing reads, and content against all others."""
    known = material.truth("nodes")
    used = {node: "used" if kind else "" for node, kind in known.items()}
    content = {node: kind if kind == "content" else "" for node, kind in known.items()}
    among_all = ranking(used, Answer(answer.scores), "used")
    return {
        **{f"{name} used": value for name, value in among_all.items()},
        **ranking(content, answer, "content"),
    }


_ELSEWHERE = (
    "another episode's "  # what the names of variables begin with that the machine cannot hold
)


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
    channels = [f"latent@{channel.name}" for channel in subject.model.channels]
    points = (
        channels if len(channels) > 1 else ["latent"]
    )  # of what is carried, and then of what it passes through
    for point in subject.model.points.values():
        if point.key != "latent":
            points += (
                [f"{point.key}[{i}]" for i in range(point.n_layers)]
                if point.has_layer
                else [point.key]
            )
    kinds: dict[Hashable, str] = {}
    for key, several in _held(subject, material).items():
        true, sites = {str(place.site) for place in several}, points
        if not lacks(subject.model, "resid_post"):
            layers = dict.fromkeys((place.site.component, place.site.layer) for place in several)
            sites = [str(Site(*at, position=label)) for at in layers for label in layout.labels]
        kinds |= {(key, site): "held" if site in true else "" for site in sites}
    return kinds


def _bases(subject: KnownMachine, material: Material) -> dict[tuple[str, str], Tensor]:
    """(variable, site) -> orthonormal ``[d_model, rank]``: all places of a variable at one site together."""
    parts: dict[tuple[str, str], list[Tensor]] = {}
    for key, several in _held(subject, material).items():
        for place in several:
            if place.basis is not None:
                parts.setdefault((key, str(place.site)), []).append(place.basis.double())
    return {item: span(torch.cat(bases, 1)) for item, bases in parts.items()}


def _grade_subspaces(subject: KnownMachine, material: Material, answer: Answer) -> dict[str, float]:
    """Mean squared cosine of the principal angles between the true subspace and the answer's.

    Directions beyond the true rank cost nothing, so of an answer only the first ones, up to that rank, count.
    """
    overlaps = []
    for item, true in _bases(subject, material).items():
        found = answer.subspaces.get(item, true[:, :0])
        overlaps.append(
            float((true.T @ found[:, : true.shape[1]].double()).square().sum()) / true.shape[1]
        )
    return {"cosine2": float(np.mean(overlaps))}


def values_of(material: Material, item: str) -> NDArray[np.float64]:
    """The values that an item of "exists" or "where" asks for, ``[episode, round, element]``."""
    values = np.asarray(material.variables[item.removeprefix(_ELSEWHERE)], dtype=np.float64)
    values = values.reshape(*values.shape[:2], -1)
    return np.roll(values, 1, axis=0) if item.startswith(_ELSEWHERE) else values


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
    families, computed = subject.task.rivals(), subject.algorithm.key
    kept = [key for key, family in families.items() if family.extends != computed]
    return (
        {key: "computed" if key == computed else "" for key in kept} if computed in families else {}
    )


Item = tuple[str, int, int]
"""Key of a corruption, the round that it changes, and the round that reads the latents."""


def changes(subject: KnownMachine, material: Material) -> list[tuple[str, int]]:
    """Every corruption of one round's input, at two rounds before the one that is read."""
    early, read = material.effort.early, material.effort.round
    keys = [
        corruption.key
        for corruption in subject.task.analysis.corruptions()
        if not corruption.changes_history
    ]
    return [(key, t) for key in keys for t in sorted({early, (early + read) // 2})]


def sides(subject: KnownMachine, material: Material, key: str, round: int) -> tuple[Any, Any]:
    """The clean and the corrupted episodes, on the material's larger batch."""
    episodes = material.episodes(1, material.effort.fits)
    return material.once(
        ("sides", key, round), lambda: subject.task.corruption(key).build(episodes, round)
    )


def _carrying(subject: KnownMachine, material: Material) -> Truth:
    """Every change and round: "carries" where the algorithm needs the state that the round reads for its effect."""
    algorithm = subject.algorithm
    kinds: dict[Hashable, str] = {}
    for key, at in changes(subject, material):
        clean, corrupted = (
            algorithm.run(episodes) for episodes in sides(subject, material, key, at)
        )
        shown = _differ(
            *(
                algorithm.distribution(values)[:, material.effort.round]
                for values in (clean, corrupted)
            )
        )
        for t in range(material.effort.rounds):
            moved = np.any(
                [_differ(clean[name][:, t], corrupted[name][:, t]) for name in algorithm.state],
                axis=0,
            )
            kinds[key, at, t] = (
                "carries" if t <= material.effort.round and (moved & shown).any() else ""
            )
    return kinds


def _grade_rounds(subject: KnownMachine, material: Material, answer: Answer) -> dict[str, float]:
    """Ranking over all; and, apart, of true rounds above those before the change, those after the reading, and all
    rounds of changes without effect."""
    known: dict[Any, str] = dict(material.truth("rounds"))
    live = {(key, at) for (key, at, _), kind in known.items() if kind}
    apart = {
        "before": lambda item: item[:2] in live and item[2] <= item[1],
        "after": lambda item: item[:2] in live and item[2] > material.effort.round,
        "no effect": lambda item: item[:2] not in live,
    }
    scores = ranking(known, answer, "carries")
    for name, belongs in apart.items():
        kept = {item: kind for item, kind in known.items() if kind or belongs(item)}
        scores[f"auroc {name}"] = ranking(kept, Answer(answer.scores), "carries")["auroc"]
    return scores


def _differ(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Which episodes differ by more than rounding."""
    apart = np.abs(np.asarray(one, dtype=np.float64) - np.asarray(other, dtype=np.float64))
    return apart.reshape(len(apart), -1).max(1) > 1e-9


_FUNCTIONS: dict[str, dict[str, Any]] = {
    "edges": {"truth": _edges, "grade": _grade_edges, "oracle": _true_edges},
    "nodes": {
        "truth": _nodes,
        "grade": _grade_nodes,
        # Content nodes above nodes of other kinds, these above nodes that nothing reads.
        "oracle": lambda subject, material: Answer(
            {
                node: {"content": 2.0, "": 0.0}.get(kind, 1.0)
                for node, kind in material.truth("nodes").items()
            },
            frozenset(node for node, kind in material.truth("nodes").items() if kind == "content"),
        ),
    },
    "where": {
        "truth": _where,
        "grade": lambda subject, material, answer: ranking(material.truth("where"), answer, "held"),
    },
    "subspace": {
        # Every item is true, each of a kind of its own: there are no false ones.
        "truth": lambda subject, material: {
            item: " @ ".join(item) for item in _bases(subject, material)
        },
        "grade": _grade_subspaces,
        "oracle": lambda subject, material: Answer({}, subspaces=_bases(subject, material)),
        # Random subspaces of the true ranks.
        "chance": lambda subject, material, generator: Answer(
            {},
            subspaces={
                item: span(torch.from_numpy(generator.standard_normal(tuple(basis.shape))))
                for item, basis in _bases(subject, material).items()
            },
        ),
    },
    "exists": {
        "truth": lambda subject, material: (
            dict.fromkeys(_held(subject, material), "held")
            | dict.fromkeys((_ELSEWHERE + key for key in _held(subject, material)), "")
        ),
        "grade": _grade_existing,
    },
    "algorithm": {
        "truth": _families,
        "grade": lambda subject, material, answer: ranking(
            material.truth("algorithm"), answer, "computed"
        ),
    },
    "rounds": {"truth": _carrying, "grade": _grade_rounds},
}
_TEXTS = read_tables(Path(__file__).with_suffix(".toml"))
pose(*(Challenge(key, **_TEXTS[key], **functions) for key, functions in _FUNCTIONS.items()))
