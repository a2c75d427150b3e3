"""Options that several commands share, such as ``--episodes``, ``--rounds`` and ``--regime``, and
functions that read their values.

If an option has a minimum, its help says so, and the value is checked before the command begins.
"""

from __future__ import annotations

import inspect
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

import interp.tasks
from interp.cli.command import Say
from interp.core.algorithm import with_parameters
from interp.core.machine import Machine
from interp.support import shares
from interp.support.checks import MISFIT, convert_value, find_device, kind_of
from interp.support.errors import InputError, require, require_known
from interp.support.files import digest_of
from interp.support.session import Finished
from interp.support.workers import bar, share


def number_option(what: str, minimum: int = 1, *names: str, most: float = math.inf) -> Any:
    """Make an option of a command that takes a whole number. Numbers below ``minimum`` or above
    ``most`` are refused.

    Args:
        what: what is counted, such as "Number of episodes", with which the help begins.
        minimum: smallest number that is accepted, which the help names.
        names: names of the option, such as "--episodes"; by default the name of the parameter that
            gets the number.
        most: largest number that is accepted.

    Returns:
        A ``typer.Option``, to be the default of the command's parameter.
    """

    def check(ctx: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
        name = param.opts[0]
        if value is not None:
            require(value >= minimum, f"{name} must be at least {minimum}, got {value}")
            require(value <= most, f"{name} must be at most {most:,}, got {value}")
        return value

    return typer.Option(*names, help=f"{what}; at least {minimum}.", callback=check)


def make_completer(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return a function with which a shell completes the value of an option, such as the name of a
    model. The function takes the letters that were typed so far, and returns the list of names that
    begin with them.

    Args:
        names: function without arguments that returns all names that the value can have.
    """

    def complete(incomplete: str) -> list[str]:
        """Return the names, such as names of models, that begin with the letters ``incomplete``,
        which were typed so far.
        """
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def _list_names(*kinds: str) -> list[str]:
    from interp.model.library import models

    return [record.name for record in models() if record.kind in kinds]


def _list_regimes() -> dict[str, Iterable[str]]:
    """Return the names of every task's regimes: key of a task -> names."""
    return {task.key: task.data.regimes() for task in interp.tasks.list_tasks()}


model_names = make_completer(lambda: _list_names("handwired", "learned", "built"))
_handwired_names = make_completer(lambda: _list_names("handwired"))
_regime_names = make_completer(lambda: chain.from_iterable(_list_regimes().values()))


def _describe_regimes() -> str:
    """Return a text for the help that lists the regimes of every task, such as "experts: uniform,
    flat; bandit: reversal".
    """
    return "; ".join(
        f"{key}: {', '.join(names)}" for key, names in _list_regimes().items() if names
    )


def _describe_circuit_arguments() -> str:
    """Return a text for the help that lists the arguments of every handwired circuit with their
    defaults, one circuit per line.
    """
    from circuits.registry import RECORDS

    lines = []
    for name, record in RECORDS.items():
        sizes = {size.name for size in interp.tasks.get(record.task).sizes}
        arguments = [
            f"{parameter.name}={parameter.default}"
            for parameter in inspect.signature(record.build).parameters.values()
            if parameter.name not in sizes
        ]
        lines.append(f"{name}: {', '.join(arguments)}")
    return "\n".join(lines)


CIRCUIT_ARGUMENTS = (
    "Arguments of handwired models for --set, with their defaults:\n"
    "<interp.cli.options:_describe_circuit_arguments>"
)

ModelName = Annotated[
    str,
    typer.Argument(
        help="Name of a model, from `interp models`, or a checkpoint folder.",
        autocompletion=model_names,
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
        help="Name of the regime from which episodes are drawn, by task: <interp.cli.options:_describe_regimes>; the "
        "task's default when empty.",
        autocompletion=_regime_names,
    ),
]
Shard = Annotated[
    str,
    typer.Option(
        metavar="I/N",
        help="Divide the work among N commands; this command computes only share I and stores it in OUT. In a job "
        "array, give auto or auto/N. The same command without --shard joins all shares.",
        callback=lambda value: share("", value) or value,  # refused before the command begins
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="NAME=VALUE: an argument of a handwired model, such as gamma=0.5 or rewards=[0,1e-6].",
    ),
]


def read(task: interp.tasks.Task, recorded: Sequence[str]) -> Any:
    """Read recorded episodes from a table.

    Args:
        task: the task that the episodes belong to.
        recorded: the words of ``--recorded``: FILE, then NAME=COLUMN for each column with a name
            that differs from the default.

    Raises:
        InputError: if the task cannot read tables, or a NAME is unknown.
    """
    reader = task.data.read
    if reader is None:
        raise InputError(
            f"no table of {task.name} can be read; use interp.tasks.using(episodes) in Python"
        )
    columns = parse_settings(recorded[1:], "--recorded")
    parameters = dict(inspect.signature(reader).parameters)
    parameters.pop("path", None)
    # A reader with ``columns`` takes any names; otherwise names are those of its parameters.
    if "columns" not in parameters:
        names_of_module = getattr(inspect.unwrap(reader), "__globals__", {})
        for name, value in columns.items():
            require_known("column of --recorded", name, parameters)
            kind = kind_of(parameters[name].annotation, names_of_module)
            is_number = type(value) in (int, float)
            # Where the reader takes no number, it is the name of a column, such as 1.
            if is_number and convert_value(kind, value) is MISFIT:
                columns[name] = str(value)
    return reader(recorded[0], **columns)


def refuse_unused_options(why: str, given: Mapping[str, object]) -> None:
    """Refuse options that the user changed although they have no effect.

    Args:
        why: the reason, which begins the error message.
        given: name of an option -> False, None or empty if the user did not change it.
    """
    idle = [option for option, value in given.items() if value]
    require(not idle, f"{why}: leave {', '.join(idle)} out")


def parse_range(text: str) -> tuple[int, int]:
    """Return (first, after last) of a range that ``text`` writes as "first:after-last", such as
    "0:10"; refuse an empty range.
    """
    numbers = re.fullmatch(r"(-?\d+):(-?\d+)", text)
    if numbers is not None:
        first, after_last = int(numbers[1]), int(numbers[2])
        if first < after_last:
            return first, after_last
    raise InputError(
        f"{text!r} is not a first number and one after the last; write first:after-last, such as 0:10"
    )


def name_folder(model: str) -> str:
    """Return the name of the folder for the results of a model: the model's name, or its path with
    "_" for each slash, since many checkpoint folders are called "model". Paths that differ only in
    "/" and "_" share a folder.

    >>> name_folder("wma-learned"), name_folder("output/training/mine/model")
    ('wma-learned', 'output_training_mine_model')

    Args:
        model: name of the model, or its checkpoint folder.
    """
    path = Path(model)
    if path.name in ("", ".."):
        path = path.resolve()
    return str(path).replace("/", "_")


def digest_files(words: Iterable[str]) -> dict[str, str]:
    """Return digests of the files and folders that a command reads. Stored results are used again
    only if the digests are equal, so a changed file is noticed.

    Args:
        words: words of the command line: paths, or names of models of this package, which have no
            digest.

    Returns:
        "the content of WORD" -> digest of that file, or of the names and contents of all files in
        that folder.
    """
    digests = {}
    all_models = model_names("")  # the names that begin with ""
    for word in {*words}.difference(all_models):
        path = Path(word)
        files = [file for file in (path, *sorted(path.rglob("*"))) if file.is_file()]
        if files:
            contents = [file.read_bytes() for file in files]
            digests[f"the content of {word}"] = digest_of(list(map(str, files)), contents)
    return digests


def print_share_done(say: Say, folder: Path, shard: str) -> None:
    """Print how many parts are done of a work that several commands share.

    The last command has no share, and puts the parts of all commands together. When it calls this
    function, the files about the division of the work are removed.

    Args:
        say: prints the output of the command.
        folder: folder of the parts. Nothing is printed if the work in it was not shared.
        shard: the share that this command computed, such as "2/64"; "" for the last command.
    """
    is_divided = (folder / shares.WORK_FILE).is_file()
    if is_divided:
        say.line(shares.describe(folder, shard))
    if shard:
        say.facts(parts=shares.status(folder).to_dict("records"))
    else:
        shares.end_division(folder)


@contextmanager
def compute_in_shares(
    say: Say,
    folder: Path,
    makers: Mapping[str, Callable[[], Any]],
    settings: Mapping[str, Any],
    shard: str,
    keeps: bool = False,
) -> Iterator[dict[str, Any]]:
    """Context manager: compute the parts of a command's work, and yield them by name.

    Every part is stored in FOLDER/parts, and is read from there if an earlier command computed it.
    So several commands can each compute a share of the parts. A last command, without a share,
    reads the parts of all of them, and computes those that are absent.

    Args:
        say: prints the output of the command.
        folder: folder for what the command writes.
        makers: name of a part -> function that computes it.
        settings: everything that the parts depend on.
        shard: the share of the parts that this command computes and stores: "2/64" is the second
            of 64 shares, and "plan", or another name in ``makers``, only the part of this name.
            "" computes all parts that are absent.
        keeps: for ``shard`` "", whether the stored parts stay when the context closes, for the next
            command. With any other ``shard`` they always stay.

    Yields:
        A mapping: name of a part -> what its function returned. It has all parts if ``shard`` is
        "", and is empty otherwise.
    """
    parts_folder = folder / "parts"
    finished = Finished(parts_folder, settings)
    parts = {}
    part_type = dict[str, Any]  # what a part is converted to when its file is read
    names = finished.divide(makers, kind=part_type, shard=shard)
    with bar("parts", len(names)) as advance:
        for name in names:
            parts[name] = finished.part(name, kind=part_type, compute=makers[name])
            advance(1)
    yield {} if shard else parts  # the parts of one share are no result
    print_share_done(say, parts_folder, shard)
    if not shard and not keeps:
        finished.clear()


def join_tables(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Concatenate the data frames of several parts.

    Args:
        parts: for each part, name -> data frame.

    Returns:
        Name -> data frame with the rows of all parts.
    """
    import pandas as pd

    by_name: dict[str, list[Any]] = {}
    for part in parts:
        for name, table in part.items():
            by_name.setdefault(name, []).append(table)
    return {name: pd.concat(tables, ignore_index=True) for name, tables in by_name.items()}


def say_what_was_read(say: Say, episodes: Any) -> None:
    """Print which columns of a recorded table were used and how many rounds were read.

    Args:
        say: prints the output of the command.
        episodes: the recorded episodes. If they have no record of how they were read, the function
            does not print.
    """
    reading = episodes.reading
    if reading is not None:
        say.line(reading.summary())
        say.facts(read=reading.to_dict())


def use_options(
    say: Say, model: Machine, recorded: Sequence[str] | None, hypothesis: Sequence[str] | None
) -> Any:
    """Make all analyses of a command use what its options name: recorded episodes in place of
    sampled ones, and an algorithm in place of the task's to compare models with.

    If an option is missing, analyses use sampled episodes, or the task's algorithm, as usual.

    Args:
        say: prints the output of the command.
        model: the model that is analysed.
        recorded: the words of ``--recorded``: FILE, and NAME=COLUMN for columns of the table; None
            without the option.
        hypothesis: the words of ``--hypothesis``: KEY of an algorithm, and NAME=VALUE for its
            parameters; None without the option.

    Returns:
        The recorded episodes; None without ``recorded``.
    """
    if not (recorded or hypothesis):
        return None
    task = interp.tasks.get(model.layout.task)
    people = read(task, recorded) if recorded else None
    if people is not None:
        say_what_was_read(say, people)
    algorithm = _make_algorithm(task, hypothesis) if hypothesis else None
    changed_task = interp.tasks.using(people, algorithm)  # a context, in which analyses use it
    # The context stays open until the command ends; `say` closes it.
    facts = say.open_contexts.enter_context(changed_task).recorded  # {} without recorded episodes
    say.facts(recorded=dict(facts))
    if recorded:
        say.line(
            f"{facts['rounds']:,} rounds of {facts['episodes']} recorded episodes, {facts['participants']} participants"
        )
    algorithm_in_use = interp.tasks.of(model).explains(model)
    say.line(f"held against {with_parameters(algorithm_in_use)}")
    return people


def _make_algorithm(task: interp.tasks.Task, hypothesis: Sequence[str]) -> Any:
    """Make the algorithm that the option ``--hypothesis`` names.

    Args:
        task: the task of the algorithm.
        hypothesis: key of the algorithm, then NAME=VALUE for each parameter.
    """
    key, *pairs = hypothesis
    known: dict[str, Any] = {**task.algorithm_records(), **task.rivals()}
    require_known("algorithm of --hypothesis", key, known, limit=20)
    parameters = [searched.name for searched in getattr(known[key], "searched", ())]
    values = parse_settings(pairs, "--hypothesis")
    for name in values:
        require_known(f"parameter of {key!r}", name, parameters)
    return known[key].make(**values)


def parse_settings(pairs: Iterable[str], option: str = "--set") -> dict[str, Any]:
    """Read the ``NAME=VALUE`` pairs of an option as a dictionary, name -> value.

    A value is read as TOML: a number, true, a list, a quoted text. A value that is not valid TOML
    is taken as a text if it begins with a letter, and refused otherwise.

    >>> parse_settings(["gamma=0.5", "rewards=[0, 1e-6]", "variant=lin", "choice=key pressed"])
    {'gamma': 0.5, 'rewards': [0, 1e-06], 'variant': 'lin', 'choice': 'key pressed'}

    Args:
        pairs: the pairs.
        option: name of the option in error messages.
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, _, text = (part.strip() for part in pair.partition("="))
        require(
            name and text,
            f"{option} takes NAME=VALUE, such as gamma=0.5, got {pair!r}",
        )
        require(name not in settings, f"{option} gives {name!r} twice; give it once")
        try:
            settings[name] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            require(
                re.match(r"[^\W\d]", text),
                f"{option} {name}: {text!r} is no value; write a number, true, a list such as [0, 1], a word, "
                f"or a text in quotes, as in \"{name}='{text}'\"",
            )
            settings[name] = text
    return settings


def name_sizes(task: interp.tasks.Task, name: str, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Convert sizes of episodes from names of options to names of a task's arguments, such as
    ``{"experts": 4}`` to ``{"n_experts": 4}``.

    Args:
        task: the task; sizes that it does not have are refused.
        name: name of the model, for the error message.
        sizes: name of an option -> value.

    Returns:
        Name of an argument -> value.
    """
    names = {size.option: size.name for size in task.sizes}
    known = ", ".join(f"--{option}" for option in names)
    for option in sizes:
        require(option in names, f"{name!r} has no size --{option}; its sizes are {known}")
    return {names[option]: value for option, value in sizes.items()}


@dataclass(frozen=True)
class _Loaded:
    """A model that was loaded for a command, with its episodes' sizes and source.

    Attributes:
        model: the model.
        sizes: sizes of its episodes that differ from those of the model, by name.
        arguments: arguments that the model was built with.
        people: recorded episodes that replace sampled ones; None if there are none.
    """

    model: Machine
    sizes: Mapping[str, int] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    people: Any = None


def load_for_analysis(
    say: Say,
    name: str,
    sizes: Mapping[str, int],
    accepts_sizes: bool,
    *,
    recorded: list[str] | None = None,
    hypothesis: list[str] | None = None,
    arguments: Set = None,
    device: str = "cpu",
) -> _Loaded:
    """Load a model for a command as :func:`load` does. Until the command ends, analyses use the
    recorded episodes and the algorithm that the options name (:func:`use_options`).

    The keyword parameters ``recorded``, ``hypothesis``, ``arguments`` and ``device`` are the values
    of the command's options of these names (``arguments`` is that of ``--set``), which are made
    from these parameters (:data:`OF_A_MACHINE`).

    Args:
        say: prints the output of the command.
        name: name of the model, or a checkpoint folder.
        sizes: sizes of the episodes by option, such as ``{"experts": 4}``.
        accepts_sizes: for a learned model, whether sizes are accepted at all. Commands that sample
            episodes of these sizes pass True; sizes that the model cannot read are then refused.
            False refuses all sizes.

    Returns:
        An object with the attributes ``model``, ``sizes`` (of the episodes, where they differ from
        the model's), ``arguments`` (that the model was built with) and ``people`` (the recorded
        episodes, or None).
    """
    loaded = load(name, sizes, arguments, device, accepts_sizes=accepts_sizes)
    return replace(loaded, people=use_options(say, loaded.model, recorded, hypothesis))


def load(
    name: str,
    sizes: Mapping[str, int],
    arguments: Sequence[str] | None = None,
    device: str = "cpu",
    accepts_sizes: bool = False,
) -> _Loaded:
    """Load a model by its name or from a checkpoint folder.

    Args:
        name: name of the model, or a checkpoint folder.
        sizes: sizes of the episodes by option, such as ``{"experts": 4}``; a handwired model is
            built in these sizes.
        arguments: ``NAME=VALUE`` pairs: arguments with which a handwired model is built.
        device: device on which the model runs.
        accepts_sizes: for a learned model, whether sizes are accepted at all. Commands that sample
            episodes of these sizes pass True; sizes that the model cannot read are then refused.
            False refuses all sizes.

    Returns:
        An object with the attributes ``model`` (on the device), ``sizes`` (of the episodes, where
        they differ from the model's) and ``arguments`` (that the model was built with).

    Raises:
        InputError: if the model does not exist, or cannot have these sizes or arguments.
    """
    from interp.model import library
    from interp.support.workers import show_spinner

    with show_spinner(f"loading {name}"):
        torch_device = find_device(device)
        settings = parse_settings(arguments or ())
        require(
            "name" not in settings,
            "--set name is no argument: the model is named by itself, before the options",
        )
        records = {record.name: record for record in library.models()}
        if name not in records:  # a checkpoint folder, or a name that load refuses
            model = library.load(name)
            require(
                not settings, f"{name!r} is a checkpoint, which fixes everything: leave --set out"
            )
            n_by_size = name_sizes(interp.tasks.of(model), name, sizes)
            require(
                accepts_sizes or not n_by_size,
                f"{name!r} is a checkpoint, whose sizes are fixed here: leave sizes out",
            )
            return _Loaded(model.to(torch_device), n_by_size)
        record = records[name]
        n_by_size = name_sizes(interp.tasks.get(record.task), name, sizes)
        serves_sizes = record.kind == "learned" and accepts_sizes and record.can_read(n_by_size)
        if serves_sizes and not settings:
            return _Loaded(library.load(name).to(torch_device), n_by_size)
        # A handwired model is built with these arguments. A learned model takes none:
        # `library.load` raises an error if there are any.
        settings = {**n_by_size, **settings}
        return _Loaded(library.load(name, **settings).to(torch_device), arguments=settings)


OF_A_MACHINE: dict[str, Any] = {
    "sizes": "one",
    "of": {"load_options": load_for_analysis},
    "more": CIRCUIT_ARGUMENTS,
}
"""Arguments of :func:`interp.cli.command.command` for a command about one machine. It loads the machine by
``load_for_analysis(say, model, sizes, accepts_sizes=..., **load_options)``.
"""
