"""``interp verify``: compare every variable of a handwired model with its algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

import interp.tasks
from interp.cli import options
from interp.cli.command import Say, command
from interp.support.errors import require
from interp.support.files import folder_to_write

_NOT_ARGUMENTS = ("name", "sizes", "n_rounds", "n_episodes", "dtype", "circuit_seed")
"""Arguments of verification that are none of a circuit."""


@command(
    example="interp verify qlearning-handwired --states 2 4 --actions 3 --set gamma=0.5",
    sizes="several",
    needs_torch=True,
    more=options.CIRCUIT_ARGUMENTS,
)
def _verify(
    say: Say,
    sizes: Mapping[str, list[int]],
    model: options.HandwiredName,
    episodes: Annotated[
        int | None,
        options.number_option(
            "Number of episodes for each combination of sizes, 20 by default, 5 with --quick"
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        options.number_option("Number of rounds of an episode, 200 by default, 100 with --quick"),
    ] = None,
    quick: bool = False,
    arguments: options.Set = None,
    dtype: list[str] | None = None,
    seed: int = 0,
    device: str = "cpu",
    out: Path | None = None,
) -> None:
    """Compare every variable of a handwired model with its algorithm. The exit code is 1 if a variable is not exact.

    A size, such as --experts, may have several numbers, and every combination of sizes is checked. The default sizes
    are those for which the model is exact. For a machine of your own with a known state (interp.adapt with read=),
    predictions and state are checked.

    Args:
        dtype: Float type in which the model is checked: float64, float32 or both; by default both.
        quick: Use a quarter of the episodes and half of the rounds.
        out: Folder for verification.csv and verification.json; without --out these files are not written.
    """
    from circuits import verification
    from circuits.registry import DTYPES, get_record
    from interp.model import library
    from interp.support.files import write_json

    if out is not None:
        folder_to_write(out)
    run: dict[str, Any] = {
        "n_rounds": rounds or (100 if quick else 200),
        "n_episodes": episodes or (5 if quick else 20),
        "seed": seed,
    }
    kinds = {record.name: record.kind for record in library.models()}
    if kinds.get(model) == "built" or (model not in kinds and Path(model).is_dir()):
        require(not dtype, f"{model!r} has the dtype that it is built in: leave --dtype out")
        built = options.load(model, _require_single_numbers(model, sizes), arguments, device)
        result = verification.verify_machine(built.model, **run)
    else:
        grid = _list_combinations(model, get_record(model).task, sizes)
        settings = _parse_circuit_arguments(arguments)
        result = verification.verify(
            model, grid, dtype=dtype or DTYPES, device=device, **run, **settings
        )
    say.measures(result)
    facts = {"model": model, "exact": result.passed}
    say.facts(**facts, failures=len(result.failures), settings=dict(result.settings))
    checks = result.summary()
    tolerance_shares = checks["error"] / checks["tolerance"].clip(lower=1e-300)
    worst_first = tolerance_shares.sort_values(ascending=False, na_position="first", kind="stable")
    title = f"{model}: largest difference from the algorithm, worst first"
    say.table(checks.loc[worst_first.index], title, "checks")
    if out is not None:
        say.tables(out, {"verification": result.table()})
        say.files([write_json(out / "verification.json", {**facts, **result.settings})])
    raise typer.Exit(0 if result.passed else 1)


def _require_single_numbers(model: str, sizes: Mapping[str, list[int]]) -> dict[str, int]:
    """Return the sizes of a machine that can be built in one combination of sizes only; refuse
    several numbers for a size.

    Args:
        model: name of the machine, for the error message.
        sizes: name of an option -> numbers.

    Returns:
        Name of an option -> its number.
    """
    for option, numbers in sizes.items():
        require(
            len(numbers) == 1,
            f"{model!r} is built in one size at a time: give --{option} one number",
        )
    return {option: numbers[0] for option, numbers in sizes.items()}


def _list_combinations(
    model: str, task_key: str, sizes: Mapping[str, list[int]]
) -> list[Any] | None:
    """Return a list of all combinations of ``sizes``, each a tuple, with defaults for the task's
    other sizes; None if ``sizes`` is empty.

    Args:
        model: name of the model, for the error message.
        task_key: key of the model's task.
        sizes: name of an option -> numbers.
    """
    task = interp.tasks.get(task_key)
    options.name_sizes(task, model, sizes)
    numbers = [sizes.get(size.option, [size.default]) for size in task.sizes]
    return list(product(*numbers)) if sizes else None


def _parse_circuit_arguments(arguments: list[str] | None) -> dict[str, Any]:
    """Return the arguments with which a circuit is built: name -> value.

    Args:
        arguments: ``NAME=VALUE`` pairs of the option ``--set``; ``seed`` becomes the circuit's
            seed, not that of the episodes.
    """
    settings = options.parse_settings(arguments or ())
    for name in _NOT_ARGUMENTS:
        require(
            name not in settings,
            f"{name!r} is no argument of a circuit, which is all that --set takes",
        )
    # Another seed than that of the episodes.
    settings["circuit_seed"] = settings.pop("seed", None)
    return settings
