"""Pages: ``interp report`` about a model, ``interp explore`` of one that runs, ``interp choices`` about players."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

import interp.tasks
from interp.cli import options
from interp.cli.command import Say, command
from interp.support.checks import seed_of
from interp.support.files import folder_to_write


@command(
    example="interp choices people.csv --participant subjID --choice choice --reward outcome",
    of={"columns": interp.tasks.bandit.read},
    torch=True,
)
def _choices(
    say: Say,
    columns: Mapping[str, Any],
    file: Annotated[
        Path,
        typer.Argument(
            help="A table with a header and a row a trial: CSV, tabs, semicolons or JSON lines; plain or compressed."
        ),
    ],
    units: Annotated[
        int, options.number("Numbers that the GRU carries which is held beside the families")
    ] = 2,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Of all participants alone: without the GRU, each of them, and recovery.",
        ),
    ] = False,
    seed: int = 0,
    out: Path = Path("output/choices"),
) -> None:
    """Which algorithms explain what people, animals or models chose among arms, at which rates? Writes one page."""
    from reports.choices import write

    episodes = interp.tasks.bandit.read(file, **columns)
    say.line(episodes.reading.summary())
    say.facts(read=episodes.reading.to_dict())
    how: dict[str, Any] = {"units": units, "quick": quick, "seed": seed, "episodes": episodes}
    page, found = write(file, out, **how, **columns)
    say.line(found.sentence)
    for name, beside in found.beside.items():
        say.line(f"beside {name}: {beside.measure}")
    say.table(found.to_frame(), "Families, the best first", "families")
    if found.algorithm:
        used = " ".join(f"{name}={value:.4g}" for name, value in found.parameters.items())
        say.line(
            f"to use it in probe, audit, compare, patch and report: --hypothesis {found.closest} {used}"
        )
    say.facts(
        closest=found.closest,
        set=list(found.confidence_set),
        verdict=found.verdict,
        parameters=dict(found.parameters),
        measures=[found.measure.to_dict()],
    )
    say.wrote([page])


@command(example="interp explore wma-learned-additive", torch=True, **options.OF_A_MACHINE)
def _explore(
    say: Say,
    sizes: Mapping[str, int],
    how: Mapping[str, Any],
    model: options.ModelName,
    reference: Annotated[
        str,
        typer.Option(
            help="Another machine of the task, run beside it.", autocompletion=options.model_names
        ),
    ] = "",
    view: str = "",
    port: Annotated[
        int, options.number("Port of the page; any free one by default", 0, most=65535)
    ] = 0,
    seed: int = 0,
) -> None:
    """Serve a live page of a model on this computer, print its address, and go on until interrupted.

    Args:
        view: What is shown first: the query of an address that was kept.
    """
    from reports.explore.server import Explorer, Served
    from reports.explore.view import View

    shown = View.of(view)
    shown, chosen = (
        replace(shown, seed=seed_of(seed) or shown.seed),
        options.study(say, model, sizes, False, **how),
    )
    other = options.load(reference, {}, None, how.get("device", "cpu")).model if reference else None
    given = "".join(f", {name}={value!r}" for name, value in chosen.arguments.items())
    told = "".join(f" --{name} {value}" for name, value in sizes.items())
    told += "".join(f" --set {pair}" for pair in how.get("arguments") or ())
    told += "".join(
        f" --{name} {' '.join(how[name])}" for name in ("recorded", "hypothesis") if how.get(name)
    )
    origin = f"interp.load({model!r}{given})"
    served = Served(
        Explorer(chosen.model, other, origin, f"interp explore {model}{told}"), port, shown
    )
    address = served.address
    typer.echo(json.dumps({"command": "explore", "address": address}) if say.as_json else address)
    served.run()
    raise typer.Exit(0)


@command(example="interp report wma-handwired --experts 4", torch=True, **options.OF_A_MACHINE)
def _report(
    say: Say,
    sizes: Mapping[str, int],
    how: Mapping[str, Any],
    model: options.ModelName,
    quick: bool = False,
    episodes: Annotated[
        int | None,
        options.number(
            "Number of episodes; 64 by default, 16 with --quick, or one of each recorded participant",
            5,
        ),
    ] = None,
    rounds: Annotated[
        int | None, options.number("Rounds per episode; 100 by default, 20 with --quick", 2)
    ] = None,
    regime: options.Regime = "",
    seed: int = 0,
    out: Path = Path("output"),
) -> None:
    """Write a self-contained HTML report that opens offline, and print its path; exit 1 when a part of it failed.

    Args:
        quick: Less of everything: 8 to 22 CPU seconds for a model that ships.
    """
    from reports.build import write

    folder_to_write(out)
    chosen = options.study(say, model, sizes, True, **how)
    people = interp.tasks.of(chosen.model).recorded.get("participants", 0)
    n_episodes = episodes or max(16 if quick else 64, people)
    of: dict[str, Any] = {
        "source": model,
        "regime": regime,
        "sizes": chosen.sizes,
        "arguments": chosen.arguments,
    }
    written = write(
        chosen.model, out, n_episodes=n_episodes, n_rounds=rounds, seed=seed, quick=quick, **of
    )
    say.wrote([written.path])
    say.facts(
        measures=[one.to_dict() for one in written.measures], not_computed=dict(written.failures)
    )
    raise typer.Exit(1 if written.failures else 0)
