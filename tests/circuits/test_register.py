"""Circuits from outside the package: registered by a record, verified, loaded, rebuilt and reported like the others."""

from dataclasses import replace
from functools import wraps

import pytest

import circuits
import interp
from circuits import registry
from circuits.weighted_majority import weighted_majority
from interp import catalog, library
from interp.errors import InputError
from tests import test_tutorials


@pytest.fixture(autouse=True)
def registries(monkeypatch):
    """What a test registers is gone after it."""
    monkeypatch.setattr(registry, "RECORDS", dict(registry.RECORDS))
    monkeypatch.setattr(library, "_HANDWIRED", dict(library._HANDWIRED))
    monkeypatch.setattr(catalog, "_REGISTERED", dict(catalog._REGISTERED))


@wraps(weighted_majority)
def mine(**arguments):
    """Weighted Majority under another name, with its edges."""
    return replace(weighted_majority(**arguments), name="mine")


def record(**changes):
    plan = "circuits.weighted_majority.construction:PLAN"
    return replace(circuits.CircuitRecord("mine", "mine", "experts", mine, plan), **changes)


def test_the_tutorial_registers_a_circuit_of_a_task_of_its_own():
    assert test_tutorials.run(test_tutorials.DOCS / "tutorials" / "circuit.md") == 7
    model = interp.load("echo-handwired")
    assert circuits.from_origin(model.origin).name == "echo-handwired" and model.is_handwired
    interp.check_machine(model)
    assert [m.name for m in interp.models() if m.task == "echo"] == ["echo-handwired"]


def test_a_circuit_with_edges_is_known_everywhere_by_its_name():
    assert circuits.register(record()).key == "mine" and "mine" in [known.name for known in circuits.models()]
    model = interp.load("mine", n_experts=3)
    assert model.name == "mine" and circuits.from_origin(model.origin).layout.n_experts == 3
    assert circuits.verify("mine", sizes=[2], n_rounds=5, n_episodes=2, dtype="float64").passed
    assert len(circuits.build("mine").edges) > 20


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"key": "wma-handwired"}, "a model 'wma-handwired' is known already"),
        ({"key": "wma-learned"}, "a model 'wma-learned' is known already"),
        ({"key": "another"}, "the circuit of 'another' is called 'mine'"),
        ({"task": "expert"}, "task 'expert'"),
        ({"builder": lambda n: mine(n_experts=n)}, "a size of its task.*'n_experts'"),
    ],
)
def test_a_record_that_cannot_work_is_refused_and_leaves_nothing_behind(changes, sentence):
    before = (dict(registry.RECORDS), dict(library._HANDWIRED))
    with pytest.raises(InputError, match=sentence):
        circuits.register(record(**changes))
    assert before == (registry.RECORDS, library._HANDWIRED)


def test_a_plan_whose_output_has_another_shape_is_told():
    plan = replace(registry.handwired("wma-handwired").plan, output="votes")
    circuits.register(record(verification=plan))
    with pytest.raises(InputError, match="name the variable of the algorithm that has the shape of a prediction"):
        circuits.verify("mine", sizes=[2], n_rounds=3, n_episodes=2, dtype="float64")
