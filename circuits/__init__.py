"""Handwired models: circuits as data, compiled to transformers, with their ground truth.

* :mod:`circuits.basis`, :mod:`circuits.heads`, :mod:`circuits.circuit`: labelled residual basis, heads, circuits;
* :mod:`circuits.weighted_majority`, :mod:`circuits.q_learning`: the constructions;
* :mod:`circuits.chooser`: Lemma C.1 as a table;
* :func:`compile` makes the model, :func:`load` does all of it by name, :func:`build` gives the circuit alone,
  :func:`from_origin` the circuit of a compiled model, :func:`differentiable` its softmax-only variant;
* :func:`verify` checks a model against the reference algorithm, every intermediate variable included.

Importing this package imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from circuits.basis import Basis, Direction, PositionCode
    from circuits.circuit import Circuit, Edge, Site, Variable
    from circuits.compiler import compile
    from circuits.heads import Head, Neuron
    from circuits.registry import build, differentiable, from_origin, load, models
    from circuits.verification import verify

_HOMES = {
    "Basis": "circuits.basis",
    "Circuit": "circuits.circuit",
    "Direction": "circuits.basis",
    "Edge": "circuits.circuit",
    "Head": "circuits.heads",
    "Neuron": "circuits.heads",
    "PositionCode": "circuits.basis",
    "Site": "circuits.circuit",
    "Variable": "circuits.circuit",
    "build": "circuits.registry",
    "compile": "circuits.compiler",
    "differentiable": "circuits.registry",
    "from_origin": "circuits.registry",
    "load": "circuits.registry",
    "models": "circuits.registry",
    "verify": "circuits.verification",
}

__all__ = [
    "Basis",
    "Circuit",
    "Direction",
    "Edge",
    "Head",
    "Neuron",
    "PositionCode",
    "Site",
    "Variable",
    "build",
    "compile",
    "differentiable",
    "from_origin",
    "load",
    "models",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'circuits' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
