"""Which nodes of a round (embedding, heads, MLPs) write something that is read and that varies?"""

from __future__ import annotations

from circuits.benchmark.material import Material
from circuits.benchmark.method import Answer
from circuits.benchmark.question import Question, Truth
from circuits.benchmark.scores import ranking
from circuits.benchmark.subject import Subject

_STRONGEST = ("content", "constant", "clean-up")


def truth(subject: Subject, material: Material) -> Truth:
    """Every node that has weights -> the strongest kind of the edges that leave it, "" where none does."""
    if subject.edges is None:
        return {} if subject.nodes is None else dict(subject.nodes.items())
    nodes = dict.fromkeys(material.graph.sources[s] for s, _ in material.candidates)
    leaving = {node: {kind for (s, _), kind in subject.edges.items() if s == node} for node in nodes}
    return {node: next((kind for kind in _STRONGEST if kind in kinds), "") for node, kinds in leaving.items()}


def grade(subject: Subject, material: Material, answer: Answer) -> dict[str, float]:
    """Ranking: nodes of any kind against nodes that nothing reads, and content against all others."""
    known = material.truth("nodes")
    used = {node: "used" if kind else "" for node, kind in known.items()}
    content = {node: kind if kind == "content" else "" for node, kind in known.items()}
    return {
        **{f"{name} used": value for name, value in ranking(used, Answer(answer.scores), "used").items()},
        **ranking(content, answer, "content"),
    }


def oracle(subject: Subject, material: Material) -> Answer:
    """Content nodes above nodes of other kinds, these above nodes that nothing reads."""
    worth = {"content": 2.0, "": 0.0}
    known = material.truth("nodes")
    chosen = frozenset(node for node in known if known[node] == "content")
    return Answer({node: worth.get(kind, 1.0) for node, kind in known.items()}, chosen)


QUESTION = Question(
    key="nodes",
    name="which nodes",
    asked="Which of a round's embedding, heads and MLPs write something that varies and that another part reads?",
    true="The kinds of the edges that leave each node in the construction's table.",
    scored="Content nodes against all others; nodes that anything reads against nodes that nothing reads, apart.",
    headline="auroc",
    truth=truth,
    grade=grade,
    oracle=oracle,
)
