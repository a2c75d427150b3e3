"""Write files atomically, and turn the errors of reading and writing into messages that name the
file.

A file is written under a temporary name in its target's folder, then renamed, so that no reader
sees a partial file. The temporary name contains the machine and the process id. The next process
that writes to the folder removes what killed processes left there. :func:`lock_folder` lets one
process at a time work in a folder. System and library errors are raised as
:class:`~interp.support.errors.InputError`, with the original error as the cause.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import json
import logging
import math
import os
import platform
import re
import secrets
import shutil
import stat
import tempfile
import tomllib
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interp.support import foreign
from interp.support.checks import file_path
from interp.support.errors import InputError, require

if TYPE_CHECKING:
    import pandas as pd

_LOG = logging.getLogger(__name__)

_LOCK_FILE = ".lock"
_CLEARED_FOLDERS: set[Path] = set()
"""Folders from which this process has removed what killed processes left there."""
_MACHINE_ID = f"{zlib.crc32(platform.node().encode()):08x}"
_TEMPORARY_NAME = re.compile(r"^\..*\.~([0-9a-f]{8})-(\d+)-[0-9a-f]{8}")


def write_atomic(path: str | Path, write: Callable[[Path], object]) -> Path:
    """Write a file under a temporary name, rename it to ``path``, and return the path. So no reader
    sees a partial file.

    Missing folders are created. If ``write`` fails, no temporary file remains, and an existing file
    is unchanged. Who may read the file depends on the process's ``umask`` alone.

    Args:
        path: the file to write.
        write: function that is called with the temporary path and writes the file there.
    """
    path = file_to_write(path)
    with convert_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_beside(path)
        try:
            temporary.touch()
            mode = temporary.stat().st_mode  # follows from the umask; ``write`` may change it
            write(temporary)
            with open(temporary, "rb+") as stream:
                os.fsync(stream.fileno())  # or a crash could leave the new name on an empty file
            os.chmod(temporary, mode)
            os.replace(temporary, path)
            _LOG.info("wrote %s", path)
        finally:
            temporary.unlink(missing_ok=True)
    return path


def file_to_write(path: str | Path) -> Path:
    """Return ``path`` if a file can be written there, since nothing or a regular file is there now.
    Folders, devices and links to nothing are refused.
    """
    path = Path(file_path(path))
    with convert_write_errors(path):
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:
            require(
                not path.is_symlink(),
                f"{str(path)!r} is a link to nothing; remove it, or choose another name",
            )
            return path
    what = "a folder" if stat.S_ISDIR(mode) else "a device, a pipe or a socket"
    require(
        stat.S_ISREG(mode),
        f"{str(path)!r} is {what}, which nothing is written over; choose another name",
    )
    return path


def folder_to_write(
    folder: str | Path, what: str = "the output folder", made: bool = False
) -> Path:
    """Return ``folder`` if files can be written there, otherwise raise InputError. To be called
    before long work.

    As a test, a temporary file is written to the folder, or to its nearest existing parent.

    Args:
        folder: where results will be written.
        what: name of the folder in the error message.
        made: True to create the folder if it does not exist.
    """
    folder = Path(file_path(folder, what))
    with convert_write_errors(folder, "to "):
        if made:
            folder.mkdir(parents=True, exist_ok=True)
        places = [folder, *folder.parents]
        existing = [place for place in places if place.exists() or place.is_symlink()]
        nearest = existing[0] if existing else folder
        with tempfile.TemporaryFile(dir=nearest) as stream:
            stream.write(b"\0")  # a full disk refuses the first byte, not the empty file
    return folder


writable = partial(folder_to_write, made=True)
""":func:`folder_to_write` with ``made=True``: the folder is created if it does not exist."""


@contextmanager
def convert_write_errors(path: str | Path, to: str = "") -> Iterator[None]:
    """Context manager: convert system errors within it to an InputError that says ``path`` cannot
    be written.

    Args:
        path: the file or folder that is written.
        to: word before the path in the message: "to " for a folder, "" for a file.
    """
    file_path(path)
    try:
        yield
    except OSError as error:
        remedy = "choose a folder that can be written"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            remedy = "free some space or choose another folder, then run the same command again"
        raise InputError(
            f"cannot write {to}{str(path)!r}: {error.strerror or error}; {remedy}"
        ) from error
    except Exception as error:
        # safetensors raises its own error for one of the system. It is recognised by name, because
        # importing the class would take a second.
        if type(error).__name__ != "SafetensorError":
            raise
        raise InputError(
            f"cannot write {str(path)!r}: {error}; free some space or choose another folder"
        ) from error


@contextmanager
def convert_read_errors(
    path: str | Path, what: str = "it was cut short or changed; fetch or make it again"
) -> Iterator[None]:
    """Context manager: convert errors within it to an InputError that says ``path`` cannot be read
    or is damaged.

    Args:
        path: the file or folder that is read.
        what: what the user should do if the file is damaged.
    """
    # Reading a pipe could wait forever.
    is_ordinary = os.path.isfile(path) or os.path.isdir(path)
    require(
        is_ordinary or not os.path.exists(path),
        f"cannot read {str(path)!r}: it is a pipe or a device; save what it gives to a file",
    )
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r}: {error.strerror or error}") from error
    except Exception as error:
        text = " ".join(str(error).split())[:120]
        raise InputError(
            f"{str(path)!r} is damaged ({type(error).__name__}: {text}); {what}"
        ) from error


def read_json(path: str | Path, *needed: str) -> dict[str, Any]:
    """Read a JSON file that holds one object, and return it as a dictionary.

    Args:
        path: the file.
        needed: the fields that the object must have.
    """
    path = Path(file_path(path))
    require(path.is_file(), f"{str(path.parent)!r} lacks {path.name}")
    with convert_read_errors(path):
        content = foreign.parse_json(path.read_text(encoding="utf-8"))
    require(
        isinstance(content, dict), f"{str(path)!r} holds no JSON object; fetch or make it again"
    )
    for name in needed:
        require(name in content, f"{str(path)!r} lacks the field {name!r}; fetch or make it again")
    return content


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read a CSV file that ships with the code: a list with one dictionary per row, name of a
    column -> text.
    """
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def read_tables(path: Path) -> dict[str, Any]:
    """Read a TOML file that ships with the code, as a dictionary."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def digest_of(about: object, parts: Iterable[bytes] = ()) -> str:
    """Return the SHA-256 digest of a value and of bytes, in hexadecimal.

    Args:
        about: a value that JSON can represent.
        parts: pieces of bytes that are appended to the value.
    """
    sha = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for part in parts:
        sha.update(part)
    return sha.hexdigest()


def temporary_beside(path: Path) -> Path:
    """Return a new temporary path in the folder of ``path``. The caller writes a file there, then
    renames it to ``path``.

    The first call for a folder removes temporary files that killed processes left there.
    """
    folder = path.parent
    if folder not in _CLEARED_FOLDERS:
        _remove_left_behind(folder)
        _CLEARED_FOLDERS.add(folder)
    unique = f"{_MACHINE_ID}-{os.getpid()}-{secrets.token_hex(4)}"
    return folder / f".{path.name}.~{unique}{path.suffix}"


def _remove_left_behind(folder: Path) -> None:
    """Remove temporary files and folders that ended processes of this machine left in ``folder``."""
    for temporary in folder.glob(".*~*"):
        match = _TEMPORARY_NAME.match(temporary.name)
        # The groups of the match are the machine and the process that made the file. Whether a process
        # on another machine lives cannot be found out, so its files stay.
        if match is None or match[1] != _MACHINE_ID:
            continue
        try:
            os.kill(int(match[2]), 0)  # signal 0 does nothing but fail if there is no such process
        except ProcessLookupError:
            if temporary.is_dir():
                shutil.rmtree(temporary, ignore_errors=True)
            else:
                temporary.unlink(missing_ok=True)
        except OSError:  # the process lives, and belongs to another user
            continue


def write_text(path: str | Path, text: str) -> Path:
    """Write ``text`` to ``path`` atomically, as UTF-8, and return the path."""
    return write_atomic(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_csv(path: str | Path, frame: pd.DataFrame) -> Path:
    """Write a data frame to ``path`` atomically, as CSV without its index, and return the path.
    Text that looks like a formula is escaped, so that spreadsheets do not evaluate it.
    """
    return write_text(path, foreign.csv(frame))


def write_figure(path: str | Path, figure: Any, **saving: Any) -> Path:
    """Write a matplotlib figure to ``path`` atomically, as SVG; equal figures give equal bytes.

    Args:
        path: the file to write.
        figure: the figure.
        saving: options of matplotlib's ``savefig``.
    """
    return write_text(path, foreign.svg(figure, **saving))


def json_values(value: Any) -> Any:
    """Return ``value`` in JSON types: tuples become lists, dataclasses dicts, NumPy scalars Python
    numbers.

    NaN and infinite numbers become None.

    >>> json_values({"low": float("nan"), 1: (2.0, "x")})
    {'low': None, '1': [2.0, 'x']}
    """
    if isinstance(value, dict):
        return {str(key): json_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_values(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return json_values(vars(value))
    if hasattr(value, "item") and not hasattr(value, "__len__"):  # a NumPy scalar
        return json_values(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: str | Path, value: object) -> Path:
    """Write ``value`` to ``path`` atomically, as indented JSON with sorted keys, and return the
    path.
    """
    return write_text(path, json.dumps(value, indent=2, sort_keys=True) + "\n")


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock ``folder`` for this process while the context is open; refuse if another process holds
    the lock.

    The system releases the lock when the process ends, even if the process is killed.
    """
    from filelock import FileLock, Timeout

    holder = folder / ".holder"  # says which process has the lock, for the error message
    with convert_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / _LOCK_FILE)
        try:
            lock.acquire(blocking=False)
        except Timeout as error:
            owner = holder.read_text(encoding="utf-8").strip() if holder.is_file() else "unknown"
            raise InputError(
                f"another process ({owner}) works in {str(folder)!r}; wait for it or stop it, or choose another folder"
            ) from error
    try:
        write_text(holder, f"process {os.getpid()} on {platform.node()}\n")
        yield
    finally:
        lock.release()


def require_free(folder: Path) -> None:
    """Refuse a folder that another process has locked; called before slow imports, to fail
    early.
    """
    if (folder / _LOCK_FILE).is_file():
        with lock_folder(folder):
            pass
