"""``interp train`` and ``interp curves``: models from gradient descent, and how they learned."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import interp.tasks
from interp.cli import options
from interp.cli.command import Say, command
from interp.support.checks import folder_name
from interp.support.errors import require, require_known
from interp.support.files import folder_to_write, require_free, write_csv, write_figure
from interp.support.workers import keep_freed_memory, one_thread, working

_task_keys = options.completing(lambda: [task.key for task in interp.tasks.every()])
_Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="FIELD=VALUE, values as in TOML; several.")
]


@command(
    example="interp train experts --preset laptop --name mine --experts 2 8 --seed 1",
    sizes="several",
    more="Of recorded choices: interp train bandit --machine gru --units 2 --recorded people.csv\n"
    "Tasks and their presets:\n<interp.training.goal:presets>",
)
def _train(
    say: Say,
    sizes: Mapping[str, list[int]],
    task: Annotated[
        str, typer.Argument(help="Key of a task, listed below.", autocompletion=_task_keys)
    ],
    preset: str = "laptop",
    name: str = "",
    machine: list[str] | None = None,
    units: Annotated[int | None, options.number("Numbers that the --machine carries")] = None,
    recorded: list[str] | None = None,
    config: Path | None = None,
    overrides: _Overrides = None,
    regime: list[str] | None = None,
    seed: int | None = None,
    device: str = "auto",
    out: Path = Path("output/training"),
    processes: Annotated[
        int, options.number("Processes that torchrun started; refused if fewer run")
    ] = 1,
) -> None:
    """Train a model, or resume its training, and print the folder of the checkpoint.

    With --recorded a gru or lstm is fitted to the choices in FILE, and scored on participants that it was not fitted
    to.

    A size takes one number, or the smallest and the largest. It runs on the accelerator where the machine has one.

    Args:
        preset: One of the task's presets, listed below.
        name: Name of the trained model; its run is kept in OUT/NAME.
        machine: In place of a transformer: gru, lstm, loop, mamba, thoughts, or a name that your module registered
            (`interp --import MODULE train ...`); and arguments, NAME=VALUE.
        config: TOML file of fields to override.
        regime: Regimes drawn in turn; the preset's by default.
        seed: Seed of everything random; the preset's by default.
        device: Where it trains: cpu, cuda or mps; auto takes what there is.
    """
    from interp.training import config as settings
    from interp.training import goal

    machine_words = _machine_words(task, machine, units)
    if recorded:
        others: dict[str, Any] = {
            "--config": config,
            "--set": overrides,
            "--regime": regime,
            "sizes": sizes,
            "--preset": preset != "laptop",
            "--device": device != "auto",
        }
        for option, value in others.items():
            require(
                not value,
                f"--recorded says what is learned, by a few steps on all of it; leave {option} out",
            )
        name = folder_name("--name", name or f"{task}-recorded")
        _fit_recorded(say, task, machine_words, recorded=recorded, name=name, seed=seed, out=out)
        return
    base = goal.preset(task, preset)
    changes: dict[str, Any] = settings.read_toml(config) if config else {}
    for assignment in overrides or []:
        changes = settings.merge(changes, settings.parse_assignment(assignment))
    changes = settings.merge(
        changes, _changes(task, sizes, regime, seed=seed, machine=machine_words)
    )
    chosen = settings.override(base, changes)
    name = folder_name("--name", name or f"{task}-{preset}")

    # torchrun numbers its processes: all come here, one says so.
    is_first = os.environ.get("RANK", "0") == "0"
    folder_to_write(out / name)
    require_free(out / name)
    with working("importing torch"):
        from interp.training.hardware import choose_precision, kind_of
        from interp.training.trainer import train as run
    precision, because = choose_precision(chosen, out / name, kind_of(device))
    say.facts(
        name=name,
        preset=preset,
        settings=chosen.to_dict(),
        precision=precision,
        precision_because=because,
    )
    if is_first:
        say.line(f"precision: {precision} ({because})")
    written = run(chosen, out / name, name=name, n_processes=processes, device=device)
    say.wrote([written] if is_first else [])


def _machine_words(task: str, machine: list[str] | None, units: int | None) -> list[str]:
    """Return the builder of a machine and its arguments; empty for a transformer."""
    words = list(machine or [])
    if words and words[0] in ("gru", "lstm", "loop", "mamba", "thoughts"):
        words[0] = f"{words[0]}-{task}"
    if units is not None:
        require(bool(words), "--units are of a --machine: give gru, say, or leave --units out")
        words.append(f"width={units}")
    return words


def _changes(
    task: str,
    sizes: Mapping[str, list[int]],
    regimes: list[str] | None,
    *,
    seed: int | None,
    machine: list[str],
) -> dict[str, Any]:
    """Return the fields of a configuration that options change.

    Args:
        task: its key.
        sizes: one number of each, or the smallest and the largest.
        regimes: drawn in turn.
        seed: of everything random.
        machine: its builder and arguments; empty for a transformer.
    """
    changes: dict[str, Any] = {}
    ranges = {}
    for size, numbers in options.sizes_of(interp.tasks.get(task), task, sizes).items():
        require(
            len(numbers) <= 2,
            f"{size} takes one number, or the smallest and the largest, got {numbers}",
        )
        ranges[size] = [min(numbers), max(numbers)]
    if ranges:
        changes["sizes"] = ranges
    if regimes:
        changes["regimes"] = regimes
    if seed is not None:
        changes["seed"] = seed
    if machine:
        builder, *pairs = machine
        arguments = options.settings_of(pairs, "--machine")
        changes["machine"] = {"builder": builder, "arguments": arguments}
    return changes


def _fit_recorded(
    say: Say,
    task: str,
    machine: list[str],
    *,
    recorded: list[str],
    name: str,
    seed: int | None,
    out: Path,
) -> None:
    """Fit a cell to recorded episodes, save it, and say what it loses on each participant.

    Args:
        say: of the command.
        task: its key.
        machine: the cell and its arguments.
        recorded: FILE, and names of columns.
        name: of the model.
        seed: of everything random.
        out: folder in which the model's folder is made.
    """
    kind = machine[0].removesuffix(f"-{task}") if machine else "none"
    arguments = options.settings_of(machine[1:], "--machine")
    require(
        kind in ("gru", "lstm"),
        f"--recorded is fitted by a cell: give --machine gru or lstm, got {kind!r}",
    )
    for argument in arguments:
        require_known(
            "argument of a cell that is fitted to --recorded",
            argument,
            ("width", "steps", "n_folds"),
        )
    folder_to_write(out / name)
    require_free(out / name)
    episodes = options.read(interp.tasks.get(task), recorded)
    with working("importing torch"):
        from interp.choices.recorded import fit_cell
        from interp.model.checkpoints import save_checkpoint
    keep_freed_memory()
    with one_thread():
        cell = fit_cell(
            episodes, kind, units=arguments.pop("width", 2), seed=seed or 0, **arguments
        )
    cell.machine.name = name
    say.facts(
        name=name,
        nats=cell.nats,
        rounds=int(episodes.counted.sum()),
        participants=len(cell.participants),
    )
    say.line(f"{episodes}\n{cell.sentence}")
    folder = save_checkpoint(cell.machine, out / name / "model")
    say.wrote([folder, write_csv(out / name / "held_out.csv", cell.participants)])


@command(example="interp curves output/training/seed-0 output/training/seed-1")
def _curves(say: Say, runs: list[Path], out: Path = Path("output/curves")) -> None:
    """Draw the learning curves of several runs of one task, grouped by the settings in which they differ.

    Args:
        runs: Folders of training runs, such as output/training/NAME.
    """
    from interp.training.runs import LEARNING_FILE, learning_curves, over_seeds
    from reports.parts.learning import draw

    curves = learning_curves(runs)
    table = write_csv(out / LEARNING_FILE, curves)
    drawn = draw(curves, "the floor").figure
    figure = write_figure(out / "learning.svg", drawn, bbox_inches="tight")
    last = over_seeds(curves).groupby("setting", sort=False).tail(1)
    say.table(last, "Loss above the floor, last shared step", "last")
    say.wrote([table, figure])
