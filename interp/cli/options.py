"""The one vocabulary of options: what ``--episodes``, ``--rounds``, ``--regime`` and the others mean everywhere.

A minimum stands in an option's help and is checked before the command begins.
"""

from __future__ import annotations

import inspect
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import typer

import interp.tasks
from interp.cli.command import Say
from interp.core.algorithm import with_parameters
from interp.core.machine import Machine
from interp.support.checks import device_called
from interp.support.errors import InputError, require, require_known
from interp.support.workers import share


def number(what: str, minimum: int = 1, *names: str, most: float = math.inf) -> Any:
    """An option that takes whole numbers from ``minimum`` on, and says so in its help; ``most`` bounds what it does."""

    def check(ctx: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
        for one in value if isinstance(value, list | tuple) else [value]:
            require(
                one is None or one >= minimum,
                f"{param.opts[0]} must be at least {minimum}, got {one}",
            )
            require(
                one is None or one <= most, f"{param.opts[0]} must be at most {most:,}, got {one}"
            )
        return value

    return typer.Option(*names, help=f"{what}; at least {minimum}.", callback=check)


def completing(
    names: Callable[[], Mapping[str, Any]], told: bool = False
) -> Callable[[str], list[Any]]:
    """A function that completes the keys of ``names()`` in a shell, with their values where these are ``told``."""

    def complete(incomplete: str) -> list[Any]:
        """The names that begin with ``incomplete``."""
        return [
            (name, what) if told else name
            for name, what in names().items()
            if name.startswith(incomplete)
        ]

    return complete


def _models(*kinds: str) -> dict[str, str]:
    from interp.model.library import models

    return {record.name: record.description for record in models() if record.kind in kinds}


model_names = completing(lambda: _models("handwired", "learned", "built"), told=True)
_handwired_names = completing(lambda: _models("handwired"), told=True)
_regime_names = completing(
    lambda: dict.fromkeys(name for task in interp.tasks.every() for name in task.data.regimes())
)


def _every_regime() -> str:
    """The regimes of every task, for the help."""
    regimes = {task.key: task.data.regimes() for task in interp.tasks.every()}
    return "; ".join(f"{key}: {', '.join(names)}" for key, names in regimes.items() if names)


def _circuit_arguments() -> str:
    """What each handwired circuit is built from, with defaults, a line each, for the help."""
    from circuits.registry import RECORDS

    lines = []
    for name, record in RECORDS.items():
        own = {size.name for size in interp.tasks.get(record.task).sizes}
        given = [
            p for p in inspect.signature(record.build).parameters.values() if p.name not in own
        ]
        lines.append(f"{name}: {', '.join(f'{p.name}={p.default}' for p in given)}")
    return "\n".join(lines)


CIRCUIT_ARGUMENTS = (
    "Arguments of handwired models for --set, with their defaults:\n"
    "<interp.cli.options:_circuit_arguments>"
)

ModelName = Annotated[
    str,
    typer.Argument(
        help="A name from `interp models`, or a checkpoint folder.", autocompletion=model_names
    ),
]
HandwiredName = Annotated[
    str,
    typer.Argument(
        help="Name of a handwired model, from `interp models`.", autocompletion=_handwired_names
    ),
]
Regime = Annotated[
    str,
    typer.Option(
        help="What the episodes are drawn from, by task: <interp.cli.options:_every_regime>; the task's default when "
        "empty.",
        autocompletion=_regime_names,
    ),
]
Shard = Annotated[
    str,
    typer.Option(
        metavar="I/N",
        help="Only the I-th of N shares of the parts, kept in OUT. The same command without it puts them together.",
        callback=lambda value: share("", value) or value,  # refused before the command begins
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="NAME=VALUE: any argument of a handwired model, such as gamma=0.5 or rewards=[0,1e-6].",
    ),
]


def read(task: interp.tasks.Task, recorded: Sequence[str]) -> Any:
    """The episodes in a table, ``[FILE, NAME=COLUMN, ...]``."""
    reader = task.data.read
    if reader is None:
        raise InputError(
            f"no table of {task.name} can be read; use interp.tasks.using(episodes) in Python"
        )
    given, known = settings_of(recorded[1:], "--recorded"), inspect.signature(reader).parameters
    for name in given if "columns" not in known else ():
        require_known("column of --recorded", name, [one for one in known if one != "path"])
    return reader(recorded[0], **given)


def use(
    say: Say, model: Machine, recorded: Sequence[str] | None, hypothesis: Sequence[str] | None
) -> Any:
    """The recorded episodes, None where no FILE is given; until the command ends, analyses use both."""
    if not (recorded or hypothesis):
        return None
    task, algorithm = interp.tasks.get(model.layout.task), None
    people = read(task, recorded) if recorded else None
    if people is not None and people.reading is not None:
        say.line(people.reading.summary())
        say.facts(read=people.reading.to_dict())
    if hypothesis:
        key, *pairs = hypothesis
        known: dict[str, Any] = {**task.algorithm_records(), **task.rivals()}
        require_known("algorithm of --hypothesis", key, known, limit=20)
        values, names = (
            settings_of(pairs, "--hypothesis"),
            [s.name for s in getattr(known[key], "searched", ())],
        )
        for name in values:
            require_known(f"parameter of {key!r}", name, names)
        algorithm = known[key].make(**values)
    about = say.until_done.enter_context(interp.tasks.using(people, algorithm)).recorded
    say.facts(recorded=dict(about))
    if recorded:
        say.line(
            f"{about['rounds']:,} rounds of {about['episodes']} recorded episodes, {about['participants']} participants"
        )
    say.line(f"held against {with_parameters(interp.tasks.of(model).explains(model))}")
    return people


def settings_of(pairs: Iterable[str], option: str = "--set") -> dict[str, Any]:
    """``NAME=VALUE`` pairs of an option as arguments; values as in TOML, and a bare word is a string.

    >>> settings_of(["gamma=0.5", "rewards=[0, 1e-6]", "variant=lin"])
    {'gamma': 0.5, 'rewards': [0, 1e-06], 'variant': 'lin'}
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = (part.strip() for part in pair.partition("="))
        require(
            bool(name and equals and text),
            f"{option} takes NAME=VALUE, such as gamma=0.5, got {pair!r}",
        )
        require(name not in settings, f"{option} gives {name!r} twice; give it once")
        try:
            settings[name] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            require(
                re.fullmatch(r"[A-Za-z][\w-]*", text) is not None,
                f"{option} {name}: {text!r} is no value; write a number, true, a list such as [0, 1], or a word",
            )
            settings[name] = text
    return settings


def sizes_of(task: interp.tasks.Task, name: str, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes given as options, by the names of ``task``'s arguments; ``name`` is the model's, for the refusal."""
    names = {size.option: size.name for size in task.sizes}
    known = ", ".join(f"--{option}" for option in names)
    for option in sizes:
        require(option in names, f"{name!r} has no size --{option}; its sizes are {known}")
    return {names[option]: value for option, value in sizes.items()}


@dataclass(frozen=True)
class _Loaded:
    """A model for a command, what it was built with, the sizes of its episodes where they are not its own; and
    ``people``, the recorded episodes in their place, None where no FILE is given.
    """

    model: Machine
    sizes: Mapping[str, int] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    people: Any = None


def study(
    say: Say,
    name: str,
    sizes: Mapping[str, int],
    sampled: bool,
    *,
    recorded: list[str] | None = None,
    hypothesis: list[str] | None = None,
    arguments: Set = None,
    device: str = "cpu",
) -> _Loaded:
    """The model of :func:`load`; until the command ends, analyses use the recorded episodes and the algorithm."""
    loaded = load(name, sizes, arguments, device, sampled)
    return replace(loaded, people=use(say, loaded.model, recorded, hypothesis))


def load(
    name: str,
    sizes: Mapping[str, int],
    arguments: Set = None,
    device: str = "cpu",
    sampled: bool = False,
) -> _Loaded:
    """The model called ``name`` on ``device``, and the sizes that its episodes are to have where it serves several.

    A handwired model is built in ``sizes`` (by option) and with ``arguments`` (``NAME=VALUE`` pairs); ``sampled`` says
    that the command can draw episodes of other sizes than a learned model's own.
    """
    from interp.model import library
    from interp.support.workers import working

    with working(f"loading {name}"):
        place, given = device_called(device), settings_of(arguments or ())
        require(
            "name" not in given,
            "--set name is no argument: the model is named by itself, before the options",
        )
        record = next((record for record in library.models() if record.name == name), None)
        if record is None:  # a checkpoint folder, or a name that load refuses
            model = library.load(name)
            require(not given, f"{name!r} is a checkpoint, which fixes everything: leave --set out")
            chosen = sizes_of(interp.tasks.of(model), name, sizes)
            require(
                sampled or not chosen,
                f"{name!r} is a checkpoint, whose sizes are fixed here: leave sizes out",
            )
            return _Loaded(model.to(place), chosen)
        named = sizes_of(interp.tasks.get(record.task), name, sizes)
        if record.kind == "learned" and sampled and record.reads(named) and not given:
            return _Loaded(library.load(name).to(place), named)
        built = {**named, **given}
        return _Loaded(library.load(name, **built).to(place), arguments=built)


OF_A_MACHINE: dict[str, Any] = {"sizes": "one", "of": {"how": study}, "more": CIRCUIT_ARGUMENTS}
"""How a command about one machine is made: it loads it by ``study(say, model, sizes, sampled, **how)``."""
