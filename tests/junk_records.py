"""Records with junk in one place, and what each is for: tasks, algorithms, circuits, benchmark methods, reports.

Everything that users write a record of is somebody's code: a field may hold anything, a function may give anything, and
what it gives may say anything of itself. :func:`uses` names a call for every kind of record; each takes a generator
that says where the junk goes.
"""

import importlib
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import cache
from random import Random
from typing import Any
from unittest.mock import patch

from tests.junk import JUNK, right

Use = Callable[[Random], object]


def giving(value: Any) -> Callable[..., Any]:
    """A function that takes anything and gives ``value``."""
    return lambda *args, **kwargs: value


def misspoken(one: Any, draw: Random) -> Any:
    """``one``, of which a public attribute is junk, or a method gives junk."""
    names = [name for name in dir(type(one)) if not name.startswith("_")] + list(
        getattr(one, "__dataclass_fields__", ())
    )
    if not names or type(one).__module__ in ("builtins", "numpy", "torch"):
        return draw.choice(JUNK)
    name, junk = draw.choice(sorted(names)), draw.choice(JUNK)
    is_method = callable(getattr(type(one), name, None))
    kind = type(one)
    changed = type(
        kind.__name__, (kind,), {name: giving(junk) if is_method else property(giving(junk))}
    )
    made = object.__new__(changed)
    made.__dict__.update({key: value for key, value in vars(one).items() if key != name})
    return made


def with_junk(record: Any, draw: Random) -> Any:
    """``record`` with one field junk: the field, what its function gives, or a part of what it gives."""
    name = draw.choice([field.name for field in fields(record) if field.init])
    held, junk = getattr(record, name), draw.choice(JUNK)
    if is_dataclass(held) and not isinstance(held, type) and draw.random() < 0.7:
        return replace(record, **{name: with_junk(held, draw)})
    if isinstance(held, tuple) and held and is_dataclass(held[0]) and draw.random() < 0.7:
        at = draw.randrange(len(held))
        return replace(record, **{name: (*held[:at], with_junk(held[at], draw), *held[at + 1 :])})
    if callable(held):
        how = draw.random()
        if how < 0.3:
            return replace(record, **{name: giving(junk)})
        if how < 0.8:
            return replace(
                record, **{name: lambda *args, **kwargs: _part(held(*args, **kwargs), draw)}
            )
    return replace(record, **{name: junk})


def _part(value: Any, draw: Random) -> Any:
    """A value of which a part is junk."""
    if isinstance(value, tuple | list) and value:
        at = draw.randrange(len(value))
        return type(value)([*value[:at], _part(value[at], draw), *value[at + 1 :]])
    if isinstance(value, dict) and value:
        key = draw.choice(list(value))
        return {**value, key: _part(value[key], draw)}
    says = hasattr(value, "labels") or hasattr(
        value, "select"
    )  # layouts and episodes: classes that users write
    if is_dataclass(value) and not isinstance(value, type) and (not says or draw.random() < 0.5):
        return with_junk(value, draw)
    return misspoken(value, draw) if says else draw.choice(JUNK)


@cache
def uses(as_they_are: bool = False) -> dict[str, Use]:
    """A call for every kind of record, by its name; ``as_they_are`` without junk."""
    import circuits
    import interp
    from circuits import benchmark
    from circuits.benchmark import grading, methods
    from circuits.registry import RECORDS, get_record
    from interp.interventions import patching
    from interp.model import library
    from interp.model.task_checks import check_task
    from interp.training.config import TrainingConfig

    spoiled = (lambda record, draw: record) if as_they_are else with_junk
    tasks = {key: interp.tasks.get(key) for key in ("experts", "qlearning", "reachability")}
    model, episodes = right()["model"], right()["episodes"]
    algorithm, family = right()["algorithm"], tasks["experts"].rivals()

    def of_algorithm(draw: Random) -> None:
        made = spoiled(algorithm, draw)
        made.distribution(made.run(episodes))

    def of_family(draw: Random) -> None:
        key = draw.choice(sorted(family))
        mine = spoiled(family[key], draw)
        others = tuple(one for one in family.values() if one.key != key)
        task = replace(
            tasks["experts"],
            algorithms=replace(tasks["experts"].algorithms, families=giving((*others, mine))),
        )
        task.rivals()
        check_task(task)

    def of_corruption(draw: Random) -> None:
        task = tasks[draw.choice(sorted(tasks))]
        machine = {"experts": model}.get(task.key) or interp.load(f"{task.key}-handwired")
        known = draw.choice(task.analysis.corruptions())
        clean = task.sample_for(machine, 5, 4, 0)
        mine = spoiled(known, draw)
        built = replace(
            task, analysis=replace(task.analysis, corruptions=giving((mine,)))
        ).corruption(mine.key)
        pair = built.build(clean, 2)
        if (
            isinstance(pair, tuple) and [type(one) for one in pair] == [type(clean)] * 2
        ):  # else its reader sees that
            patching.sweep(machine, *pair, 2, sites=["latent"])

    def of_circuit(draw: Random) -> None:
        circuits.compile_circuit(spoiled(right()["circuit"], draw))

    def of_circuit_record(draw: Random) -> None:
        known = get_record("wma-handwired")
        builder = lambda n_experts: replace(known.build(n_experts), name="mine")  # noqa: E731
        record = spoiled(replace(known, key="mine", builder=builder, weights=giving(0.0)), draw)
        with patch.dict(RECORDS), patch.dict(library.HANDWIRED):
            circuits.register(record)
            interp.load(record.key, n_experts=2)

    def of_method(draw: Random) -> None:
        known = next(iter(methods.METHODS.values()))
        with patch.dict(methods.METHODS):
            benchmark.register(spoiled(known, draw))

    def of_question(draw: Random) -> None:
        from circuits.benchmark.question import QUESTIONS, register_questions

        known = next(iter(QUESTIONS.values()))
        with patch.dict(QUESTIONS):
            register_questions(spoiled(replace(known, key="mine"), draw))

    def of_answer(draw: Random) -> None:
        truth = {"a": "content", "b": ""}
        answer = benchmark.Answer({"a": 1.0, "b": 0.0}, frozenset(["a"]), {}, {"accuracy": 0.5})
        mine = draw.choice(
            [
                spoiled(answer, draw),
                replace(answer, scores={draw.choice(["a", 1, None]): draw.choice(JUNK)}),
            ]
        )
        try:
            grading._get_valid_answer(lambda: (mine, 0.0), truth)
        except grading._RefusedError:
            return

    def of_page(draw: Random) -> None:
        spoiled(page_of_every_block(), draw).html()

    def of_part(draw: Random) -> None:
        from reports.build import write

        write(model, "out", n_episodes=8, n_rounds=10, parts=(spoiled(part_of_report(), draw),))

    def of_config(draw: Random) -> None:
        spoiled(TrainingConfig("experts", [{"n_rounds": 2, "steps": 2}]), draw)

    def of_evaluation(draw: Random) -> None:
        spoiled(tasks["experts"].evaluation(), draw)

    def of_regime(draw: Random) -> None:
        from interp.tasks.experts.regimes import get_regime

        made = spoiled(get_regime("uniform"), draw)
        made.sample(4, 3, 3, seed=0) if hasattr(made, "sample") else None

    def of_llm(draw: Random) -> None:
        from interp.llm import backend, plan, schemes

        condition = spoiled(schemes.Condition("online", "note"), draw)
        settings = spoiled(backend.Settings("m"), draw)
        prompts, instances = schemes.built_in_prompts(), plan.instances(("flat",), 1, 3)
        for job in plan.plan(settings, prompts, instances, [condition])[:1]:
            job.session().next()
            job.header("http://127.0.0.1/v1")

    checked = {
        f"task {key}": lambda draw, task=task: check_task(spoiled(task, draw))
        for key, task in tasks.items()
    }
    return {
        **checked,
        "algorithm": of_algorithm,
        "family": of_family,
        "corruption": of_corruption,
        "circuit": of_circuit,
        "record of a circuit": of_circuit_record,
        "benchmark method": of_method,
        "benchmark question": of_question,
        "benchmark answer": of_answer,
        "page": of_page,
        "part of a report": of_part,
        "training configuration": of_config,
        "evaluation plan": of_evaluation,
        "regime": of_regime,
        "LLM settings": of_llm,
    }


@cache
def page_of_every_block() -> Any:
    """A page with one block of every kind."""
    import matplotlib.pyplot as plt
    import pandas as pd

    from interp.results.measure import Control, Measure
    from interp.stats.intervals import Interval
    from reports import blocks
    from reports.page import Report, Section

    figure, axis = plt.subplots()
    axis.plot([1, 2])
    measure = Measure("a", "a claim", Interval(0.9, 0.8, 1), 0.5, controls={"chance": Control(0.5)})
    summary = blocks.Summary({"a": 1.0, "b": measure})
    numbers = pd.DataFrame({"a": [1.0], "low": [0.5], "high": [1.5]})
    table = blocks.Table(numbers, "a table", {"a": ".2f"})
    picture = blocks.Figure(figure, "a picture", "a caption", pd.DataFrame({"x": [1]}))
    every = (
        blocks.Prose("text"),
        summary,
        blocks.Code("x = 1", "code"),
        table,
        picture,
        blocks.NotComputed("why", "traceback"),
        blocks.Measures([measure], sections=[("one", "One")]),
    )
    return Report(
        "Title", "Lead", (Section("One", every),), {"model": "m"}, "index.html", {"kind": "learned"}
    )


@cache
def part_of_report() -> Any:
    part = importlib.import_module("reports.part")
    blocks = importlib.import_module("reports.blocks")
    return part.Part(
        "mine", "Mine", giving(1), lambda computed, context: [blocks.Prose(str(computed))]
    )
