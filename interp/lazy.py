"""Objects that are imported when they are first asked for, by name, and the modules that ship something to be found.

A task is light although its layout needs torch, and ``interp.load`` knows every handwired model although the rooms that
build them stand above it: both are named, and imported when somebody asks.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from interp.errors import InputError, require

_ENTRIES: dict[str, str] = {}


def lazy(name: str) -> Callable[..., Any]:
    """The function or class called ``"module:name"``, imported when it is first called.

    >>> lazy("math:sqrt")(4)
    2.0
    """
    return lambda *args, **kwargs: named(name)(*args, **kwargs)


def lazies(module: str, *names: str) -> dict[str, Any]:
    """What is called so in a module, each imported when it is first called."""
    return {name: lazy(f"{module}:{name}") for name in names}


def above(kind: str, name: str) -> Callable[..., Any]:
    """The same in the package that ships what is of a ``kind``: what stands above the room that names it."""
    return lambda *args, **kwargs: named(f"{_ENTRIES[kind]}.{name}")(*args, **kwargs)


def named(name: str) -> Any:
    """The object called ``"module:name"``; an InputError where the name is none."""
    module, _, attribute = name.partition(":")
    parts = [*module.split("."), attribute]
    require(all(map(str.isidentifier, parts)), f"{name!r} names nothing; give 'module:name'")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if not module.startswith(str(error.name)):
            raise
        raise InputError(f"{name!r} names nothing: there is no module {error.name!r}; give 'module:name'") from error


def facade(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package whose names and rooms are imported when first used.

    The names are those that the package's ``__init__.pyi`` imports, for type checkers and for this function; its rooms
    are the packages in it.
    """
    path = sys.modules[package].__path__
    stub = Path(path[0], "__init__.pyi").read_text(encoding="utf-8")
    homes = re.findall(r"^from (\S+) import (.+)$", stub, re.MULTILINE)
    known = {
        name: f"{home}:{name}" for home, line in homes for name in re.findall(r"(\w+) as", line) if home != package
    }

    rooms = [module.name for module in iter_modules(path) if module.ispkg]
    rooms += [name for home, line in homes if home == package for name in re.findall(r"(\w+) as", line)]

    def get(name: str) -> Any:
        if name in known:
            return named(known[name])
        if name in rooms:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(sorted(known))}")

    return get, lambda: sorted({*known, *rooms}), sorted(known)


def enter(**modules: str) -> None:
    """Say which module holds what ships of each kind; the facade ``interp`` does, so that lower rooms name none."""
    _ENTRIES.update(modules)


def entry(kind: str) -> ModuleType:
    """The module that holds what ships of a kind, imported now."""
    return import_module(_ENTRIES[kind])


_PACKAGES = ("circuits", "probes", "reports")
"""Installed beside ``interp``, under names that another distribution could use, too."""


def strangers(home: Path | None = None) -> list[str]:
    """A sentence for each room whose name leads to a package of somebody else; ``home`` holds ``interp``."""
    home = Path(__file__).resolve().parents[1] if home is None else home
    sentences = []
    for name in _PACKAGES:
        spec = PathFinder.find_spec(name)
        found = None if spec is None or spec.origin is None else Path(spec.origin).resolve().parent
        if found != home / name:
            where = f"leads to {found}" if found else "leads nowhere"
            sentences.append(
                f"`import {name}` {where}, not to the package {name!r} of latent-context-interp in {home}: another "
                "distribution or folder owns the name; install latent-context-interp in an environment of its own"
            )
    return sentences
