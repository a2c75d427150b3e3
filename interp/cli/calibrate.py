"""``interp calibrate``: the instruments on data whose truth is known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from interp.cli import options
from interp.cli.command import Say, command


@command(example="interp calibrate --quick", torch=True)
def calibrate(
    say: Say,
    out: options.Out = Path("output/calibration"),
    quick: Annotated[bool, typer.Option(help="Small tables, in minutes instead of an hour.")] = False,
    jobs: Annotated[int, options.number("Tables that are worked on at once")] = 1,
    scheduler: options.Scheduler = "",
) -> None:
    """Measure the toolkit's instruments on data whose truth is known; finished tables are kept."""
    from circuits import calibration as machines
    from probes import calibration

    summaries = []
    tables = {**calibration.TABLES, **machines.TABLES}
    for text in calibration.write(out, quick, tables, n_jobs=jobs, scheduler=scheduler):
        say.line(f"{text}\n")
        summaries.append(text)
    say.facts(summaries=summaries)
