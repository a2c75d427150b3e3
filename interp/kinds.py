"""What an annotation says of a value while a program runs: whether the value fits, and what is wanted, in words.

beartype judges classes, protocols, functions and literals. Numbers and lists are judged here, because they may be
converted: integers are not booleans, numbers are finite, a text is no list, every element of a list is checked, and
NumPy's numbers become Python's. :mod:`interp.checks` applies this to the arguments of public functions and fields of
configurations.
"""

from __future__ import annotations

import builtins
import inspect
import math
import reprlib
import types
import typing
from abc import ABCMeta
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Literal

import numpy as np

NO = object()
"""What :func:`fitted` gives for a value of another kind."""
FREE = (Any, object, inspect.Parameter.empty)
"""Annotations that take anything."""
_UNIONS = (typing.Union, types.UnionType)
_LISTS = (tuple, list, Sequence, Iterable, Collection)


class _Numbers:
    """What ``ArrayLike`` stands for in annotations: numbers that NumPy can hold in a rectangular array.

    NumPy's own ``ArrayLike`` is a union of protocols, in which texts fit.
    """


def kind_of(annotation: Any, known: Mapping[str, Any]) -> Any:
    """What an annotation means, in the names ``known`` to its module; one that cannot be resolved takes anything.

    What a module imports for type checkers alone stands for anything, too.
    """
    names = defaultdict(lambda: Any, {**vars(builtins), **known, "ArrayLike": _Numbers})
    try:
        return typing.get_type_hints(types.SimpleNamespace(__annotations__={"it": annotation}), names, names)["it"]
    except (TypeError, AttributeError):
        return Any


def fitted(kind: Any, value: Any, finite: bool = True) -> Any:
    """``value`` as ``kind``, or :data:`NO`."""
    return _judge(kind)(value, finite)


@cache
def _judge(kind: Any) -> Callable[[Any, bool], Any]:
    """What turns a value into ``kind`` or :data:`NO`, worked out once: fits make records a hundred thousand times."""
    if kind in FREE:
        return lambda value, finite: value
    if kind in _SCALARS:
        return _SCALARS[kind]
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in _UNIONS:
        judges = [_judge(part) for part in parts]
        return lambda value, finite: next((v for judge in judges if (v := judge(value, finite)) is not NO), NO)
    if origin in _LISTS:
        return lambda value, finite: _list(origin, parts, value, finite)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return lambda value, finite: _mapping(parts, value, finite) if isinstance(value, origin) else NO
    kind = origin if origin in (np.ndarray, Callable) else kind
    if type(kind) in (type, ABCMeta):
        return lambda value, finite: value if isinstance(value, kind) else NO
    from beartype.door import is_bearable
    from jaxtyping import Float, Num, jaxtyped

    if getattr(kind, "dtype", None) is Float:  # integers are numbers, too
        kind = Num[kind.array_type, kind.dim_str]

    def bearable(value: Any, finite: bool) -> Any:
        with jaxtyped("context"):  # names of axes are this value's own, whatever is checked around it
            return value if is_bearable(value, kind) else NO

    return bearable


def _real(value: Any, finite: bool) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return NO
    try:
        number = float(value)
    except OverflowError:
        return NO
    if finite and not math.isfinite(number):
        return NO
    # An integer beyond 64 bits is no number to NumPy.
    return value if isinstance(value, float | int) and abs(value) < 2**63 else number


def _numbers(value: Any, finite: bool) -> Any:
    try:
        return value if np.asarray(value).dtype.kind in "biuf" else NO
    except (TypeError, ValueError, RuntimeError):
        return NO


_SCALARS: dict[Any, Callable[[Any, bool], Any]] = {
    int: lambda value, finite: NO if isinstance(value, bool) or not isinstance(value, int | np.integer) else int(value),
    float: _real,
    bool: lambda value, finite: bool(value) if isinstance(value, bool | np.bool_) else NO,
    _Numbers: _numbers,
}


def _list(origin: Any, parts: tuple[Any, ...], value: Any, finite: bool) -> Any:
    """A sequence with its elements; a list may stand for a tuple, and a one-dimensional array for a list."""
    if getattr(value, "ndim", None) == 1 and hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, range) and origin is not tuple:
        return value if fitted(parts[0], 0) is not NO else NO
    if isinstance(value, str | bytes) or hasattr(value, "ndim"):
        return NO
    if not isinstance(value, Sequence | set | frozenset):
        elements = value if isinstance(value, Mapping) else ()  # an iterator would be used up
        fits = all(fitted(parts[0], one) is not NO for one in elements)
        return value if fits and origin in (Iterable, Collection) and isinstance(value, origin) else NO
    kinds = parts if origin is tuple and parts[-1] is not ... else parts[:1] * len(value)
    found = [fitted(kind, one, finite) for kind, one in zip(kinds, value, strict=False)]
    if len(kinds) != len(value) or any(one is NO for one in found):
        return NO
    if origin is not tuple and all(new is old for new, old in zip(found, value, strict=True)):
        return value
    return tuple(found) if origin is tuple or isinstance(value, tuple) else found


def _mapping(parts: tuple[Any, ...], value: Mapping[Any, Any], finite: bool) -> Any:
    found = {fitted(parts[0], key, finite): fitted(parts[1], one, finite) for key, one in value.items()}
    if NO in found or any(one is NO for one in found.values()):
        return NO
    return value if all(found.get(key) is one for key, one in value.items()) else found


def described(kind: Any) -> str:
    """A kind in words, for the sentence of an error."""
    if kind in _WORDS:
        return _WORDS[kind]
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in _UNIONS:
        *words, last = dict.fromkeys(described(part) for part in parts)
        return f"{', '.join(words)} or {last}" if words else last
    if origin is Literal:
        return " or ".join(repr(part) for part in parts)
    if hasattr(kind, "dim_str"):
        return f"{_article(kind.array_type.__name__)} [{', '.join(kind.dim_str.split())}]"
    if origin is tuple and parts[-1] is not ...:
        return f"{len(parts)} values ({', '.join(described(part) for part in parts)})"
    if origin in _LISTS:
        return f"a list of which each is {described(parts[0])}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "a mapping"
    if isinstance(getattr(kind, "task", None), str) and hasattr(kind, "n_rounds"):
        return f"episodes of {kind.task!r}"
    name = getattr(origin or kind, "__name__", str(kind))
    return _NAMED.get(name, _article(name))


_WORDS = {
    int: "an integer",
    float: "a finite number",
    bool: "True or False",
    str: "a text",
    types.NoneType: "None",
    slice: "a slice",
    Any: "anything",
    _Numbers: "an array of numbers",
}
_NAMED = {"Machine": "a model", "Episodes": "a batch of episodes", "Callable": "a function"}


def _article(word: str) -> str:
    return f"{'an' if word[:1].lower() in 'aeio' or word.startswith('nd') else 'a'} {word}"


class _Short(reprlib.Repr):
    """Texts cut at 80 letters, and arrays within lists and mappings by their shape."""

    def repr_instance(self, x: Any, level: int) -> str:
        shape = getattr(x, "shape", ())
        return f"{type(x).__name__} of shape {tuple(shape)}" if shape else super().repr_instance(x, level)


_SHORT = _Short()
_SHORT.maxstring = _SHORT.maxother = 80


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
