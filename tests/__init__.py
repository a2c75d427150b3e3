"""The type checker that pytest runs the packages under: beartype, with ints accepted where floats are expected.

A function gets its checker when it is first called, and one that every call of another function defines anew shares
the checker of the first: making one takes milliseconds, and a run calls few of the packages' functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from beartype import BeartypeConf, beartype

_checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
_checkers: dict[Any, Callable[..., Any]] = {}


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with its arguments checked: an empty one, which jaxtyping makes of the signature to be checked."""
    code = function.__code__
    kinds = (code.co_varnames, code.co_posonlyargcount, code.co_argcount, code.co_kwonlyargcount, code.co_flags)
    key = (function.__module__, function.__qualname__, *kinds, *function.__annotations__.items())

    def first_checked(*args: Any, **kwargs: Any) -> Any:
        if key not in _checkers:
            _checkers[key] = _checked(function)
        return _checkers[key](*args, **kwargs)

    return first_checked
