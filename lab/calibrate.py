"""``python -m lab calibrate``: run comparisons on machines for which the right result is known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from interp.cli import options
from interp.cli.command import Commands, Say, command, main
from interp.support.errors import require_known


def _names() -> str:
    """Return the names of the tables, for the command's help."""
    from lab.tables import TABLES

    return ", ".join(TABLES)


def _complete_name(incomplete: str) -> list[str]:
    """Return the names of tables that begin with ``incomplete``, for shell completion."""
    return [name for name in _names().split(", ") if name.startswith(incomplete)]


app = typer.Typer(
    name="lab",
    cls=Commands,
    help="What measures the toolkit itself.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.callback()(main)


@command(example="python -m lab calibrate --table machines --quick", group=app, needs_torch=True)
def calibrate(
    say: Say,
    out: Path = Path("output/calibration"),
    table: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this table; several may be given: <lab.calibrate:_names>. All when none is given.",
            autocompletion=_complete_name,
        ),
    ] = None,
    quick: Annotated[bool, typer.Option(help="Small tables, in an hour instead of a day.")] = False,
    jobs: Annotated[int, options.number_option("Parts of tables that are worked on at once")] = 1,
    scheduler: str = "",
    shard: options.Shard = "",
) -> None:
    """Measure how often comparisons err on known machines.

    Finished tables and parts of tables are stored, so that an interrupted run continues.
    """
    from lab import tables

    names = table or list(tables.TABLES)
    for name in names:
        require_known("table of calibrate", name, tables.TABLES)
    chosen = {name: tables.TABLES[name] for name in names}
    summaries = []
    for text in tables.write(out, quick, chosen, n_jobs=jobs, scheduler=scheduler, shard=shard):
        say.line(f"{text}\n")
        summaries.append(text)
    say.facts(summaries=summaries)
