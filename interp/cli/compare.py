"""``interp compare``: whether two models behave, hold state and compute alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from interp.cli import options
from interp.cli.command import Say, command
from interp.model.library import handwired_models, models
from interp.support.errors import require
from interp.support.files import folder_to_write, write_csv


def _players(say: Say, traces: Path, machines: list[Any], seed: int, out: Path) -> None:
    """What the players of some traces choose like, and whether as ``machines`` do."""
    from interp.choices.behaviour import behaviour, behaviour_tables
    from interp.llm.loading import read
    from reports.blocks import joined

    reading = read(traces)
    for sentence in reading.sentences[1:]:
        say.aside(sentence)
    folder = folder_to_write(
        out / f"{traces.name}-against-{machines[0].name if machines else 'none'}"
    )
    acts = behaviour(reading.runs, seed, machines)
    for one in acts:
        say.line(str(one))
        for name, beside in one.found.beside.items() if one.found else ():
            say.line(f"{one.model}, {one.condition}, {one.regime}, beside {name}: {beside.measure}")
    tables = {name: table for name, table in behaviour_tables(acts).items() if len(table)}
    if "machines" in tables:
        say.table(joined(tables["machines"]), "Do players choose as a model does?", "machines")
    say.wrote([write_csv(folder / f"{name}.csv", table) for name, table in tables.items()])


@command(
    example="interp compare wma-learned-additive wma-handwired --quick",
    sizes="one",
    torch=True,
    more=options.CIRCUIT_ARGUMENTS,
)
def _compare(
    say: Say,
    sizes: Mapping[str, int],
    model: options.ModelName,
    reference: Annotated[
        str,
        typer.Argument(
            help="What it is held against: another model, or 'none' for algorithms alone; the handwired model of its "
            "task when empty.",
            autocompletion=options.model_names,
        ),
    ] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="About a quarter of the work, with wider intervals.")
    ] = False,
    report: bool = False,
    episodes: Annotated[
        int | None,
        options.number(
            "Episodes that are scored; maps are fitted on two or three times as many", 8
        ),
    ] = None,
    rounds: Annotated[
        int | None, options.number("Rounds per episode; 30 by default, 20 with --quick", 3)
    ] = None,
    recorded: list[str] | None = None,
    hypothesis: list[str] | None = None,
    arguments: options.Set = None,
    seed: int = 0,
    device: str = "cpu",
    out: Path = Path("output/comparisons"),
) -> None:
    """Compare a model with another, the handwired one by default: behaviour, state, update and circuit, with intervals.

    MODEL may be a folder of traces of `interp llm run`, of whose players only the choices are seen. Which algorithm
    explains them, and do they choose as the other model does ('none' asks no model)?

    --set is for MODEL where it is built, else for REFERENCE: qlearning-taught --set beta=10.
    """
    from interp.llm.loading import holds_runs

    if holds_runs(model):
        require(
            not (recorded or hypothesis),
            "traces are recorded already: leave --recorded and --hypothesis out",
        )
        held_against = (
            []
            if reference in ("", "none")
            else [options.load(reference, sizes, arguments, device).model]
        )
        _players(say, Path(model), held_against, seed, out)
        return
    is_built = any(record.name == model and record.kind != "learned" for record in models())
    subject = options.load(model, sizes, arguments if is_built else None, device).model
    options.use(say, subject, recorded, hypothesis)
    of_reference = {} if is_built else options.settings_of(arguments or ())
    from circuits import compare as room

    held = reference or next(iter(handwired_models(subject.layout.task)), "none")
    budget = replace(room.Budget.quick() if quick else room.Budget(), seed=seed)
    if rounds is not None:
        budget = budget.of_rounds(rounds)
    if episodes is not None:
        budget = replace(budget, test=episodes, known=round(episodes * budget.known / budget.test))
    folder = folder_to_write(out / f"{Path(model).name}-against-{Path(held).name}")
    other = None if held == "none" else held
    found = room.machines(subject, other, budget=budget, folder=folder, arguments=of_reference)
    say.measures(found)
    say.line(f"{found.model}: {found.algorithm.sentence}")
    if of_reference:
        say.line(
            f"{found.reference} has {', '.join(f'{name}={value}' for name, value in of_reference.items())}"
        )
    kept = ("model", "reference", "sentence", "algorithm", "settings")
    say.facts(**{key: value for key, value in found.to_dict().items() if key in kept})
    written = found.save(folder)
    if report:
        from reports.comparison import write

        written.append(write(found, folder))
    say.wrote(written)
