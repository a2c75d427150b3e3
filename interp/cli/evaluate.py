"""``interp models``: list the models; ``interp evaluate``: measure how well a model predicts;
``interp audit``: check what it uses its state for.

An audit runs six robustness checks of the state that a model carries from round to round. Is it
used, by its content, and for how long? Can the algorithm's memory be decoded, and from how many
directions?
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

import interp.tasks
from interp.cli import options
from interp.cli.command import Say, command
from interp.support import shares
from interp.support.files import folder_to_write, read_json, write_json
from interp.support.foreign import escape_invisible


@command(
    example="interp audit wma-learned wma-gru --quick", needs_torch=True, **options.OF_A_MACHINE
)
def _audit(
    say: Say,
    sizes: Mapping[str, int],
    load_options: Mapping[str, Any],
    models: Annotated[
        list[str],
        typer.Argument(
            help="Names of models, from `interp models`, or checkpoint folders.",
            autocompletion=options.model_names,
        ),
    ],
    quick: bool = False,
    report: bool = False,
    seed: int = 0,
    out: Path = Path("output/audits"),
    shard: options.Shard = "",
) -> None:
    """Run six robustness checks of each model: does it use its state, for how long, and for what?

    Args:
        quick: Use a third of the episodes; intervals are wider.
    """
    files = {name: f"{options.name_folder(name)}/audit.json" for name in models}
    # With digests of the checkpoints and of the table of recorded episodes (--recorded), a model is
    # audited again if one of these files was changed.
    digests = options.digest_files([*models, *(load_options.get("recorded") or [])])
    settings = {"quick": quick, "seed": seed, "sizes": sizes, **load_options, **digests}
    for name in shares.iterate_undone(out, files, settings, shard):
        _audit_one(say, name, sizes, load_options, quick=quick, report=report, seed=seed, out=out)
    if not shard:
        audits = [read_json(out / file) for file in files.values()]
        facts = audits[0] if len(audits) == 1 else {"audits": audits}
        say.facts(**facts)
    options.print_share_done(say, out, shard)


def _audit_one(
    say: Say,
    model: str,
    sizes: Mapping[str, int],
    load_options: Mapping[str, Any],
    *,
    quick: bool,
    report: bool,
    seed: int,
    out: Path,
) -> None:
    """Audit one model, and print and write the result.

    Args:
        say: prints the output of the command.
        model: name or folder of the model.
        sizes, load_options, quick, report, seed, out: values of the options of ``interp audit``.
    """
    from interp.audit import Budget
    from interp.audit import audit as run_audit

    machine = options.load_for_analysis(
        say, model, sizes, accepts_sizes=False, **load_options
    ).model
    folder = folder_to_write(out / options.name_folder(model))
    budget = Budget.quick() if quick else Budget()
    result = run_audit(machine, budget=replace(budget, seed=seed))
    settings = {"model": result.model, "settings": dict(result.settings)}
    say.measures(result)
    say.tables(folder, {"measures": result.to_frame(), **result.tables})
    if report:
        from reports.build import write
        from reports.parts import audit as audit_part

        page = write(
            machine,
            folder,
            n_episodes=result.settings["episodes"],  # at least one of each recorded participant
            n_rounds=result.settings["rounds"],
            seed=seed,
            parts=[audit_part.part(result)],
            source=model,
            quick=quick,
        )
        say.files([page.path])
    say.files([write_json(folder / "audit.json", settings)])


@command(
    example="interp evaluate wma-learned --episodes 32",
    sizes="one",
    needs_torch=True,
    more=options.CIRCUIT_ARGUMENTS,
)
def _evaluate(
    say: Say,
    sizes: Mapping[str, int],
    model: options.ModelName,
    episodes: Annotated[
        int | None,
        options.number_option(
            "Number of episodes of each regime, 128 by default, 32 with --quick", 16
        ),
    ] = None,
    quick: bool = False,
    arguments: options.Set = None,
    seed: int = 0,
    device: str = "cpu",
    out: Path = Path("output/evaluation"),
    jobs: Annotated[
        int, options.number_option("Number of regimes or tables that are measured at the same time")
    ] = 1,
    scheduler: str = "",
    shard: options.Shard = "",
) -> None:
    """Measure how well a model predicts, compared with baselines and controls; write tables and figures to OUT/MODEL.

    The task determines which regimes and which numbers of rounds are measured; the tables name both.
    """
    loaded = options.load(model, sizes, arguments, device).model
    from interp.evaluation import suite
    from interp.support.workers import bar

    folder = folder_to_write(out / options.name_folder(model))
    n_parts = len(suite.plan_of(loaded).parts(loaded))
    with bar(f"evaluating {loaded.name}", n_parts) as done:
        result = suite.evaluate(
            loaded,
            n_episodes=episodes or (32 if quick else 128),
            seed=seed,
            done=done,
            n_jobs=jobs,
            scheduler=scheduler,
            folder=folder / "parts",
            shard=shard,
        )
    if result is None:
        options.print_share_done(say, folder / "parts", shard)
        return
    result.write(folder)
    from reports.evaluation import save

    save(result.tables, folder)
    say.facts(model=loaded.name, settings=result.settings, measured=_list_model_rows(result.tables))
    say.line(result.sentence)
    say.table(result.tables["summary"], f"{loaded.name}: summary", "summary")
    for name, sentence in result.notes.items():
        say.line(f"{name}: {sentence}")
    say.files([folder])


@command(example="interp models --json")
def _models(say: Say) -> None:
    """List the models that can be loaded, grouped by task; with --quiet, print only their names."""
    from interp.model.library import models as records

    known = records()  # those of a task stand together
    say.facts(models=[vars(record) for record in known])
    width = max(len(record.name) for record in known)
    for key, of_task in groupby(known, lambda record: record.task):
        say.line(f"{key}: {interp.tasks.get(key).what}")
        for record in of_task:
            say.line(f"  {record.name:{width}} {record.kind:10} {record.description}")
    if say.quiet and not say.as_json:
        for record in known:
            typer.echo(escape_invisible(record.name))


def _list_model_rows(tables: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows about the model itself from the tables of an evaluation that have estimates
    with intervals.

    Args:
        tables: the tables of the evaluation, by name.

    Returns:
        Name of a table -> its rows, without those of baselines. The column estimate is renamed to
        value, as docs/schema.json has it.
    """
    measured = {}
    for name, table in tables.items():
        if {"estimate", "low", "high"} <= set(table.columns):
            rows = table[table["key"] == "model"] if "key" in table else table
            measured[name] = rows.rename(columns={"estimate": "value"}).to_dict("records")
    return measured
