"""What ``python -m lab calibrate`` writes: how often a comparison errs on machines that are known.

* ``machines``: what it says of every known machine (:mod:`lab.known`), and what is right;
* ``resolution``: how small a deviation it answers with "no" (:mod:`lab.resolution`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from circuits import compare
from interp.support.checks import checked
from interp.support.files import writable, write_atomic
from interp.support.session import Finished
from interp.support.workers import bar, each, share
from lab import known, resolution
from lab.known import scores

Advance = Callable[[int], None]
DRAWS = 5
"""Sizes drawn of each known machine that has a size, beside the one of the table: errors of them are counted, too."""


def _whole(quick: bool) -> Sequence[str]:
    return ("",)


@dataclass(frozen=True)
class Table:
    """A table that ``python -m lab calibrate`` writes, and its summary as text.

    ``make`` takes (quick, advance) and calls ``advance`` with the steps done; ``n_steps`` is their number, by quick.

    Attributes:
        parts: names of what a long table is made of, by quick: ``make`` takes (quick, advance, part) then, and each
            part is made, kept, and worked on beside the others by itself.
        depends: what else its parts depend on, such as a digest of the rules that they apply: parts that were made
            under others are made again.
    """

    make: Callable[..., pd.DataFrame]
    n_steps: Mapping[bool, int]
    summary: Callable[[pd.DataFrame], str]
    parts: Callable[[bool], Sequence[str]] = _whole
    depends: Callable[[], Mapping[str, Any]] = dict


def machines(quick: bool, advance: Advance, part: str) -> pd.DataFrame:
    """The row of one known machine, ``"TASK: KEY"``, at quick or full budget."""
    task, _, key = part.partition(": ")
    row = scores.score(
        known.gallery(task, DRAWS)[key],
        known.reference(task),
        compare.Budget.quick() if quick else compare.Budget(),
    )
    advance(1)
    return pd.DataFrame([row])


def every_machine(quick: bool) -> tuple[str, ...]:
    """The parts of the table "machines"."""
    return tuple(f"{task}: {key}" for task in known.TASKS for key in known.gallery(task, DRAWS))


@cache
def rules() -> dict[str, str]:
    """A digest of the source of comparison and of the known machines: words under other rules are other words."""
    rooms = (Path(one.__file__).parent for one in (compare, known) if one.__file__)
    sources = [path.read_bytes() for room in rooms for path in sorted(room.glob("*.py"))]
    return {"rules": hashlib.sha256(b"".join(sources)).hexdigest()}


def deviations(quick: bool, advance: Advance, part: str) -> pd.DataFrame:
    """The words on one deviation, ``"TASK: NAME, SIZE, SEED"``, at quick or full budget."""
    key, size, seed = part.split(", ")
    row = resolution.measure(
        key, float(size), int(seed), compare.Budget.quick() if quick else compare.Budget()
    )
    advance(1)
    return pd.DataFrame([row])


def every_deviation(quick: bool) -> tuple[str, ...]:
    """The parts of the table "resolution"."""
    every, seeds = resolution.deviations().values(), range(resolution.SEEDS[quick])
    return tuple(
        f"{one.key}, {size:g}, {seed}" for one in every for size in one.sizes for seed in seeds
    )


TABLES: dict[str, Table] = {
    "machines": Table(machines, {True: 1, False: 1}, scores.summary, every_machine, rules),
    "resolution": Table(
        deviations, {True: 1, False: 1}, resolution.summary, every_deviation, rules
    ),
}
"""Written by ``python -m lab calibrate``."""


@checked
def write(
    folder: str | Path,
    quick: bool = False,
    tables: Mapping[str, Table] | None = None,
    *,
    n_jobs: int = 1,
    scheduler: str = "",
    shard: str = "",
) -> Iterator[str]:
    """Write ``NAME.csv`` for every table, and give each one's summary.

    Finished parts are kept in ``parts``: an interrupted run goes on with the next one. ``n_jobs`` and ``scheduler`` are
    for parts side by side, as :func:`interp.support.workers.each` takes them. With a ``shard``
    (:func:`interp.support.workers.share`)
    only its parts are made and kept, and the text says how many.
    """
    tables = TABLES if tables is None else tables
    shared = writable(folder), quick
    left = {name: len(table.parts(quick)) for name, table in tables.items()}
    items = [(name, table, part) for name, table in tables.items() for part in table.parts(quick)]
    own = share(items, shard)
    for name in each(_made, shared, own, n_jobs=n_jobs, scheduler=scheduler):
        left[name] -= 1
        if not left[name] and not shard:
            yield _written(*shared, name, tables[name])
    if shard:
        yield f"{shard}: {len(own)} of {len(items)} parts are in {shared[0] / 'parts'}"


def _made(shared: tuple[Path, bool], item: tuple[str, Table, str]) -> str:
    """Make a part of a table unless it was finished before; the table's name."""
    name, table, part = item
    _part(*shared, name, table, part)
    return name


def _part(folder: Path, quick: bool, name: str, table: Table, part: str) -> pd.DataFrame:
    """A part of a table: read where it was kept, else made and kept."""

    def made() -> pd.DataFrame:
        with bar(f"{name} {part}".strip(), total=table.n_steps[quick]) as advance:
            return table.make(quick, advance, *([part] if part else []))

    finished = Finished(folder / "parts", {"quick": quick, **table.depends()})
    return finished.part(f"{name} {part}".strip(), pd.DataFrame, made)


def _written(folder: Path, quick: bool, name: str, table: Table) -> str:
    """Write a table whose parts are finished; its path and summary."""
    frame = pd.concat(
        [_part(folder, quick, name, table, part) for part in table.parts(quick)], ignore_index=True
    )
    path = folder / f"{name}{'-quick' if quick else ''}.csv"
    write_atomic(path, lambda temporary: frame.to_csv(temporary, index=False))
    return f"{path}\n{table.summary(pd.read_csv(path))}"
