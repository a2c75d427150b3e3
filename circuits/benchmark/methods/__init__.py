"""Registry of the methods that the benchmark grades; each file of this folder registers its
methods.

A method is a name, the question that it answers, and a function from a subject to an answer. Every
question also gets an oracle that knows the truth and a random answer, as upper and lower bounds. A
new method is a file::

    from circuits.benchmark import Answer, Material, Method, KnownMachine, register

    def most_heads(subject: KnownMachine, material: Material) -> Answer:
        return Answer({edge: float(edge[0] != "embed") for edge in material.items("edges")})

    register(Method("heads-first", "edges that leave heads", "edges", most_heads))

``docs/method/benchmark.md`` explains the parts of a method's key.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules

import numpy as np
from jaxtyping import Float

from circuits.benchmark.known_machine import KnownMachine
from circuits.benchmark.material import ANOTHER, EXITS, Case, Exit, Material
from circuits.benchmark.question import Answer
from circuits.benchmark.questions import QUESTIONS
from interp.support.checks import checked_fields
from interp.support.errors import InputError, require_known


@dataclass(frozen=True)
@checked_fields
class Method:
    """A method of interpretability that answers one question of the benchmark about a machine.

    Attributes:
        key: unique among the methods of its question, such as "zero:joined".
        name: what the method does, in words.
        question: key of the question.
        answer: ``(subject, material) -> Answer``: function from the machine and its runs, which
            methods share, to an :class:`~circuits.benchmark.question.Answer`. An answer gives each
            item of the question, such as an edge, a score; the higher, the likelier the item is
            true.
        quick: True if quick runs of the benchmark include the method.
    """

    key: str
    name: str
    question: str
    answer: Callable[[KnownMachine, Material], Answer]
    quick: bool = True


METHODS: dict[tuple[str, str], Method] = {}
"""Methods by (question, key); filled by the files of this folder, and by users."""


def register(*methods: Method) -> None:
    """Register methods, so that benchmark runs use them; raise InputError if another method of the
    same question has the same key.
    """
    for method in methods:
        require_known("question", method.question, QUESTIONS)
        name = method.question, method.key
        if METHODS.get(name, method) != method:
            raise InputError(
                f"a method {method.key!r} of {method.question!r} exists; choose another key"
            )
        METHODS[name] = method


READINGS = {
    "single": "the prediction, one corruption",
    "prediction": "the prediction, all corruptions",
    "state": "the state, all corruptions",
    "joined": "both exits, all corruptions",
    "another": "both exits, against another episode",
    "rounds": "both exits, all corruptions, two rounds",
    "everything": "both exits and the raw latents, all corruptions and against another episode",
}
"""What a method reads, in words, by key: which corruptions, in which rounds, through which exits.

The exits are the prediction and the state.
"""
_EXITS_OF_READING: dict[str, tuple[Exit, ...]] = {
    "single": ("prediction",),
    "prediction": ("prediction",),
    "state": ("state",),
    "everything": ("prediction", "state", "latents"),
}
"""The exits that these ways of reading read; all others read the prediction and the state."""
FAINT = 1e-9
"""Effects below this share of the corruption's effect count as 0, so that rounding does not rank
edges.
"""


def largest_effects(
    material: Material,
    reading: str,
    items: Sequence[Hashable],
    effects: Callable[[Case], Float[np.ndarray, " item"]],
) -> Answer:
    """Score each item, such as an edge, by its largest effect over several cases. A case is a clean
    and a corrupted run, with a metric that compares them.

    Args:
        material: the subject's cases.
        reading: which cases to take: a key of :data:`READINGS`, such as "single" (the prediction,
            one corruption) or "everything" (all outputs and all corruptions).
        items: the items to score.
        effects: function from a case to the absolute effect of every item, ``[item]``, divided by
            the case's ``scale`` (the effect of the whole corruption). Effects below 1e-9 count as
            0, and NaN is ignored.

    Returns:
        An answer with a score for each item.
    """
    corruptions: tuple[str, ...] | None = None  # all of the task
    if reading == "another":
        corruptions = (ANOTHER,)
    elif reading == "everything":
        corruptions = (*material.corruptions, ANOTHER)
    rounds = (material.effort.early, material.effort.round) if reading == "rounds" else None
    cases = material.cases(_EXITS_OF_READING.get(reading, EXITS), rounds, corruptions)
    if reading == "single":
        cases = cases[:1]
    best = np.zeros(len(items))
    for case in cases:
        shares = effects(case)
        best = np.fmax(best, np.where(shares < FAINT, 0.0, shares))  # ignores NaN
    return Answer(dict(zip(items, best.tolist(), strict=True)))


for _question in QUESTIONS.values():
    register(
        Method("oracle", name="oracle", question=_question.key, answer=_question.answer_by_oracle),
        Method("random", name="random", question=_question.key, answer=_question.draw_answer),
    )
for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")


def select(
    keys: Iterable[str] = (), questions: Iterable[str] = (), quick: bool = False
) -> list[Method]:
    """List the registered methods with given keys that answer given questions. The oracle, which
    knows the truth, and the random answer to the same questions are always included.

    Args:
        keys: keys of methods; when empty, all methods.
        questions: keys of questions; when empty, all questions.
        quick: True leaves out slow methods, unless ``keys`` names them.
    """
    keys, questions = list(keys), list(questions)
    for key in keys:
        require_known("method", key, dict.fromkeys(known for _, known in METHODS), limit=40)
    for question in questions:
        require_known("question", question, QUESTIONS)
    chosen = [m for m in METHODS.values() if not questions or m.question in questions]
    if not keys:
        return [m for m in chosen if m.quick or not quick]
    # The oracle and the random answer are included only for questions that one of the methods
    # answers.
    answered = {m.question for m in chosen if m.key in keys}
    keys_with_bounds = {*keys, "oracle", "random"}
    return [m for m in chosen if m.key in keys_with_bounds and m.question in answered]
