"""Look up one result of an evaluation by its key, such as a regime and a method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from interp.errors import unknown_name

K = TypeVar("K", bound=tuple[str | int, ...])
V = TypeVar("V")


def lookup(results: Mapping[K, V], *key: str | int) -> V:
    """The result at ``key``.

    >>> lookup({("uniform", "bayes"): 0.5}, "uniform", "bayes")
    0.5

    Raises:
        InputError: no such key; the nearest ones are named.
    """
    named = {_name(known): value for known, value in results.items()}
    if _name(key) not in named:
        raise unknown_name("result", _name(key), named, limit=20)
    return named[_name(key)]


def _name(key: tuple[str | int, ...]) -> str:
    return "/".join(map(str, key))
