"""The handwired models by name: no two share one, each belongs to a task, and sizes are those of that task.

Circuits from outside the package are registered by a record, verified, loaded and rebuilt like the others.
"""

from dataclasses import replace
from functools import wraps
from unittest.mock import patch

import pytest

import circuits
import interp
import interp.tasks
from circuits import registry
from circuits.registry import RECORDS, get_record
from circuits.weighted_majority import construction, weighted_majority
from interp.core import catalog
from interp.model import library
from interp.support.checks import index_by_key
from tests import test_tutorials
from tests.refusals import refused, refuses


def test_two_records_of_one_name_are_refused() -> None:
    twice = (*RECORDS.values(), RECORDS["wma-handwired"])
    refuses("handwired model 'wma-handwired' reuses", index_by_key, twice, "handwired model")


def test_tasks_and_machines_name_each_other() -> None:
    keys = [task.key for task in interp.tasks.list_tasks()]
    wired = {known.task: (known.name,) for known in circuits.models()}
    assert {key: library.handwired_models(key) for key in keys} == {"bandit": (), **wired}
    assert ["bandit", *wired] == keys


@pytest.mark.parametrize("name", RECORDS)
def test_a_machine_runs_the_episodes_and_the_layout_of_its_task(name: str) -> None:
    circuit, plan = circuits.build(name), get_record(name).plan
    episodes = plan.episodes(circuit, 5, 3, 0)
    task = get_record(name).task
    assert (circuit.layout.task, circuit.algorithm.task, episodes.task) == (task, task, task)
    assert 1 <= len(episodes) <= 3
    assert 1 <= episodes.n_rounds <= 5
    assert interp.tasks.of(episodes).sizes_of(episodes) == interp.tasks.of(circuit.layout).sizes_of(
        circuit.layout
    )
    assert plan.output in circuit.sites


test_a_size_of_another_task_is_refused_with_a_sentence = refused(
    ("wma-handwired", (3, 3), r"a size of 'wma-handwired' is 1 number \(n_experts\), got \(3, 3\)"),
    (
        "qlearning-handwired",
        4,
        r"a size of 'qlearning-handwired' is 2 numbers \(n_states, n_actions\), got 4",
    ),
    by=lambda name, size: circuits.verify(name, sizes=[size]),
)


def test_one_number_is_a_size_with_and_without_brackets() -> None:
    bare, bracketed = (
        circuits.verify("wma-handwired", [size], 3, 2, "float64") for size in (2, (2,))
    )
    assert bare.checks == bracketed.checks


def test_the_result_says_how_much_was_run_not_how_much_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = construction.PLAN
    fewer = replace(
        plan, episodes=lambda circuit, *_: plan.episodes(circuit, circuit.layout.n_experts, 2, 0)
    )
    assert circuits.verify("wma-handwired", [2, 3], 4, 3, "float64").settings["rounds"] == 4
    monkeypatch.setattr(construction, "PLAN", fewer)
    settings = circuits.verify("wma-handwired", [2, 3], 1000, 20, "float64").settings
    assert (settings["rounds"], settings["episodes"]) == ("2 to 3", 2)


@pytest.fixture(autouse=True)
def registries():
    """What a test registers is gone after it."""
    with patch.dict(RECORDS), patch.dict(library.HANDWIRED), patch.dict(catalog.REGISTERED):
        yield


@wraps(weighted_majority)
def mine(**arguments):
    """Weighted Majority under another name, with its edges."""
    return replace(weighted_majority(**arguments), name="mine")


def record(**changes):
    plan = "circuits.weighted_majority.construction:PLAN"
    return replace(circuits.CircuitRecord("mine", "mine", "experts", mine, plan), **changes)


@pytest.mark.long
def test_the_tutorial_registers_a_circuit_of_a_task_of_its_own():
    assert test_tutorials.run(test_tutorials.DOCS / "tutorials" / "circuit.md") == 8
    model = interp.load("echo-handwired")
    assert circuits.from_origin(model.origin).name == "echo-handwired"
    assert model.is_handwired
    interp.check_machine(model)
    assert [m.name for m in interp.models() if m.task == "echo"] == ["echo-handwired"]


def test_a_circuit_with_edges_is_known_everywhere_by_its_name():
    assert circuits.register(record()).key == "mine"
    assert "mine" in [known.name for known in circuits.models()]
    model = interp.load("mine", n_experts=3)
    assert model.name == "mine"
    assert circuits.from_origin(model.origin).layout.n_experts == 3
    assert circuits.verify("mine", sizes=[2], n_rounds=5, n_episodes=2, dtype="float64").passed
    assert len(circuits.build("mine").edges) > 20


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"key": "wma-handwired"}, "a model 'wma-handwired' is known already"),
        ({"key": "wma-learned-additive"}, "a model 'wma-learned-additive' is known already"),
        ({"key": "another"}, "the circuit of 'another' is called 'mine'"),
        ({"task": "expert"}, "task 'expert'"),
        ({"builder": lambda n: mine(n_experts=n)}, "a size of its task.*'n_experts'"),
    ],
)
def test_a_record_that_cannot_work_is_refused_and_leaves_nothing_behind(changes, sentence):
    before = (dict(registry.RECORDS), dict(library.HANDWIRED))
    refuses(sentence, circuits.register, record(**changes))
    assert before == (registry.RECORDS, library.HANDWIRED)


def test_a_plan_whose_output_has_another_shape_is_told():
    plan = replace(registry.get_record("wma-handwired").plan, output="votes")
    circuits.register(record(verification=plan))
    refuses(
        "name the variable of the algorithm that has the shape of a prediction",
        circuits.verify,
        "mine",
        sizes=[2],
        n_rounds=3,
        n_episodes=2,
        dtype="float64",
    )
