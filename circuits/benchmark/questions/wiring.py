"""Which edges does a round of the machine have, and which of its nodes write something that is read and that varies?

Besides how well an answer ranks edges, its ranking is measured as MIB (Mueller et al., 2025) does where the truth is
not known: faithfulness of the circuits of its best edges, with the other edges resampled, over circuit sizes (CPR), and
1 less its distance from the whole model (so that higher is better: "1-CMD"), on average over the two exits of a round.
"""

from __future__ import annotations

import numpy as np
import torch

from circuits.benchmark.known_machine import KnownMachine
from circuits.benchmark.material import ANOTHER, EXITS, Exit, Material
from circuits.benchmark.question import Answer, Challenge, Truth, pose, ranking, scores_of
from interp.interventions.ablation import SHARES

_KINDS = ("content", "constant", "clean-up")
"""The kinds of edges, the one that matters most first."""
_INERT = "inert"
"""The kind of a true edge of which no cut changes anything on the episodes that methods are given."""
_UNCHANGED = 1e-12
"""A change that is rounding, of predictions in float64."""


def _edges(subject: KnownMachine, material: Material) -> Truth:
    """Every candidate edge by the names of its ends, and its kind; empty where nobody knows the edges.

    A true edge is "inert" where cutting it, to zero or to another episode's value, changes neither what is predicted
    nor what is remembered, in either of the effort's rounds and in any of its episodes.
    """
    if subject.edges is None:
        return {}
    changes = _changes(Material(subject, material.effort, material.seed))
    kinds = {name: subject.edges.get(name, "") for name in material.edge_names}
    return {name: _INERT if kind and changes[name] <= _UNCHANGED else kind for name, kind in kinds.items()}


def _changes(material: Material) -> dict[tuple[str, str], float]:
    """By how much each candidate edge's cuts change a prediction or a latent, at the most."""
    largest = np.zeros(len(material.candidates))
    for t in (material.effort.round, material.effort.early):
        clean = material.pair(ANOTHER, t).clean_readout
        for ablation in ("zero", "resample"):
            cut = material.cut(ANOTHER, ablation, t)
            for changed, kept in ((cut.predictions, clean.predictions), (cut.latents, clean.latents)):
                apart = (changed - kept).abs().flatten(1).amax(1).nan_to_num(nan=np.inf)
                largest = np.maximum(largest, apart.double().numpy(force=True))
    return dict(zip(material.edge_names, largest.tolist(), strict=True))


def _grade_edges(subject: KnownMachine, material: Material, answer: Answer) -> dict[str, float]:
    """Ranking by kind, and the two areas of MIB."""
    known = material.truth("edges")
    scores = ranking(known, answer, "content", ("constant", "clean-up"))
    order = np.argsort(-scores_of(known, answer), kind="stable")
    curves = [_faithfulness(material, order, exit) for exit in EXITS if material.case(exit) is not None]
    if curves:
        scores["cpr"] = float(np.mean([np.trapezoid(curve, SHARES) for curve in curves]))
        scores["1-cmd"] = float(np.mean([1 - np.trapezoid(np.abs(1 - curve), SHARES) for curve in curves]))
    return scores


def _faithfulness(material: Material, order: np.ndarray, exit: Exit) -> np.ndarray:
    """Faithfulness of the circuits of the best edges, at MIB's shares of all candidates."""
    case, edges = material.case(exit), material.candidates
    assert case is not None
    sizes = [0, *(round(share * len(edges)) for share in SHARES)]
    scorer = material.scorer(case, "resample", "grades")
    circuits = [scorer.graph.mask([edges[i] for i in order[:size]]) for size in sizes]
    empty, *measured = (float(torch.from_numpy(scorer.values(circuit)).mean()) for circuit in circuits)
    return (np.array(measured) - empty) / (measured[-1] - empty)


def _true_edges(subject: KnownMachine, material: Material) -> Answer:
    """Content edges above constant wiring, this above clean-up, and all above edges that do not exist."""
    worth = {"content": 3.0, "constant": 2.0, "clean-up": 1.0, _INERT: 0.0, "": 0.0}
    known = material.truth("edges")
    return Answer({edge: worth[kind] for edge, kind in known.items()}, frozenset(e for e in known if worth[known[e]]))


def _nodes(subject: KnownMachine, material: Material) -> Truth:
    """Every node that has weights -> the kind that matters most of the edges that leave it, "" where none does."""
    if subject.edges is None:
        return {} if subject.nodes is None else dict(subject.nodes.items())
    nodes = dict.fromkeys(source for source, _ in material.edge_names)
    leaving = {node: {kind for (source, _), kind in subject.edges.items() if source == node} for node in nodes}
    return {node: next((kind for kind in _KINDS if kind in kinds), "") for node, kinds in leaving.items()}


def _grade_nodes(subject: KnownMachine, material: Material, answer: Answer) -> dict[str, float]:
    """Ranking: nodes of any kind against nodes that nothing reads, and content against all others."""
    known = material.truth("nodes")
    used = {node: "used" if kind else "" for node, kind in known.items()}
    content = {node: kind if kind == "content" else "" for node, kind in known.items()}
    among_all = ranking(used, Answer(answer.scores), "used")
    return {**{f"{name} used": value for name, value in among_all.items()}, **ranking(content, answer, "content")}


def _true_nodes(subject: KnownMachine, material: Material) -> Answer:
    """Content nodes above nodes of other kinds, these above nodes that nothing reads."""
    worth, known = {"content": 2.0, "": 0.0}, material.truth("nodes")
    scores = {node: worth.get(kind, 1.0) for node, kind in known.items()}
    return Answer(scores, frozenset(node for node in known if known[node] == "content"))


pose(
    Challenge(
        key="edges",
        name="which edges",
        asked="Which edges does a round have: which head, MLP or exit reads what which part wrote, at which port?",
        true="The construction's own table of edges, which is checked against what parts read in running models.",
        scored=(
            "Content edges against edges that do not exist (AUROC, average precision, recall at the true size); "
            "constant wiring, clean-up and all kinds together apart; true edges of which no cut changes anything on "
            "these episodes (inert) are left out; areas under the faithfulness curve as in MIB."
        ),
        headline="ap",
        truth=_edges,
        grade=_grade_edges,
        oracle=_true_edges,
    ),
    Challenge(
        key="nodes",
        name="which nodes",
        asked="Which of a round's embedding, heads and MLPs write something that varies and that another part reads?",
        true="The kinds of the edges that leave each node in the construction's table.",
        scored="Content nodes against all others; nodes that anything reads against nodes that nothing reads, apart.",
        headline="auroc",
        truth=_nodes,
        grade=_grade_nodes,
        oracle=_true_nodes,
    ),
)
