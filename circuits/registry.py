"""The handwired models by name: one record each, and how to build, compile and rebuild them.

The module imports torch only when a circuit is built.

    >>> get_record("wma-handwired").task
    'experts'
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interp import tasks
from interp.model import library
from interp.support.checks import (
    MOST_GB,
    check_number,
    check_type,
    checked,
    checked_fields,
    index_by_key,
    integer,
    kind_of,
    refuse_above,
)
from interp.support.errors import InputError, require, require_known
from interp.support.files import read_tables
from interp.support.lazy import resolve_name

if TYPE_CHECKING:
    from circuits.circuit import Circuit, VerificationPlan
    from interp.model.transformer import HookedLatentTransformer

DTYPES = ("float64", "float32")


@dataclass(frozen=True)
@checked_fields
class CircuitRecord:
    """The registry entry of a handwired model.

    Attributes:
        key: name of the model.
        description: one line, for lists.
        task: key of the task. The sizes of the task are arguments of the circuit.
        builder: function that builds the circuit, or its "module:name", which is imported on first
            use.
        verification: the verification plan, or its "module:name".
        float32: name of an argument of the builder -> its default in float32, if it differs from
            the builder's own default, such as ``{"heavy": 20.0}``.
        soft: name of an argument of the builder -> its value for the variant that has only softmax
            heads. This variant is nearly exact and has a gradient everywhere.
        weights: function from the task's sizes, such as ``{"n_experts": 4}``, to an estimate of the
            model's number of weights, right to within a quarter. It serves to refuse a model that
            is too large before it is built.
    """

    key: str
    description: str
    task: str
    builder: str | Callable[..., Circuit]
    verification: str | VerificationPlan
    float32: Mapping[str, Any] = field(default_factory=dict)
    soft: Mapping[str, Any] = field(default_factory=dict)
    weights: Callable[[Mapping[str, int]], float] = lambda sizes: 0.0

    @property
    def build(self) -> Callable[..., Circuit]:
        """The function that builds the circuit; imported on first use."""
        builder = self.builder
        return resolve_name(builder) if isinstance(builder, str) else builder

    @property
    def plan(self) -> VerificationPlan:
        """The verification plan, imported on first use. It says how :func:`circuits.verify` checks
        the model.
        """
        plan = self.verification
        return resolve_name(plan) if isinstance(plan, str) else plan


def _count_weighted_majority(sizes: Mapping[str, int]) -> float:
    """Estimate the number of weights of a model of these sizes from its largest matrices."""
    d_model, d_head = 6 * sizes["n_experts"] + 26, 2 * sizes["n_experts"] + 5
    return 36 * d_model * d_head  # 3 layers x 3 heads x 4 matrices


def _count_q_learning(sizes: Mapping[str, int]) -> float:
    """Estimate the number of weights of a model of these sizes from its largest matrices."""
    n_states, n_actions = sizes["n_states"], sizes["n_actions"]
    d_model, d_head = 3 * n_states + 6 * n_actions + 29, 3 * n_actions + 10
    # 4 layers x 6 heads x 4 matrices; 4 layers x 2 matrices x 2 neurons per state
    return d_model * (96 * d_head + 16 * n_states)


def _count_reachability(sizes: Mapping[str, int]) -> float:
    """Estimate the number of weights of a model of these sizes from its largest matrices."""
    n_nodes, n_edges = sizes["n_nodes"], sizes["n_edges"]
    d_model, d_head = 4 * n_nodes + 3 * n_edges + 13, 3 * n_edges + 7
    # 2 layers x 4 heads x 4 matrices; 2 layers x 2 matrices x 3 neurons per node
    return d_model * (32 * d_head + 12 * n_nodes)


_WEIGHTS: dict[str, Callable[[Mapping[str, int]], float]] = {
    "wma-handwired": _count_weighted_majority,
    "qlearning-handwired": _count_q_learning,
    "reachability-handwired": _count_reachability,
}
"""Approximate number of weights of each model, as a function of its task's sizes."""
_TABLES = read_tables(Path(__file__).with_suffix(".toml"))
RECORDS: dict[str, CircuitRecord] = index_by_key(
    [CircuitRecord(key, **_TABLES[key], weights=weights) for key, weights in _WEIGHTS.items()],
    "handwired model",
)


@checked
def get_record(name: str) -> CircuitRecord:
    """Return the registry entry of a handwired model; raise InputError for an unknown name."""
    require_known("handwired model", name, RECORDS)
    return RECORDS[name]


def models() -> list[library.ModelRecord]:
    """List every handwired model, as records like those of :func:`interp.models`.

    >>> [record.name for record in models()]
    ['wma-handwired', 'qlearning-handwired', 'reachability-handwired']
    """
    return [record for record in library.models() if record.name in RECORDS]


@checked
def build(name: str, *, max_gb: float = MOST_GB, **arguments: Any) -> Circuit:
    """Build the circuit of a handwired model: its heads, neurons and ground truth as data.

    Args:
        name: name of the handwired model.
        max_gb: most memory that the model's weights may take in float64, in gigabytes (1e9 bytes).
            A larger model is refused.
        **arguments: arguments of the model's builder.

    >>> build("wma-handwired", n_experts=2).n_layers
    3
    """
    record = get_record(name)
    builder = record.build
    parameters = inspect.signature(builder).parameters
    for argument, value in arguments.items():
        require_known(f"argument of {name!r}", argument, parameters, limit=20)
        parameter = parameters[argument]
        # Annotations are texts, which are evaluated where the builder was written.
        names_in_scope = getattr(inspect.unwrap(builder), "__globals__", {})
        kind = kind_of(parameter.annotation, names_in_scope)
        arguments[argument] = check_type(argument, value, kind, parameter.default)
    sizes = {}
    for size in tasks.get(record.task).sizes:
        value = arguments.get(size.name, size.default)
        sizes[size.name] = integer(size.name, value, size.minimum)
    sizes_in_words = ", ".join(f"{size}={value}" for size, value in sizes.items())
    what = f"{name!r} with {sizes_in_words}"
    n_weights = check_number(f"weights of {what}", record.weights(sizes), 0)
    refuse_above(what, 8 * n_weights, max_gb)  # bytes in float64
    return builder(**arguments)


@checked
def load(
    name: str, dtype: str = "float64", *, max_gb: float = MOST_GB, **arguments: Any
) -> HookedLatentTransformer:
    """Build and compile a handwired model, in evaluation mode, on the CPU.

    Args:
        name: name of the handwired model.
        dtype: "float64" or "float32".
        max_gb: most memory that the model's weights may take, in gigabytes (1e9 bytes). A larger
            model is refused.
        **arguments: arguments of the model's builder.

    Raises:
        InputError: float32 for a circuit that needs float64, or unknown arguments.

    >>> load("wma-handwired", n_experts=2).layout.labels[:3]
    ('<w>', '<z>', 'e_1')
    """
    import torch

    from circuits.compiler import compile_circuit

    require_known("dtype", dtype, DTYPES)
    circuit = build(name, max_gb=max_gb, **with_defaults(name, dtype, arguments))
    return compile_circuit(circuit, getattr(torch, dtype), max_gb=max_gb)


def with_defaults(name: str, dtype: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Add the defaults of a dtype to the arguments for a model's builder. The model's registry
    entry lists them; an argument that the user passed keeps its value.

    Args:
        name: name of the handwired model.
        dtype: "float64" or "float32". Registry entries list defaults for float32 only
            (:attr:`CircuitRecord.float32`); for float64, ``arguments`` are returned unchanged.
        arguments: name of an argument that the user passed -> its value.

    Returns:
        Name of an argument -> its value. Other arguments are left to the builder's own defaults.

    >>> with_defaults("wma-handwired", "float32", {"heavy": 30.0})
    {'heavy': 30.0, 'match_logit': 60.0}
    """
    if dtype != "float32" or name not in RECORDS:
        return dict(arguments)
    return {**RECORDS[name].float32, **arguments}


@checked
def from_origin(origin: Mapping[str, Any]) -> Circuit:
    """Rebuild the circuit from which a model was compiled.

    Args:
        origin: the model's ``config.origin``, which stores the circuit's name and arguments.

    Raises:
        InputError: the model is learned, or its circuit was edited by hand.

    >>> from_origin(load("wma-handwired", n_experts=2).config.origin).heads[0].name
    '1.1 bind'
    """
    if "circuit" not in origin:
        raise InputError("this model was not compiled from a circuit: its config.origin names none")
    if origin.get("edits"):
        raise InputError(
            f"this circuit was edited by hand ({'; '.join(origin['edits'])}) and cannot be rebuilt by name"
        )
    return build(origin["circuit"], **origin["arguments"])


@checked
def differentiable(model: HookedLatentTransformer) -> HookedLatentTransformer:
    """Return the variant of a handwired model that has only softmax heads, for methods that need
    gradients.

    Gradients do not pass through hard attention. A model that already has only softmax heads, such
    as a learned model, is returned unchanged.

    >>> set(sum(differentiable(load("wma-handwired", n_experts=2)).config.attention_rules, ()))
    {'softmax'}
    """
    from interp.model.transformer import HookedLatentTransformer

    check_type("model", model, HookedLatentTransformer)
    if all(rule == "softmax" for rules in model.config.attention_rules for rule in rules):
        return model
    origin = model.origin
    require(
        "circuit" in origin and not origin.get("edits"),
        f"{model.name!r} has hard attention, which has no gradient, and was not built by name, so its "
        "softmax-only variant cannot be built; attribute edges in a model with softmax heads",
    )
    name = origin["circuit"]
    return load(name, **{**origin["arguments"], **RECORDS[name].soft})


@checked
def register(record: CircuitRecord) -> CircuitRecord:
    """Register a handwired model for :func:`interp.load`, :func:`circuits.verify` and reports;
    return its record.

    The record's task must be registered already (``interp.tasks.register``). The record's key must
    be new, and equal to the name of the circuit that its builder makes.

    >>> register(get_record("wma-handwired"))       # docs/tutorials/circuit.md has one to add
    Traceback (most recent call last):
    interp.support.errors.InputError: a model 'wma-handwired' is known already; choose another key
    """
    name = record.key
    known_names = {known.name for known in library.models()}
    require(name not in known_names, f"a model {name!r} is known already; choose another key")
    sizes, parameters = tasks.get(record.task).sizes, inspect.signature(record.build).parameters
    for size in sizes:
        require_known(
            f"argument of the builder of {name!r} (a size of its task)",
            size.name,
            parameters,
            limit=20,
        )
    # The builder must work at the task's default sizes, and only a circuit tells its name.
    circuit = record.build(**{size.name: size.default for size in sizes})
    require(
        circuit.name == name,
        f"the circuit of {name!r} is called {circuit.name!r}; give it the key of its record as its name",
    )
    RECORDS[name] = record
    library.register(name, record.description, record.task, partial(load, name))
    return record


for _record in RECORDS.values():
    library.register(_record.key, _record.description, _record.task, partial(load, _record.key))
