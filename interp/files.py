"""Writing files so that a reader never sees half of one: a temporary file beside the target, then a rename."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable
from dataclasses import is_dataclass
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


def json_values(value: Any) -> Any:
    """``value`` as JSON can say it: tuples as lists, dataclasses by their fields, NumPy's numbers as Python's.

    Numbers that are none (NaN, infinite) become None.

    >>> json_values({"low": float("nan"), 1: (2.0, "x")})
    {'low': None, '1': [2.0, 'x']}
    """
    if isinstance(value, dict):
        return {str(key): json_values(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [json_values(held) for held in value]
    if is_dataclass(value) and not isinstance(value, type):
        return json_values(vars(value))
    if hasattr(value, "item") and not hasattr(value, "__len__"):
        return json_values(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: str | Path, value: Any) -> Path:
    """Write ``value`` to ``path`` atomically, as indented JSON with sorted keys."""
    return write_text(path, json.dumps(value, indent=2, sort_keys=True) + "\n")
