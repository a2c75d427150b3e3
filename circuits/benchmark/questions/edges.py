"""Which edges of a round does the machine have?

Besides how well an answer ranks edges, its ranking is measured as MIB (Mueller et al., 2025) does where the truth is
not known: faithfulness of the circuits of its best edges, with the other edges resampled, over circuit sizes (CPR), and
1 less its distance from the whole model (so that higher is better: "1-CMD"), on average over the two exits of a round.
"""

from __future__ import annotations

import numpy as np

from circuits.benchmark.material import EXITS, Exit, Material
from circuits.benchmark.method import Answer
from circuits.benchmark.question import Question, Truth
from circuits.benchmark.scores import ranking, scores_of
from circuits.benchmark.subject import Subject
from interp.interventions.ablation import SHARES


def truth(subject: Subject, material: Material) -> Truth:
    """Every candidate edge by the names of its ends, and its kind; empty where nobody knows the edges."""
    if subject.edges is None:
        return {}
    graph = material.graph
    names = [(graph.sources[s], graph.destinations[d]) for s, d in material.candidates]
    return {name: subject.edges.get(name, "") for name in names}


def grade(subject: Subject, material: Material, answer: Answer) -> dict[str, float]:
    """Ranking by kind, and the two areas of MIB."""
    known = material.truth("edges")
    found = ranking(known, answer, "content", ("constant", "clean-up"))
    order = np.argsort(-scores_of(known, answer), kind="stable")
    cpr, cmd = [], []
    for exit in EXITS:
        case = material.case(exit)
        if case is not None:
            curve = _faithfulness(material, order, exit)
            cpr.append(np.trapezoid(curve, SHARES))
            cmd.append(1 - np.trapezoid(np.abs(1 - curve), SHARES))
    if cpr:
        found |= {"cpr": float(np.mean(cpr)), "1-cmd": float(np.mean(cmd))}
    return found


def oracle(subject: Subject, material: Material) -> Answer:
    """Content edges above constant wiring, this above clean-up, and all above edges that do not exist."""
    worth = {"content": 3.0, "constant": 2.0, "clean-up": 1.0, "": 0.0}
    known = material.truth("edges")
    return Answer({edge: worth[kind] for edge, kind in known.items()}, frozenset(e for e in known if known[e]))


def _faithfulness(material: Material, order: np.ndarray, exit: Exit) -> np.ndarray:
    """Faithfulness of the circuits of the best edges, at MIB's shares of all candidates."""
    case, edges = material.case(exit), material.candidates
    assert case is not None
    sizes = [0, *(round(share * len(edges)) for share in SHARES)]
    runs = [material.circuit(case.corruption, [edges[i] for i in order[:size]]) for size in sizes]
    empty, *measured = (float(case.metric.measure(run, case.pair).mean()) for run in runs)
    return (np.array(measured) - empty) / (measured[-1] - empty)


QUESTION = Question(
    key="edges",
    name="which edges",
    asked="Which edges does a round have: which head, MLP or exit reads what which part wrote, and through which port?",
    true="The construction's own table of edges, which is checked against what parts read in running models.",
    scored=(
        "Content edges against edges that do not exist (AUROC, average precision, recall at the true size); constant "
        "wiring, clean-up and all kinds together apart; areas under the faithfulness curve as in MIB."
    ),
    headline="ap",
    truth=truth,
    grade=grade,
    oracle=oracle,
)
