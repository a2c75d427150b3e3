"""The pages that the code dictates: the reference, every registry, every command's help."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from interp.support.files import read_tables

ROOMS = ("interp", "probes", "circuits", "reports")
SAYS = read_tables(Path(__file__).with_name("registries.toml"))


def pages() -> dict[str, str]:
    """Text by path, relative to the folder of the sources."""
    by_room: dict[str, list[str]] = {}
    for name in modules():
        by_room.setdefault(".".join(name.split(".")[:2]), []).append(name)
    grouped = {room: held for room, held in by_room.items() if len(held) > 1 or "." not in room}
    for name in (name for room, held in by_room.items() if room not in grouped for name in held):
        grouped[name.split(".")[0]].append(name)
    made = {
        f"{room}.rst": "\n".join([":orphan:", "", *map(module_section, held)])
        for room, held in grouped.items()
    }
    made |= {
        "python.md": contents(grouped),
        "registries.md": registries(),
        "commands.md": commands(),
    }
    return {f"reference/{name}": text for name, text in made.items()}


def modules() -> Iterator[str]:
    """Every public module, but those of the command line: its help says what it does."""
    for room in ROOMS:
        yield room
        package = importlib.import_module(room)
        for module in pkgutil.walk_packages(package.__path__, prefix=f"{room}."):
            private = any(part.startswith("_") for part in module.name.split("."))
            if not private and not module.name.startswith("interp.cli"):
                yield module.name


def module_section(name: str) -> str:
    """The docstrings of a module and of what it defines."""
    options = ("members:", "ignore-module-all:", "show-inheritance:")
    lines = [
        name,
        "=" * len(name),
        "",
        f".. automodule:: {name}",
        *(f"   :{option}" for option in options),
        "",
    ]
    return "\n".join(lines)


def contents(grouped: Mapping[str, Iterable[str]]) -> str:
    """The first page of the reference: every package's page, with its first sentence."""
    lines = ["# Python", "", "Every public module, function and class, from its docstring.", ""]
    for room in sorted(grouped, key=lambda name: (ROOMS.index(name.split(".")[0]), name)):
        first = (importlib.import_module(room).__doc__ or "").split("\n\n")[0].replace("\n", " ")
        lines.append(f"- [{room}]({room}.rst): {first}")
    return "\n".join([*lines, ""])


def table(of: str, rows: Iterable[Iterable[Any]], **words: str) -> str:
    """A section with a table, whose title, text and columns are those of ``of`` in registries.toml."""
    title, what, columns = (text.format(**words) for text in SAYS[of].values())
    lines = [columns, "| --- " * (columns.count("|") - 1) + "|"]
    lines += [" | ".join(["", *map(cell, row), ""]) for row in rows]
    return "\n".join([f"## {title}", "", what, "", *(line.strip() for line in lines), ""])


def cell(value: Any) -> str:
    """A value in a table."""
    return str(value).replace("|", "\\|").replace("\n", " ")


def registries() -> str:
    """Everything that has a name: models, tasks, regimes, variables, corruptions, metrics, sites, parts."""
    import interp
    import interp.tasks
    from interp.interventions.pairs import METRICS
    from interp.interventions.sites import COMPONENTS
    from probes.activations import OF_LATENTS, UPDATE

    known, models = list(interp.tasks.list_tasks()), list(interp.models())
    wired = [(m.name, _arguments(m.name)) for m in models if m.kind == "handwired"]
    sizes = [
        (f"`{t.key}`", t.what, f"`{s.name}`", f"`--{s.option}`", s.minimum, s.default)
        for t in known
        for s in t.sizes
    ]
    listed = {"latents": (*OF_LATENTS, UPDATE), "components": COMPONENTS}
    text = [
        SAYS["registries"]["title"],
        table("models", [(f"`{m.name}`", m.kind, m.task, m.description) for m in models]),
        table(
            "arguments",
            [
                (f"`{name}`", ", ".join(f"`{p.name}={p.default!r}`" for p in of))
                for name, of in wired
            ],
        ),
        table("sizes", sizes),
        *(line for task in known for line in _of_task(task)),
        table("metrics", [(f"`{key}`", metric.name) for key, metric in METRICS.items()]),
        SAYS["sites"]["title"].format(
            **{key: ", ".join(f"`{name}`" for name in of) for key, of in listed.items()}
        ),
    ]
    return "\n".join(text)


def _of_task(task: Any) -> Iterator[str]:
    """The registries of one task."""
    from interp.training.goal import goal_of
    from probes.targets import every as targets_of
    from reports.tasks import parts_for

    words, algorithms = {"task": task.name, "key": task.key}, task.algorithm_records()
    variables = [v for record in algorithms.values() for v in record.make().variables]
    by_key = {v.key: v for v in reversed(variables)}
    rows = [(f"`{v.key}`", v.symbol, v.role, v.meaning, v.units) for v in reversed(by_key.values())]
    yield table(
        "regimes", [(f"`{key}`", what) for key, what in task.data.regimes().items()], **words
    )
    yield table(
        "algorithms", [(f"`{key}`", record.name) for key, record in algorithms.items()], **words
    )
    yield table("variables", rows, **words)
    yield f"Targets of `interp probe`: {', '.join(f'`{t.key}`' for t in targets_of(task) if '.' not in t.key)}.\n"
    changed = [(f"`{c.key}`", c.name, f"{c.delay} rounds") for c in task.analysis.corruptions()]
    yield table("corruptions", changed, default=task.analysis.default_corruption, **words)
    yield table("parts", [(f"`{part.key}`", part.title) for part in parts_for(task)], **words)
    if task.training is not None:
        yield f"Training presets: {', '.join(f'`{name}`' for name in goal_of(task).presets)}.\n"


def _arguments(name: str) -> list[inspect.Parameter]:
    import interp.tasks
    from circuits.registry import get_record

    record = get_record(name)
    own = {size.name for size in interp.tasks.get(record.task).sizes}
    return [p for p in inspect.signature(record.build).parameters.values() if p.name not in own]


def commands() -> str:
    """The help of every command."""
    from tests.shell import commands, invoked

    text = ["# Commands", "", "What `interp COMMAND --help` prints.", ""]
    for words in ((), *(words for words, _ in commands())):
        said = invoked(*words, "--help", env={"COLUMNS": "110", "TERM": "dumb"}).output
        text += [
            f"## interp {' '.join(words)}".rstrip(),
            "",
            "```text",
            said.strip("\n"),
            "```",
            "",
        ]
    return "\n".join(text)
