"""One process at a time works in a folder: the second is refused and told which holds it.

The system lets go of a lock when its process ends, however that ends, so nothing has to be cleaned up after kill -9.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from interp.errors import InputError
from interp.files import writing

LOCK_FILE = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold ``folder`` for this process.

    Raises:
        InputError: another process holds it, which is named; or the folder cannot be written.
    """
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        yield
        return
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(lock, 200).decode(errors="replace").strip() or "unknown"
            raise InputError(
                f"another process ({holder}) works in {str(folder)!r}; wait for it or stop it, or choose another folder"
            ) from error
        with writing(folder / LOCK_FILE):
            os.ftruncate(lock, 0)
            os.write(lock, f"process {os.getpid()} on {platform.node()}\n".encode())
        yield
    finally:
        os.close(lock)


def require_free(folder: Path) -> None:
    """Refuse a folder that another process holds, before long imports.

    Raises:
        InputError: as :func:`locked`.
    """
    if (folder / LOCK_FILE).is_file():
        with locked(folder):
            pass
