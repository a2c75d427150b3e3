"""``interp choices``: from a table of people's choices to one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from interp.cli import options
from interp.cli.command import Say, command


@command(example="interp choices people.csv --participant subjID --choice choice --reward outcome", torch=True)
def _choices(
    say: Say,
    file: Annotated[Path, typer.Argument(help="A table with a header and a row a trial: CSV, tabs or semicolons.")],
    participant: str = "",
    choice: str = "",
    reward: str = "",
    block: str = "",
    trial: str = "",
    units: Annotated[int, options.number("Numbers that the GRU carries which is held beside the families")] = 2,
    quick: Annotated[bool, typer.Option("--quick", help="Without the GRU, which takes half of the time.")] = False,
    seed: options.Seed = 0,
    out: options.Out = Path("output/choices"),
) -> None:
    """Which algorithm chooses what people, animals or models chose among arms, at which rates? Writes one page.

    Args:
        participant: Column that says whose trial a row is.
        choice: Column of what was chosen; a row without a choice is a missed trial.
        reward: Column of what it paid.
        block: Column of blocks, where a participant has several.
        trial: Column by which trials are ordered.
    """
    from reports.choices import write

    columns = {"participant": participant, "choice": choice, "reward": reward, "block": block, "trial": trial}
    given = {name: column for name, column in columns.items() if column}
    page, found = write(file, out, units=units, quick=quick, seed=seed, **given)
    say.line(found)
    for name, beside in found.beside.items():
        say.line(f"as {name} chooses: {beside.measure}")
    say.table(found.to_frame(), "Families, the best first", "families")
    say.facts(closest=found.closest, parameters=dict(found.parameters), measures=[found.measure.to_dict()])
    say.wrote([page])
