"""The registry of tasks: looked up by key or by what belongs to a task, no name twice, and no task by default."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

import interp
from interp import catalog, tasks
from interp.algorithm import AlgorithmRecord
from interp.checks import unique
from interp.errors import InputError
from interp.library import handwired_models
from interp.task import Corruption
from interp.tasks import Algorithms, Analysis, Data, Size, Task, experts, mdp
from interp.tasks.experts.layout import ExpertRound


@pytest.fixture
def registry(monkeypatch):
    """What is registered in a test is forgotten after it."""
    tasks.every()
    monkeypatch.setattr(catalog, "_REGISTERED", dict(catalog._REGISTERED))


def own(key="bandit", **parts):
    sizes = (Size("n_arms", "arms", "number of arms"),)
    return Task(key, f"the {key}", "", Data(ExpertRound, lambda *a, **k: None, lambda *a: None, sizes), **parts)


def test_a_task_is_found_by_its_key_its_episodes_its_layout_and_its_model():
    model = interp.load("wma-handwired", n_experts=2)
    for subject in (experts.sample(1, 1, 2), model.layout, model):
        assert tasks.of(subject) is tasks.get("experts")
    assert tasks.of(mdp.sample(1, 1, 2, 2)).key == "qlearning"


def test_what_belongs_to_no_task_is_refused():
    @dataclass
    class Foreign:
        task: ClassVar[str] = "bandit"

    with pytest.raises(InputError, match="unknown task 'expert'; did you mean 'experts'"):
        tasks.get("expert")
    with pytest.raises(InputError, match="unknown task 'bandit'"):
        tasks.of(Foreign())
    with pytest.raises(InputError, match="expected episodes, a layout or a model of a registered task, got list"):
        tasks.of([1, 2])


def test_a_task_of_ones_own_is_registered_once(registry):
    record = tasks.register(own())
    assert tasks.get("bandit") is record and tasks.every()[-1] is record
    for taken in ("bandit", "experts"):
        with pytest.raises(InputError, match=f"a task '{taken}' is registered already"):
            tasks.register(own(taken))
    assert tasks.get("experts").name == "expert advice"


def test_a_record_refuses_what_could_not_be_told_apart():
    with pytest.raises(InputError, match="a task's key must be an identifier, got 'two words'"):
        own("two words")
    with pytest.raises(InputError, match="two sizes are called 'n_arms'"):
        replace(own().data, sizes=(Size("n_arms", "arms", ""), Size("n_arms", "levers", "")))
    first = AlgorithmRecord("a", "first", "1st", lambda: None)
    for changes, field in (({"name": "first"}, "name"), ({"short_name": "1st"}, "short_name"), ({"key": "a"}, "key")):
        second = replace(AlgorithmRecord("b", "second", "2nd", lambda: None), **changes)
        with pytest.raises(InputError, match=f"algorithm of 'bandit' '[ab]' reuses the {field}"):
            own(algorithms=Algorithms(lambda second=second: (first, second))).algorithm_records()


def test_every_task_registers_parts_whose_names_exist():
    """Keys and names in the records are looked up elsewhere: a misspelled one would fail only there."""
    for task in tasks.every():
        records = task.algorithm_records()
        keys = {key for record in records.values() for key in record.make().keys}
        assert records and set(task.analysis.probed) <= keys, task.key
        corruptions = unique(task.analysis.corruptions(), "corruption")
        assert task.analysis.default_corruption in corruptions
        assert all(record.delay >= 0 for record in corruptions.values())
        assert set(handwired_models(task.key)) <= {record.name for record in interp.models()}


def test_unknown_parts_are_refused_with_the_nearest():
    task = tasks.get("experts")
    with pytest.raises(InputError, match="unknown algorithm of 'experts' 'bays'; did you mean 'bayes'"):
        task.algorithm("bays")
    with pytest.raises(
        InputError, match="unknown corruption of experts episodes 'flip-lable'; did you mean 'flip-label'"
    ):
        task.corruption("flip-lable")
    with pytest.raises(InputError, match="task 'bandit' registers no algorithm; give its record algorithms="):
        own().explains(interp.load("wma-handwired", n_experts=2))


def test_two_corruptions_of_one_name_are_refused():
    one, other = (Corruption("flip", name, 0, lambda e, t: (e, e)) for name in ("a flip", "another flip"))
    with pytest.raises(InputError, match="corruption of 'bandit' 'flip' reuses the key 'flip'"):
        own(analysis=Analysis(corruptions=lambda: (one, other))).corruption("flip")


def test_episodes_are_drawn_to_a_model_s_sizes_and_rates():
    model = interp.load("qlearning-handwired", n_states=3, n_actions=2, alpha=0.3, gamma=0.5)
    episodes = tasks.of(model).sample_for(model, n_episodes=2, n_rounds=4, seed=1)
    expected = mdp.sample(2, 4, 3, 2, seed=1, alpha=0.3, gamma=0.5)
    assert (episodes.states == expected.states).all() and (episodes.q_tables == expected.q_tables).all()
    assert tasks.of(model).sample_for(model, 2, 4, 1, regime="ladder").regime == "ladder"
