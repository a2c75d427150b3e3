"""Writing files so that a reader never sees half of one: a temporary file beside the target, then a rename."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from interp.errors import InputError


def write_atomic(path: str | Path, write: Callable[[Path], object]) -> Path:
    """Call ``write(temporary_path)``, then rename the result to ``path``; nothing is left behind on failure.

    Raises:
        InputError: the folder cannot be created or written.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    except OSError as error:
        raise InputError(
            f"cannot write {str(path)!r}: {error.strerror}; choose a folder that can be written"
        ) from error
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with open(temporary, "rb+") as stream:
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def writable(folder: str | Path) -> Path:
    """``folder``, made if need be, after a file was written to it and removed: to be asked before long work.

    Raises:
        InputError: the folder cannot be created or written.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise InputError(
            f"cannot write to {str(folder)!r}: {error.strerror}; choose a folder that can be written"
        ) from error


def write_text(path: str | Path, text: str) -> Path:
    """Write ``text`` to ``path`` atomically, as UTF-8."""
    return write_atomic(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: str | Path, value: Any) -> Path:
    """Write ``value`` to ``path`` atomically, as indented JSON with sorted keys."""
    return write_text(path, json.dumps(value, indent=2, sort_keys=True) + "\n")
