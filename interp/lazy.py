"""Objects that are imported when they are first asked for, by name, and the modules that ship something to be found.

A task is light although its layout needs torch, and ``interp.load`` knows every handwired model although the rooms that
build them stand above it: both are named, and imported when somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

_ENTRIES: dict[str, str] = {}


def lazy(name: str) -> Callable[..., Any]:
    """The function or class called ``"module:name"``, imported when it is first called.

    >>> lazy("math:sqrt")(4)
    2.0
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return named(name)(*args, **kwargs)

    return call


def named(name: str) -> Any:
    """The object called ``"module:name"``."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def enter(**modules: str) -> None:
    """Say which module holds what ships of each kind; the facade ``interp`` does, so that lower rooms name none."""
    _ENTRIES.update(modules)


def entry(kind: str) -> ModuleType:
    """The module that holds what ships of a kind, imported now."""
    return import_module(_ENTRIES[kind])
