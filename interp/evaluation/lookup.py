"""Look up one result of an evaluation by its key, such as a regime and a method; join what was measured apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from interp.errors import unknown_name

K = TypeVar("K", bound=tuple[str | int, ...])
V = TypeVar("V")
D = TypeVar("D")


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


def joined(parts: Sequence[D], *names: str) -> D:
    """One dataclass of several that differ in dictionaries: under each of ``names``, those of all parts.

    >>> from dataclasses import make_dataclass
    >>> Scores = make_dataclass("Scores", ["by_regime"])
    >>> joined([Scores({"uniform": 1}), Scores({"drift": 2})], "by_regime")
    Scores(by_regime={'uniform': 1, 'drift': 2})
    """
    one: Any = parts[0]
    return cast(
        D, replace(one, **{name: {k: v for part in parts for k, v in getattr(part, name).items()} for name in names})
    )


def _name(key: tuple[str | int, ...]) -> str:
    return "/".join(map(str, key))
