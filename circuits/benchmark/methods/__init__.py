"""The methods, in a few files by what they look at; every file of this folder registers its own.

Two methods bound the scale of every question: an oracle that knows the truth, and a draw at random that knows nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from importlib import import_module
from pkgutil import iter_modules

import numpy as np

from circuits.benchmark.known_machine import KnownMachine
from circuits.benchmark.material import Material
from circuits.benchmark.method import METHODS, Method, register
from circuits.benchmark.question import Answer, Challenge
from circuits.benchmark.questions import QUESTIONS
from interp.errors import require_known


def _random(question: Challenge, subject: KnownMachine, material: Material) -> Answer:
    """Scores drawn from the subject's name and the seed, so that they do not depend on what else is run."""
    words = [material.seed, *question.key.encode(), *subject.name.encode()]
    return question.drawn(subject, material, np.random.default_rng(words))


for _question in QUESTIONS.values():
    register(
        Method("oracle", "oracle", _question.key, _question.known),
        Method("random", "random", _question.key, partial(_random, _question)),
    )
for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")


def select(keys: Iterable[str] = (), questions: Iterable[str] = (), quick: bool = False) -> list[Method]:
    """Methods by key and question; those that bound the scale, "oracle" and "random", always belong to them.

    ``keys`` and ``questions`` take all when empty; ``quick`` leaves out what the quick run leaves out and no key names.
    """
    keys, questions = list(keys), list(questions)
    for key in keys:
        require_known("method", key, dict.fromkeys(known for _, known in METHODS), limit=40)
    for question in questions:
        require_known("question", question, QUESTIONS)
    wanted = {*keys, "oracle", "random"}
    chosen = [m for m in METHODS.values() if not questions or m.question in questions]
    if keys:
        asked = {m.question for m in chosen if m.key in keys}
        return [m for m in chosen if m.key in wanted and m.question in asked]
    return [m for m in chosen if m.quick or not quick]
