"""Cutting edges one by one: the drop of a metric when an edge carries its ablated value, and all else runs on.

The ablated value is zero, the mean over episodes of the corrupted run, or the corrupted run's own value ("resample";
this is path patching from a sender to one receiver, Wang et al., 2023). An edge's score is the size of the mean drop,
as a share of what the corruption changes, and the largest of these over what was read.

``+`` joins ablations (the larger of the two). ``:absolute`` averages the size of the drop of each episode instead, so
that edges which push some episodes up and others down do not cancel.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from circuits.benchmark.material import Material
from circuits.benchmark.method import Answer, Method, register
from circuits.benchmark.methods.reading import READINGS, cases, solid
from circuits.benchmark.subject import Subject

NAMES = {"zero": "zero cutting", "mean": "mean cutting", "resample": "resample cutting (path patching)"}


def cutting(ablations: tuple[str, ...], reading: str, absolute: bool, subject: Subject, material: Material) -> Answer:
    """The largest drop over what is read and over ablations."""
    best = np.zeros(len(material.candidates))
    for case in cases(material, reading):
        for ablation in ablations:
            drops = material.drops(case, ablation)
            size = np.abs(drops).mean(1) if absolute else np.abs(drops.mean(1))
            best = np.maximum(best, solid(size))
    graph = material.graph
    names = ((graph.sources[s], graph.destinations[d]) for s, d in material.candidates)
    return Answer(dict(zip(names, best.tolist(), strict=True)))


def _method(ablations: tuple[str, ...], reading: str, absolute: bool = False) -> Method:
    key = f"{'+'.join(ablations)}:{'absolute' if absolute else reading}"
    name = " and ".join(NAMES[ablation] for ablation in ablations)
    told = f"{READINGS[reading]}{', sizes per episode' if absolute else ''}"
    return Method(key, f"{name}, {told}", "edges", partial(cutting, ablations, reading, absolute))


for _reading in ("single", "prediction", "state", "joined", "another", "everything"):
    register(*(_method((ablation,), _reading) for ablation in NAMES))
register(_method(("zero",), "rounds"), _method(("zero", "resample"), "joined", True))
for _joined in ("joined", "another", "everything"):
    register(_method(("zero", "resample"), _joined), _method(("zero", "mean"), _joined))
