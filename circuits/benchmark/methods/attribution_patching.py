"""Edge attribution patching (EAP), and with integrated gradients (EAP-IG): first-order estimates of every cut.

What has no gradient, hard attention's choice of a key, gets no score: on machines with hard attention these methods
see values only. They are run there all the same, because a user may.
"""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np

from circuits.benchmark.material import Case, Material
from circuits.benchmark.method import Answer, Method, register
from circuits.benchmark.methods.reading import READINGS, cases, solid
from circuits.benchmark.subject import Subject
from interp.interventions.attribution import attribute

NAMES = {"eap": ("EAP", 1), "eap-ig": ("EAP-IG, 5 steps", 5)}


def scores(material: Material, case: Case, steps: int) -> np.ndarray:
    """Mean score of every edge over episodes, as a share of the case's scale: ``[source, destination]``."""

    def make() -> np.ndarray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of hard attention, which is the point on some subjects.
            return attribute(case.pair, case.metric, steps=steps).edges

    made = material.once(("attribution", case.corruption, case.exit, case.round, steps), make)
    return np.asarray(np.abs(made) / case.scale)


def attribution(steps: int, reading: str, subject: Subject, material: Material) -> Answer:
    """The largest score over what is read."""
    graph, best = material.graph, np.zeros(material.graph.exists.shape)
    for case in cases(material, reading):
        best = np.fmax(best, scores(material, case, steps))
    best = solid(best)
    return Answer({(graph.sources[s], graph.destinations[d]): float(best[s, d]) for s, d in material.candidates})


for _key, (_name, _steps) in NAMES.items():
    # Of the raw latents there is no reading: their distance from the clean ones has no gradient at the clean ones.
    for _reading in ("single", "prediction", "state", "joined", "rounds", "another"):
        _answer = partial(attribution, _steps, _reading)
        register(Method(f"{_key}:{_reading}", f"{_name}, {READINGS[_reading]}", "edges", _answer, needs="gradient"))
