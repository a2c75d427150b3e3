"""Fit every algorithm that the task's comparison knows to the predictions, and see which one is nearest on others.

The score of a family is minus its Jensen-Shannon divergence in nats; what is declared follows the rule of
:mod:`circuits.compare.algorithm`, which may say that none of them explains the model.
"""

from __future__ import annotations

import numpy as np

from circuits.benchmark.material import Material
from circuits.benchmark.method import Answer, Method, register
from circuits.benchmark.subject import Subject
from circuits.compare.algorithm import explain


def fitted(subject: Subject, material: Material) -> Answer:
    """Minus the divergence of every family; the family that explains the model, where one does."""
    effort, task = material.effort, subject.task
    sets = task.sets_for(subject.model.layout, effort.episodes, effort.rounds, material.seed)
    found = explain(subject.model, task, sets, seed=material.seed)
    scores = {
        key: -float(np.mean([np.mean(each) for each in score.divergences.values()]))
        for key, score in found.scores.items()
    }
    return Answer(scores, frozenset() if found.family is None else frozenset({found.family}))


register(Method("fit", "nearest fitted algorithm, by predictions", "algorithm", fitted, quick=False))
