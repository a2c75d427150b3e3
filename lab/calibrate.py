"""``python -m lab calibrate``: the instruments on data whose truth is known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from interp.cli import options
from interp.cli.command import Commands, Say, command, main
from interp.support.errors import require_known


def tables() -> dict[str, Any]:
    """Every table by name, in the order in which they are written."""
    from lab import interchanges, probing

    return {**probing.TABLES, **interchanges.TABLES}


def _names() -> str:
    """The names of the tables, for the help, which says those that take long."""
    return ", ".join(
        f"{name} (long)" if table.takes_long else name for name, table in tables().items()
    )


table_names = options.completing(tables)
app = typer.Typer(
    name="lab",
    cls=Commands,
    help="What measures the toolkit itself.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.callback()(main)


@command(example="python -m lab calibrate --quick", group=app, torch=True)
def calibrate(
    say: Say,
    out: Path = Path("output/calibration"),
    table: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this table; several may be given: <lab.calibrate:_names>. All but the long ones, "
            "which take hours, when none is given.",
            autocompletion=table_names,
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option(help="Small tables, in minutes instead of an hour.")
    ] = False,
    jobs: Annotated[
        int, options.number("Tables, and parts of long ones, that are worked on at once")
    ] = 1,
    scheduler: str = "",
    shard: options.Shard = "",
) -> None:
    """Measure the toolkit's instruments on data whose truth is known; finished tables, and parts of them, are kept."""
    from lab import probing

    summaries, known = [], tables()
    for name in table or ():
        require_known("table of calibrate", name, known)
    asked = table or [name for name, one in known.items() if not one.takes_long]
    chosen = {name: known[name] for name in asked}
    for text in probing.write(out, quick, chosen, n_jobs=jobs, scheduler=scheduler, shard=shard):
        say.line(f"{text}\n")
        summaries.append(text)
    say.facts(summaries=summaries)
