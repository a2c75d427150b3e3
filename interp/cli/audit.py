"""``interp audit``: is what a model carries used, for what, when, how does it move, and is it a shortcut?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from interp.cli import options
from interp.cli.command import Say, command
from interp.files import folder_to_write


@command(example="interp audit wma-learned --quick", sizes="one", torch=True, more=options.CIRCUIT_ARGUMENTS)
def _audit(
    say: Say,
    sizes: options.Sizes,
    model: options.ModelName,
    quick: Annotated[bool, typer.Option("--quick", help="Half of the episodes, with wider intervals.")] = False,
    report: Annotated[bool, typer.Option("--report", help="Write a page as well.")] = False,
    arguments: options.Set = None,
    seed: options.Seed = 0,
    device: options.Device = "cpu",
    out: options.Out = Path("output/audits"),
) -> None:
    """Check eleven claims that critics of latent reasoning doubt: is the carried state really used?"""
    from dataclasses import replace

    from interp.audit import FULL, QUICK
    from interp.audit import audit as ask
    from interp.files import write_csv, write_json

    machine = options.load(model, sizes, arguments, device).model
    folder = folder_to_write(out / Path(model).name)
    found = ask(machine, effort=replace(QUICK if quick else FULL, seed=seed))
    say.measures(found)
    say.facts(model=found.model, settings=dict(found.settings))
    frames = {"measures": found.to_frame(), **found.tables}
    written = [write_csv(folder / f"{name}.csv", frame) for name, frame in frames.items() if len(frame)]
    written.append(write_json(folder / "audit.json", {"model": found.model, "settings": dict(found.settings)}))
    if report:
        from reports.build import write
        from reports.parts import audit as part

        page = write(machine, folder, n_episodes=16, seed=seed, parts=[part.part(found)], source=model, quick=quick)
        written.append(page.path)
    say.wrote(written)
