"""Work that several commands divide: the jobs of an array, or commands side by side, each with a share of the parts.

The first of them writes into a folder which parts there are and what all of them depend on (:data:`WORK_FILE`). A
command of other settings, versions or data is refused in that folder by the name of what differs. A part is done once
its file exists, whoever made it; :func:`doing` notes where, by which commit and in how many seconds.

>>> import tempfile
>>> folder, files = tempfile.mkdtemp(), {"a": "a.csv", "b": "b.csv", "c": "c.csv"}
>>> divide(folder, files, {"seed": 0}, "1/2"), divide(folder, files, {"seed": 0}, "2/2")
(['a', 'c'], ['b'])
>>> divide(folder, files, {"seed": 1}, "2/2")
Traceback (most recent call last):
interp.support.errors.InputError: shares in ... were made with seed=0, and this command has seed=1; ...
>>> with doing(folder, "b"):
...     _ = (Path(folder) / "b.csv").write_text("b")
>>> status(folder)["state"].tolist(), describe(folder, "2/2").partition(" in ")[0]
(['absent', 'done', 'absent'], '2/2: 1 of 3 parts are')
"""

from __future__ import annotations

import math
import platform
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interp.support.checks import shown
from interp.support.errors import require
from interp.support.files import digest_of, json_values, read_json, write_json
from interp.support.provenance import git_revision, versions
from interp.support.workers import share

if TYPE_CHECKING:
    import pandas as pd

WORK_FILE = "work.json"
"""Says which parts the work in a folder has, and what they depend on."""
PLAN = "plan"
"""The share of the first part that is not done: what a plan measures."""
_DONE = ".done"
"""The folder of notes on finished parts."""
_MOST_JOBS = 64
_START_SECONDS = 60
"""What a job takes to start, at most."""


def divide(
    folder: str | Path,
    files: Mapping[str, str],
    settings: Mapping[str, Any],
    shard: str = "",
) -> list[str]:
    """Return the parts that a command does: those of its share, or all.

    Args:
        folder: where parts are stored.
        files: every part, and its file below the folder.
        settings: all that the parts depend on.
        shard: as :func:`interp.support.workers.share` takes it; :data:`PLAN` for the first part
            that is not done.

    Raises:
        InputError: the folder holds shares of other settings, versions or parts.
    """
    folder = Path(folder)
    place = folder / WORK_FILE
    work = {"settings": json_values(dict(settings)), "versions": versions(), "parts": dict(files)}
    if place.is_file():
        _require_equal(folder, read_json(place, *work), work)
    elif shard:
        write_json(place, work)
    if shard == PLAN:
        absent = [name for name, file in files.items() if not (folder / file).exists()]
        return absent[:1]
    return list(share(list(files), shard))


def undone(
    folder: str | Path, files: Mapping[str, str], settings: Mapping[str, Any], shard: str = ""
) -> Iterator[str]:
    """Yield the parts that :func:`divide` returns, without those that shares have done, and note each that is made.

    For parts that are results of their own, which no command reads again.

    Args:
        folder, files, settings, shard: as of :func:`divide`.
    """
    names = divide(folder, files, settings, shard)
    is_divided = (Path(folder) / WORK_FILE).is_file()
    for name in names:
        is_done = (Path(folder) / files[name]).exists()
        if not (is_divided and is_done):
            with doing(folder, name):
                yield name


def _require_equal(folder: Path, earlier: Mapping[str, Any], work: Mapping[str, Any]) -> None:
    """Refuse work that differs from what earlier shares began in the folder; the error names what
    differs.

    Args:
        folder: of the work.
        earlier: as it was begun.
        work: of this command.
    """
    for field in ("versions", "settings", "parts"):
        before, now = earlier[field], work[field]
        for name in {**before, **now}:
            old, new = before.get(name), now.get(name)
            require(
                old == new,
                f"shares in {str(folder)!r} were made with {name}={shown(old)}, and this command has "
                f"{name}={shown(new)}; give the same, or another --out; to begin anew remove {WORK_FILE} there",
            )


@contextmanager
def doing(folder: str | Path | None, part: str) -> Iterator[None]:
    """Note a part that is made within the context, and in how many seconds."""
    started = time.monotonic()
    yield
    if folder is not None:
        note(folder, part, time.monotonic() - started)


def note(folder: str | Path, part: str, seconds: float) -> None:
    """Write where a part of divided work was made, by which commit, and in how many seconds.

    Args:
        folder: of the work.
        part: its name.
        seconds: on the clock.
    """
    if (Path(folder) / WORK_FILE).is_file():
        origin = {"host": platform.node(), "commit": git_revision(), "seconds": round(seconds, 1)}
        write_json(_note_file(Path(folder), part), origin)


def _note_file(folder: Path, part: str) -> Path:
    return folder / _DONE / f"{digest_of(part)[:16]}.json"


def end(folder: str | Path) -> None:
    """Remove the record of how the work in a folder was divided, once it is put together."""
    folder = Path(folder)
    shutil.rmtree(folder / _DONE, ignore_errors=True)
    (folder / WORK_FILE).unlink(missing_ok=True)


def status(folder: str | Path) -> pd.DataFrame:
    """Return a row for each part of the work in a folder.

    Returns:
        ``part``; ``state`` (done, partial or absent); and of a finished part ``host``, ``commit`` and ``seconds``.
    """
    import pandas as pd

    folder = Path(folder)
    place = folder / WORK_FILE
    require(
        place.is_file(),
        f"nothing is divided in {str(folder)!r}: it has no {WORK_FILE}; give the folder that a command with --shard "
        "named, before its parts are put together",
    )
    rows = []
    for part, file in read_json(place, "parts")["parts"].items():
        first, *below = Path(file).parts
        state = "absent"
        if (folder / file).exists():
            state = "done"
        elif below and (folder / first).exists():
            state = "partial"
        note_file = _note_file(folder, part)
        origin = read_json(note_file) if note_file.is_file() else {}
        rows.append({"part": part, "state": state, **origin})
    return pd.DataFrame(rows, columns=["part", "state", "host", "commit", "seconds"])


def describe(folder: str | Path, shard: str) -> str:
    """Say how many parts are done; of a plan also what the rest costs, and how to queue it."""
    parts = status(folder)
    n_done = (parts["state"] == "done").sum()
    counted = f"{n_done} of {len(parts)} parts are in {folder}"
    if shard != PLAN:
        return f"{shard}: {counted}" if shard else counted
    n_left = len(parts) - n_done
    seconds = parts["seconds"].median()
    if not n_left or math.isnan(seconds):
        return counted
    gigabytes = max(1, math.ceil(_peak_bytes() / 1e9))
    n_jobs = min(n_left, _MOST_JOBS)
    minutes = math.ceil((_START_SECONDS + 2 * seconds * math.ceil(n_left / n_jobs)) / 60)
    words = [word for word in sys.argv[1:] if word != "--plan"]
    command = f"interp {shlex.join(words)} --shard auto/{n_jobs}"
    return (
        f"{counted}; one took {seconds:.3g} s here, so that the other {n_left} take about "
        f"{seconds * n_left / 60:.3g} minutes in one process, and {gigabytes} GB at most. As an array of jobs:\n"
        f"sbatch --array=1-{n_jobs} --cpus-per-task=1 --mem={gigabytes}G --time={minutes} --wrap {shlex.quote(command)}"
    )


def _peak_bytes() -> float:
    """Return the most memory that this process held."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024.0
