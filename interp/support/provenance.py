"""Record where a result came from: versions, git revision, seed and settings."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from interp.support.errors import require

_REPLACED_TASKS: ContextVar[dict[str, Any]] = ContextVar("used")
_REPLACED_TASKS.set({})  # a thread that is started later has a context without a value
_OPEN_KEYS: list[str] = []
"""Task key of every open :func:`temporarily_register` context in this process."""
_PACKAGES = (
    "latent-context-interp",
    "torch",
    "transformers",
    "transformer-lens",
    "numpy",
    "scikit-learn",
)


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that can change a numerical result: name
    -> version.
    """
    installed = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            installed[package] = "not installed"
    return installed


@cache
def git_revision() -> str:
    """Return the git revision of this package's checkout, or "unknown" outside of a checkout.

    The revision ends with ``-dirty`` if there are uncommitted changes. A package that is installed
    below another checkout, as in a virtual environment, is in no checkout of its own.
    """
    place = Path(__file__)
    commands = (
        ["ls-files", "--error-unmatch", place.name],  # fails for a file of no checkout
        ["describe", "--always", "--dirty", "--abbrev=12"],
    )
    answer = ""  # output of the last command; the first command only has to succeed
    try:
        for words in commands:
            command = ["git", "-C", str(place.parent), *words]
            answer = subprocess.check_output(
                command, stderr=subprocess.DEVNULL, text=True, timeout=10
            )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return answer.strip()


def replaced_tasks() -> dict[str, Any]:
    """Return the task records that ``with interp.tasks.using(...)`` puts in the place of registered
    ones: key of a task -> record. The dictionary is empty outside such a block.

    Raises:
        InputError: another thread is in such a block, and this thread was started without a copy of
            that thread's context.
    """
    try:
        return _REPLACED_TASKS.get()
    except LookupError:  # this thread inherited no context, which matters only if `using` is open
        keys = ", ".join(sorted(set(_OPEN_KEYS)))
    require(
        not keys,
        f"tasks.using is open for {keys} in another thread, and a thread does not inherit it: start the thread's work "
        "by contextvars.copy_context().run(work), or open tasks.using in it",
    )
    return {}


@contextmanager
def temporarily_register(key: str, task: Any) -> Iterator[None]:
    """Context manager: replace the task record that is registered as ``key`` by ``task``, in this
    thread.
    """
    token = _REPLACED_TASKS.set({**replaced_tasks(), key: task})
    _OPEN_KEYS.append(key)
    try:
        yield
    finally:
        _OPEN_KEYS.remove(key)
        _REPLACED_TASKS.reset(token)


def provenance(model: Any = None, /, **settings: Any) -> dict[str, Any]:
    """Return a record of where a result came from, as a dictionary: model name and digest,
    settings, versions and git revision.

    The key ``recorded`` is present within the context ``interp.tasks.using``. Its value describes
    the recorded episodes and the fitted algorithm in use.

    Args:
        model: the model that the result is about; None for none.
        settings: the parameters of the analysis, which are added to the record under their names.
    """
    model_fields = {} if model is None else {"model": model.name, "digest": model.digest()}
    recorded = {key: dict(task.recorded) for key, task in replaced_tasks().items()}
    task_fields = {"recorded": recorded} if recorded else {}
    return {
        **model_fields,
        **task_fields,
        **settings,
        "versions": versions(),
        "git": git_revision(),
    }
