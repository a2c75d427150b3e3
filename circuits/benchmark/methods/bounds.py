"""What bounds the scale: an oracle that knows the truth, and a draw at random that knows nothing."""

from __future__ import annotations

from functools import partial

import numpy as np

from circuits.benchmark.material import Material
from circuits.benchmark.method import Answer, Method, register
from circuits.benchmark.questions import QUESTIONS
from circuits.benchmark.subject import Subject


def oracle(question: str, subject: Subject, material: Material) -> Answer:
    """The truth itself."""
    return QUESTIONS[question].known(subject, material)


def random(question: str, subject: Subject, material: Material) -> Answer:
    """Scores drawn from the subject's name and the seed, so that they do not depend on what else is run."""
    words = [material.seed, *question.encode(), *subject.name.encode()]
    return QUESTIONS[question].drawn(subject, material, np.random.default_rng(words))


for _key in QUESTIONS:
    register(
        Method("oracle", "oracle", _key, partial(oracle, _key)),
        Method("random", "random", _key, partial(random, _key)),
    )
