"""Locks that let one thread at a time run a machine.

Hook points, flags and modules belong to the machine, not to a run: a hook that one thread attaches
would act in the runs of every other thread. A thread that runs a machine, or has hooks on it,
therefore holds the machine's lock, and another thread waits. Copies have separate locks, so threads
that each run ``copy.deepcopy(machine)`` do not wait for each other.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Self, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Owner = TypeVar("_Owner")
_LOG = logging.getLogger(__name__)
_SECONDS_BEFORE_WARNING = 30.0
"""Seconds that a thread waits for a machine before it logs a warning."""


class MachineLock:
    """A re-entrant lock for a model. It can be copied and pickled; a copy is a new, free lock."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _EVERY_LOCK.add(self)

    def __enter__(self) -> Self:
        if not self._lock.acquire(timeout=_SECONDS_BEFORE_WARNING):
            _LOG.warning(
                "this thread has waited %g s for a machine that runs in another thread, or has hooks "
                "there; give each thread its own `copy.deepcopy(machine)`",
                _SECONDS_BEFORE_WARNING,
            )
            self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type[MachineLock], tuple[()]]:
        return MachineLock, ()

    def renew(self) -> None:
        """Replace the lock by a free one if another thread holds it. To be called in the child
        process after a fork, where that thread does not exist.
        """
        if not self._lock.acquire(blocking=False):
            self._lock = threading.RLock()
            return
        self._lock.release()


_EVERY_LOCK: WeakSet[MachineLock] = WeakSet()
_LOCK_OF_MODULE: WeakKeyDictionary[nn.Module, MachineLock] = WeakKeyDictionary()
DRAWING = MachineLock()
"""Held while weights are initialised, since that seeds PyTorch's global generator."""


def lock_of(module: nn.Module) -> MachineLock:
    """Return the lock of a user's module; all models that were made from this module by
    ``interp.adapt`` share it.
    """
    with DRAWING:
        return _LOCK_OF_MODULE.setdefault(module, MachineLock())


def exclusive(
    method: Callable[Concatenate[_Owner, _P], _T],
) -> Callable[Concatenate[_Owner, _P], _T]:
    """Decorate a method of a model so that the calling thread holds the model's lock while the
    method runs.
    """

    @wraps(method)
    def run_alone(machine: _Owner, /, *args: _P.args, **options: _P.kwargs) -> _T:
        """Call the method while this thread holds the model's lock."""
        if torch.compiler.is_compiling():  # which takes no locks
            return method(machine, *args, **options)
        with machine.lock:  # type: ignore[attr-defined]
            return method(machine, *args, **options)

    return run_alone


def _renew_every_lock() -> None:
    for lock in _EVERY_LOCK:
        lock.renew()


os.register_at_fork(after_in_child=_renew_every_lock)
