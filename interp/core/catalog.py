"""The registered tasks: :func:`get` looks one up by key, :func:`of` by its episodes, layout or
model.

Users call these functions as ``interp.tasks.get`` and ``interp.tasks.of``. They are in this module,
not in the tasks' folders, so that every package can look tasks up without importing them.
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
from interp.support.provenance import replaced_tasks, temporarily_register

REGISTERED: dict[str, Task] = {}
"""Tasks that users registered, by key. Delete an entry to register a changed record of its key."""


def list_tasks() -> tuple[Task, ...]:
    """Return all tasks: first those that this package ships, in alphabetical order of their
    folders, then those that users registered.
    """
    return tuple({**_load_tasks(), **REGISTERED}.values())


@cache
def _load_tasks() -> dict[str, Task]:
    """Import the tasks that this package ships, and return them by key. The result is cached, since
    patching looks tasks up for every measurement.
    """
    package = entry("tasks")
    folders = [module.name for module in pkgutil.iter_modules(package.__path__) if module.ispkg]
    return {key: import_module(f"{package.__name__}.{key}").TASK for key in folders}


def get(key: object) -> Task:
    """Return the task called ``key``, as it was registered; refuse an unknown key. The result is
    the same within :func:`using`, a context in which analyses use a changed copy of the task.
    """
    known = {task.key: task for task in list_tasks()}
    require_known("task", key, list(known))
    return known[str(key)]


def of(subject: object) -> Task:
    """Return the task of ``subject``, which is a batch of episodes, a layout or a model.

    Within the context :func:`using` this is a changed copy of the task: it draws recorded episodes,
    compares models with a fitted algorithm, or does both.
    """
    key = getattr(getattr(subject, "layout", subject), "task", None)
    if not isinstance(key, str):
        raise InputError(
            f"expected episodes, a layout or a model of a registered task, got {type(subject).__name__}"
        )
    return replaced_tasks().get(key) or get(key)


@checked
@contextmanager
def using(
    episodes: BaseEpisodes | None = None, algorithm: Algorithm | None = None
) -> Iterator[Task]:
    """Open a context in which analyses draw from recorded episodes, and compare models with a
    fitted algorithm.

    Within the context every analysis of a model of the task (comparisons, audits, patching,
    reports) samples from the recorded episodes instead of the task's sampler
    (:meth:`~interp.core.task.Task.of_recorded`). Models are compared with the algorithm
    (:meth:`~interp.core.task.Task.with_hypothesis`). Results record both in their settings.

    A new thread does not inherit the context: unless it is started by
    ``contextvars.copy_context().run``, it raises InputError when it looks a task up.

    Args:
        episodes: recorded episodes; None to sample new episodes as usual.
        algorithm: the fitted algorithm; None to compare with the task's usual algorithm. At least
            one of the two must not be None.

    Yields:
        The changed copy of the task.

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
        task = task.with_hypothesis(algorithm)
    with temporarily_register(task.key, task):
        yield task


@checked
def register(task: Task) -> Task:
    """Add a task, so that its models can be trained, saved, loaded and analysed like those of
    shipped tasks.

    The task's record is first checked on a few sampled episodes (:func:`interp.check_task`).

    Returns:
        The task.

    Raises:
        InputError: the task fails this check, or another task has its key.

    Example:
        >>> register(get("experts"))                                   # examples/own_task.py registers a new task
        Traceback (most recent call last):
        interp.support.errors.InputError: a task 'experts' is registered already; choose another key
    """
    registered_keys = {known.key for known in list_tasks()}
    key = task.key
    require(key not in registered_keys, f"a task {key!r} is registered already; choose another key")
    REGISTERED[key] = task  # before the check, which looks tasks up by their key
    try:
        entry("task_checks").check_task(task)
    except BaseException:  # also if the user interrupts the check
        del REGISTERED[key]
        raise
    return task
