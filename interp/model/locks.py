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
from typing import ClassVar, Concatenate, ParamSpec, Self, TypeVar
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


class DefaultDtype:
    """Context in which a round of a model runs with ``dtype`` as PyTorch's default dtype.

    All threads share PyTorch's default dtype. Rounds with the same dtype may therefore run at the
    same time, while a round with another dtype waits until they have ended. A round within another
    round of the same thread does not wait, since the outer round cannot end before the inner one.

    Args:
        dtype: the default dtype within the context.
    """

    _changed = threading.Condition()
    _threads: ClassVar[set[int]] = set()
    """Ids of the threads whose rounds are running."""
    _dtype_outside = torch.get_default_dtype()
    """The default dtype when no round is running."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.dtype_before = dtype  # what a nested round puts back; set on entry
        self.is_nested = threading.get_ident() in self._threads

    def __enter__(self) -> None:
        """Set the default dtype. Before that, wait until no thread runs a round with another dtype;
        a round within another round of this thread does not wait.
        """
        if self.is_nested:
            self.dtype_before = torch.get_default_dtype()
            torch.set_default_dtype(self.dtype)
            return
        with self._changed:
            while self._threads and torch.get_default_dtype() != self.dtype:
                self._changed.wait()
            if not self._threads:  # the first of the rounds that run at the same time sets it
                DefaultDtype._dtype_outside = torch.get_default_dtype()
                torch.set_default_dtype(self.dtype)
            self._threads.add(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        if self.is_nested:
            torch.set_default_dtype(self.dtype_before)
            return
        with self._changed:
            self._threads.discard(threading.get_ident())
            if not self._threads:  # the last one puts it back
                torch.set_default_dtype(self._dtype_outside)
                self._changed.notify_all()

    @classmethod
    def renew(cls) -> None:
        """Remove the rounds of other threads from the record of running rounds. To be called in the
        child process after a fork, where those threads do not exist.
        """
        cls._changed = threading.Condition()
        thread = threading.get_ident()
        if cls._threads and thread not in cls._threads:
            torch.set_default_dtype(cls._dtype_outside)
        cls._threads &= {thread}


def _renew_every_lock() -> None:
    for lock in _EVERY_LOCK:
        lock.renew()
    DefaultDtype.renew()


os.register_at_fork(after_in_child=_renew_every_lock)
