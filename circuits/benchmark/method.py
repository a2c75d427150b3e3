"""What a method is: a name, the question that it answers, and a function from a subject to an answer.

A method of one's own is a file that registers one::

    from circuits.benchmark import Answer, Material, Method, Subject, register

    def most_heads(subject: Subject, material: Material) -> Answer:
        return Answer({edge: float(edge[0] != "embed") for edge in material.items("edges")})

    register(Method("heads-first", "edges that leave heads", "edges", most_heads))
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from interp.errors import InputError, unknown_name

if TYPE_CHECKING:
    from circuits.benchmark.material import Material
    from circuits.benchmark.subject import Subject


@dataclass(frozen=True)
class Answer:
    """What a method says of every item that a question asks about (an edge, a node, a variable, a round, ...).

    Attributes:
        scores: item -> how strongly the method says that it is true; items that are left out get the least of all.
        chosen: the items that it declares true, where it decides (a circuit that was found, a verdict).
        subspaces: (variable, site as text) -> orthonormal ``[d, rank]``, where it says in which directions.
        measured: numbers that the method measured on its own terms, such as accuracies, by name.
    """

    scores: Mapping[Any, float]
    chosen: frozenset[Hashable] | None = None
    subspaces: Mapping[tuple[str, str], Tensor] = field(default_factory=dict)
    measured: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """A method.

    Attributes:
        key: unique among the methods of its question, for the command line and files: "zero:joined".
        name: for tables.
        question: key of :data:`circuits.benchmark.questions.QUESTIONS`.
        answer: ``(subject, material) -> answer``.
        needs: what it takes for granted and some subjects lack: "gradient" where attention must be differentiable.
        quick: whether the quick run has it.
    """

    key: str
    name: str
    question: str
    answer: Callable[[Subject, Material], Answer]
    needs: str = ""
    quick: bool = True


METHODS: dict[tuple[str, str], Method] = {}
"""(question, key) -> method; filled by the files of :mod:`circuits.benchmark.methods`, and by users."""


def register(*methods: Method) -> None:
    """Add methods.

    Raises:
        InputError: a key that is taken, or a question that does not exist.
    """
    from circuits.benchmark.questions import QUESTIONS

    for method in methods:
        if method.question not in QUESTIONS:
            raise unknown_name("question", method.question, QUESTIONS)
        name = method.question, method.key
        if METHODS.get(name, method) != method:
            raise InputError(f"a method {method.key!r} of {method.question!r} exists; choose another key")
        METHODS[name] = method


def select(keys: Iterable[str] = (), questions: Iterable[str] = (), quick: bool = False) -> list[Method]:
    """Methods by key and question; those that bound the scale, "oracle" and "random", always belong to them.

    Args:
        keys: only these methods; all when empty.
        questions: only these questions; all when empty.
        quick: without the methods that the quick run leaves out, unless a key names them.

    Raises:
        InputError: an unknown key or question.
    """
    import circuits.benchmark.methods  # noqa: F401  (its files register themselves)
    from circuits.benchmark.questions import QUESTIONS

    keys, questions = list(keys), list(questions)
    for key in keys:
        if key not in {known for _, known in METHODS}:
            raise unknown_name("method", key, dict.fromkeys(known for _, known in METHODS), limit=40)
    for question in questions:
        if question not in QUESTIONS:
            raise unknown_name("question", question, QUESTIONS)
    wanted = {*keys, "oracle", "random"}
    chosen = [m for m in METHODS.values() if not questions or m.question in questions]
    if keys:
        asked = {m.question for m in chosen if m.key in keys}
        return [m for m in chosen if m.key in wanted and m.question in asked]
    return [m for m in chosen if m.quick or not quick]
