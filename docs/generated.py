"""The pages that the code dictates: the reference, every registry, every command's help."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

ROOMS = ("interp", "probes", "circuits", "reports")
LEFT_OUT = ("interp.cli",)
"""The command line: its help says what it does."""


def pages() -> dict[str, str]:
    """Text by path, relative to the folder of the sources."""
    by_room: dict[str, list[str]] = {}
    for name in modules():
        by_room.setdefault(".".join(name.split(".")[:2]), []).append(name)
    grouped = {room: held for room, held in by_room.items() if len(held) > 1 or "." not in room}
    for name in (name for room, held in by_room.items() if room not in grouped for name in held):
        grouped[name.split(".")[0]].append(name)
    found = {f"reference/{room}.rst": "\n".join(map(module_section, held)) for room, held in grouped.items()}
    found["reference/python.md"] = contents(grouped)
    found["reference/registries.md"] = registries()
    found["reference/commands.md"] = commands()
    return found


def modules() -> Iterator[str]:
    """Every public module."""
    for room in ROOMS:
        yield room
        package = importlib.import_module(room)
        for module in pkgutil.walk_packages(package.__path__, prefix=f"{room}."):
            private = any(part.startswith("_") for part in module.name.split("."))
            if not private and not module.name.startswith(LEFT_OUT):
                yield module.name


def module_section(name: str) -> str:
    """The docstrings of a module and of what it defines."""
    options = ("members:", "ignore-module-all:", "show-inheritance:")
    lines = [name, "=" * len(name), "", f".. automodule:: {name}", *(f"   :{option}" for option in options), ""]
    return "\n".join(lines)


def contents(grouped: Mapping[str, Iterable[str]]) -> str:
    """The first page of the reference: every package's page, with its first sentence."""
    lines = ["# Python", "", "Every public module, function and class, from its docstring.", ""]
    for room in sorted(grouped, key=lambda name: (ROOMS.index(name.split(".")[0]), name)):
        first = (importlib.import_module(room).__doc__ or "").split("\n\n")[0].replace("\n", " ")
        lines.append(f"- [{room}]({room}.rst): {first}")
    return "\n".join([*lines, "", "```{toctree}", ":hidden:", *sorted(grouped), "```", ""])


def table(title: str, what: str, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A section with a table."""
    head = list(columns)
    body = [f"| {' | '.join(cell(value) for value in row)} |" for row in rows]
    return "\n".join([f"## {title}", "", what, "", f"| {' | '.join(head)} |", "| --- " * len(head) + "|", *body, ""])


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
    from probes.targets import every as targets_of
    from reports.tasks import parts_for

    known = list(interp.tasks.every())
    text = [
        "# Every registry",
        "",
        "Generated from the code: every name that an argument or an option takes, and what it stands for.",
        "",
        table(
            "Models",
            "`interp.load(NAME)`, and every command.",
            ("name", "kind", "task", "what it is"),
            [(f"`{m.name}`", m.kind, m.task, m.description) for m in interp.models()],
        ),
        table(
            "Arguments of handwired models",
            "`interp.load(NAME, ARGUMENT=VALUE)`, `--set ARGUMENT=VALUE`; beside the sizes of the task.",
            ("model", "arguments and defaults"),
            [
                (f"`{name}`", ", ".join(f"`{p.name}={p.default!r}`" for p in _arguments(name)))
                for name in (m.name for m in interp.models() if m.kind == "handwired")
            ],
        ),
        table(
            "Tasks and sizes",
            "`interp.tasks.get(KEY)`; a size is an argument of the sampler and an option of the shell.",
            ("task", "what it is", "argument", "option", "smallest", "default"),
            [
                (f"`{t.key}`", t.what, f"`{s.name}`", f"`--{s.option}`", s.minimum, s.default)
                for t in known
                for s in t.sizes
            ],
        ),
    ]
    for task in known:
        text += _of_task(task, targets_of, parts_for)
    text += [
        table(
            "Metrics of patching",
            "`metric=`, `--metric`.",
            ("metric", "what it is"),
            [(f"`{key}`", _about(record)) for key, record in METRICS.items()],
        ),
        "## Sites",
        "",
        "`site=`, `--site` and `components=`: a word, a layer (or `[layer.head]`) and a position, such as "
        "`resid_post[1]@p?`; of the latents, the word alone, or one channel of a machine, `latents@h`. A machine that "
        "is no transformer has points of its own in place of these components.",
        "",
        f"- of latents: {', '.join(f'`{name}`' for name in (*OF_LATENTS, UPDATE))}",
        f"- components: {', '.join(f'`{name}`' for name in COMPONENTS)}",
        "",
    ]

    return "\n".join(text)


def _of_task(task: Any, targets_of: Any, parts_for: Any) -> list[str]:
    """The registries of one task."""
    from interp.training.goal import goal_of

    algorithms = task.algorithm_records()
    variables = [v for record in algorithms.values() for v in record.make().variables]
    by_key = {v.key: v for v in reversed(variables)}
    rows = [(f"`{v.key}`", v.symbol, v.role, v.meaning, v.units) for v in reversed(by_key.values())]
    text = [
        table(f"{task.name}: regimes", "`regime=`, `--regime`.", ("regime", "what it is"), _code(task.data.regimes())),
        table(
            f"{task.name}: algorithms",
            f"`interp.tasks.get({task.key!r}).algorithm(KEY)`.",
            ("key", "name"),
            [(f"`{key}`", record.name) for key, record in algorithms.items()],
        ),
        table(
            f"{task.name}: variables",
            "Of its algorithms: what probes decode, interchange sets and circuits locate.",
            ("key", "symbol", "role", "meaning", "units"),
            rows,
        ),
        f"Targets of `interp probe`: {', '.join(f'`{t.key}`' for t in targets_of(task) if '.' not in t.key)}.",
        "",
        table(
            f"{task.name}: corruptions",
            f"`--corruption`; the default is `{task.analysis.default_corruption}`.",
            ("corruption", "what it changes", "shows after"),
            [(f"`{c.key}`", c.name, f"{c.delay} rounds") for c in task.analysis.corruptions()],
        ),
        table(
            f"{task.name}: parts of a report",
            "`reports.build.write(parts=...)`.",
            ("key", "title"),
            [(f"`{part.key}`", part.title) for part in parts_for(task)],
        ),
    ]
    if task.training is not None:
        presets = ", ".join(f"`{name}`" for name in goal_of(task).presets)
        text += [f"Training presets: {presets}.", ""]
    return text


def _code(named: Any) -> list[tuple[str, str]]:
    return [(f"`{key}`", what) for key, what in named.items()]


def _about(record: Any) -> str:
    for name in ("what", "name", "description", "unit"):
        if isinstance(getattr(record, name, None), str):
            return str(getattr(record, name))
    return (inspect.getdoc(record) or "").split("\n")[0]


def _arguments(name: str) -> list[inspect.Parameter]:
    import interp.tasks
    from circuits.registry import handwired

    record = handwired(name)
    own = {size.name for size in interp.tasks.get(record.task).sizes}
    return [p for p in inspect.signature(record.build).parameters.values() if p.name not in own]


def commands() -> str:
    """The help of every command."""
    import os

    import typer
    from typer.testing import CliRunner

    from interp.cli import app

    def walk(group: Any, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for name, found in group.commands.items():
            if hasattr(found, "commands"):
                yield from walk(found, (*words, name))
            else:
                yield (*words, name)

    text = ["# Commands", "", "What `interp COMMAND --help` prints.", ""]
    with contextlib.ExitStack() as stack:
        stack.callback(os.environ.pop, "COLUMNS", None)
        for words in ((), *walk(typer.main.get_command(app), ())):
            said = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "110", "TERM": "dumb"}).output
            text += [f"## interp {' '.join(words)}".rstrip(), "", "```text", said.strip("\n"), "```", ""]
    return "\n".join(text)
