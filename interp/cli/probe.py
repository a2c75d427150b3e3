"""``interp probe``: decode an algorithm's variables from a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import interp.tasks
from interp.cli import options
from interp.cli.command import Say, command
from interp.errors import require
from interp.files import folder_to_write

_SiteName = Annotated[str, typer.Option(help="Such as latents or resid_post[1]@p?: <probes.command:site_names>.")]


@command(
    example="interp probe wma-learned --targets log_weights counts --site latents",
    sizes="one",
    torch=True,
    more=options.CIRCUIT_ARGUMENTS,
)
def _probe(
    say: Say,
    sizes: options.Sizes,
    model: options.ModelName,
    targets: Annotated[list[str] | None, typer.Option(help="<probes.command:target_names>.")] = None,
    site: _SiteName = "latents",
    sweep: Annotated[bool, typer.Option("--sweep", help="Everywhere: component x layer x position.")] = False,
    windows: Annotated[list[str] | None, typer.Option(help="Rounds of a sweep, such as 0:10 10:100.")] = None,
    episodes: Annotated[int | None, options.number("Number of episodes, 256 by default, 64 with --quick", 5)] = None,
    quick: options.Quick = False,
    rounds: Annotated[int | None, options.number("Rounds per episode; 100 by default, or what the task has")] = None,
    regime: options.Regime = "",
    arguments: options.Set = None,
    seed: options.Seed = 0,
    device: options.Device = "cpu",
    out: options.Out = Path("output/probes"),
    jobs: Annotated[int, typer.Option(help="Workers of a sweep; -1 for one per core.")] = -1,
    scheduler: options.Scheduler = "",
    shard: options.Shard = "",
) -> None:
    """Decode an algorithm's variables from a model, with controls; a sweep resumes from OUT."""
    require(sweep or not shard, "--shard divides the parts of a sweep: give --sweep, too, or leave it out")
    require(sweep or not windows, "--windows are rounds of a sweep: give --sweep, too, or leave them out")
    chosen = options.load(model, sizes, arguments, device, sampled=True)
    loaded = chosen.model
    from interp.workers import working
    from probes import command as run

    n_episodes, n_rounds = episodes or (64 if quick else 256), rounds or interp.tasks.of(loaded).at_most(100)
    spans = [run.window(text) for text in windows] if windows else None
    sampled = run.sample(loaded, n_episodes, n_rounds, seed, regime, chosen.sizes)
    folder = out / Path(model).name
    say.facts(model=loaded.name, n_episodes=n_episodes, n_rounds=n_rounds, regime=sampled.regime, seed=seed)
    if not sweep:
        with working("fitting probes"):
            results = run.fit_at(loaded, sampled, targets or [], site, seed, folder)
        say.measures(*results)
        for warning in dict.fromkeys(fitted.warning for fitted in results if fitted.warning):
            say.aside(warning)
        say.wrote([folder])
        return
    folder_to_write(folder)
    cache = folder / "cells"
    swept = run.sweep(
        loaded, sampled, targets, windows=spans, seed=seed, cache=cache, n_jobs=jobs, scheduler=scheduler, shard=shard
    )
    if shard:
        say.line(f"{shard}: {len(swept.frame)} rows are in {cache}")
        return
    run.write_sweep(swept, folder)
    say.facts(cells=len(swept.frame), settings=swept.settings)
    say.wrote([folder])
