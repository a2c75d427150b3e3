"""What an annotation says of a value, asked while a program runs: does the value fit, and what is wanted in words.

Whole numbers are not booleans, numbers are finite, a text is no list, and NumPy's numbers become Python's.
:mod:`interp.checks` asks it of the arguments of public functions and the fields of configurations.
"""

from __future__ import annotations

import collections.abc
import inspect
import math
import reprlib
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal, TypeVar

import numpy as np

NO = object()
"""What :func:`fitted` gives for a value of another kind."""
FREE = (Any, object, inspect.Parameter.empty)
"""Annotations that take anything."""
_LISTS = (tuple, list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)


class Numbers:
    """What ``ArrayLike`` stands for in annotations: numbers that NumPy can hold in a rectangular array."""


class _Called(type):
    """Stands for a class that a module imports for type checkers alone: what has the name is of it."""

    def __instancecheck__(cls, value: object) -> bool:
        return cls.__name__ in {one.__name__ for one in type(value).__mro__}


def kind_of(annotation: Any, known: Mapping[str, Any]) -> Any:
    """What an annotation means, in the names ``known`` to its module; anything where that cannot be said."""
    # NumPy's own ArrayLike is a union of protocols, in which texts fit.
    known = {**known, **({"ArrayLike": Numbers} if "ArrayLike" in known else {})}
    while isinstance(annotation, str):
        try:
            annotation = eval(annotation, known)
        except NameError as error:
            name = str(error.name)
            known[name] = _Called(name, (), {})
        except (TypeError, AttributeError):
            return Any
    return annotation


def fitted(kind: Any, value: Any, finite: bool = True) -> Any:
    """``value`` as ``kind``, or a mark that it is of another."""
    if kind in FREE or isinstance(kind, str | TypeVar | typing.ForwardRef):
        return value
    if kind is None or kind is types.NoneType:
        return value if value is None else NO
    if kind in _SCALARS:
        return _SCALARS[kind](value, finite)
    if kind is Numbers:
        return value if _rectangular(value) else NO
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return fitted(parts[0], value, finite)
    if origin in (typing.Union, types.UnionType):
        return next((found for part in parts if (found := fitted(part, value, finite)) is not NO), NO)
    if origin is Literal:
        return value if any(type(value) is type(one) and value == one for one in parts) else NO
    if hasattr(kind, "array_type"):
        return _array(kind, value)
    if str(getattr(kind, "__module__", "")).startswith("numpy._typing"):
        return value
    if origin is not None:
        return _container(origin, parts, value, finite)
    is_protocol, at_run_time = (getattr(kind, name, False) for name in ("_is_protocol", "_is_runtime_protocol"))
    if not isinstance(kind, type) or (is_protocol and not at_run_time):
        return value
    return value if isinstance(value, kind) else NO


def _whole(value: Any, finite: bool) -> Any:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        return NO
    return value if isinstance(value, int) else int(value)


def _real(value: Any, finite: bool) -> Any:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        return NO
    try:
        ok = math.isfinite(value) or not finite
    except OverflowError:
        ok = False
    if not ok:
        return NO
    # An integer beyond 64 bits is no number to NumPy.
    return value if isinstance(value, float | int) and abs(value) < 2**63 else float(value)


def _flag(value: Any, finite: bool) -> Any:
    return bool(value) if isinstance(value, bool | np.bool_) else NO


def _text(value: Any, finite: bool) -> Any:
    return value if isinstance(value, str) else NO


_SCALARS: dict[Any, Callable[[Any, bool], Any]] = {int: _whole, float: _real, bool: _flag, str: _text}


def _rectangular(value: Any) -> bool:
    try:
        return np.asarray(value).dtype.kind in "biuf"
    except (TypeError, ValueError, RuntimeError):
        return False


@cache
def _is_bool(dtype: Any) -> bool:
    return "bool" in str(dtype)


def _array(kind: Any, value: Any) -> Any:
    """A shape in jaxtyping's words: the kind of array, and where the axes are counted, how many."""
    if kind.array_type is Any:
        return value
    if not isinstance(value, kind.array_type):
        return NO
    if _is_bool(value.dtype) and isinstance(kind.dtypes, tuple) and "bool" not in kind.dtypes:
        return NO
    least, exactly = _n_axes(kind)
    return value if value.ndim == least or (not exactly and value.ndim > least) else NO


@cache
def _n_axes(kind: Any) -> tuple[int, bool]:
    """How many axes a shape in jaxtyping's words has at least, and whether it has no more."""
    axes = kind.dim_str.split()
    counted = [axis for axis in axes if not axis.startswith(("*", "..."))]
    return len(counted), len(counted) == len(axes)


def _container(origin: Any, parts: tuple[Any, ...], value: Any, finite: bool) -> Any:
    if origin is collections.abc.Callable:
        return value if callable(value) else NO
    if origin is type:
        return value if isinstance(value, type) else NO
    if origin in _LISTS:
        return _several(origin, parts, value, finite)
    if not isinstance(value, origin):
        return NO
    if isinstance(value, Mapping) and len(parts) == 2:
        keys = [fitted(parts[0], key, finite) for key in value]
        held = [fitted(parts[1], one, finite) for one in value.values()]
        if any(one is NO for one in (*keys, *held)):
            return NO
        same = all(a is b for a, b in zip((*keys, *held), (*value, *value.values()), strict=True))
        return value if same else dict(zip(keys, held, strict=True))
    return value


def _several(origin: Any, parts: tuple[Any, ...], value: Any, finite: bool) -> Any:
    """A sequence with its elements; a list may stand for a tuple, and a one-dimensional array for a list."""
    if isinstance(value, str | bytes) or (isinstance(value, Mapping) and origin is not collections.abc.Iterable):
        return NO
    if getattr(value, "ndim", None) == 1 and hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, collections.abc.Sequence | set | frozenset):
        any_order = origin in (collections.abc.Iterable, collections.abc.Collection)
        if isinstance(value, Mapping) and parts and any(fitted(parts[0], key, finite) is NO for key in value):
            return NO
        return value if any_order and isinstance(value, origin) and not hasattr(value, "ndim") else NO
    if isinstance(value, range) and origin is not tuple:
        return value if not parts or fitted(parts[0], value.start) is not NO else NO
    fixed = origin is tuple and not (len(parts) == 2 and parts[1] is ...)
    if fixed and len(parts) != len(value):
        return NO
    kinds = parts if fixed else (parts[0] if parts else Any,) * len(value)
    found = [fitted(kind, one, finite) for kind, one in zip(kinds, value, strict=True)]
    if any(one is NO for one in found):
        return NO
    if origin is not tuple and all(new is old for new, old in zip(found, value, strict=True)):
        return value
    return tuple(found) if origin is tuple or isinstance(value, tuple) else found


def described(kind: Any) -> str:
    """A kind in words, for the sentence of an error."""
    if kind in _WORDS:
        return _WORDS[kind]
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        words = list(dict.fromkeys(described(part) for part in parts))
        return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]
    if origin is Literal:
        return " or ".join(repr(part) for part in parts)
    if hasattr(kind, "array_type"):
        return f"{_article(kind.array_type.__name__)} [{', '.join(kind.dim_str.split())}]"
    if origin is typing.Annotated:
        return described(parts[0])
    if origin is collections.abc.Callable:
        return "a function"
    if origin is tuple and not (len(parts) == 2 and parts[1] is ...):
        return f"{len(parts)} values ({', '.join(described(part) for part in parts)})"
    if origin in _LISTS:
        return f"a list of which each is {described(parts[0])}" if parts else "a list"
    if isinstance(origin, type) and issubclass(origin, collections.abc.Mapping):
        return "a mapping"
    if isinstance(getattr(kind, "task", None), str) and hasattr(kind, "n_rounds"):
        return f"episodes of {kind.task!r}"
    name = getattr(origin or kind, "__name__", str(kind))
    return _SAID.get(name, _article(name))


_WORDS = {
    int: "an integer",
    float: "a finite number",
    bool: "True or False",
    str: "a text",
    None: "None",
    types.NoneType: "None",
    slice: "a slice",
    Any: "anything",
    Numbers: "an array of numbers",
}


_SAID = {
    "Machine": "a model",
    "Episodes": "a batch of episodes",
    "Sequence": "a list",
}


def _article(word: str) -> str:
    return f"{'an' if word[:1].lower() in 'aeio' or word.startswith('nd') else 'a'} {word}"


class _Short(reprlib.Repr):
    """Texts cut at 80 letters, and arrays within lists and mappings by their shape."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 80

    def repr_instance(self, x: Any, level: int) -> str:
        return (
            f"{type(x).__name__} of shape {tuple(x.shape)}"
            if getattr(x, "shape", ())
            else super().repr_instance(x, level)
        )


_SHORT = _Short()


def shown(value: Any) -> str:
    """A value in a few words: a number as it is, an array by its shape, anything else shortened.

    >>> shown(np.zeros((2, 3))), shown(float("nan")), shown({"q": np.zeros(4)})
    ('an ndarray of shape (2, 3)', 'nan', "{'q': ndarray of shape (4,)} (dict)")
    """
    if getattr(value, "shape", ()):
        return f"{_article(type(value).__name__)} of shape {tuple(value.shape)}"
    if isinstance(getattr(value, "task", None), str) and hasattr(value, "n_rounds"):
        return f"episodes of {value.task!r}"
    text = _SHORT.repr(value.item() if isinstance(value, np.generic) else value)
    return text if isinstance(value, str | int | float | type(None)) else f"{text} ({type(value).__name__})"
