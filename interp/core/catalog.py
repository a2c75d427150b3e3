"""The registered tasks: :func:`get` looks one up by key, :func:`of` by its episodes, layout or
model.

Users reach it as ``interp.tasks``. It is separate from the tasks' folders: every room can look a
task up, and the folders can import from those rooms.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module

from interp.core.algorithm import Algorithm
from interp.core.task import BaseEpisodes, Task
from interp.support.checks import checked
from interp.support.errors import InputError, require, require_known
from interp.support.lazy import entry
from interp.support.provenance import replaced_tasks, replacing

_REGISTERED: dict[str, Task] = {}


def every() -> tuple[Task, ...]:
    """Return all tasks: those of the package, in the order of their folders' names, then those registered."""
    return tuple({**_shipped(), **_REGISTERED}.values())


@cache
def _shipped() -> dict[str, Task]:
    """Return the tasks of the package by key, found once: patching looks tasks up for every measurement."""
    package = entry("tasks")
    folders = [module.name for module in pkgutil.iter_modules(package.__path__) if module.ispkg]
    return {key: import_module(f"{package.__name__}.{key}").TASK for key in folders}


def get(key: object) -> Task:
    """Return the task called ``key``, as it was registered."""
    known = {task.key: task for task in every()}
    require_known("task", key, list(known))
    return known[str(key)]


def of(subject: object) -> Task:
    """Return the task that episodes, a layout or a model belong to, with what is in use (:func:`using`)."""
    key = getattr(getattr(subject, "layout", subject), "task", None)
    if not isinstance(key, str):
        raise InputError(
            f"expected episodes, a layout or a model of a registered task, got {type(subject).__name__}"
        )
    return replaced_tasks().get(key) or get(key)


@contextmanager
def using(
    episodes: BaseEpisodes | None = None, algorithm: Algorithm | None = None
) -> Iterator[Task]:
    """Make analyses draw recorded episodes in place of the task's sampler, and use a fitted
    algorithm.

    Every analysis of a model of the task (comparisons, audits, patching, reports) draws from the
    episodes (:meth:`~interp.core.task.Task.of_recorded`). It compares the model with the algorithm,
    at its parameters (:meth:`~interp.core.task.Task.held_against`). The settings of results record
    both. Either may be left out.

    A thread that is started inside does not inherit it, and is refused until it is started by
    ``contextvars.copy_context().run``.

    >>> from interp.tasks import bandit
    >>> from interp.tasks.bandit.algorithms import rescorla_wagner
    >>> people = bandit.sample(6, 20, 2, "reversal", seed=0)
    >>> with using(people, rescorla_wagner(rate=0.7)) as task:
    ...     of(people) is task, len(task.sample(3, 10)), of(people).recorded["algorithm"]
    (True, 3, 'Rescorla-Wagner (rate 0.7, inverse temperature 5)')
    """
    if episodes is not None:
        task = of(episodes).of_recorded(episodes)
    elif algorithm is not None:
        task = get(algorithm.task)
    else:
        raise InputError("nothing to use: give recorded episodes, an algorithm, or both")
    if algorithm is not None:
        task = task.held_against(algorithm)
    with replacing(task.key, task):
        yield task


@checked
def register(task: Task) -> Task:
    """Add a task; its models can then be trained, saved, loaded and analysed like those of the
    built-in tasks.

    Two of its episodes are drawn twice, encoded and compared. A record that breaks the contract is
    refused (:func:`interp.check_task`).

    Example:
        >>> register(get("experts"))                                   # examples/own_task.py registers one of its own
        Traceback (most recent call last):
        interp.support.errors.InputError: a task 'experts' is registered already; choose another key
    """
    taken = {known.key for known in every()}
    require(task.key not in taken, f"a task {task.key!r} is registered already; choose another key")
    _REGISTERED[task.key] = task
    try:
        entry("task_checks").check_task(task)
    except BaseException:
        del _REGISTERED[task.key]
        raise
    return task
