"""Make a command of the command line from a function: shared options, error messages, threads.

A command is a function in a file of this folder::

    @command(example="interp probe wma-learned", sizes="one", needs_torch=True)
    def probe(say: Say, sizes: Mapping[str, int], model: options.ModelName, ...) -> None:

The function gets ``say``, which prints all its output. If it has a parameter ``sizes``, the sizes
of every task become options (``--experts 4``). ``--json`` and ``--quiet`` are added to every
command. The help of an option is in the parameter's annotation, or in the ``Args`` of the command's
docstring.

A command need not repeat parameters that it only passes to another function. ``of={"settings":
Settings}`` makes an option of each parameter of ``Settings`` that has a default and is not a
parameter of the command. The command gets their values as the mapping ``settings``. torch is
imported only when a command with ``needs_torch=True`` runs.
"""

from __future__ import annotations

import functools
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
from interp.support.errors import InputError, convert_errors, require
from interp.support.files import json_values, read_rows, read_tables, write_csv
from interp.support.foreign import escape_invisible, escape_line, markup, rich_table
from interp.support.lazy import resolve_name
from interp.support.shares import PLAN
from interp.support.workers import one_thread

_Many = Literal["none", "one", "several"]
_VOCABULARY: dict[str, str] = read_tables(Path(__file__).with_name("options.toml"))
_DURATIONS = read_rows(Path(__file__).with_name("durations.csv"))
"""How long commands take, of those that were measured: ``command``, ``options`` and ``takes``."""
_MOST_ROWS = 20  # rows of a table that are printed for people


class Commands(TyperGroup):
    """A group of commands. If a command refuses its input, one sentence is printed on standard
    error, and the exit code is 2.
    """

    def main(self, *args: Any, **options: Any) -> Any:
        """Run the command line like click. If the reader of standard output closes it early, as
        ``head`` does, end without a message and with exit code 141, as other Unix tools do.

        Args:
            args: passed to click, such as the words of the command line.
            options: passed to click.
        """
        try:
            return super().main(*args, **options)
        except SystemExit as end:
            # click and rich both end the process with code 1 when they cannot write.
            if isinstance(end.__context__, BrokenPipeError):
                raise SystemExit(128 + signal.SIGPIPE) from end
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command that the words of the command line name, and return its result.

        If the command raises an InputError or a system error, the message is printed to stderr as
        "interp: ...", without a traceback, and the process ends with exit code 2. After Ctrl-C the
        exit code is 130, after SIGTERM 143. With ``--json``, the message is also printed as a JSON
        object.

        Args:
            ctx: click's context of the group of commands, with the words of the command line.
        """
        words = [*getattr(ctx, "_protected_args", ()), *ctx.args]
        # Exit codes as in a shell: 2 for refused input, 128 + the signal's number after a signal.
        with _interrupt_on_sigterm(ctx):
            try:
                return super().invoke(ctx)
            except InputError as error:
                why, code = str(error), 2
            except BrokenPipeError:
                raise  # nobody reads standard output any more; see `main`
            except OSError as error:
                place = error.filename or "a file"
                why, code = f"the system refuses {place}: {error.strerror or error}", 2
            except KeyboardInterrupt as stop:
                why, code = str(stop) or _STOPPED, 128 + signal.SIGINT
            except Exception as error:
                # An error of the parser, such as an unknown option, whose message click prints. For a
                # word of a group within this one, that group has printed the JSON object already.
                is_group = hasattr(self.commands.get(words[0]), "commands")
                if "--json" in words and hasattr(error, "format_message") and not is_group:
                    _refuse(ctx, words, error.format_message())
                raise
        if _TERMINATED in ctx.meta:
            # Code in C, and code that reads files, can turn the interrupt into another error.
            why = _STOPPED if code == 2 else why
            code = 128 + signal.SIGTERM
        typer.echo(f"interp: {escape_invisible(why)}", err=True)
        if "--json" in words:
            _refuse(ctx, words, why)
        raise typer.Exit(code)


_STOPPED = "stopped; the same command goes on where finished work was kept"
_TERMINATED = "interp.cli.terminated"
"""What stands in the contexts of commands once the process was told to end."""


@contextmanager
def _interrupt_on_sigterm(ctx: Any) -> Iterator[None]:
    """Context manager: treat the first SIGTERM, which job queues send, as an interrupt like Ctrl-C.
    A second SIGTERM ends the process at once.

    Args:
        ctx: click's context, which records that the signal came.
    """

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
    """Print the JSON object of a command that refuses its input: command, version and error.

    Args:
        ctx: click's context of the group.
        words: the words of the command line after the group's name.
        why: the error message.
    """
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


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"interp {interp.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
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
        # `convert_errors` decorates the function: whatever the module raises becomes an InputError.
        convert_errors(f"--import {module}")(import_module)(module)
    workers.TRUSTED.update(trust or ())
    if verbose:
        handler = logging.StreamHandler()
        handler.setFormatter(_EscapedFormatter("%(asctime)s %(name)s: %(message)s", "%H:%M:%S"))
        logger = logging.getLogger("interp")
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)


class _EscapedFormatter(logging.Formatter):
    """Formatter of the log's lines, in which characters that control a terminal are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record of the log as a line of text, with control characters escaped."""
        return escape_invisible(super().format(record))


class _Command(TyperCommand):
    """A command whose list options take several values: ``--experts 2 4 8`` means ``--experts 2
    --experts 4 --experts 8``.

    The help of an option, or the end of a command's help, may contain ``<module:function>``. It is
    replaced by what the function returns, such as the names in a registry. The function is called
    only when the help is printed, so that commands do not wait for its imports.
    """

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, in which every ``<module:function>`` is replaced by what the function
        returns.

        Args:
            ctx: click's context of the command.
            formatter: click's formatter, which gets the text.
        """
        for option in self.params:
            if getattr(option, "help", None):
                option.help = _insert_results(option.help)  # type: ignore[attr-defined]
        self.epilog = _insert_results(self.epilog or "")
        super().format_help(ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words of the command line, and return those that are left. An option that may be
        repeated also takes several values at once.

        Args:
            ctx: click's context of the command.
            args: the words.
        """
        repeatable: set[str] = set()
        for parameter in self.params:
            if getattr(parameter, "multiple", False):
                repeatable.update(parameter.opts)
        expanded: list[str] = []  # the option's name before each of its values
        open_option = None  # the repeatable option that further words are values of
        for before, word in pairwise(["", *args]):
            _require_value(before, word)
            if word.startswith("--"):
                open_option = word if word in repeatable else None
            elif open_option is not None and expanded[-1] != open_option:
                expanded.append(open_option)  # once more, before a further value
            expanded.append(word)
        return super().parse_args(ctx, expanded)


def _require_value(before: str, word: str) -> None:
    """Refuse an empty word on the command line, and an option with an equals sign but no value.

    Args:
        before: the word before it, which the error message names if ``word`` is empty.
        word: the word.
    """
    if word and not re.fullmatch("--[^=]*=", word):
        return
    option = word.rstrip("=") or before
    name = option if option.startswith("--") else "an argument"
    raise InputError(f"{name} is empty; give it a value, or leave it out")


def _insert_results(text: str) -> str:
    """Replace every ``<module:function>`` in a text by what the function returns; each of its lines
    becomes a paragraph.
    """

    def call(place: re.Match[str]) -> str:
        return markup(resolve_name(place[1])()).replace("\n", "\n\n")

    return re.sub(r"<([\w.]+:\w+)>", call, text)


def command(
    *,
    example: str,
    group: typer.Typer = app,
    sizes: _Many = "none",
    of: Mapping[str, Callable[..., Any]] | None = None,
    needs_torch: bool = False,
    more: str = "",
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a command with the function's name. Returns the decorator.

    Args:
        example: a command line that is shown at the end of the help.
        group: the group of commands that it belongs to: ``interp`` or ``interp llm``.
        sizes: "one" or "several" gives the command an option for every size of every task, such as
            ``--experts``, which takes one number or several numbers. "none" gives no such options.
        of: name of a parameter of the command -> another function. The parameters of that function
            that have a default become options. The command gets their values in this parameter, as
            a mapping {name: value}.
        needs_torch: True if the command runs models. Then torch is imported first, while a terminal
            shows a spinner, and the command's computations in torch use one thread.
        more: further lines for the end of the help. ``<module:function>`` in them is replaced by
            what the function returns.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        key = function.__name__.strip("_").replace("_", "-")
        command_name = key if group is app else f"{group.info.name} {key}"
        function_parameters = inspect.signature(function, eval_str=True).parameters
        options_by_holder: dict[str, Mapping[str, inspect.Parameter]] = {}
        if sizes != "none":
            options_by_holder["sizes"] = _make_size_options(sizes)
        for holder, inner_function in (of or {}).items():
            options_by_holder[holder] = _make_options(inner_function, without=function_parameters)

        @functools.wraps(function)
        def run(*, as_json: bool, quiet: bool, time_limit: float, **values: Any) -> None:
            """Group the values of options, and call the command's function with them."""
            say = Say(command_name, as_json, quiet)
            if values.pop("plan", False):  # --plan stands for a shard of this name
                values["shard"] = PLAN
            duration = _describe_duration(command_name, values)
            # A parameter such as ``sizes`` gets the values of several options, as a mapping.
            for holder, options in options_by_holder.items():
                option_values = {name: values.pop(option.name) for name, option in options.items()}
                # Without a value, the default of the inner function counts.
                values[holder] = {
                    name: value for name, value in option_values.items() if value is not None
                }
            progress_lines = workers.printing_progress(
                lambda: f"interp {command_name}", shown=bool(duration), first=duration, silent=quiet
            )
            with (
                say.open_contexts,
                progress_lines,
                warnings.catch_warnings(),
                _send_sigterm_after(time_limit),
            ):
                warnings.showwarning = _show_warning
                try:
                    _call_command(function, needs_torch, say=say, **values)
                except typer.Exit:  # the command chose its exit code: its result is known
                    say.close()
                    raise
                say.close()

        parameters = _list_parameters(function, options_by_holder)
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        durations = _list_durations(command_name).values()
        epilog = "\n\n".join([f"Example: {example}", *durations, *more.splitlines()])
        description = (inspect.getdoc(function) or "").partition("\n\nArgs:")[0]
        group.command(key, cls=_Command, epilog=epilog, help=description)(run)
        return run

    return register


def _list_parameters(
    function: Callable[..., None],
    options_by_holder: Mapping[str, Mapping[str, inspect.Parameter]],
) -> list[inspect.Parameter]:
    """Return the parameters of a command: its arguments and options.

    A parameter of the function may hold the values of several options in a mapping, such as
    ``sizes``. The command has these options instead of it. The parameter ``say``, which prints the
    command's output, is left out.

    Args:
        function: the command's function.
        options_by_holder: name of each parameter that holds several options -> these options, by
            name.
    """
    helps = _VOCABULARY | _parse_args_section(function)
    function_parameters = inspect.signature(function, eval_str=True).parameters
    parameters = [
        _as_option(parameter, helps)
        for name, parameter in function_parameters.items()
        if name != "say" and name not in options_by_holder
    ]
    for options in options_by_holder.values():
        parameters += options.values()
    parameters += _SHARED
    if "shard" in function_parameters:  # work that is divided can also be planned (--plan)
        parameters.append(_PLAN)
    return parameters


def _list_durations(command_name: str) -> dict[str, str]:
    """Return how long a command takes with the options that were measured: options -> sentence.

    Args:
        command_name: name of the command.
    """
    sentences = {}
    for row in _DURATIONS:
        if row["command"] == command_name:
            words = f"interp {command_name} {row['options']}".rstrip()
            sentence = f"{words} takes about {row['takes']}, on one core with default options."
            sentences[row["options"]] = sentence
    return sentences


def _describe_duration(command_name: str, values: Mapping[str, Any]) -> str:
    """Return a sentence that says how long a command takes; "" if that was not measured.

    Args:
        command_name: name of the command.
        values: values of its arguments and options, by name. If several measured combinations of
            them fit, the last one counts.
    """
    words = {str(value) for value in values.values()}
    words.update(f"--{name}" for name, value in values.items() if value)
    duration = ""
    for options, sentence in _list_durations(command_name).items():
        if words.issuperset(options.split()):
            duration = sentence
    return duration


def _show_warning(message: Any, *_: Any, **__: Any) -> None:
    """Print a Python warning as one line on standard error, without the file and line that raised
    it.
    """
    typer.echo(f"interp: warning: {escape_invisible(message)}", err=True)


def _call_command(function: Callable[..., None], needs_torch: bool, **values: Any) -> None:
    """Call the function of a command.

    Args:
        function: the function.
        needs_torch: whether it runs models; if so, torch is imported first, and the function runs on one
            thread.
        values: the function's arguments.
    """
    if not needs_torch:
        function(**values)
        return
    with workers.show_spinner("importing torch"):
        import interp.model.transformer  # noqa: F401
    workers.keep_freed_memory()
    with one_thread():
        function(**values)


def _parse_args_section(function: Callable[..., Any]) -> dict[str, str]:
    """Read the ``Args`` of a function's docstring: name of a parameter -> first sentence about it."""
    _, _, section = (inspect.getdoc(function) or "").partition("Args:\n")
    entries = textwrap.dedent(section.split("\n\n")[0])
    sentences = {}
    for names, text in re.findall(r"(?ms)^([\w, ]+): (.*?)(?=^\w|\Z)", entries):
        words = " ".join(text.split()).replace("``", "")
        sentence = re.split(r"\.(?:\s|$)", words)[0]
        for name in names.split(", "):
            sentences[name] = f"{sentence[:1].upper()}{sentence[1:]}."
    return sentences


def _make_options(
    function: Callable[..., Any], without: Collection[str]
) -> dict[str, inspect.Parameter]:
    """Return an option for each parameter of a function that has a default: name of the parameter
    -> option.

    Args:
        function: the function.
        without: names of parameters that get no option.
    """
    helps = _VOCABULARY | _parse_args_section(function)
    options = {}
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        if parameter.default is not parameter.empty and name not in without:
            options[name] = _as_option(parameter, helps)
    return options


def _as_option(parameter: inspect.Parameter, helps: Mapping[str, str]) -> inspect.Parameter:
    """Return a function's parameter as an option of a command; as an argument if it has no default.

    If the parameter's annotation describes an option, it is used as it is. Otherwise the option has
    the parameter's name without ``n_``, ``max_`` or ``with_`` at the beginning. A switch that is
    off by default gets no ``--no-`` form.

    Args:
        parameter: the parameter.
        helps: name of a parameter -> text of its help.
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
    kind = parameter.annotation
    alternatives = [typing.get_origin(part) for part in typing.get_args(kind)]
    # Such as ``list | int | None`` (the origins of int and None are None). Typer cannot parse a choice
    # between a list and several other types: the function itself reads the words.
    if list in alternatives and len(alternatives) > 2:
        kind = list[str] | None
    return parameter.replace(name=name, annotation=Annotated[kind, option])


def _make_option(name: str, kind: Any, default: Any, option: Any) -> inspect.Parameter:
    annotation = Annotated[kind, option]
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=default, annotation=annotation)


def _make_size_options(many: _Many) -> dict[str, inspect.Parameter]:
    """Return an option for every size of every task, such as ``--experts``: name of the option ->
    parameter. Its help is the description of the size in the record of the task.

    Args:
        many: "one" or "several": how many numbers each option takes.
    """
    kind: Any = list[int] | None if many == "several" else int | None
    texts: dict[str, list[str]] = {}
    for task in interp.tasks.list_tasks():
        for size in task.sizes:
            what = f"{size.what[0].upper()}{size.what[1:]} (task: {task.name})"
            text = f"{what}, at least {size.minimum}; {size.default} by default"
            texts.setdefault(size.option, []).append(text)
    options = {}
    for name, parts in texts.items():
        options[name] = _make_option(name, kind, None, typer.Option(help=f"{'; '.join(parts)}."))
    return options


def _parse_seconds(text: str) -> float:
    """Return the seconds of a duration such as "90s", "20m" or "3h"; 0 for an empty text."""
    if not text:
        return 0.0
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    require(parts is not None, f"--time-limit takes 90s, 20m or 3h, got {text!r}")
    return float(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]]


_SHARED = (
    _make_option(
        "as_json", bool, False, typer.Option("--json", help="Print the result as one JSON object.")
    ),
    _make_option(
        "quiet",
        bool,
        False,
        typer.Option("--quiet", help="Print only the paths of the files that were written."),
    ),
    _make_option(
        "time_limit",
        str,
        "",
        typer.Option(
            "--time-limit",
            metavar="3h",
            help="Stop after this time, such as 90s, 20m or 3h, and keep the finished parts of the work.",
            callback=_parse_seconds,
        ),
    ),
)
_PLAN = _make_option(
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
def _send_sigterm_after(seconds: float) -> Iterator[None]:
    """Context manager: send this process SIGTERM after some seconds, as a job queue does at its
    time limit; 0 sends none.
    """
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
    """The output of one run of a command, in one of three forms.

    By default it is text. With ``--json``, standard output has only one JSON object, printed at the
    end. With ``--quiet``, it has only the paths of the files that were written.

    Args:
        command: name of the command.
        as_json: True with ``--json``.
        quiet: True with ``--quiet``.

    Attributes:
        open_contexts: contexts that stay open until the command ends.
    """

    def __init__(self, command: str, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.is_for_people = not (as_json or quiet)
        self.open_contexts = ExitStack()
        self._fields: dict[str, Any] = {"command": command, "version": interp.__version__}
        self._files: list[str] = []

    def line(self, text: object) -> None:
        """Print ``text`` as a line, unless ``--json`` or ``--quiet`` is set."""
        if self.is_for_people:
            typer.echo(escape_invisible(text))

    def warning(self, text: object) -> None:
        """Print ``text`` as a line on standard error, with ``--json`` and ``--quiet``, too."""
        typer.echo(escape_invisible(text), err=True)

    def facts(self, **values: Any) -> None:
        """Set fields of the JSON object that ``--json`` prints. Without ``--json``, nothing is
        printed.

        Args:
            values: name of a field -> value.
        """
        self._fields |= values

    def measures(self, *results: Measured) -> None:
        """Print results that consist of measures (claims with a number and a verdict): a sentence
        for each result, then one line per claim. In the JSON object of ``--json`` they are the list
        ``measures``.
        """
        records = []
        for result in results:
            records += [measure.to_dict() for measure in result]
            self.line(repr(result))
        self._fields.setdefault("measures", []).extend(records)

    def table(self, frame: Any, title: str, name: str) -> None:
        """Print a data frame as a table. In the JSON object it is a list with one record per row.

        Args:
            frame: the data frame; at most 20 rows are printed.
            title: title above the table.
            name: name of the list in the JSON object.
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
            self.line(f"rows left out: {len(frame) - _MOST_ROWS}; --json prints them all")

    def tables(self, folder: Path, frames: Mapping[str, Any]) -> None:
        """Write data frames as CSV files, and print the paths. Empty data frames are not written.

        Args:
            folder: folder for the files.
            frames: name of a file without its ending -> data frame.
        """
        for name, frame in frames.items():
            if len(frame):
                self.files([write_csv(folder / f"{name}.csv", frame)])

    def files(self, paths: Iterable[Path]) -> None:
        """Report files that were written: print each path on a line. In the JSON object they are
        the list ``files``.

        Args:
            paths: the paths of the files.
        """
        for path in paths:
            self._files.append(str(path))
            if not self.as_json:
                typer.echo(escape_line(path))

    def close(self) -> None:
        """Print the JSON object if ``--json`` was given; to be called once, at the end."""
        if self.as_json:
            fields = json_values({**self._fields, "files": self._files})
            typer.echo(json.dumps(fields, indent=2, default=str))
