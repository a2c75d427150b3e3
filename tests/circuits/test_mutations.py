"""Verification catches single faults in circuits, reference algorithms and models: all but those listed here.

``tests.circuits.faults`` makes them: a head's score, value, rule, gate or sink, a neuron, an embedding, a latent, one
equation of the algorithm that the model is held against, or one step of the model. :data:`SURVIVORS` names those that
pass, with the reason; a fault that newly passes, or one listed that is now caught, fails the test. Of each survivor it
is measured, on a larger machine and other episodes, that it changes neither a prediction nor a latent nor any number
that verification compares with.
"""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import circuits
from circuits.compiler import compile_circuit
from circuits.exactness import check
from circuits.registry import get_record
from interp.core.algorithm import NEXT
from interp.model.rollout import rollout
from interp.model.transformer import HookedLatentTransformer
from interp.support.errors import InputError
from interp.support.files import read_rows
from tests.circuits.faults import MODEL_FAULTS, Fault, faults

W, Q = "wma-handwired", "qlearning-handwired"
MACHINES = {"R": W, "P": W, "mlp": Q, "softmlp": Q, "lin": Q}
"""Variants of the machines, by name."""
SMALL = {W: {"n_experts": 3}, Q: {"n_states": 3, "n_actions": 3}}
LARGER = {W: {"n_experts": 7}, Q: {"n_states": 5, "n_actions": 4}}

SURVIVORS = read_rows(Path(__file__).with_name("survivors.csv"))
"""Faults that pass, of which machines, and why they change nothing that these compute."""


def listed(machine: str) -> set[str]:
    return {row["fault"] for row in SURVIVORS if machine in row["machines"].split()}


@cache
def built(machine: str, larger: bool = False) -> circuits.Circuit:
    name = MACHINES[machine]
    sizes = (LARGER if larger else SMALL)[name]
    return circuits.build(name, variant=machine, **sizes)


@cache
def episodes_of(machine: str, larger: bool, rounds: int, episodes: int, seed: int) -> Any:
    return get_record(MACHINES[machine]).plan.episodes(
        built(machine, larger), rounds, episodes, seed
    )


@cache
def faults_of(machine: str, larger: bool = False) -> dict[str, Fault]:
    return faults(built(machine, larger))


def passes(machine: str, name: str | None = None, rounds: int = 30, episodes: int = 6) -> bool:
    """Whether verification of a machine passes, in float64, with a fault or without any: one that ends in NaN fails."""
    circuit = built(machine)
    changed = circuit if name is None else faults_of(machine)[name](circuit)
    model, original = (
        (changed, circuit) if isinstance(changed, HookedLatentTransformer) else (None, changed)
    )
    sampled, plan = episodes_of(machine, False, rounds, episodes, 0), get_record(circuit.name).plan
    try:
        checks = check(original, sampled, 0, "float64", plan, model)
        return all(entry.passed for entry in checks)
    except InputError as refused:
        assert "is not a number" in str(refused)
        return False


@cache
def computed(machine: str, name: str | None = None) -> list[np.ndarray]:
    """What a larger machine predicts and writes on other episodes, and what verification would compare it with."""
    circuit, sampled = built(machine, larger=True), episodes_of(machine, True, 60, 9, 7)
    changed = circuit if name is None else faults_of(machine, larger=True)[name](circuit)
    model, original = (
        (changed, circuit)
        if isinstance(changed, HookedLatentTransformer)
        else (compile_circuit(changed), changed)
    )
    run, values = rollout(model, sampled), original.algorithm.run(sampled)
    reference = [values[key] for key in (*original.sites, NEXT + original.algorithm.memory)]
    return [run.predictions.numpy(), run.latents.numpy(), *reference]


def names_of(machine: str) -> list[str]:
    return list(faults_of(machine))


def survivors(machine: str, names: list[str], **battery: int) -> set[str]:
    return {name for name in names if passes(machine, name, **battery)}


@pytest.mark.long
@pytest.mark.parametrize("machine", MACHINES)
def test_verification_catches_a_sample_of_the_faults(machine: str) -> None:
    """Every 64th fault on few rounds; of the model, every fault of the first machine."""
    names = names_of(machine)[5::64]
    if machine == "R":
        names = list(dict.fromkeys([*names, *(f"model: {kind.__name__}" for kind in MODEL_FAULTS)]))
    assert passes(machine, rounds=8, episodes=3)
    assert survivors(machine, names, rounds=8, episodes=3) == set(names) & listed(machine)


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
