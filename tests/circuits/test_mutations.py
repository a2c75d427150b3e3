"""Verification catches single faults in circuits, reference algorithms and models: all but those listed here.

``tests.circuits.faults`` makes them: a head's score, value, rule, gate or sink, a neuron, an embedding, a latent, one
equation of the algorithm that the model is held against, or one step of the model. :data:`SURVIVORS` names those that
pass, with the reason; a fault that newly passes, or one listed that is now caught, fails the test. Of each survivor it
is measured, on a larger machine and other episodes, that it changes neither a prediction nor a latent nor any number
that verification compares with.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import circuits
from circuits.circuit import Circuit
from circuits.compiler import compile_circuit
from circuits.exactness import check
from circuits.registry import handwired
from circuits.verification import _size_arguments
from interp.algorithm import NEXT
from interp.model.rollout import rollout
from interp.model.transformer import HookedLatentTransformer
from tests.circuits.faults import MODEL_FAULTS, Fault, faults

W, Q = "wma-handwired", "qlearning-handwired"
MACHINES = {"R": W, "P": W, "mlp": Q, "softmlp": Q, "lin": Q}
"""Variants of the machines, by name."""
SMALL: dict[str, Any] = {W: 3, Q: (3, 3)}
LARGER: dict[str, Any] = {W: 7, Q: (5, 4)}

_UNUSED = "no location, and nothing that the circuit computes reads it"
_FIRST_TERM = "the first term scores a key that no firing query wants, and hard attention stays where it was"
_LAST = "Update is last, and hard attention of a firing query stays where it was; what others fetch is not read later"
_Q_LEARNING = {
    **{
        f"{head}: negated_score": _FIRST_TERM
        for head in ("1.1 state to actions", "1.2 state to Select", "1.3 state to reward", "1.4 current-phase tag")
    },
    "1.1 state to actions: without_sink": "silent queries meet no state one token back that is read later",
    "1.4 current-phase tag: without_sink": "silent queries find no Qcurr two tokens back",
    **{
        f"equation of {key}": _UNUSED
        for key in ("table_visited", "state_values", "column_visited", "next_visits", "next_column_visited")
    },
    "equation of greedy_action": _UNUSED,
}
_NEURONS = {f"equation of {key}": _UNUSED for key in ("current_values", "best_column")}
_WEIGHTED_MAJORITY = {
    "1.2 state tag: scaled_value": "the tag still wins over the sink, by a little more",
    "equation of log_weights_centred": _UNUSED,
    "equation of weights": "the prediction divides by the sum of the weights",
    "model: slot_of_the_next": "there is one slot",
}
SURVIVORS: dict[str, dict[str, str]] = {
    "R": {
        **_WEIGHTED_MAJORITY,
        "2.3 carry z: without_sink": "silent queries average experts into id, where nothing reads them later",
        "3.3 clean up: without_sink": "w? is last and chooses itself; what others write after layer 3 is not read",
    },
    "P": {
        **_WEIGHTED_MAJORITY,
        "2.1 fetch z: without_sink": "silent queries average experts into buf2, where only p? and w? are read",
        "3.1 predict: without_sink": "w? gathers votes into buf3, which the clean-up head of the next layer removes",
    },
    "mlp": _Q_LEARNING | _NEURONS,
    "softmlp": {
        **_Q_LEARNING,
        **_NEURONS,
        **{f"{head}: without_sink": _LAST for head in ("4.1 fetch current value", "4.2 fetch reward", "4.3 fetch max")},
        "model: scores_scaled": "every head is hard, and takes the largest score whatever the scale",
    },
    "lin": {
        **_Q_LEARNING,
        "1.4 current-phase tag: scaled_value": "the action taken still wins over the sink, by a little more",
        "1.5 next-phase tag: scaled_value": "all candidates win over the sink by the same, a little more",
        "2.3 next state to Update: negated_score": _FIRST_TERM,
        "2.3 next state to Update: without_sink": "silent queries then add to columns that are not kept",
        "4.4 clean up: negated_score": _FIRST_TERM,
        "4.4 clean up: without_sink": "silent queries clear themselves, too, where nothing reads them later",
    },
}
"""Faults that pass, and why they change nothing that the machine computes; besides :data:`EVERYWHERE`."""

EVERYWHERE = {"a stray axis in an outcome": "nothing ever writes that axis at the prediction"}
for _machine in ("R", "P", "mlp", "softmlp"):
    SURVIVORS[_machine]["model: position_of_another"] = (
        "the last position reads by content, and its code is stripped from the update"
    )


def listed(machine: str) -> set[str]:
    return set(SURVIVORS[machine] | EVERYWHERE)


@cache
def built(machine: str, larger: bool = False) -> Circuit:
    name = MACHINES[machine]
    size = (LARGER if larger else SMALL)[name]
    return circuits.build(name, variant=machine, **_size_arguments(handwired(name), size))


@cache
def episodes_of(machine: str, larger: bool, rounds: int, episodes: int, seed: int) -> Any:
    return handwired(MACHINES[machine]).plan.episodes(built(machine, larger), rounds, episodes, seed)


@cache
def faults_of(machine: str, larger: bool = False) -> dict[str, Fault]:
    return faults(built(machine, larger))


def passes(machine: str, name: str | None = None, rounds: int = 30, episodes: int = 6) -> bool:
    """Whether verification of a machine passes, in float64, with a fault or without any."""
    circuit = built(machine)
    made = circuit if name is None else faults_of(machine)[name](circuit)
    model, held = (made, circuit) if isinstance(made, HookedLatentTransformer) else (None, made)
    sampled, plan = episodes_of(machine, False, rounds, episodes, 0), handwired(circuit.name).plan
    return all(entry.passed for entry in check(held, sampled, SMALL[circuit.name], "float64", plan, model))


@cache
def computed(machine: str, name: str | None = None) -> list[np.ndarray]:
    """What a larger machine predicts and writes on other episodes, and what verification would compare it with."""
    circuit, sampled = built(machine, larger=True), episodes_of(machine, True, 60, 9, 7)
    made = circuit if name is None else faults_of(machine, larger=True)[name](circuit)
    model, held = (made, circuit) if isinstance(made, HookedLatentTransformer) else (compile_circuit(made), made)
    run, values = rollout(model, sampled), held.algorithm.run(sampled)
    reference = [values[key] for key in (*held.sites, NEXT + held.algorithm.memory)]
    return [run.predictions.numpy(), run.latents.numpy(), *reference]


def names_of(machine: str) -> list[str]:
    return list(faults_of(machine))


def survivors(machine: str, names: list[str], **battery: int) -> set[str]:
    return {name for name in names if passes(machine, name, **battery)}


@pytest.mark.parametrize("machine", MACHINES)
def test_verification_catches_a_sample_of_the_faults(machine: str) -> None:
    """Every 24th fault on few rounds; of the model, every fault of the first machine."""
    names = names_of(machine)[5::24]
    if machine == "R":
        names = list(dict.fromkeys([*names, *(f"model: {kind.__name__}" for kind in MODEL_FAULTS)]))
    assert passes(machine, rounds=12, episodes=4)
    assert survivors(machine, names, rounds=12, episodes=4) == set(names) & listed(machine)


@pytest.mark.slow(reason="544 faults of five machines, ten minutes")
@pytest.mark.parametrize("machine", MACHINES)
def test_verification_catches_every_fault_but_those_listed(machine: str) -> None:
    assert survivors(machine, names_of(machine)) == listed(machine)


@pytest.mark.slow(reason="fifty larger machines, one minute")
@pytest.mark.parametrize("machine", MACHINES)
def test_what_survives_changes_nothing_that_is_computed_or_compared(machine: str) -> None:
    """Bit for bit, but for e^-200 left by a softmax head that is not read, and rounding of weights that cancel."""
    for name in listed(machine):
        for right, wrong in zip(computed(machine), computed(machine, name), strict=True):
            scaled = name == "equation of weights"
            assert np.allclose(right, wrong, rtol=1e-14 if scaled else 0.0, atol=1e-80), name


def test_there_are_many_faults_and_all_survivors_are_among_them() -> None:
    assert sum(len(set(names_of(machine)) - listed(machine)) for machine in MACHINES) >= 400
    assert all(listed(machine) <= set(names_of(machine)) for machine in MACHINES)
