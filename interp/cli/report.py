"""``interp report``: one page about a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from interp.cli import options
from interp.cli.command import Say, command
from interp.files import folder_to_write


@command(example="interp report wma-handwired --experts 4", sizes="one", torch=True, more=options.CIRCUIT_ARGUMENTS)
def _report(
    say: Say,
    sizes: options.Sizes,
    model: options.ModelName,
    quick: bool = False,
    episodes: Annotated[int | None, options.number("Number of episodes; 64 by default, 16 with --quick", 5)] = None,
    rounds: Annotated[int | None, options.number("Rounds per episode; 100 by default, 20 with --quick", 2)] = None,
    regime: options.Regime = "",
    arguments: options.Set = None,
    seed: options.Seed = 0,
    device: options.Device = "cpu",
    out: options.Out = Path("output"),
) -> None:
    """Write a self-contained HTML report that opens offline, and print its path; exit 1 when a part of it failed.

    Args:
        quick: Less of everything: 4 to 30 CPU seconds for a model that ships.
    """
    from reports.build import write

    folder_to_write(out)
    chosen = options.load(model, sizes, arguments, device, sampled=True)
    written = write(
        chosen.model,
        out,
        n_episodes=episodes or (16 if quick else 64),
        n_rounds=rounds,
        seed=seed,
        source=model,
        regime=regime,
        sizes=chosen.sizes,
        arguments=chosen.arguments,
        quick=quick,
    )
    say.wrote([written.path])
    say.facts(measures=[one.to_dict() for one in written.measures], not_computed=dict(written.failures))
    raise typer.Exit(1 if written.failures else 0)
