"""The command line: one thin function per command; torch is imported only by the commands that need it.

Bad input prints one sentence on standard error and exits with 2; a check that fails exits with 1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from interp.errors import InputError

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


class ManyValues(TyperCommand):
    """A command whose list options take several values: ``--experts 2 4 8`` is ``--experts 2 --experts 4 ...``."""

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
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in frame.columns:
        table.add_column(str(column))
    for row in frame.itertuples(index=False):
        table.add_row(*(f"{value:.2e}" if isinstance(value, float) else str(value) for value in row))
    Console().print(table)


ModelName = Annotated[str, typer.Argument(help="A name from `interp models`, or a checkpoint folder.")]
Out = Annotated[Path, typer.Option(help="Folder for what the command writes.")]
Seed = Annotated[int, typer.Option(help="Seed of everything random.")]


@command
def models() -> None:
    """List what can be loaded."""
    from interp.library import models as records

    for record in records():
        typer.echo(f"{record.name:22} {record.kind:10} {record.description}")


@command
def report(
    model: ModelName,
    out: Out = Path("output"),
    episodes: Annotated[int, typer.Option(help="Number of episodes.")] = 64,
    rounds: Annotated[int, typer.Option(help="Rounds per episode.")] = 100,
    seed: Seed = 0,
) -> None:
    """Write a self-contained HTML report that opens offline, and print its path."""
    from reports.build import build

    typer.echo(build(model, out=out, n_episodes=episodes, n_rounds=rounds, seed=seed))


@app.command("verify", cls=ManyValues)
@refusing
def verify(
    model: ModelName,
    experts: Annotated[list[int] | None, typer.Option(help="Numbers of experts.")] = None,
    states: Annotated[list[int] | None, typer.Option(help="Numbers of states.")] = None,
    actions: Annotated[list[int] | None, typer.Option(help="Numbers of actions.")] = None,
    rounds: Annotated[int, typer.Option(help="Rounds per episode.")] = 1000,
    episodes: Annotated[int, typer.Option(help="Episodes per size.")] = 20,
    variant: Annotated[str | None, typer.Option(help="Variant of the circuit.")] = None,
    seed: Seed = 0,
) -> None:
    """Compare a handwired model with its algorithm; exit 1 when any variable is not exact."""
    from itertools import product

    from circuits.verification import verify as check

    sizes: list[Any] | None = experts
    if states or actions:
        sizes = list(product(states or [4], actions or [3]))
    extra = {} if variant is None else {"variant": variant}
    result = check(model, sizes, n_rounds=rounds, n_episodes=episodes, seed=seed, **extra)
    show(result.summary(), title=f"{model}: largest difference from the algorithm")
    typer.echo("exact within tolerance" if result.passed else f"NOT exact: {len(result.failures)} checks failed")
    raise typer.Exit(0 if result.passed else 1)


@command
def train(
    model: Annotated[str, typer.Argument(help="wma, wma-wide or qlearning.")],
    preset: Annotated[str, typer.Option(help="laptop or paper.")] = "laptop",
    out: Out = Path("output/training"),
    name: Annotated[str, typer.Option(help="Name of the trained model; its run is kept in OUT/NAME.")] = "",
    config: Annotated[Path | None, typer.Option(help="TOML file of fields to override.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="FIELD=VALUE (a TOML value); repeatable.")] = None,
    processes: Annotated[int, typer.Option(help="Processes that torchrun started; refused if fewer run.")] = 1,
) -> None:
    """Train a model, or resume its training, and print the folder of the checkpoint."""
    from interp.training import config as settings
    from interp.training.trainer import train as run

    chosen = settings.preset(model, preset)
    overrides = settings.read_toml(config) if config else {}
    for assignment in set_ or []:
        overrides |= settings.parse_assignment(assignment)
    name = name or f"{model}-{preset}"
    typer.echo(run(settings.override(chosen, overrides), out / name, name=name, n_processes=processes))


if __name__ == "__main__":
    app()
