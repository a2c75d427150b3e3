"""Divide work among several commands: jobs of an array, or commands that run side by side.

Each command computes a share of the work's parts. The first command writes into a folder which
parts there are, and all settings that they depend on (:data:`WORK_FILE`). A later command with
other settings, versions or data is refused; the error names what differs. A part is done once its
file exists. A file in a folder of its own may be older than the division of the work. Such a part
is done once :func:`write_note` has also written a note on its host, its commit and its seconds.

>>> import tempfile
>>> folder, files = tempfile.mkdtemp(), {"a": "a.csv", "b": "b.csv", "c": "c.csv"}
>>> divide(folder, files, {"seed": 0}, "1/2"), divide(folder, files, {"seed": 0}, "2/2")
(['a', 'c'], ['b'])
>>> divide(folder, files, {"seed": 1}, "2/2")
Traceback (most recent call last):
interp.support.errors.InputError: shares in ... were made with seed=0, and this command has seed=1; ...
>>> with marked_as_running(folder, "b"):
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

from interp.support.checks import format_value
from interp.support.errors import require
from interp.support.files import digest_of, json_values, read_json, write_json
from interp.support.provenance import git_revision, versions
from interp.support.workers import share

if TYPE_CHECKING:
    import pandas as pd

WORK_FILE = "work.json"
"""File in the folder that lists the parts of the work and what they depend on."""
PLAN = "plan"
"""The value of ``shard`` with which a command computes only the first unfinished part, to measure
how long it takes.
"""
_DONE = ".done"
"""Folder of the notes on finished parts."""
_MOST_JOBS = 64
_START_SECONDS = 60
"""Upper bound on the seconds that a job takes to start."""


def divide(
    folder: str | Path,
    files: Mapping[str, str],
    settings: Mapping[str, Any],
    shard: str = "",
) -> list[str]:
    """Return the names of the parts of a work that the running command should compute. Several
    commands can divide the work: each is started with another ``shard`` and the same folder.

    The first command with a ``shard`` writes :data:`WORK_FILE` into the folder: the parts, and the
    settings and versions that they depend on.

    Args:
        folder: the folder in which every command stores its parts.
        files: name of every part of the whole work -> its file, relative to the folder.
        settings: everything that the parts depend on.
        shard: "2/64" for the second of 64 shares (:func:`interp.support.workers.share`); "" for all
            parts; :data:`PLAN` for the first part that is not done yet, to measure how long one
            part takes.

    Returns:
        The names of all parts of the share, finished or not. For :data:`PLAN`, a list of the first
        unfinished part only; empty if every part is finished.

    Raises:
        InputError: an earlier command began the work in this folder, and the settings, the versions
            of packages or the parts were different.
    """
    folder = Path(folder)
    work_file = folder / WORK_FILE
    work = {"settings": json_values(dict(settings)), "versions": versions(), "parts": dict(files)}
    if work_file.is_file():
        earlier_work = read_json(work_file, *work)  # refused unless it has the same three fields
        _require_equal(folder, earlier_work, work)
    elif shard:
        write_json(work_file, work)
    if shard == PLAN:
        absent = [name for name, file in files.items() if not _is_done(folder, name, file)]
        return absent[:1]
    return list(share(list(files), shard))


def iterate_undone(
    folder: str | Path, files: Mapping[str, str], settings: Mapping[str, Any], shard: str = ""
) -> Iterator[str]:
    """Yield, one after the other, the names of the parts of a work that the running command should
    compute. The caller computes each part, and writes its file, in a loop over the names.

    The parts are those that :func:`divide` returns for ``shard``. If :data:`WORK_FILE` exists in
    the folder, several commands divide the work, and parts that are done are left out. Without this
    file, finished parts are yielded as well, to be computed again. A command with a
    ``shard`` writes the file if it does not exist.

    If the work is divided, each pass of the loop ends with a note, written into the folder, on how
    long the part took. Use this function if a part is a final result that no command reads again.

    Args:
        folder: the folder in which every command stores its parts.
        files: name of every part of the whole work -> its file, relative to the folder.
        settings: everything that the parts depend on.
        shard: "2/64" for the second of 64 shares; "" for all parts; :data:`PLAN` for the first part
            that is not done yet.
    """
    names = divide(folder, files, settings, shard)
    is_divided = (Path(folder) / WORK_FILE).is_file()
    for name in names:
        if not (is_divided and _is_done(Path(folder), name, files[name])):
            with marked_as_running(folder, name):
                yield name


def _require_equal(folder: Path, earlier: Mapping[str, Any], work: Mapping[str, Any]) -> None:
    """Refuse to continue work that was begun with other settings, versions or parts. The error
    names the first difference.

    Args:
        folder: the folder of the work, for the error message.
        earlier: what the first command wrote: "settings", "versions" and "parts", each a mapping.
        work: the same three mappings of this command.

    Raises:
        InputError: an entry of the two records differs.
    """
    for field in ("versions", "settings", "parts"):
        before = earlier[field]
        now = work[field]
        for name in {**before, **now}:  # a name that only one of the two has counts as a difference
            old = before.get(name)
            new = now.get(name)
            require(
                old == new,
                f"shares in {str(folder)!r} were made with {name}={format_value(old)}, and this command has "
                f"{name}={format_value(new)}; give the same, or another --out; to begin anew remove {WORK_FILE} there",
            )


@contextmanager
def marked_as_running(folder: str | Path | None, part: str) -> Iterator[None]:
    """Context manager in which one part of the work is computed. On exit, :func:`write_note` writes how
    many seconds the part took.

    Args:
        folder: the folder of the work; None writes no note.
        part: name of the part.
    """
    started = time.monotonic()
    yield
    if folder is not None:
        write_note(folder, part, time.monotonic() - started)


def write_note(folder: str | Path, part: str, seconds: float) -> None:
    """Write a file about a finished part: the host, the commit and the seconds that the part took.
    No file is written if the work is not divided: the folder then has no :data:`WORK_FILE`.

    Args:
        folder: the folder of the work.
        part: name of the part.
        seconds: seconds that the part took.
    """
    if (Path(folder) / WORK_FILE).is_file():
        origin = {"host": platform.node(), "commit": git_revision(), "seconds": round(seconds, 1)}
        write_json(_note_file(Path(folder), part), origin)


def _note_file(folder: Path, part: str) -> Path:
    return folder / _DONE / f"{digest_of(part)[:16]}.json"


def _is_done(folder: Path, part: str, file: str) -> bool:
    """Return True if a part of divided work is done.

    The name of a part's file in ``folder`` itself contains a digest of the settings, so the file is
    enough. A file in a folder of its own may be the result of an earlier command with other
    settings, so the note that :func:`write_note` writes is needed, too.

    Args:
        folder: the folder of the work.
        part: name of the part.
        file: its file, relative to ``folder``.
    """
    is_named_by_settings = "/" not in file
    return (folder / file).exists() and (is_named_by_settings or _note_file(folder, part).is_file())


def end_division(folder: str | Path) -> None:
    """Remove the files about the division of the work into shares from ``folder``: the list of parts
    and the notes on finished parts. To be called once the parts have been put together.
    """
    folder = Path(folder)
    shutil.rmtree(folder / _DONE, ignore_errors=True)
    (folder / WORK_FILE).unlink(missing_ok=True)


def status(folder: str | Path) -> pd.DataFrame:
    """Return a data frame with one row for each part of the work in a folder.

    Returns:
        The column ``part`` is the name of the part. ``state`` is "done", "partial" (not done, but
        the part has a folder of its own, which exists) or "absent". For finished parts,
        ``host``, ``commit`` and ``seconds`` say where, by which version of the code and in what
        time the part was computed.
    """
    import pandas as pd

    folder = Path(folder)
    work_file = folder / WORK_FILE
    require(
        work_file.is_file(),
        f"nothing is divided in {str(folder)!r}: it has no {WORK_FILE}; give the folder that a command with --shard "
        "named, before its parts are put together",
    )
    rows = []
    for part, file in read_json(work_file, "parts")["parts"].items():
        state = "absent"
        if _is_done(folder, part, file):
            state = "done"
        elif "/" in file and (folder / file).parent.exists():  # the part has a folder of its own
            state = "partial"
        note_file = _note_file(folder, part)
        origin = read_json(note_file) if note_file.is_file() else {}
        rows.append({"part": part, "state": state, **origin})
    return pd.DataFrame(rows, columns=["part", "state", "host", "commit", "seconds"])


def describe(folder: str | Path, shard: str) -> str:
    """Return a sentence that says how many parts of the work are done.

    For :data:`PLAN` the text also estimates the time of the remaining parts, from the median time
    of the finished parts. It ends with an ``sbatch`` command that queues the remaining parts as an
    array of jobs.

    Args:
        folder: the folder of the work.
        shard: the share of this command, such as "2/64"; "" for all parts; or :data:`PLAN`.
    """
    parts = status(folder)
    n_done = (parts["state"] == "done").sum()
    counted = f"{n_done} of {len(parts)} parts are in {folder}"
    if shard != PLAN:
        return f"{shard}: {counted}" if shard else counted
    n_left = len(parts) - n_done
    seconds = parts["seconds"].median()
    if not n_left or math.isnan(seconds):
        return counted
    gigabytes = max(1, math.ceil(_measure_peak_bytes() / 1e9))
    n_jobs = min(n_left, _MOST_JOBS)
    parts_per_job = math.ceil(n_left / n_jobs)
    # Twice the median, since other parts and other machines may be slower.
    minutes = math.ceil((_START_SECONDS + 2 * seconds * parts_per_job) / 60)
    words = [word for word in sys.argv[1:] if word != "--plan"]
    command = f"interp {shlex.join(words)} --shard auto/{n_jobs}"
    return (
        f"{counted}; one took {seconds:.3g} s here, so that the other {n_left} take about "
        f"{seconds * n_left / 60:.3g} minutes in one process, and {gigabytes} GB at most. As an array of jobs:\n"
        f"sbatch --array=1-{n_jobs} --cpus-per-task=1 --mem={gigabytes}G --time={minutes} --wrap {shlex.quote(command)}"
    )


def _measure_peak_bytes() -> float:
    """Return the largest number of bytes that this process has used in memory so far."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024.0  # Linux counts in KiB
