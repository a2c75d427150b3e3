"""What a result must say about where it came from: versions, git revision, seed and settings."""

from __future__ import annotations

import platform
import subprocess
from contextvars import ContextVar
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

USED: ContextVar[dict[str, Any]] = ContextVar("used", default={})  # noqa: B039 (never written into)
"""The records of tasks, by their keys, that :func:`interp.tasks.using` changed: each says in ``recorded`` how."""
_PACKAGES = ("latent-context-interp", "torch", "transformer-lens", "numpy", "scikit-learn")


@cache
def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that can change a number."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


@cache
def git_revision() -> str:
    """The revision of the checkout this package runs from, ``-dirty`` when it has changes; "unknown" outside one."""
    command = [
        "git",
        "-C",
        str(Path(__file__).parent),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=12",
    ]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def provenance(model: Any = None, /, **settings: Any) -> dict[str, Any]:
    """A record for a result: a model's name and digest, the given settings, the versions and the git revision.

    ``recorded`` says which recorded episodes and which fitted algorithm were used, where any were.
    """
    made_from = {} if model is None else {"model": model.name, "digest": model.digest()}
    used = (
        {"recorded": {key: dict(task.recorded) for key, task in USED.get().items()}}
        if USED.get()
        else {}
    )
    return {**made_from, **used, **settings, "versions": versions(), "git": git_revision()}
