"""The command line: one thin function per command; torch is imported only by the commands that need it.

Bad input prints one sentence on standard error and exits with 2; a check that fails exits with 1.
"""

from __future__ import annotations

import functools
import inspect
import re
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

import interp.tasks
from interp.errors import InputError, require
from interp.tasks.task import named
from interp.threads import one_thread

if TYPE_CHECKING:
    from rich.console import Console

    from interp.llm.loading import Reading
    from interp.model.transformer import HookedLatentTransformer

app = typer.Typer(
    help="Mechanistic interpretability for transformers that carry latents from round to round.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register a command whose InputErrors become one sentence and exit code 2."""
    return app.command(function.__name__.replace("_", "-"))(refusing(function))


def refusing(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with InputErrors printed as one sentence and exit code 2."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except InputError as error:
            typer.echo(f"interp: {error}", err=True)
            raise typer.Exit(2) from None

    return run


def with_sizes(several: bool = False) -> Callable[..., Any]:
    """A command whose options are also the sizes of every task, ``--experts 4``: it gets those given as ``sizes``.

    Args:
        several: whether an option takes several numbers.
    """
    options = {size.option: size.what for task in interp.tasks.every() for size in task.sizes}
    kind: Any = list[int] | None if several else int | None

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(**given: Any) -> Any:
            values = {option: given.pop(option) for option in options}
            return function(**given, sizes={option: value for option, value in values.items() if value is not None})

        own = inspect.signature(function, eval_str=True).parameters
        parameters = [parameter for name, parameter in own.items() if name != "sizes"]
        for option, what in options.items():
            text = f"{what.capitalize()}{'; several can be given' if several else ''}."
            wanted = Annotated[kind, typer.Option(help=text)]
            parameters.append(
                inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=wanted)
            )
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def load_sized(model: str, sizes: dict[str, int]) -> HookedLatentTransformer:
    """The model called ``model``, of the sizes that a command :func:`with_sizes` was given."""
    from interp.library import load

    names = {size.option: size.name for task in interp.tasks.every() for size in task.sizes}
    return load(model, **{names[option]: size for option, size in sizes.items()})


def settings_of(pairs: Iterable[str]) -> dict[str, Any]:
    """``NAME=VALUE`` pairs as arguments; values as in TOML, and a bare word is a string.

    >>> settings_of(["gamma=0.5", "rewards=[0, 1e-6]", "variant=lin"])
    {'gamma': 0.5, 'rewards': [0, 1e-06], 'variant': 'lin'}

    Raises:
        InputError: no ``=``, a name given twice, or a value that is neither TOML nor a word.
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = (part.strip() for part in pair.partition("="))
        require(bool(name and equals and text), f"--set takes NAME=VALUE, such as gamma=0.5, got {pair!r}")
        require(name not in settings, f"--set gives {name!r} twice; give it once")
        try:
            settings[name] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            require(
                re.fullmatch(r"[A-Za-z][\w-]*", text) is not None,
                f"--set {name}: {text!r} is no value; write a number, true, a list such as [0, 1], or a word",
            )
            settings[name] = text
    return settings


class ManyValues(TyperCommand):
    """A command whose list options take several values: ``--experts 2 4 8`` is ``--experts 2 --experts 4 ...``.

    ``<module:function>`` in the help of an option stands for what the function returns, such as the names in a
    registry; it is called when help is asked for, so that no other command waits for its imports.
    """

    def format_help(self, ctx: Any, formatter: Any) -> None:
        options: list[Any] = [param for param in self.params if getattr(param, "help", None)]
        for option in options:
            option.help = re.sub(r"<([\w.]+:\w+)>", lambda name: str(named(name[1])()), option.help)
        super().format_help(ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        several = {name for p in self.params if getattr(p, "multiple", False) for name in p.opts}
        spread: list[str] = []
        current = None
        for arg in args:
            if arg.startswith("--"):
                current = arg if arg in several else None
                spread.append(arg)
            elif current is not None and spread[-1] != current:
                spread += [current, arg]
            else:
                spread.append(arg)
        return super().parse_args(ctx, spread)


def show(frame: Any, title: str) -> None:
    """Print a data frame as a table."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in frame.columns:
        table.add_column(str(column), overflow="fold")  # a narrow terminal cuts no name
    for row in frame.itertuples(index=False):
        table.add_row(*(f"{value:.2e}" if isinstance(value, float) else str(value) for value in row))
    console().print(table)


def console() -> Console:
    """The terminal; where there is none, wide enough that no table wraps."""
    from rich.console import Console

    found = Console()
    return found if found.is_terminal else Console(width=240)


ModelName = Annotated[str, typer.Argument(help="A name from `interp models`, or a checkpoint folder.")]
Out = Annotated[Path, typer.Option(help="Folder for what the command writes.")]
Seed = Annotated[int, typer.Option(help="Seed of everything random.")]


@command
def models() -> None:
    """List what can be loaded, task by task."""
    from itertools import groupby

    from interp import tasks
    from interp.library import models as records

    for key, of_task in groupby(records(), lambda record: record.task):
        typer.echo(f"{key}: {tasks.get(key).what}")
        for record in of_task:
            typer.echo(f"  {record.name:20} {record.kind:10} {record.description}")


@command
def report(
    model: ModelName,
    out: Out = Path("output"),
    episodes: Annotated[int, typer.Option(help="Number of episodes.")] = 64,
    rounds: Annotated[int, typer.Option(help="Rounds per episode.")] = 100,
    seed: Seed = 0,
) -> None:
    """Write a self-contained HTML report that opens offline, and print its path; exit 1 when a part of it failed."""
    from reports.build import write_report

    written = write_report(model, out, episodes, rounds, seed)
    typer.echo(written.path)
    for title, why in written.failures.items():
        typer.echo(f"not computed: {title}, because {why}", err=True)
    raise typer.Exit(1 if written.failures else 0)


@app.command("verify", cls=ManyValues)
@refusing
@one_thread()
@with_sizes(several=True)
def verify(
    model: ModelName,
    rounds: Annotated[int, typer.Option(help="Rounds per episode.")] = 1000,
    episodes: Annotated[int, typer.Option(help="Episodes per size.")] = 20,
    variant: Annotated[str | None, typer.Option(help="Variant of the circuit.")] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME=VALUE: any argument of the circuit, such as gamma=0.5 or rewards=[0,1e-6]."),
    ] = None,
    seed: Seed = 0,
    *,
    sizes: dict[str, list[int]],
) -> None:
    """Compare a handwired model with its algorithm; exit 1 when any variable is not exact."""
    from itertools import product

    from circuits.registry import handwired
    from circuits.verification import verify as check

    own = interp.tasks.get(handwired(model).task).sizes
    for option in sizes:
        known = ", ".join(f"--{size.option}" for size in own)
        require(option in [size.option for size in own], f"{model!r} has no size --{option}; its sizes are {known}")
    grid = list(product(*(sizes.get(size.option, [size.default]) for size in own))) if sizes else None
    extra = settings_of(arguments or ())
    if variant is not None:
        require(extra.setdefault("variant", variant) == variant, "--variant and --set variant= disagree; give one")
    for name in ("name", "sizes", "n_rounds", "n_episodes", "dtype", "circuit_seed"):
        require(name not in extra, f"{name!r} is no argument of a circuit, which is all that --set takes")
    extra["circuit_seed"] = extra.pop("seed", None)
    result = check(model, grid, n_rounds=rounds, n_episodes=episodes, seed=seed, **extra)
    show(result.summary(), title=f"{model}: largest difference from the algorithm")
    typer.echo("exact within tolerance" if result.passed else f"NOT exact: {len(result.failures)} checks failed")
    raise typer.Exit(0 if result.passed else 1)


@app.command("probe", cls=ManyValues)
@refusing
@one_thread()
@with_sizes()
def probe(
    model: ModelName,
    targets: Annotated[list[str] | None, typer.Option(help="<probes.command:target_names>.")] = None,
    site: Annotated[
        str, typer.Option(help="Such as latents or resid_post[1]@p?: <probes.command:site_names>.")
    ] = "latents",
    sweep: Annotated[bool, typer.Option("--sweep", help="Everywhere: component x layer x position.")] = False,
    windows: Annotated[list[str] | None, typer.Option(help="Rounds of a sweep, such as 0:10 10:100.")] = None,
    episodes: Annotated[int, typer.Option(help="Number of episodes.")] = 256,
    rounds: Annotated[int, typer.Option(help="Rounds per episode.")] = 100,
    out: Out = Path("output/probes"),
    seed: Seed = 0,
    jobs: Annotated[int, typer.Option(help="Workers of a sweep; -1 for one per core.")] = -1,
    backend: Annotated[str | None, typer.Option(help="joblib backend of a sweep: loky, dask, ray.")] = None,
    *,
    sizes: dict[str, int],
) -> None:
    """Decode an algorithm's variables from a model, with controls; a sweep resumes from OUT."""
    from probes import command as run

    loaded = load_sized(model, sizes)
    sampled = run.sample(loaded, episodes, rounds, seed)
    folder = out / Path(model).name
    if sweep:
        result = run.sweep(
            loaded,
            sampled,
            targets,
            windows=[run.window(text) for text in windows] if windows else None,
            seed=seed,
            cache=folder / "cells",
            n_jobs=jobs,
            backend=backend,
        )
        run.write_sweep(result, folder)
    else:
        for fitted in run.fit_at(loaded, sampled, targets or [], site, seed, folder):
            typer.echo(f"{fitted}\n")
    typer.echo(folder)


@command
def calibrate(
    out: Out = Path("output/calibration"),
    quick: Annotated[bool, typer.Option(help="Small tables, in minutes instead of an hour.")] = False,
) -> None:
    """Measure the toolkit's instruments on data whose truth is known; finished tables are kept."""
    from circuits import calibration as machines
    from probes import calibration

    for text in calibration.write(out, quick, {**calibration.TABLES, **machines.TABLES}):
        typer.echo(f"{text}\n")


@command
@one_thread()
def compare(
    model: ModelName,
    reference: Annotated[
        str, typer.Argument(help="What it is held against: another model, or 'none' for algorithms alone.")
    ] = "",
    quick: Annotated[bool, typer.Option("--quick", help="About a quarter of the work, with wider intervals.")] = False,
    report: Annotated[bool, typer.Option("--report", help="Write a page as well.")] = False,
    out: Out = Path("output/comparisons"),
    seed: Seed = 0,
) -> None:
    """Is a model the same as another, handwired by default: behaviour, state, update and circuit, with bounds."""
    from dataclasses import replace

    from circuits import compare as room
    from interp.files import writable
    from interp.library import load

    subject = load(model)
    held = reference or next(iter(interp.tasks.of(subject).circuits), "none")
    folder = writable(out / f"{Path(model).name}-against-{Path(held).name}")
    effort = replace(room.QUICK if quick else room.FULL, seed=seed)
    found = room.run(subject, None if held == "none" else held, effort=effort)
    typer.echo(f"{found.model}: {found.algorithm}")
    show(found.summary(), title=f"{found.model} against {found.reference or 'algorithms'}")
    written = found.save(folder)
    if report:
        from reports.comparison import write

        written.append(write(found, folder))
    for path in written:
        typer.echo(path)


@app.command("patch", cls=ManyValues)
@refusing
@one_thread()
@with_sizes()
def patch(
    model: ModelName,
    corruption: Annotated[
        str, typer.Option(help="<interp.interventions.command:corruption_names>; the task's default when empty.")
    ] = "",
    round_: Annotated[int, typer.Option("--round", help="The round that is corrupted and patched.")] = 20,
    propagate: Annotated[bool, typer.Option(help="Let effects run on, or hold later latents.")] = True,
    read: Annotated[int | None, typer.Option(help="The round that is read; where it first shows by default.")] = None,
    components: Annotated[list[str] | None, typer.Option(help="Such as resid_pre attn_out head mlp_out.")] = None,
    metric: Annotated[str, typer.Option(help="<interp.interventions.command:metric_names>.")] = "logit_diff",
    direction: Annotated[str, typer.Option(help="denoising or noising.")] = "denoising",
    episodes: Annotated[int, typer.Option(help="Number of pairs.")] = 64,
    rounds: Annotated[int, typer.Option(help="Rounds of the round x round map; 0 for none.")] = 12,
    tables: Annotated[
        bool, typer.Option("--tables", help="Instead, every causal table: all corruptions, alignment, steering, edges.")
    ] = False,
    out: Out = Path("output/patching"),
    seed: Seed = 0,
    *,
    sizes: dict[str, int],
) -> None:
    """Patch every layer, head and position at a round, clean against corrupted: tables and heat maps."""
    from interp.interventions import command as run

    loaded = load_sized(model, sizes)
    if tables:
        from circuits.registry import differentiable
        from interp.interventions import tables as every
        from interp.progress import bar

        smooth = differentiable(loaded)
        with bar(f"causal tables of {loaded.config.name}", every.N_PARTS) as done:
            results = every.tables(loaded, round_, smooth=smooth, n_episodes=episodes, seed=seed, done=done)
        for path in every.write(results, out / Path(model).name / "tables"):
            typer.echo(path)
        return
    result = run.patch(
        loaded,
        round_,
        corruption,
        propagate=propagate,
        read=read,
        components=components or ("resid_pre", "attn_out", "head"),
        metric=metric,
        direction=direction,
        n_episodes=episodes,
        n_map=rounds,
        seed=seed,
    )
    title = f"{loaded.config.name}: {result.corruption} at round {round_}, largest effects"
    show(run.summary(result.sweep), title=title)
    for path in run.write(result, out / Path(model).name / result.corruption):
        typer.echo(path)


@command
@one_thread()
def evaluate(
    model: ModelName,
    episodes: Annotated[int, typer.Option(help="Episodes per regime.")] = 128,
    theory: Annotated[bool, typer.Option("--theory", help="Add the checks of the task's theory.")] = False,
    out: Out = Path("output/evaluation"),
    seed: Seed = 0,
) -> None:
    """Measure what a model is worth, beside baselines and controls: tables and figures in OUT/MODEL."""
    from interp.evaluation import suite
    from interp.library import load
    from interp.progress import bar
    from reports.evaluation import save

    loaded = load(model)
    with bar(f"evaluating {loaded.config.name}", suite.n_steps(loaded)) as done:
        result = suite.evaluate(loaded, n_episodes=episodes, seed=seed, with_theory=theory, done=done)
    result.write(out / Path(model).name)
    save(result.tables, out / Path(model).name)
    for table in result.to_tables():
        console().print(table)
    typer.echo(out / Path(model).name)


class TasksAndPresets(TyperCommand):
    """A command whose help ends with the tasks that can be trained; they are looked up only when help is asked for."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from interp.training.goal import presets

        self.epilog = "\n\n".join(("Tasks and their presets:", *presets().splitlines()))
        super().format_help(ctx, formatter)


@app.command("train", cls=TasksAndPresets)
@refusing
def train(
    task: Annotated[str, typer.Argument(help="Key of a task, listed below.")],
    preset: Annotated[str, typer.Option(help="One of the task's presets, listed below.")] = "laptop",
    out: Out = Path("output/training"),
    name: Annotated[str, typer.Option(help="Name of the trained model; its run is kept in OUT/NAME.")] = "",
    config: Annotated[Path | None, typer.Option(help="TOML file of fields to override.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="FIELD=VALUE (a TOML value); repeatable.")] = None,
    processes: Annotated[int, typer.Option(help="Processes that torchrun started; refused if fewer run.")] = 1,
) -> None:
    """Train a model, or resume its training, and print the folder of the checkpoint."""
    from interp.training import config as settings
    from interp.training import goal
    from interp.training.trainer import train as run

    given = goal.preset(task, preset)
    overrides = settings.read_toml(config) if config else {}
    for assignment in set_ or []:
        overrides = settings.merge(overrides, settings.parse_assignment(assignment))
    name = name or f"{task}-{preset}"
    typer.echo(run(settings.override(given, overrides), out / name, name=name, n_processes=processes))


@command
def curves(
    runs: Annotated[list[Path], typer.Argument(help="Folders of training runs, such as output/training/NAME.")],
    out: Out = Path("output/curves"),
) -> None:
    """Draw the learning curves of several runs of one task, grouped by the settings in which they differ."""
    from interp.files import write_text
    from interp.training.curves import LEARNING_FILE, learning_curves, over_seeds
    from reports.evaluation import save_figure
    from reports.parts.learning import draw

    found = learning_curves(runs)
    written = [write_text(out / LEARNING_FILE, found.to_csv(index=False))]
    written.append(save_figure(draw(found, "the floor"), out / "learning.svg"))
    show(over_seeds(found).groupby("setting", sort=False).tail(1), title="Loss above the floor, last shared step")
    for path in written:
        typer.echo(path)


llm = typer.Typer(help="Language models as online learners: play them, score their traces.", no_args_is_help=True)
app.add_typer(llm, name="llm")


@llm.command("run", cls=ManyValues)
@refusing
def llm_run(
    model: Annotated[str | None, typer.Argument(help="The model: its name on the server, or its folder.")] = None,
    base_url: Annotated[str | None, typer.Option(help="OpenAI-compatible, such as http://127.0.0.1:8000/v1.")] = None,
    agent: Annotated[str | None, typer.Option(help="Instead: counter, last-step, full-history or random.")] = None,
    backend: Annotated[str, typer.Option(help="server, or transformers: the model runs here.")] = "server",
    out: Out = Path("output/llm"),
    conditions: Annotated[list[str] | None, typer.Option(help="Such as weather-note-only; all six by default.")] = None,
    regimes: Annotated[list[str] | None, typer.Option(help="Expert regimes; the paper's three by default.")] = None,
    instances: Annotated[int, typer.Option(help="Instances of each regime.")] = 30,
    rounds: Annotated[int, typer.Option(help="Rounds per instance; more than before extend a run.")] = 100,
    experts: Annotated[int, typer.Option(help="Number of experts.")] = 4,
    seed: Seed = 0,
    prompts: Annotated[Path | None, typer.Option(help="Folder of your own prompts, used verbatim.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature.")] = 0.0,
    top_p: Annotated[float | None, typer.Option(help="Nucleus sampling; not sent by default.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 2048,
    response_format: Annotated[str, typer.Option(help="none, json_object, json_schema or grammar.")] = "none",
    thinking_off: Annotated[
        str, typer.Option(help="How this server turns thinking off: deepseek, chat-template.")
    ] = "",
    extra_body: Annotated[str, typer.Option(help='More request fields as JSON, such as {"top_k": 20}.')] = "{}",
    send_seed: Annotated[bool, typer.Option(help="Send a seed with each request.")] = True,
    reasks: Annotated[int, typer.Option(help="How often a malformed answer is asked again.")] = 2,
    key_env: Annotated[str | None, typer.Option(help="Environment variable with the key for --base-url.")] = None,
    concurrency: Annotated[int, typer.Option(help="Episodes at a time.")] = 4,
    requests_per_minute: Annotated[float | None, typer.Option(help="No more requests than this.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for one attempt.")] = 120.0,
    retries: Annotated[int, typer.Option(help="Attempts after the first, for transient errors.")] = 8,
    malformed_limit: Annotated[int, typer.Option(help="Stop if the first N are all malformed; 0: never.")] = 20,
    device: Annotated[str, typer.Option(help="With --backend transformers: cpu, cuda, ...")] = "cpu",
    prices: Annotated[list[float] | None, typer.Option(help="Of 1e6 prompt, cached and answer tokens.")] = None,
    dry_run: Annotated[bool, typer.Option(help="Print calls, tokens and cost, and stop.")] = False,
) -> None:
    """Play a language model or a scripted agent on expert advice; resumes what is in OUT.

    Keys come from the environment only, and go to the address they were given for only.
    """
    from interp.llm import command, plan, runner
    from interp.llm import prompts as wordings
    from interp.llm.progress import showing
    from interp.llm.schemes import CONDITIONS, Condition
    from interp.llm.settings import Connection, Settings

    name = command.who_plays(model, base_url, agent, backend)
    extra = command.extra_fields(extra_body)
    settings = Settings(
        name, temperature, top_p, max_tokens, response_format, thinking_off, extra, send_seed, max_reasks=reasks
    )
    connection = Connection(base_url, key_env, concurrency, requests_per_minute, timeout, retries) if base_url else None
    if prices is not None and len(prices) != 3:
        raise InputError(f"--prices takes three numbers (prompt, cached, answer), got {len(prices)}")
    price = plan.Prices(*(prices or ()))
    texts = wordings.load_prompts(prompts) if prompts else wordings.built_in_prompts(experts)
    chosen = [Condition.parse(name) for name in conditions] if conditions else CONDITIONS
    episodes = plan.instances(regimes or plan.PAPER_REGIMES, instances, rounds, experts, seed)
    jobs = plan.plan(settings, texts, episodes, chosen)
    expected = plan.estimate(jobs, price)
    typer.echo(expected.sentence)
    if dry_run:
        show(expected.readable(), title="Expected calls, tokens and cost; nothing was asked")
        return
    where = command.where_it_plays(settings, agent, backend, connection, concurrency, device)
    try:
        with showing(expected.calls) as progress:
            done = runner.run(jobs, out, where, price, progress, malformed_limit)
    except KeyboardInterrupt:
        typer.echo("interrupted; every answer is on disk: run the same command again to resume", err=True)
        raise typer.Exit(130) from None
    typer.echo(done.sentence)
    for place, why in done.unfinished:
        typer.echo(f"unfinished: {place}: {why}", err=True)
    raise typer.Exit(0 if done.complete else 1)


@llm.command("demo")
@refusing
def llm_demo(out: Out = Path("output/llm-demo"), seed: Seed = 0) -> None:
    """Play the scripted agents, score them and write the report: the whole experiment in small, offline."""
    from interp.llm.agents import PLAYERS
    from interp.llm.demo import play_demo
    from interp.llm.loading import load
    from interp.llm.tables import readable, write_tables
    from reports.llm import build

    for name, about in PLAYERS.items():
        typer.echo(f"{name}: {about}")
    traces = out / "traces"
    for name, done in play_demo(traces, seed).items():
        typer.echo(f"{name}: {done.sentence}")
    scores, written = write_tables(load(traces), out / "scores", seed=seed)
    show(readable(scores.final), title="Regret after the last round, mean ± std over instances")
    for file in (*written, build(traces, (), out=out, seed=seed)):
        typer.echo(file)


TracesPath = Annotated[Path, typer.Argument(help="Folder of traces, or of other people's result.json files.")]
ForeignRegime = Annotated[str | None, typer.Option(help="Regime of foreign results that do not name theirs.")]
Duplicates = Annotated[str, typer.Option(help="Instances played twice: refuse, or first to keep one play.")]


def read_traces(path: Path, regime: str | None, duplicates: str) -> Reading:
    """The runs below ``path``; what was set aside is told on standard error."""
    from interp.llm.loading import read

    reading = read(path, regime, duplicates)
    for sentence in reading.sentences if len(reading.sentences) > 1 else ():
        typer.echo(sentence, err=True)
    return reading


@llm.command("score")
@refusing
def llm_score(
    path: TracesPath,
    out: Out = Path("output/llm-scores"),
    regime: ForeignRegime = None,
    duplicates: Duplicates = "refuse",
    seed: Seed = 0,
) -> None:
    """Score traces beside the baselines: regret, behaviour, notes; tables as CSV."""
    from interp.files import write_text
    from interp.llm.tables import readable, write_tables

    reading = read_traces(path, regime, duplicates)
    scores, written = write_tables(reading.runs, out, seed=seed)
    written.append(write_text(out / "read.csv", reading.table.to_csv(index=False)))
    show(readable(scores.final), title="Regret after the last round, mean ± std over instances")
    for file in written:
        typer.echo(file)


@llm.command("notes")
@refusing
def llm_notes(
    path: TracesPath,
    out: Out = Path("output/llm-notes"),
    regime: ForeignRegime = None,
    duplicates: Duplicates = "refuse",
) -> None:
    """What the notes in traces say: their formats over the rounds, whether they count right, and every note."""
    from interp.llm.note_table import note_table
    from interp.llm.tables import write_notes

    table = note_table(read_traces(path, regime, duplicates).runs)
    written = write_notes(table, out)
    show(
        table.formats_over_rounds(),
        title="Share of runs with each format after the first round, the sixth (step 5) and the last",
    )
    show(table.final(), title="The last note")
    for file in written:
        typer.echo(file)


@llm.command("report", cls=ManyValues)
@refusing
def llm_report(
    path: TracesPath,
    models: Annotated[list[str] | None, typer.Option(help="Transformers to run on the same instances.")] = None,
    out: Out = Path("output"),
    regime: ForeignRegime = None,
    duplicates: Duplicates = "refuse",
    seed: Seed = 0,
) -> None:
    """Write the report on traces, with handwired and learned transformers on the same instances."""
    from reports.llm import build

    typer.echo(build(path, models or [], out=out, regime=regime, duplicates=duplicates, seed=seed))


@llm.command("open")
@refusing
def llm_open(
    model: Annotated[str, typer.Argument(help="Folder, .gguf file or name of a chat model.")],
    out: Out = Path("output/llm-open"),
    regime: Annotated[str, typer.Option(help="Expert regime.")] = "stratified",
    episodes: Annotated[int, typer.Option(help="Episodes, at least 10.")] = 32,
    rounds: Annotated[int, typer.Option(help="Rounds an episode.")] = 10,
    every: Annotated[int, typer.Option(help="Look after every so many blocks.")] = 1,
    expert: Annotated[int, typer.Option(help="The expert whose vote is patched, from 0, in the last round.")] = 2,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
    batch: Annotated[int, typer.Option(help="Episodes at a time.")] = 8,
    seed: Seed = 0,
) -> None:
    """Open a chat model while it learns: probe each expert's record, patch one vote; tables as CSV."""
    import pandas as pd

    import probes
    from interp.files import write_text
    from interp.llm.opened import Opened, sample

    played = sample(episodes, rounds, regime, seed)
    opened = Opened.load(model, device)
    names = opened.residuals(every)
    run = opened.play(played, names, batch)
    patched = opened.patch_vote(played, expert, rounds - 1, names, batch)
    blank = Opened.load(model, device, untrained=seed).play(played, names, batch)
    target = probes.targets.get("counts")(played, "before")
    fitted = [probes.fit(run.at(name), target, untrained=blank.at(name), site=name, seed=seed) for name in names]
    tables = {"probe": pd.concat([one.to_frame() for one in fitted]), "patch": patched.to_frame()}
    for name, table in tables.items():
        show(table, title=name)
        typer.echo(write_text(out / f"{name}.csv", table.to_csv(index=False)))


if __name__ == "__main__":
    app()
