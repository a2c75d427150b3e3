"""``interp models``: what can be loaded."""

from __future__ import annotations

from itertools import groupby

import typer

from interp.cli.command import Say, command
from interp.foreign import plain


@command(example="interp models --json")
def _models(say: Say) -> None:
    """List what can be loaded, task by task; with --quiet, the names alone."""
    from interp import tasks
    from interp.library import models as records

    known = records()
    say.facts(models=[vars(record) for record in known])
    width = max(len(record.name) for record in known)
    for key, of_task in groupby(known, lambda record: record.task):
        say.line(f"{key}: {tasks.get(key).what}")
        for record in of_task:
            say.line(f"  {record.name:{width}} {record.kind:10} {record.description}")
    if say.quiet and not say.as_json:
        typer.echo(plain("\n".join(record.name for record in known)))
