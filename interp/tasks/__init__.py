"""The tasks: what a model is given to learn online. One folder holds all that is particular to a task.

``experts`` (prediction with expert advice) and ``qlearning`` (tabular Q-learning) come with the package; ``mdp`` is the
data side of the latter. :func:`get` looks a task up by key, :func:`of` by its episodes, layout or model,
:func:`register` adds your own, :func:`every` lists them.

    >>> import interp.tasks
    >>> [task.key for task in interp.tasks.every()]
    ['experts', 'qlearning', 'reachability']
    >>> [size.name for size in interp.tasks.get("qlearning").sizes]
    ['n_states', 'n_actions']
    >>> interp.tasks.of(interp.tasks.get("experts").sample(n_episodes=1, n_rounds=2, n_experts=3)).key
    'experts'

A folder beside this file whose package defines ``TASK`` is found by itself: a new task edits nothing here.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from typing import Any

from interp.errors import InputError, require, unknown_name
from interp.tasks.task import Corruption, RoundInputs, Size, Steering, Task, lazy

__all__ = ["Corruption", "RoundInputs", "Size", "Steering", "Task", "every", "get", "lazy", "of", "register"]

_REGISTRY: dict[str, Task] = {}


def every() -> tuple[Task, ...]:
    """All tasks: those that come with the package, in the order of their folders' names, then those registered."""
    for folder in _folders():
        if folder not in _REGISTRY:
            task = import_module(f"{__name__}.{folder}").TASK
            assert task.key == folder, f"the folder {folder!r} holds the task {task.key!r}"
            _REGISTRY[task.key] = task
    return tuple(_REGISTRY.values())


@cache
def _folders() -> tuple[str, ...]:
    """The folders beside this file, listed once: patching looks tasks up for every measurement."""
    return tuple(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)


def get(key: object) -> Task:
    """The task called ``key``.

    Raises:
        InputError: no such task.
    """
    known = {task.key: task for task in every()}
    if not isinstance(key, str) or key not in known:
        raise unknown_name("task", key, known)
    return known[key]


def of(subject: Any) -> Task:
    """The task that episodes, a layout or a model belong to.

    Raises:
        InputError: something that belongs to no task.
    """
    key = getattr(getattr(subject, "layout", subject), "task", None)
    if not isinstance(key, str):
        raise InputError(f"expected episodes, a layout or a model of a registered task, got {type(subject).__name__}")
    return get(key)


def register(task: Task) -> Task:
    """Add a task of your own; its models can then be trained, saved, loaded and analysed like the others.

    Raises:
        InputError: the key is taken.

    Example:
        >>> register(get("experts"))                                   # examples/own_task.py registers one of its own
        Traceback (most recent call last):
        interp.errors.InputError: a task 'experts' is registered already; choose another key
    """
    taken = {known.key for known in every()}
    require(task.key not in taken, f"a task {task.key!r} is registered already; choose another key")
    _REGISTRY[task.key] = task
    return task
