"""How a command is made: its shared options, its refusals, its threads; torch is imported only when it runs.

A command is a function in a file of this folder::

    @command(example="interp probe wma-learned", sizes="one", torch=True)
    def probe(say: Say, sizes: Mapping[str, int], model: options.ModelName, ...) -> None:

It gets ``say``, through which it tells everything, and, where it asks for ``sizes``, the sizes of every task as
options (``--experts 4``). ``--json`` and ``--quiet`` are added to every command. The help of an option is in the
parameter's annotation, or in the ``Args`` of the command's docstring. What a command only passes on to a function need
not be repeated: ``of={"settings": Settings}`` makes an option of each parameter of ``Settings`` that has a default and
is none of the command's own, and the command gets their values as the mapping ``settings``.
"""

from __future__ import annotations

import functools
import gc
import inspect
import json
import logging
import os
import re
import signal
import sys
import textwrap
import threading
import typing
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

import interp
import interp.tasks
from interp.results.measure import Measured
from interp.support import workers
from interp.support.errors import InputError, require, theirs
from interp.support.files import json_values, read_rows, read_tables, write_csv
from interp.support.foreign import markup, one_line, plain, rich_table
from interp.support.lazy import named
from interp.support.shares import PLAN
from interp.support.workers import one_thread

_Many = Literal["none", "one", "several"]
_VOCABULARY: dict[str, str] = read_tables(Path(__file__).with_name("options.toml"))
_TAKES = {
    row[
        "command"
    ]: "interp {command} takes about {takes}, on one core with default options.".format(**row)
    for row in read_rows(Path(__file__).with_name("durations.csv"))
}
"""Command, and the option that changes it -> how long it takes, of those that were measured."""
_MOST_ROWS = 20  # rows of a table that are printed for people


class Commands(TyperGroup):
    """A group whose commands refuse bad input with one sentence on standard error and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; refuse what it refuses."""
        words = [*getattr(ctx, "_protected_args", ()), *ctx.args]
        with _ending_on_sigterm(ctx):
            try:
                return super().invoke(ctx)
            except InputError as error:
                why, code = str(error), 2
            except OSError as error:
                place = error.filename or "a file"
                why, code = f"the system refuses {place}: {error.strerror or error}", 2
            except KeyboardInterrupt as stop:
                why, code = str(stop) or _STOPPED, 130
            except Exception as error:
                # The parser's, of an option that is none, has a message that the parser prints.
                is_group = hasattr(self.commands.get(words[0]), "commands")
                if "--json" in words and hasattr(error, "format_message") and not is_group:
                    _refuse(ctx, words, error.format_message())
                raise
        if _TERMINATED in ctx.meta:
            # Code in C, and what reads files, can make another error of the interrupt.
            why = _STOPPED if code == 2 else why
            code = 143
        typer.echo(f"interp: {plain(why)}", err=True)
        if "--json" in words:
            _refuse(ctx, words, why)
        raise typer.Exit(code)


_STOPPED = "stopped; the same command goes on where finished work was kept"
_TERMINATED = "interp.cli.terminated"
"""What stands in the contexts of commands once the process was told to end."""


@contextmanager
def _ending_on_sigterm(ctx: Any) -> Iterator[None]:
    """Make the first SIGTERM, as job queues send it, an interrupt like Ctrl-C; a second one ends at once."""

    def interrupt(number: int, frame: Any) -> None:
        ctx.meta[_TERMINATED] = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)

    is_main_thread = threading.current_thread() is threading.main_thread()
    if not is_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield  # another one handles it
        return
    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _refuse(ctx: Any, words: Sequence[str], why: str) -> None:
    """Print the JSON object of a command that refuses what it was given."""
    command = f"{ctx.info_name} {words[0]}" if ctx.parent else words[0]
    refusal = {"command": command, "version": interp.__version__, "error": why}
    typer.echo(json.dumps(refusal, indent=2))


app = typer.Typer(
    cls=Commands,
    help="Mechanistic interpretability for transformers that carry latents from round to round.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
llm_app = typer.Typer(
    name="llm",
    cls=Commands,
    help="Let language models play expert advice, score their choices and report on them.",
    no_args_is_help=True,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"interp {interp.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_version,
            is_eager=True,
            help="Print the version of interp and stop.",
        ),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print the log on standard error.")
    ] = False,
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            help="Name of a module of your own that is imported first and registers tasks or machines.",
        ),
    ] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(
            help="Host whose dask scheduler (--scheduler) is trusted: data from it is unpickled, and can run code."
        ),
    ] = None,
) -> None:
    """Mechanistic interpretability for transformers that carry latents from round to round."""
    here = os.getcwd()
    for module in modules or []:
        if here not in sys.path:
            sys.path.append(here)
        theirs(f"--import {module}")(import_module)(module)
    workers.TRUSTED.update(trust or ())
    if verbose:
        handler = logging.StreamHandler()
        handler.setFormatter(_Lines("%(asctime)s %(name)s: %(message)s", "%H:%M:%S"))
        logger = logging.getLogger("interp")
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)


class _Lines(logging.Formatter):
    """Lines of the log, in which names do nothing but be read."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as a line."""
        return plain(super().format(record))


class _Command(TyperCommand):
    """A command whose list options take several values: ``--experts 2 4 8`` is ``--experts 2 --experts 4 ...``.

    ``<module:function>`` in the help of an option, or at the end of a command's help, stands for what the function
    returns, such as the names in a registry; it is called when help is asked for, so that nothing else waits for its
    imports.
    """

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, with what its places stand for."""
        for option in self.params:
            if getattr(option, "help", None):
                option.help = _fill_in(option.help)  # type: ignore[attr-defined]
        self.epilog = _fill_in(self.epilog or "")
        super().format_help(ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; an option that can be given several times takes several values at once, too."""
        repeatable: set[str] = set()
        for parameter in self.params:
            if getattr(parameter, "multiple", False):
                repeatable.update(parameter.opts)
        spread: list[str] = []
        current = None
        for before, word in pairwise(["", *args]):
            _require_value(before, word)
            if word.startswith("--"):
                current = word if word in repeatable else None
            elif current is not None and spread[-1] != current:
                spread.append(current)
            spread.append(word)
        return super().parse_args(ctx, spread)


def _require_value(before: str, word: str) -> None:
    """Refuse an empty word, or an option with an equals sign and nothing after it."""
    name, equals, value = word.partition("=")
    is_option = word.startswith("--")
    if not word:
        name = before if before.startswith("--") else "an argument"
    is_empty = not word or (is_option and equals and not value)
    require(not is_empty, f"{name} is empty; give it a value, or leave it out")


def _fill_in(text: str) -> str:
    """Replace every ``<module:function>`` in a text by what the function returns, a paragraph for each line."""

    def call(place: re.Match[str]) -> str:
        return markup(named(place[1])()).replace("\n", "\n\n")

    return re.sub(r"<([\w.]+:\w+)>", call, text)


def command(
    *,
    example: str,
    group: typer.Typer = app,
    sizes: _Many = "none",
    of: Mapping[str, Callable[..., Any]] | None = None,
    torch: bool = False,
    more: str = "",
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command, called as its function is.

    Args:
        example, more: a command line, and more lines, for the end of the help; see :class:`_Command`.
        group: where it is registered.
        sizes: whether it takes the sizes of every task as options, and whether one number for each or several.
        of: functions whose parameters are options, by the parameter of the command that gets their values.
        torch: whether it runs models: torch is then imported, on one thread, while a terminal shows a sign of it.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        key = function.__name__.strip("_").replace("_", "-")
        called = key if group is app else f"{group.info.name} {key}"
        own = inspect.signature(function, eval_str=True).parameters
        passed: dict[str, Mapping[str, inspect.Parameter]] = {}
        if sizes != "none":
            passed["sizes"] = _sizes(sizes)
        for holder, passed_to in (of or {}).items():
            passed[holder] = _options_of(passed_to, without=own)

        @functools.wraps(function)
        def run(*, as_json: bool, quiet: bool, time_limit: float, **values: Any) -> None:
            say = Say(called, as_json, quiet)
            if values.pop("plan", False):
                values["shard"] = PLAN
            first = _duration(called, values)
            for holder, options in passed.items():
                held = {name: values.pop(option.name) for name, option in options.items()}
                values[holder] = {name: value for name, value in held.items() if value is not None}
            shown = workers.saying(
                lambda: f"interp {called}", shown=bool(first), first=first, silent=quiet
            )
            with say.until_done, shown, warnings.catch_warnings(), _stopped_after(time_limit):
                warnings.showwarning = _show_warning
                try:
                    _run(function, torch, say=say, **values)
                except typer.Exit:  # the command chose its exit code: its result is known
                    say.close()
                    raise
                say.close()

        helps = _VOCABULARY | _described(function)
        parameters = []
        for parameter in own.values():
            if parameter.name != "say" and parameter.name not in passed:
                parameters.append(_as_option(parameter, helps))
        for options in passed.values():
            parameters += options.values()
        parameters += _SHARED
        if "shard" in own:
            parameters.append(_PLAN)
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        takes = [text for name, text in _TAKES.items() if name.partition(" --")[0] == called]
        epilog = "\n\n".join([f"Example: {example}", *takes, *more.splitlines()])
        about = (inspect.getdoc(function) or "").partition("\n\nArgs:")[0]
        group.command(key, cls=_Command, epilog=epilog, help=about)(run)
        return run

    return register


def _duration(called: str, values: Mapping[str, Any]) -> str:
    """Return how long a command takes with the options that are given, where that was measured."""
    for name, value in values.items():
        if value and f"{called} --{name}" in _TAKES:
            return _TAKES[f"{called} --{name}"]
    return _TAKES.get(called, "")


def _show_warning(message: Any, *_: Any, **__: Any) -> None:
    """Print a warning as a line, without its place in the code."""
    typer.echo(f"interp: warning: {plain(message)}", err=True)


def _run(function: Callable[..., None], torch: bool, **given: Any) -> None:
    """Call a command; one that runs models computes on one thread."""
    if not torch:
        function(**given)
        return
    with workers.working("importing torch"):
        # What is imported stays until the process ends; looking for garbage among it would take an eighth of the time.
        gc.disable()
        import interp.model.transformer  # noqa: F401

        gc.freeze()
        gc.enable()
    workers.keep_freed_memory()
    with one_thread():
        function(**given)


def _described(function: Callable[..., Any]) -> dict[str, str]:
    """Return the first sentence about each argument in the ``Args`` of a docstring."""
    _, _, section = (inspect.getdoc(function) or "").partition("Args:\n")
    entries = textwrap.dedent(section.split("\n\n")[0])
    sentences = {}
    for names, text in re.findall(r"(?ms)^([\w, ]+): (.*?)(?=^\w|\Z)", entries):
        words = " ".join(text.split()).replace("``", "")
        sentence = re.split(r"\.(?:\s|$)", words)[0]
        for name in names.split(", "):
            sentences[name] = f"{sentence[:1].upper()}{sentence[1:]}."
    return sentences


def _options_of(
    function: Callable[..., Any], without: Collection[str]
) -> dict[str, inspect.Parameter]:
    """Return an option for each parameter of a function that has a default, by the parameter's name."""
    helps = _VOCABULARY | _described(function)
    options = {}
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        if parameter.default is not parameter.empty and name not in without:
            options[name] = _as_option(parameter, helps)
    return options


def _as_option(parameter: inspect.Parameter, helps: Mapping[str, str]) -> inspect.Parameter:
    """Return a parameter as an option of a command, or as an argument where it has no default.

    Its annotation says how, or else ``helps`` describes it. Its option is called as it is, without ``n_``, ``max_`` or
    ``with_`` at its beginning; a switch that is off by default has no opposite.
    """
    parameter = parameter.replace(kind=parameter.KEYWORD_ONLY)
    if hasattr(parameter.annotation, "__metadata__"):
        return parameter
    name = re.sub("^(n|max|with)_", "", parameter.name)
    text = helps.get(parameter.name, "")
    if parameter.default is parameter.empty:
        option: Any = typer.Argument(help=text)
    elif parameter.default is False:
        option = typer.Option(f"--{name.replace('_', '-')}", help=text)
    else:
        option = typer.Option(help=text)
    kind = _shell_kind(parameter.annotation)
    return parameter.replace(name=name, annotation=Annotated[kind, option])


def _shell_kind(annotation: Any) -> Any:
    """Return what the shell takes for an annotation: several words where a list may be given, which may hold words."""
    kinds = [typing.get_origin(kind) for kind in typing.get_args(annotation)]
    return list[str] | None if len(kinds) > 2 and list in kinds else annotation


def _option(name: str, kind: Any, default: Any, option: Any) -> inspect.Parameter:
    annotation = Annotated[kind, option]
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=default, annotation=annotation)


def _sizes(many: _Many) -> dict[str, inspect.Parameter]:
    """Return an option for every size of every task, in the words of the tasks' records."""
    kind: Any = list[int] | None if many == "several" else int | None
    texts: dict[str, list[str]] = {}
    for task in interp.tasks.every():
        for size in task.sizes:
            what = f"{size.what[0].upper()}{size.what[1:]} (task: {task.name})"
            text = f"{what}, at least {size.minimum}; {size.default} by default"
            texts.setdefault(size.option, []).append(text)
    options = {}
    for name, parts in texts.items():
        options[name] = _option(name, kind, None, typer.Option(help=f"{'; '.join(parts)}."))
    return options


def _seconds(text: str) -> float:
    """Read a duration such as 3h as seconds; 0 for an empty text."""
    if not text:
        return 0.0
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    require(parts is not None, f"--time-limit takes 90s, 20m or 3h, got {text!r}")
    return float(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]]


_SHARED = (
    _option(
        "as_json", bool, False, typer.Option("--json", help="Print the result as one JSON object.")
    ),
    _option(
        "quiet",
        bool,
        False,
        typer.Option("--quiet", help="Print only the paths of the files that were written."),
    ),
    _option(
        "time_limit",
        str,
        "",
        typer.Option(
            "--time-limit",
            metavar="3h",
            help="Stop after this time, such as 90s, 20m or 3h, and keep the finished parts of the work.",
            callback=_seconds,
        ),
    ),
)
_PLAN = _option(
    "plan",
    bool,
    False,
    typer.Option(
        "--plan",
        help="Compute only the first part of the work. Then print the estimated cost of all "
        "parts, and the command that submits them as a job array.",
    ),
)


@contextmanager
def _stopped_after(seconds: float) -> Iterator[None]:
    """Send this process SIGTERM, as a job queue does at its limit, after so many seconds; 0 for never."""
    if not seconds:
        yield
        return
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Say:
    """What one run of a command tells, and how.

    It tells it as text, as one JSON object at the end and nothing else on standard output (``--json``), or as nothing
    but the paths of the files written (``--quiet``). ``until_done`` holds what is open until the command ends.
    """

    def __init__(self, command: str, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.is_for_people = not (as_json or quiet)
        self.until_done = ExitStack()
        self._fields: dict[str, Any] = {"command": command, "version": interp.__version__}
        self._files: list[str] = []

    def line(self, text: object) -> None:
        """Print a line for people."""
        if self.is_for_people:
            typer.echo(plain(text))

    def aside(self, text: object) -> None:
        """Print a line on standard error, however the result is told."""
        typer.echo(plain(text), err=True)

    def facts(self, **values: Any) -> None:
        """Set fields of the JSON object; people read them in lines and tables."""
        self._fields |= values

    def measures(self, *results: Measured) -> None:
        """Print results made of measures: the sentence of each, and a line a claim; ``measures`` in the JSON object."""
        records = []
        for result in results:
            records += [measure.to_dict() for measure in result]
            self.line(repr(result))
        self._fields.setdefault("measures", []).extend(records)

    def table(self, frame: Any, title: str, name: str) -> None:
        """Print a data frame as a table, or add it to the JSON output as a list of records.

        Args:
            frame: the data frame; its first rows are printed.
            title: stands above the table.
            name: of the list in the JSON object.
        """
        self._fields[name] = frame.to_dict("records")
        if not self.is_for_people:
            return
        from rich.console import Console

        terminal = Console()
        if not terminal.is_terminal:
            terminal = Console(width=240)  # wide enough that no table wraps
        terminal.print(rich_table(title, frame.head(_MOST_ROWS)))
        if len(frame) > _MOST_ROWS:
            self.line(f"and {len(frame) - _MOST_ROWS} rows more; --json prints them all")

    def tables(self, folder: Path, frames: Mapping[str, Any]) -> None:
        """Write data frames as CSV, by name; empty ones are left out."""
        for name, frame in frames.items():
            if len(frame):
                self.wrote([write_csv(folder / f"{name}.csv", frame)])

    def wrote(self, paths: Iterable[Path]) -> None:
        """Print files that were written: a line each, the list ``files`` in the JSON object."""
        for path in paths:
            self._files.append(str(path))
            if not self.as_json:
                typer.echo(one_line(path))

    def close(self) -> None:
        """Print the JSON object, where it was asked for."""
        if self.as_json:
            fields = json_values({**self._fields, "files": self._files})
            typer.echo(json.dumps(fields, indent=2, default=str))
