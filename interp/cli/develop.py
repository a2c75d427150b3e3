"""``interp develop``: when a model becomes its algorithm, over the states that its training kept."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from interp.cli import options
from interp.cli.command import Say, command
from interp.support.files import digest_of, folder_to_write, write_csv, write_figure


@command(
    example="interp develop output/training/wma/seed-0 output/training/wma/seed-1 --reference wma-handwired",
    torch=True,
)
def _develop(
    say: Say,
    runs: list[Path],
    reference: str = "",
    every: Annotated[int, options.number("Only every so many of the kept states")] = 1,
    seed: int = 0,
    out: Path = Path("output/development"),
    shard: options.Shard = "",
) -> None:
    """Compare every kept state of trainings with a reference: one table and one figure over steps.

    Args:
        runs: Folders of training runs that kept states: `interp train ... --keep-every 100`.
        reference: Name of the model that each state is held against; algorithms alone when empty.
    """
    from dataclasses import replace

    import pandas as pd

    from circuits.compare import development
    from interp.training.runs import kept

    folder_to_write(out)
    budget = replace(development.BUDGET, seed=seed)
    makers = {}
    contents = {}
    for folder in runs:
        for step, path in list(kept(folder).items())[::every]:
            name = f"{folder.name} step {step}"
            makers[name] = partial(development.measure_state, path, reference or None, budget)
            contents[name] = digest_of(name, [path.read_bytes()])
    settings = {"reference": reference, "seed": seed, "states": contents}
    with options.in_shares(say, out, makers, settings, shard) as parts:
        if shard:
            return
        tables = {}
        for name in ("measures", "families"):
            tables[name] = pd.concat([part[name] for part in parts.values()], ignore_index=True)
        written = [write_csv(out / f"{name}.csv", table) for name, table in tables.items()]
        figure = development.draw(tables["measures"])
        written.append(write_figure(out / "development.svg", figure))
    for sentence in development.first_steps(tables["measures"]):
        say.line(sentence)
    say.table(tables["measures"][["key", "step", "seed", "number", "verdict"]], "claims", "claims")
    say.wrote(written)
