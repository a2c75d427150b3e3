"""The questions of the benchmark: about edges and nodes, about variables, and about the algorithm.

``docs/method/benchmark.md`` says what the truth of each is, and how answers are scored.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from circuits.benchmark.known_machine import KnownMachine, orthonormal_basis
from circuits.benchmark.material import ANOTHER, EXITS, Material
from circuits.benchmark.question import QUESTIONS as QUESTIONS
from circuits.benchmark.question import (
    Answer,
    Challenge,
    Truth,
    ranking,
    register_questions,
    scores_of,
)
from interp.core.display import describe_lacking
from interp.core.machine import Machine
from interp.interventions.ablation import SHARES, find_areas
from interp.interventions.sites import Place, Site

_KINDS = ("content", "constant", "clean-up")  # the kinds of edges, the one that matters most first
_INERT = "inert"
"""Kind of a true edge whose cut changes nothing in the episodes that methods use."""
_ROUNDING = 1e-12  # a change that is rounding, of predictions in float64


def _list_edges(subject: KnownMachine, material: Material) -> Truth:
    """Return the true kinds of the edges, for the question which edges exist.

    Args:
        subject: the machine, with its table of edges.
        material: the machine's runs, in which each candidate edge is cut.

    Returns:
        Candidate edge -> kind: "" if the edge does not exist; "inert" if it exists, but cutting it
        changes nothing; otherwise its kind in ``subject.edges``, such as "content". Empty if the
        machine has no table.
    """
    if subject.edges is None:
        return {}
    changes_by_edge = _measure_effects_of_cuts(material)
    kinds: dict[Hashable, str] = {}
    for name in material.edge_names:
        kind = subject.edges.get(name, "")
        is_inert = kind != "" and changes_by_edge[name] <= _ROUNDING
        kinds[name] = _INERT if is_inert else kind
    return kinds


def _measure_effects_of_cuts(material: Material) -> dict[tuple[str, str], float]:
    """Measure how much the model's output changes if an edge is cut, for each candidate edge.

    Each edge is cut in two rounds, and in two ways: what it carries is replaced by zeros, or by its
    value in another episode.

    Args:
        material: the machine's runs.

    Returns:
        Edge, as (source, destination) -> the largest absolute change of a prediction or latent.
    """
    largest = np.zeros(len(material.candidates))
    for t in (material.effort.round, material.effort.early):
        clean = material.pair(ANOTHER, t).clean_readout
        for ablation in ("zero", "resample"):
            cut_runs = material.run_edge_cuts(ANOTHER, ablation, t)
            changes_of_predictions = cut_runs.predictions - clean.predictions
            for change in (changes_of_predictions, cut_runs.latents - clean.latents):
                # The largest change over all episodes and numbers, [edge]; NaN counts as infinite.
                by_edge = change.abs().flatten(1).amax(1).nan_to_num(nan=np.inf)
                largest = np.maximum(largest, by_edge.double().numpy(force=True))
    return dict(zip(material.edge_names, largest.tolist(), strict=True))


def _grade_edges(subject: KnownMachine, material: Material, answer: Answer) -> dict[str, float]:
    """Score a method's ranking of the edges, and the circuits that consist of its best-ranked
    edges. The sizes of these circuits, as shares of all edges, are those of the MIB benchmark.

    Args:
        subject: the machine; not used.
        material: the machine's runs, with the true kind of every edge.
        answer: the method's answer.

    Returns:
        The scores of :func:`~circuits.benchmark.question.ranking`, and two areas under the curve of
        faithfulness over circuit size, "cpr" and "1-cmd".
    """
    truth = material.truth("edges")
    scores = ranking(truth, answer, "content", ("constant", "clean-up"))
    edges = material.candidates
    best_first = [edges[i] for i in np.argsort(-scores_of(truth, answer), kind="stable")]
    sizes = [0, *(round(share * len(edges)) for share in SHARES)]  # the last has all edges
    curves = []
    for exit in EXITS:
        case = material.case(exit)
        if case is None:
            continue
        # A purpose of its own: otherwise methods could reuse these runs without paying for them.
        scorer = material.scorer(case, "resample", purpose="grades")
        circuits = [scorer.graph.mask(best_first[:size]) for size in sizes]
        scorer.run(circuits)  # as one batch; `values` then finds the runs
        values = [torch.from_numpy(scorer.values(circuit)) for circuit in circuits]
        # The metric of each circuit: without edges, then with more and more, at last with all.
        empty, *measured = [float(by_episode.mean()) for by_episode in values]
        whole = measured[-1]
        faithfulness = (np.array(measured) - empty) / (whole - empty)
        curves.append(faithfulness)
    if curves:
        cpr, cmd = find_areas(SHARES, np.stack(curves, 1))
        scores |= {"cpr": cpr, "1-cmd": 1 - cmd}
    return scores


def _answer_edges(subject: KnownMachine, material: Material) -> Answer:
    """Return the best possible answer to the question which edges exist, made from the truth.

    The score is 3 for edges that carry content, 2 for constants and 1 for clean-up. It is 0 for
    edges that do not exist or that can be cut without effect. All edges with a score above 0 are
    chosen as true.

    Args:
        subject: the machine; not used.
        material: the machine's runs, with the true kind of every edge.
    """
    score_of_kind = {"content": 3.0, "constant": 2.0, "clean-up": 1.0, _INERT: 0.0, "": 0.0}
    scores = {edge: score_of_kind[kind] for edge, kind in material.truth("edges").items()}
    return Answer(scores, frozenset(edge for edge, score in scores.items() if score))


def _list_nodes(subject: KnownMachine, material: Material) -> Truth:
    """Return the true kinds of the nodes (embedding, heads and MLPs), for the question which nodes
    matter.

    Args:
        subject: the machine, with its table of edges.
        material: the machine's runs, with all candidate edges.

    Returns:
        Node -> the most important kind of an edge from it ("content", then "constant", then
        "clean-up"), or "" if no component reads the node. Empty if the machine has no table.
    """
    if subject.edges is None:
        return {}
    kinds: dict[Hashable, str] = {source: "" for source, _ in material.edge_names}
    for kind in reversed(_KINDS):  # the most important kind last, which overwrites the others
        for (source, _), kind_of_edge in subject.edges.items():
            if kind_of_edge == kind and source in kinds:
                kinds[source] = kind
    return kinds


def _grade_nodes(subject: KnownMachine, material: Material, answer: Answer) -> dict[str, float]:
    """Score a method's ranking of the nodes in two ways: nodes that any component reads above nodes
    that none reads, and nodes that write content above all others.

    Args:
        subject: the machine; not used.
        material: the machine's runs, with the true kind of every node.
        answer: the method's answer.

    Returns:
        Name of a score -> its value; the names of the first way end in " used".
    """
    truth = material.truth("nodes")
    used = {node: "used" if kind else "" for node, kind in truth.items()}
    content = {node: kind if kind == "content" else "" for node, kind in truth.items()}
    of_used = ranking(used, Answer(answer.scores), "used")
    scores = {f"{name} used": value for name, value in of_used.items()}
    return scores | ranking(content, answer, "content")


def _answer_nodes(subject: KnownMachine, material: Material) -> Answer:
    """Return the best possible answer to the question which nodes matter, made from the truth.

    A node gets the score 2 if an edge from it carries content, and 0 if no component reads it. All
    other nodes get 1. The nodes with the score 2 are chosen as true.

    Args:
        subject: the machine; not used.
        material: the machine's runs, with the true kind of every node.
    """
    truth = material.truth("nodes")
    score_of_kind = {"content": 2.0, "": 0.0}
    scores = {node: score_of_kind.get(kind, 1.0) for node, kind in truth.items()}
    return Answer(scores, frozenset(node for node, kind in truth.items() if kind == "content"))


_ELSEWHERE = "another episode's "
"""Prefix of false variables: values of another episode, which the machine cannot know."""


def _list_places(subject: KnownMachine, material: Material) -> dict[str, tuple[Place, ...]]:
    """Return the places that store each variable: key of the variable -> places.

    Only places in the residual stream count, unless the model has no layers. Variables that are
    constant in these episodes are left out.

    Args:
        subject: the machine, which knows its places.
        material: the values of the variables in sampled episodes.
    """
    values, is_anywhere = material.variables, bool(describe_lacking(subject.model, "resid_post"))
    places = {}
    for key, of_variable in subject.places.items():
        # Sites with positions are those of the residual stream.
        inside = [place for place in of_variable if is_anywhere or place.site.kind.axes == "pos"]
        # Range of the values over all episodes and rounds.
        varies = key in values and np.ptp(values[key].astype(np.float64)) > 0
        if inside and varies:
            places[key] = tuple(inside)
    return places


def _list_sites(subject: KnownMachine, material: Material) -> Truth:
    """Return the true kinds of all pairs (variable, site), for the question where variables are
    stored: "held" if the site stores the variable, and "" if not.

    The candidate sites of a variable are all token positions at the hook points that store it. In a
    model without layers, they are all its hook points.

    Args:
        subject: the machine, which knows where variables are.
        material: sampled episodes and the values of the variables in them.
    """
    labels = subject.model.layout.fit(material.episodes()).labels
    has_layers = not describe_lacking(subject.model, "resid_post")
    kinds: dict[Hashable, str] = {}
    for key, places in _list_places(subject, material).items():
        true_sites = {str(place.site) for place in places}
        if has_layers:
            hook_points = dict.fromkeys((p.site.component, p.site.layer) for p in places)
            candidates = [
                str(Site(component, layer, position=label))
                for (component, layer), label in product(hook_points, labels)
            ]
        else:
            candidates = _list_hook_points(subject.model)
        for site in candidates:
            kinds[key, site] = "held" if site in true_sites else ""
    return kinds


def _list_hook_points(model: Machine) -> list[str]:
    """List the sites of a model without layers, as texts: first the state that it carries, or each
    channel (named part of the state) if it has several; then its other hook points.

    Args:
        model: the model.
    """
    # A channel is a part of the state that the model carries; a single one needs no name.
    channels = [f"latent@{channel.name}" for channel in model.channels]
    sites = channels if len(channels) > 1 else ["latent"]
    for point in model.points.values():
        if point.has_layer:
            sites += [f"{point.key}[{i}]" for i in range(point.n_layers)]
        elif point.key != "latent":
            sites.append(point.key)
    return sites


def _grade_sites(subject: KnownMachine, material: Material, answer: Answer) -> dict[str, float]:
    return ranking(material.truth("where"), answer, "held")


def _list_bases(subject: KnownMachine, material: Material) -> dict[tuple[str, str], Tensor]:
    """Return the true subspaces: (variable, site as text) -> orthonormal basis ``[d_model, rank]``
    of the directions that store the variable at this site.

    If several places of a variable share a site, their basis spans all of them.

    Args:
        subject: the machine, which knows its places.
        material: the values of the variables in sampled episodes.
    """
    parts: dict[tuple[str, str], list[Tensor]] = {}
    for key, places in _list_places(subject, material).items():
        for place in places:
            if place.basis is not None:
                item = key, str(place.site)
                parts.setdefault(item, []).append(place.basis.double())
    return {item: orthonormal_basis(torch.cat(bases, 1)) for item, bases in parts.items()}


def _list_subspaces(subject: KnownMachine, material: Material) -> Truth:
    """Return the items of the question in which directions variables are stored: every pair
    (variable, site) of which the site stores the variable.

    No item is false, because the sites are known to the methods. The kind of an item is the text
    "variable @ site".

    Args:
        subject: the machine, which knows its places.
        material: the values of the variables in sampled episodes.
    """
    return {item: " @ ".join(item) for item in _list_bases(subject, material)}


def _grade_subspaces(subject: KnownMachine, material: Material, answer: Answer) -> dict[str, float]:
    """Score a method's subspaces by the mean squared cosine of the principal angles between the
    true and the answered subspace.

    If an answer has more directions than the true subspace, only its first ones count. Missing
    directions count as 0.

    Args:
        subject: the machine, which knows its places.
        material: the values of the variables in sampled episodes.
        answer: the method's answer.

    Returns:
        The mean over all (variable, site) pairs, as ``{"cosine2": mean}``.
    """
    overlaps = []
    for item, true in _list_bases(subject, material).items():
        rank = true.shape[1]
        nothing = true[:, :0]  # a subspace without directions, which scores 0
        answered = answer.subspaces.get(item, nothing)[:, :rank]
        # For orthonormal bases A and B, the squared entries of A^T B sum to the squared cosines of
        # the principal angles.
        squared_cosines = (true.T @ orthonormal_basis(answered)).square()
        overlaps.append(float(squared_cosines.sum()) / rank)
    return {"cosine2": float(np.mean(overlaps))}


def _answer_subspaces(subject: KnownMachine, material: Material) -> Answer:
    return Answer({}, subspaces=_list_bases(subject, material))


def _draw_subspaces(
    subject: KnownMachine, material: Material, generator: np.random.Generator
) -> Answer:
    """Draw a random answer: for each variable at each site that stores it, a random subspace with
    the rank of the true one.

    Args:
        subject: the machine, which knows its places.
        material: the values of the variables in sampled episodes.
        generator: the random generator.
    """
    subspaces = {}
    for item, basis in _list_bases(subject, material).items():
        normal = generator.standard_normal(tuple(basis.shape))
        subspaces[item] = orthonormal_basis(torch.from_numpy(normal))
    return Answer({}, subspaces=subspaces)


def _list_existing(subject: KnownMachine, material: Material) -> Truth:
    """Return the true kinds of variables, for the question which variables exist. A variable that
    the model stores has the kind "held".

    The same variable of another episode has the kind "", since a model cannot know it. Its name
    begins with "another episode's ".

    Args:
        subject: the machine, which knows its places.
        material: the values of the variables in sampled episodes.
    """
    kinds: dict[Hashable, str] = dict.fromkeys(_list_places(subject, material), "held")
    elsewhere = [f"{_ELSEWHERE}{key}" for key in kinds]
    return kinds | dict.fromkeys(elsewhere, "")


def values_of(material: Material, item: str) -> NDArray[np.float64]:
    """Return the values of a variable, for a method that must find out which variables the model
    computes, ``[episode, round, element]``.

    Args:
        material: the values of the algorithm's variables on a batch of episodes.
        item: the key of a variable; or "another episode's " and the key. In the second case, each
            episode gets the values of the episode before it in the batch, which the model cannot
            know.
    """
    values = np.asarray(material.variables[item.removeprefix(_ELSEWHERE)], dtype=np.float64)
    values = values.reshape(*values.shape[:2], -1)
    return np.roll(values, 1, axis=0) if item.startswith(_ELSEWHERE) else values


def _grade_existing(subject: KnownMachine, material: Material, answer: Answer) -> dict[str, float]:
    """Score which variables a method says exist: its ranking of true and false variables, and those
    that it declares to exist.

    Args:
        subject: the machine; not used.
        material: the machine's runs, with the true kind of every variable.
        answer: the method's answer.

    Returns:
        The scores of :func:`~circuits.benchmark.question.ranking`. If the method declares
        variables, also "power" (share of the true ones that it declares) and "1-fdr" (share of the
        declared ones that are true; 1 if none are declared).
    """
    truth = material.truth("exists")
    scores = ranking(truth, answer, "held")
    if answer.chosen is not None:
        declared = [item for item in truth if item in answer.chosen]
        n_true = sum(bool(truth[item]) for item in declared)
        scores["power"] = n_true / sum(map(bool, truth.values()))
        scores["1-fdr"] = n_true / len(declared) if declared else 1.0
    return scores


def _list_families(subject: KnownMachine, material: Material) -> Truth:
    """Return the true kinds of the task's families of algorithms: "computed" for the one that the
    machine computes, "" for the others.

    Families that extend this one are left out, since they can compute the same. The result is empty
    if the machine's algorithm is in no family.

    Args:
        subject: the machine, with its task and algorithm.
        material: not used.
    """
    families, computed = subject.task.rivals(), subject.algorithm.key
    if computed not in families:
        return {}
    included = [key for key, family in families.items() if family.extends != computed]
    return {key: "computed" if key == computed else "" for key in included}


def _grade_families(subject: KnownMachine, material: Material, answer: Answer) -> dict[str, float]:
    return ranking(material.truth("algorithm"), answer, "computed")


register_questions(
    Challenge(
        key="edges",
        name="which edges",
        asked=(
            "Which edges does a round have: which head, MLP or exit reads what which part "
            "wrote, at which port?"
        ),
        true=(
            "The construction's own table of edges, which is checked against what parts read "
            "in running models."
        ),
        scored=(
            "Content edges are ranked against edges that do not exist (AUROC, average "
            "precision, recall at the true size). Constant wiring, clean-up and all kinds "
            "together are scored apart. True edges of which no cut changes anything on these "
            "episodes (inert) are left out. Areas under the faithfulness curve are as in MIB."
        ),
        headline="ap",
        truth=_list_edges,
        grade=_grade_edges,
        oracle=_answer_edges,
    ),
    Challenge(
        key="nodes",
        name="which nodes",
        asked=(
            "Which of a round's embedding, heads and MLPs write something that varies and that "
            "another part reads?"
        ),
        true="The kinds of the edges that leave each node in the construction's table.",
        scored=(
            "Content nodes are ranked against all others and, apart, nodes that anything reads "
            "against nodes that nothing reads."
        ),
        headline="auroc",
        truth=_list_nodes,
        grade=_grade_nodes,
        oracle=_answer_nodes,
    ),
    Challenge(
        key="where",
        name="where variables live",
        asked=(
            "At which sites of the residual stream is a variable held in a form that the rest "
            "of the round uses?"
        ),
        true="The construction's locations.",
        scored=(
            "Sites that hold a variable are ranked against other positions of the same hook "
            "points, over all variables."
        ),
        headline="ap",
        truth=_list_sites,
        grade=_grade_sites,
    ),
    Challenge(
        key="subspace",
        name="in which directions",
        asked=("In which directions of a site does a variable live, given that it lives there?"),
        true="The construction's directions.",
        scored="Mean squared cosine of the principal angles (chance: rank over d_model).",
        headline="cosine2",
        truth=_list_subspaces,
        grade=_grade_subspaces,
        oracle=_answer_subspaces,
        chance=_draw_subspaces,
    ),
    Challenge(
        key="exists",
        name="which variables exist",
        asked=(
            "Which variables does the machine hold anywhere in its residual stream, and which "
            "does it not?"
        ),
        true=("The variables that have a location, against the same variables of another episode."),
        scored=(
            "The ranking has an AUROC; what is declared to exist has a power and 1 - its "
            "false-discovery rate."
        ),
        headline="auroc",
        truth=_list_existing,
        grade=_grade_existing,
    ),
    Challenge(
        key="algorithm",
        name="which algorithm",
        asked=(
            "Which algorithm known to the task's comparison does the machine compute, whatever "
            "its parameters?"
        ),
        true="The algorithm that the machine was constructed to compute.",
        scored=(
            "Its rank among families that do not contain it (AUROC); whether it is declared "
            "(recall, precision)."
        ),
        headline="auroc",
        truth=_list_families,
        grade=_grade_families,
    ),
)
