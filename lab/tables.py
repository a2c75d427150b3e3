"""Tables that ``python -m lab calibrate`` writes: how often comparisons err on known machines.

* ``machines``: the verdicts on every known machine (:mod:`lab.known`), beside the right ones;
* ``unseen``: the same for machines that were written down before any of them was compared;
* ``resolution``: how small a deviation is detected (:mod:`lab.resolution`).
"""

from __future__ import annotations

import hashlib
from collections import Counter
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
from interp.support.workers import bar, run_on_workers, share
from lab import known, resolution
from lab.known import scores, unseen

DRAWS = 5
"""Further sizes drawn for each known machine that has a size; errors on these are counted, too."""


@dataclass(frozen=True)
class Table:
    """A table that ``python -m lab calibrate`` writes, part by part.

    Attributes:
        parts: quick -> names of its parts, each of which is computed and stored separately.
        make: (quick, name of a part) -> rows of the part.
        summary: whole table -> a text.
        depends: returns further settings that parts depend on, such as a digest of the comparison's
            source. Stored parts with other settings are computed again.
    """

    parts: Callable[[bool], Sequence[str]]
    make: Callable[[bool, str], pd.DataFrame]
    summary: Callable[[pd.DataFrame], str]
    depends: Callable[[], Mapping[str, Any]] = dict


def budget(quick: bool) -> compare.Budget:
    """Return the quick or the full budget of a comparison."""
    return compare.Budget.quick() if quick else compare.Budget()


def list_machines(quick: bool) -> list[str]:
    """Return the names of the parts of the table "machines", such as "experts: itself"."""
    parts = []
    for task in known.TASKS:
        parts += [f"{task}: {key}" for key in known.gallery(task, DRAWS)]
    return parts


def compare_machine(quick: bool, part: str) -> pd.DataFrame:
    """Return the row of one known machine, which ``part`` names as ``"TASK: KEY"``."""
    task, _, key = part.partition(": ")
    return _compare_with_reference(known.gallery(task, DRAWS)[key], quick)


def _compare_with_reference(specimen: known.Specimen, quick: bool) -> pd.DataFrame:
    """Return the row of a machine: the verdicts of a comparison, beside the right ones."""
    row = scores.score(specimen, known.reference(specimen.task), budget(quick))
    return pd.DataFrame([row])


def list_unseen(quick: bool) -> list[str]:
    """Return the parts of the table "unseen", such as "experts: bits"."""
    return list(unseen.gallery())


def compare_unseen(quick: bool, part: str) -> pd.DataFrame:
    """Return the row of one machine of the table "unseen", ``"TASK: KEY"``."""
    return _compare_with_reference(unseen.gallery()[part], quick)


def list_deviations(quick: bool) -> list[str]:
    """Return the names of the parts of the table "resolution", such as "experts: lag, 1, 0"."""
    parts = []
    for deviation in resolution.deviations().values():
        for size in deviation.sizes:
            for seed in range(resolution.SEEDS[quick]):
                parts.append(f"{deviation.key}, {size:g}, {seed}")
    return parts


def compare_deviation(quick: bool, part: str) -> pd.DataFrame:
    """Return the row of one deviating machine, which ``part`` names as ``"TASK: NAME, SIZE,
    SEED"``.
    """
    key, size, seed = part.split(", ")
    row = resolution.measure(key, float(size), seed=int(seed), budget=budget(quick))
    return pd.DataFrame([row])


@cache
def digest_rules() -> dict[str, str]:
    """Return a hash of the source of comparisons, and of the lab with its known machines and
    deviations, since other source gives other verdicts.
    """
    digest = hashlib.sha256()
    for module_file in (str(compare.__file__), __file__):  # of circuits.compare, and of lab
        for path in sorted(Path(module_file).parent.rglob("*.py")):
            digest.update(path.read_bytes())
    return {"rules": digest.hexdigest()}


TABLES: dict[str, Table] = {
    "machines": Table(
        parts=list_machines, make=compare_machine, summary=scores.summary, depends=digest_rules
    ),
    "unseen": Table(
        parts=list_unseen, make=compare_unseen, summary=scores.summary, depends=digest_rules
    ),
    "resolution": Table(
        parts=list_deviations,
        make=compare_deviation,
        summary=resolution.summary,
        depends=digest_rules,
    ),
}
"""The tables of ``python -m lab calibrate``, by name."""


@dataclass(frozen=True)
class Work:
    """Where tables are written, and with which budget.

    Attributes:
        folder: the folder.
        quick: True for the quick budget.
    """

    folder: Path
    quick: bool

    def make(self, name: str, table: Table, part: str) -> pd.DataFrame:
        """Return a part of a table; read it if it is stored, else compute and store it.

        Args:
            name: name of the table.
            table: the table.
            part: name of the part.
        """
        settings = {"quick": self.quick, **table.depends()}
        finished = Finished(self.folder / "parts", settings)

        def compute() -> pd.DataFrame:
            with bar(f"{name} {part}", total=1) as advance:
                frame = table.make(self.quick, part)
                advance(1)
            return frame

        return finished.part(f"{name} {part}", pd.DataFrame, compute)

    def join(self, name: str, table: Table) -> str:
        """Write a table whose parts are all finished; return its path and summary."""
        parts = [self.make(name, table, part) for part in table.parts(self.quick)]
        frame = pd.concat(parts, ignore_index=True)
        path = self.folder / f"{name}{'-quick' if self.quick else ''}.csv"
        write_atomic(path, lambda temporary: frame.to_csv(temporary, index=False))
        return f"{path}\n{table.summary(pd.read_csv(path))}"


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
    """Write ``NAME.csv`` for every table, and yield the summary of each.

    Finished parts are stored in the subfolder ``parts``, so that an interrupted run continues.

    Args:
        folder: folder of the tables.
        quick: True for the quick budget.
        tables: tables by name; :data:`TABLES` when None.
        n_jobs: number of workers, see :func:`interp.support.workers.run_on_workers`.
        scheduler: address of a dask scheduler, see there.
        shard: compute only this share of the parts, see :func:`interp.support.workers.share`; the
            yielded text counts them.
    """
    tables = TABLES if tables is None else tables
    work = Work(writable(folder), quick)
    items = [(name, table, part) for name, table in tables.items() for part in table.parts(quick)]
    n_left = Counter(name for name, _, _ in items)  # unfinished parts of each table
    chosen = share(items, shard)
    for name in run_on_workers(_make_part, work, chosen, n_jobs=n_jobs, scheduler=scheduler):
        n_left[name] -= 1
        # A table is written once its last part is finished, by a command that computes all parts.
        if n_left[name] == 0 and not shard:
            yield work.join(name, tables[name])
    if shard:
        yield f"{shard}: {len(chosen)} of {len(items)} parts are in {work.folder / 'parts'}"


def _make_part(work: Work, item: tuple[str, Table, str]) -> str:
    """Compute a part of a table; return the table's name."""
    name, table, part = item
    work.make(name, table, part)
    return name
