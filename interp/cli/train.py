"""``interp train``: train a model; ``interp curves``: draw the learning curves of training runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import interp.tasks
from interp.cli import options
from interp.cli.command import Say, command
from interp.support import shares
from interp.support.checks import folder_name
from interp.support.errors import require, require_known
from interp.support.files import folder_to_write, require_free, write_csv, write_figure
from interp.support.workers import keep_freed_memory, one_thread, show_spinner

if TYPE_CHECKING:
    from interp.training.config import TrainingConfig

_task_keys = options.make_completer(lambda: [task.key for task in interp.tasks.list_tasks()])
_Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="FIELD=VALUE: a training setting that overrides the preset, with a value as in TOML; may be repeated.",
    ),
]


@command(
    example="interp train experts --preset laptop --name mine --experts 2 8 --seed 1",
    sizes="several",
    more="With recorded choices: interp train bandit --machine gru --units 2 --recorded people.csv\n"
    "Tasks and their presets:\n<interp.training.goal:presets>",
)
def _train(
    say: Say,
    sizes: Mapping[str, list[int]],
    task: Annotated[
        str,
        typer.Argument(
            help="Key of the task that is learned; the tasks are listed below.",
            autocompletion=_task_keys,
        ),
    ],
    preset: str = "laptop",
    name: str = "",
    machine: list[str] | None = None,
    units: Annotated[
        int | None,
        options.number_option("Number of hidden units of the machine that --machine names"),
    ] = None,
    recorded: list[str] | None = None,
    config: Path | None = None,
    overrides: _Overrides = None,
    regime: list[str] | None = None,
    seed: int | None = None,
    device: str = "auto",
    out: Path = Path("output/training"),
    processes: Annotated[
        int,
        options.number_option(
            "Number of processes of this training, which torchrun must have started"
        ),
    ] = 1,
    keep_every: Annotated[
        int,
        options.number_option(
            "Store a checkpoint in OUT/NAME/kept after every N training steps; 0 stores none", 0
        ),
    ] = 0,
    seeds: str = "",
    shard: options.Shard = "",
) -> None:
    """Train a model, or resume its training, and print the folder of the checkpoint.

    With --recorded, a GRU or LSTM is fitted to the choices in FILE, and scored on other participants.

    A size, such as --experts, is one number, or the smallest and the largest number. Training runs on an accelerator
    if there is one.

    Args:
        preset: Name of the preset of training settings; the presets of each task are listed below.
        name: Name of the trained model, which is stored in OUT/NAME.
        machine: Train this machine instead of a transformer: gru, lstm, loop, mamba, thoughts, or a
            name that your module registers (`interp --import MODULE train ...`); arguments follow
            as NAME=VALUE.
        config: TOML file with settings that override the preset.
        regime: Names of the regimes from which episodes are drawn in turn; by default those of the preset.
        seed: Seed of all random numbers; by default the seed of the preset.
        seeds: Train a model for each seed of the range FIRST:AFTER-LAST, such as 0:16, in OUT/NAME/seed-SEED.
        device: Device on which the model is trained: cpu, cuda or mps; auto takes an accelerator if there is one.
    """
    from interp.training import config as settings
    from interp.training import goal

    require(
        seeds or not shard,
        "--shard divides seeds: give --seeds, such as 0:16, or leave it out",
    )
    require(not seeds or seed is None, "give --seed or --seeds, not both")
    machine_words = _complete_machine_words(task, machine, units)
    if recorded:
        others = {
            "--config": config,
            "--set": overrides,
            "--regime": regime,
            "all sizes": sizes,
            "--preset": preset != "laptop",
            "--device": device != "auto",
            "--processes": processes > 1,
            "--seeds": seeds,
            "--keep-every": keep_every,
        }
        options.refuse_unused_options(
            "--recorded says what is learned, by a few steps on all of it", others
        )
        name = folder_name("--name", name or f"{task}-recorded")
        _fit_cell(say, task, machine_words, recorded=recorded, name=name, seed=seed, out=out)
        return
    base = goal.preset(task, preset)
    changes: dict[str, Any] = settings.read_toml(config) if config else {}
    for assignment in overrides or []:
        changes = settings.merge(changes, settings.parse_assignment(assignment))
    changes = settings.merge(
        changes, _collect_changes(task, sizes, regime, seed=seed, machine=machine_words)
    )
    chosen = settings.replace_fields(base, changes)
    name = folder_name("--name", name or f"{task}-{preset}")

    train_one = partial(
        _train_run, say, n_processes=processes, device=device, keep_every=keep_every
    )
    folder = folder_to_write(out / name)
    say.facts(name=name, preset=preset)
    if not seeds:
        say.files(train_one(chosen, folder, name))
        return
    _train_seeds(
        say, train_one, chosen, seeds=options.parse_range(seeds), folder=folder, shard=shard
    )


def _train_seeds(
    say: Say,
    train_one: partial[list[Path]],
    config: TrainingConfig,
    *,
    seeds: tuple[int, int],
    folder: Path,
    shard: str,
) -> None:
    """Train a run for each seed of a range. If the work is divided, train only the runs of this
    command's share.

    Args:
        say: prints the output of the command.
        train_one: function from (configuration, folder, name) that trains one run; its keywords are
            settings of all runs.
        config: configuration of all runs; its seed is replaced.
        seeds: the first seed, and the one after the last.
        folder: folder for the folders of the runs.
        shard: share of the seeds, such as "2/64"; "" for all.
    """
    numbers = {f"seed {number}": number for number in range(*seeds)}
    files = {part: f"seed-{number}/model" for part, number in numbers.items()}
    settings = {**config.to_dict(), "seed": list(seeds), **train_one.keywords}
    for part in shares.iterate_undone(folder, files, settings, shard):
        number = numbers[part]
        seed_config = replace(config, seed=number)
        name = f"{folder.name}-{number}"
        say.files(train_one(seed_config, folder / f"seed-{number}", name))
    options.print_share_done(say, folder, shard)


def _train_run(
    say: Say,
    config: TrainingConfig,
    folder: Path,
    name: str,
    *,
    n_processes: int,
    device: str,
    keep_every: int,
) -> list[Path]:
    """Train one run, or resume it, and print the precision of its numbers.

    Args:
        say: prints the output of the command.
        config: configuration of the run.
        folder: folder of the run.
        name: name of the model.
        n_processes: number of processes of this training, which torchrun must have started.
        device: device on which the model is trained.
        keep_every: store a checkpoint after every so many training steps; 0 stores none.

    Returns:
        A list with the folder of the checkpoint; an empty list in all processes of torchrun but the
        first.
    """
    # torchrun numbers its processes: all come here, one says so.
    is_first = os.environ.get("RANK", "0") == "0"
    require_free(folder)
    with show_spinner("importing torch"):
        from interp.training.hardware import choose_precision, kind_of
        from interp.training.trainer import train
    precision, because = choose_precision(config, folder, kind_of(device))
    say.facts(settings=config.to_dict(), precision=precision, precision_because=because)
    if is_first:
        say.line(f"precision: {precision} ({because})")
    checkpoint = train(
        config, folder, name=name, n_processes=n_processes, device=device, keep_every=keep_every
    )
    return [checkpoint] if is_first else []


def _complete_machine_words(task: str, machine: list[str] | None, units: int | None) -> list[str]:
    """Return the name of a machine's builder, followed by its arguments as NAME=VALUE; an empty
    list for a transformer.

    Args:
        task: key of the task, which completes names such as "gru" to "gru-bandit".
        machine: the words of ``--machine``; None for a transformer.
        units: number of hidden units; None for the builder's default.
    """
    words = list(machine or [])
    # These builders have a variant for each task, such as "gru-bandit".
    if words and words[0] in ("gru", "lstm", "loop", "mamba", "thoughts"):
        words[0] = f"{words[0]}-{task}"
    if units is not None:
        require(words, "--units are of a --machine: give gru, say, or leave --units out")
        words.append(f"width={units}")
    return words


def _collect_changes(
    task: str,
    sizes: Mapping[str, list[int]],
    regimes: list[str] | None,
    *,
    seed: int | None,
    machine: list[str],
) -> dict[str, Any]:
    """Return the fields of a training configuration that options change, as a nested dictionary:
    name of a field -> value.

    Args:
        task: key of the task.
        sizes: name of an option -> one number, or the smallest and the largest number.
        regimes: names of the regimes from which episodes are drawn in turn.
        seed: seed of all random numbers; None leaves that of the preset.
        machine: name of a builder and its arguments; empty for a transformer.
    """
    changes: dict[str, Any] = {}
    ranges = {}
    for size, numbers in options.name_sizes(interp.tasks.get(task), task, sizes).items():
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
        arguments = options.parse_settings(pairs, "--machine")
        changes["machine"] = {"builder": builder, "arguments": arguments}
    return changes


def _fit_cell(
    say: Say,
    task: str,
    machine: list[str],
    *,
    recorded: list[str],
    name: str,
    seed: int | None,
    out: Path,
) -> None:
    """Fit a recurrent cell to recorded choices, save the cell, and print its loss on participants
    that it was not fitted to.

    Args:
        say: prints the output of the command.
        task: key of the task.
        machine: name of the cell's builder, and its arguments as NAME=VALUE.
        recorded: FILE, and names of columns.
        name: name of the model.
        seed: seed of all random numbers.
        out: folder in which the model's folder is created.
    """
    kind = machine[0].removesuffix(f"-{task}") if machine else "none"
    arguments = options.parse_settings(machine[1:], "--machine")
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
    folder = folder_to_write(out / name)
    require_free(folder)
    require(
        not (folder / "model").exists(),
        f"{str(folder / 'model')!r} exists already; give another --name, or remove it",
    )
    episodes = options.read(interp.tasks.get(task), recorded)
    with show_spinner("importing torch"):
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
    # The model is written last, by one rename: a run that is killed before is made again.
    table = write_csv(folder / "held_out.csv", cell.participants)
    say.files([save_checkpoint(cell.machine, folder / "model"), table])


@command(example="interp curves output/training/seed-0 output/training/seed-1")
def _curves(say: Say, runs: list[Path], out: Path = Path("output/curves")) -> None:
    """Draw the learning curves of several training runs of one task, grouped by the settings in which the runs differ.
    A curve is the loss above the floor, the lowest possible loss.

    Args:
        runs: Folders of training runs, such as output/training/NAME.
    """
    from interp.training.runs import LEARNING_FILE, learning_curves, over_seeds
    from reports.parts.learning import draw

    curves = learning_curves(runs)
    table = write_csv(out / LEARNING_FILE, curves)
    drawn = draw(curves, name_of_floor="the floor").figure
    figure = write_figure(out / "learning.svg", drawn, bbox_inches="tight")
    last = over_seeds(curves).groupby("setting", sort=False).tail(1)
    say.table(last, "Loss above the floor, last shared step", "last")
    say.files([table, figure])
