"""Nodes scored by methods of edges: a node is as strong as the strongest edge that leaves it."""

from __future__ import annotations

from functools import partial

from circuits.benchmark.material import Material
from circuits.benchmark.method import METHODS, Answer, Method, register
from circuits.benchmark.subject import Subject

KEYS = (
    "zero:single",
    "zero:joined",
    "resample:joined",
    "zero+resample:joined",
    "zero+resample:everything",
    "eap-ig:joined",
    "attention",
    "composition",
)


def outgoing(key: str, subject: Subject, material: Material) -> Answer:
    """The strongest edge that leaves each node."""
    scores = METHODS["edges", key].answer(subject, material).scores
    return Answer({n: max((v for (s, _), v in scores.items() if s == n), default=0.0) for n in material.items("nodes")})


for _key in KEYS:
    register(Method(_key, f"strongest edge by {_key}", "nodes", partial(outgoing, _key)))
