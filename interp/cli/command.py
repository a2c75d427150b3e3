"""How a command is made: its shared options, its refusals, its threads; torch is imported only when it runs.

A command is a function in a file of this folder::

    @command(example="interp probe wma-learned-additive", sizes="one", torch=True)
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
import sys
import typing
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
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
from interp.support.files import json_values, read_rows, read_tables
from interp.support.foreign import markup, one_line, plain, rich_table
from interp.support.lazy import named
from interp.support.workers import one_thread

_Many = Literal["none", "one", "several"]
_VOCABULARY: dict[str, str] = read_tables(Path(__file__).with_name("options.toml"))
_TAKES = {
    row["command"]: "interp {command} takes about {takes}, on one core at its default size.".format(
        **row
    )
    for row in read_rows(Path(__file__).with_name("durations.csv"))
}
"""Command, and the option that changes it -> how long it takes, of those that were measured."""
_MOST_ROWS = 20  # rows of a table that are printed for people


class Commands(TyperGroup):
    """A group whose commands refuse bad input with one sentence on standard error and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        words = [*getattr(ctx, "_protected_args", ()), *ctx.args]
        try:
            return super().invoke(ctx)
        except InputError as error:
            why, code = str(error), 2
        except OSError as error:
            why, code = (
                f"the system refuses {error.filename or 'a file'}: {error.strerror or error}",
                2,
            )
        except KeyboardInterrupt as stop:
            why, code = (
                str(stop) or "stopped; the same command goes on where finished work was kept",
                130,
            )
        except Exception as error:
            said = getattr(
                error, "format_message", None
            )  # the parser's: an option that is none; it is printed by it
            if (
                said is not None
                and "--json" in words
                and not hasattr(self.commands.get(words[0]), "commands")
            ):
                _refuse(ctx, words, said())
            raise
        typer.echo(f"interp: {plain(why)}", err=True)
        if "--json" in words:
            _refuse(ctx, words, why)
        raise typer.Exit(code)


def _refuse(ctx: Any, words: Sequence[str], why: str) -> None:
    """The JSON object of a command that refuses what it was given."""
    command = f"{ctx.info_name} {words[0]}" if ctx.parent else words[0]
    typer.echo(
        json.dumps({"command": command, "version": interp.__version__, "error": why}, indent=2)
    )


app = typer.Typer(
    cls=Commands,
    help="Mechanistic interpretability for transformers that carry latents from round to round.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
llm_app = typer.Typer(
    name="llm",
    cls=Commands,
    help="Language models as online learners: play, score, report.",
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
            "--version", callback=_version, is_eager=True, help="Print the version and stop."
        ),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print the log on standard error.")
    ] = False,
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            help="A module of your own to import first, that registers tasks or machines.",
        ),
    ] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(
            help="A machine whose --scheduler may be used: what it sends is unpickled, and can run code."
        ),
    ] = None,
) -> None:
    """Mechanistic interpretability for transformers that carry latents from round to round."""
    for module in modules or []:
        if (here := os.getcwd()) not in sys.path:
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
        return plain(super().format(record))


class _Command(TyperCommand):
    """A command whose list options take several values: ``--experts 2 4 8`` is ``--experts 2 --experts 4 ...``.

    ``<module:function>`` in the help of an option, or at the end of a command's help, stands for what the function
    returns, such as the names in a registry; it is called when help is asked for, so that nothing else waits for its
    imports.
    """

    def format_help(self, ctx: Any, formatter: Any) -> None:
        for option in self.params:
            if getattr(option, "help", None):
                option.help = _filled(option.help)  # type: ignore[attr-defined]
        self.epilog = _filled(self.epilog or "")
        super().format_help(ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; an option that can be given several times takes several values at once, too."""
        several = {name for p in self.params if getattr(p, "multiple", False) for name in p.opts}
        spread: list[str] = []
        current = None
        for before, arg in pairwise(["", *args]):
            named = (
                before
                if arg == "" and before.startswith("--")
                else arg.partition("=")[0] or "an argument"
            )
            bare = arg == "" or (arg.startswith("--") and arg.endswith("="))
            require(not bare, f"{named} is empty; give it a value, or leave it out")
            if arg.startswith("--"):
                current = arg if arg in several else None
            elif current is not None and spread[-1] != current:
                spread.append(current)
            spread.append(arg)
        return super().parse_args(ctx, spread)


def _filled(text: str) -> str:
    """``text`` with every ``<module:function>`` replaced by what the function returns, a paragraph for each line."""
    return re.sub(
        r"<([\w.]+:\w+)>", lambda name: markup(named(name[1])()).replace("\n", "\n\n"), text
    )


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
        sizes: whether it takes the sizes of every task as options, and whether one number for each or several.
        of: functions whose parameters are options, by the parameter of the command that gets their values.
        torch: whether it runs models: torch is then imported, on one thread, while a terminal shows a sign of it.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        key = function.__name__.strip("_").replace("_", "-")
        called = key if group is app else f"{group.info.name} {key}"
        takes = [said for name, said in _TAKES.items() if name.partition(" --")[0] == called]
        own = inspect.signature(function, eval_str=True).parameters
        passed: dict[str, Mapping[str, inspect.Parameter]] = (
            {} if sizes == "none" else {"sizes": _sizes(sizes)}
        )
        for holder, one in (
            of or {}
        ).items():  # an option for each parameter that has a default and is not its own
            of_one, texts = (
                inspect.signature(one, eval_str=True).parameters.values(),
                _VOCABULARY | _described(one),
            )
            left = [p for p in of_one if p.default is not p.empty and p.name not in own]
            passed[holder] = {p.name: _as_option(p, texts) for p in left}

        @functools.wraps(function)
        def run(*, as_json: bool, quiet: bool, **given: Any) -> None:
            say = Say(called, as_json, quiet)
            options = [_TAKES.get(f"{called} --{name}") for name, value in given.items() if value]
            first = next(filter(None, options), _TAKES.get(called, ""))
            for holder, several in passed.items():
                values = {one: given.pop(option.name) for one, option in several.items()}
                given[holder] = {one: value for one, value in values.items() if value is not None}
            with (
                say.until_done,
                workers.saying(
                    lambda: f"interp {called}", shown=bool(first), first=first, silent=quiet
                ),
                warnings.catch_warnings(),
            ):  # a warning is a line, without its place in the code
                warnings.showwarning = lambda message, *_, **__: typer.echo(
                    f"interp: warning: {plain(message)}", err=True
                )
                try:
                    _run(function, torch, say=say, **given)
                except typer.Exit:  # the command chose its exit code: its result is known
                    say.close()
                    raise
                say.close()

        helps = _VOCABULARY | _described(function)
        parameters = [_as_option(p, helps) for p in own.values() if p.name not in ("say", *passed)]
        parameters += [option for several in passed.values() for option in several.values()]
        run.__signature__ = inspect.Signature([*parameters, *_SHARED])  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in run.__signature__.parameters.values()}  # type: ignore[attr-defined]
        epilog = "\n\n".join(filter(None, (f"Example: {example}", *takes, *more.splitlines())))
        about = (inspect.getdoc(function) or "").partition("\n\nArgs:")[0]
        group.command(key, cls=_Command, epilog=epilog, help=about)(run)
        return run

    return register


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
    """The first sentence about each argument in the ``Args`` of a docstring."""
    _, _, listed = (inspect.getdoc(function) or "").partition("Args:\n")
    found = {}
    for entry in re.split(r"\n    (?=\S)", "\n" + listed.split("\n\n")[0]):
        names, _, text = entry.partition(": ")
        sentence = re.split(r"\.(?:\s|$)", " ".join(text.split()).replace("``", ""))[0]
        found.update(
            {
                name: f"{sentence[:1].upper()}{sentence[1:]}."
                for name in names.split(", ")
                if sentence
            }
        )
    return found


def _as_option(parameter: inspect.Parameter, helps: Mapping[str, str]) -> inspect.Parameter:
    """A parameter as an option of a command, or as an argument where it has no default.

    Its annotation says how, or else ``helps`` describes it. Its option is called as it is, without ``n_``, ``max_`` or
    ``with_`` at its beginning; a switch that is off by default has no opposite.
    """
    if hasattr(parameter.annotation, "__metadata__"):
        return parameter.replace(kind=parameter.KEYWORD_ONLY)
    name = re.sub("^(n|max|with)_", "", parameter.name)
    says, switch = helps.get(parameter.name, ""), parameter.default is False
    made: Any = typer.Option(*([f"--{name.replace('_', '-')}"] if switch else ()), help=says)
    if parameter.default is parameter.empty:
        made = typer.Argument(help=says)
    kind = _one_kind(parameter.annotation)
    return parameter.replace(
        name=name, kind=parameter.KEYWORD_ONLY, annotation=Annotated[kind, made]
    )


def _one_kind(annotation: Any) -> Any:
    """What the shell takes for an annotation: several words where a list may be given, which may hold words."""
    kinds = [typing.get_origin(kind) for kind in typing.get_args(annotation)]
    return list[str] | None if len(kinds) > 2 and list in kinds else annotation


def _option(name: str, kind: Any, default: Any, option: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )


def _sizes(many: _Many) -> Mapping[str, inspect.Parameter]:
    """An option for every size of every task, in the words of the tasks' records."""
    kind: Any = list[int] | None if many == "several" else int | None
    found: dict[str, list[str]] = {}
    for task in interp.tasks.every():
        for size in task.sizes:
            what = f"{size.what[0].upper()}{size.what[1:]} ({task.name})"
            found.setdefault(size.option, []).append(
                f"{what}, at least {size.minimum}; {size.default} by default"
            )
    return {
        option: _option(option, kind, None, typer.Option(help=f"{'; '.join(texts)}."))
        for option, texts in found.items()
    }


_SHARED = (
    _option(
        "as_json", bool, False, typer.Option("--json", help="Print the result as one JSON object.")
    ),
    _option(
        "quiet",
        bool,
        False,
        typer.Option("--quiet", help="Print nothing but the paths of files written."),
    ),
)


class Say:
    """What one run of a command tells, and how: as text, as one JSON object at the end and nothing else on standard
    output (``--json``), or as nothing but the paths of the files written (``--quiet``).

    ``until_done`` holds what is open until the command ends.
    """

    def __init__(self, command: str, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json, self.quiet, self.until_done = as_json, quiet, ExitStack()
        self._told: dict[str, Any] = {"command": command, "version": interp.__version__}
        self._files: list[str] = []

    def line(self, text: object) -> None:
        """A line for people."""
        if not (self.as_json or self.quiet):
            typer.echo(plain(text))

    def aside(self, text: object) -> None:
        """A line on standard error: told however the result is told."""
        typer.echo(plain(text), err=True)

    def facts(self, **values: Any) -> None:
        """Fields of the JSON object; people read them in lines and tables."""
        self._told |= values

    def measures(self, *results: Measured) -> None:
        """Results made of measures: the sentence of each, then a line a claim; ``measures`` in the JSON object."""
        self.facts(measures=[one.to_dict() for result in results for one in result])
        for result in results:
            self.line(repr(result))

    def table(self, frame: Any, title: str, name: str, drawn: Sequence[Any] | None = None) -> None:
        """A data frame: a list of records called ``name`` in the JSON object, a table for people (or ``drawn``)."""
        self._told[name] = frame.to_dict("records")
        if not (self.as_json or self.quiet):
            from rich.console import Console

            terminal = Console()
            if not terminal.is_terminal:
                terminal = Console(width=240)  # wide enough that no table wraps
            for table in (
                [rich_table(title, frame.head(_MOST_ROWS), title_justify="left")]
                if drawn is None
                else drawn
            ):
                terminal.print(table)
            if drawn is None and len(frame) > _MOST_ROWS:
                self.line(f"and {len(frame) - _MOST_ROWS} rows more; --json prints them all")

    def wrote(self, paths: Iterable[Path]) -> None:
        """Files that were written: a line each, the list ``files`` in the JSON object."""
        for path in paths:
            self._files.append(str(path))
            if not self.as_json:
                typer.echo(one_line(path))

    def close(self) -> None:
        """Print the JSON object, where it was asked for."""
        if self.as_json:
            typer.echo(
                json.dumps(json_values({**self._told, "files": self._files}), indent=2, default=str)
            )
