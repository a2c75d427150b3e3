"""``interp llm open``: look into a chat model while it learns."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from interp.cli import options
from interp.cli.command import Say, command, llm_app


@command("open", example="interp llm open PATH --episodes 32 --rounds 10 --every 3", group=llm_app)
def _open_model(
    say: Say,
    model: Annotated[str, typer.Argument(help="Folder, .gguf file or name of a chat model.")],
    out: options.Out = Path("output/llm-open"),
    regime: Annotated[str, typer.Option(help="Expert regime.")] = "stratified",
    episodes: Annotated[int, options.number("Number of episodes", 10)] = 32,
    rounds: Annotated[int, options.number("Rounds per episode")] = 10,
    condition: Annotated[str, typer.Option(help="online-no-note or weather-no-note.")] = "online-no-note",
    every: Annotated[int, options.number("Look after every so many blocks")] = 1,
    expert: Annotated[int, options.number("The expert whose vote is patched in the last round, counted from 0", 0)] = 2,
    device: options.Device = "cpu",
    batch: Annotated[int, options.number("Episodes at a time")] = 8,
    seed: options.Seed = 0,
) -> None:
    """Open a chat model while it learns: probe each expert's record, patch one vote; tables as CSV."""
    import pandas as pd

    import probes
    from interp.files import write_text
    from interp.llm.opened import Opened, sample
    from interp.progress import working

    played = sample(episodes, rounds, regime, seed)
    options.to_be_written(out)
    with working(f"opening {model}"):
        opened = Opened.load(model, device, condition=condition)
        names = opened.residuals(every)
        run = opened.play(played, names, batch)
        patched = opened.patch_vote(played, expert, rounds - 1, names, batch)
        blank = Opened.load(model, device, untrained=seed, condition=condition).play(played, names, batch)
        target = probes.targets.get("counts")(played, "before")
        fitted = [
            probes.fit(run.at(name), target, untrained=blank.at(name), seed=seed).to_frame().assign(site=name)
            for name in names
        ]
    tables = {"probe": pd.concat(fitted), "patch": patched.to_frame()}
    for name, table in tables.items():
        say.table(table, name, name)
        say.wrote([write_text(out / f"{name}.csv", table.to_csv(index=False))])
