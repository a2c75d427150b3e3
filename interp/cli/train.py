"""``interp train`` and ``interp curves``: models from gradient descent, and how they learned."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import interp.tasks
from interp.checks import folder_name
from interp.cli import options
from interp.cli.command import Say, command
from interp.errors import require
from interp.files import folder_to_write, require_free, write_csv, write_figure
from interp.workers import working

_task_keys = options.completing(lambda: {task.key: task for task in interp.tasks.every()})
_Overrides = Annotated[list[str] | None, typer.Option("--set", help="FIELD=VALUE, values as in TOML; several.")]


@command(
    example="interp train experts --preset laptop --name mine --experts 2 8 --seed 1",
    sizes="several",
    more="Tasks and their presets:\n<interp.training.goal:presets>",
)
def _train(
    say: Say,
    sizes: Mapping[str, list[int]],
    task: Annotated[str, typer.Argument(help="Key of a task, listed below.", autocompletion=_task_keys)],
    preset: str = "laptop",
    name: str = "",
    machine: list[str] | None = None,
    config: Path | None = None,
    overrides: _Overrides = None,
    regime: list[str] | None = None,
    seed: int | None = None,
    device: str = "auto",
    out: options.Out = Path("output/training"),
    processes: Annotated[int, options.number("Processes that torchrun started; refused if fewer run")] = 1,
) -> None:
    """Train a model, or resume its training, and print the folder of the checkpoint.

    A size takes one number, or the smallest and the largest. It runs on the accelerator where the machine has one.

    Args:
        preset: One of the task's presets, listed below.
        name: Name of the trained model; its run is kept in OUT/NAME.
        machine: A machine of your own in place of a transformer: the name that a module registered it by (`interp
            --import MODULE train ...`), and arguments of its builder, NAME=VALUE.
        config: TOML file of fields to override.
        regime: Regimes drawn in turn; the preset's by default.
        seed: Seed of everything random; the preset's by default.
        device: Where it trains: cpu, cuda or mps; auto takes what there is.
    """
    from interp.training import config as settings
    from interp.training import goal

    given = goal.preset(task, preset)
    changed: dict[str, Any] = settings.read_toml(config) if config else {}
    for assignment in overrides or []:
        changed = settings.merge(changed, settings.parse_assignment(assignment))
    several = options.sizes_of(interp.tasks.get(task), task, sizes)
    for size, numbers in several.items():
        require(len(numbers) <= 2, f"{size} takes one number, or the smallest and the largest, got {numbers}")
    ranges = {size: [min(numbers), max(numbers)] for size, numbers in several.items()}
    values = {"sizes": ranges or None, "regimes": regime or None, "seed": seed}
    asked: dict[str, Any] = {field: value for field, value in values.items() if value is not None}
    if machine:
        asked["machine"] = {"builder": machine[0], "arguments": options.settings_of(machine[1:], "--machine")}
    chosen = settings.override(given, settings.merge(changed, asked))
    name = folder_name("--name", name or f"{task}-{preset}")

    first = os.environ.get("RANK", "0") == "0"  # torchrun numbers its processes: all come here, one says so
    folder_to_write(out / name)
    require_free(out / name)
    with working("importing torch"):
        from interp.training.trainer import kind_of, taken
        from interp.training.trainer import train as run
    precision, because = taken(chosen, out / name, kind_of(device))
    say.facts(name=name, preset=preset, settings=chosen.to_dict(), precision=precision, precision_because=because)
    if first:
        say.line(f"precision: {precision} ({because})")
    written = run(chosen, out / name, name=name, n_processes=processes, device=device)
    say.wrote([written] if first else [])


@command(example="interp curves output/training/seed-0 output/training/seed-1")
def _curves(
    say: Say,
    runs: list[Path],
    out: options.Out = Path("output/curves"),
) -> None:
    """Draw the learning curves of several runs of one task, grouped by the settings in which they differ.

    Args:
        runs: Folders of training runs, such as output/training/NAME.
    """
    from interp.training.runs import LEARNING_FILE, learning_curves, over_seeds
    from reports.parts.learning import draw

    found = learning_curves(runs)
    written = [write_csv(out / LEARNING_FILE, found)]
    written.append(write_figure(out / "learning.svg", draw(found, "the floor"), bbox_inches="tight"))
    last = over_seeds(found).groupby("setting", sort=False).tail(1)
    say.table(last, "Loss above the floor, last shared step", "last")
    say.wrote(written)
