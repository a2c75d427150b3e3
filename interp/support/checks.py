"""Check what users pass in: whole numbers, finite numbers, seeds, names, selections.

:func:`checked` makes a public function check its arguments against its annotations before it does
any work; :func:`check_fields` does the same for the fields of a dataclass. Both convert NumPy
scalars to Python numbers, and raise :class:`~interp.support.errors.InputError` with a
one-sentence message. Functions check ranges, shapes and the existence of names themselves.

    >>> import numpy as np
    >>> @checked
    ... def double(n_rounds: int, scale: float = 1.0) -> float:
    ...     return 2 * scale * n_rounds
    >>> double(np.int64(3), 0.5)
    3.0
    >>> double(True)
    Traceback (most recent call last):
    interp.support.errors.InputError: n_rounds must be an integer, got True

Calls that a checked function makes to other checked functions are not checked again.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import os
import re
import reprlib
import sys
import tomllib
import types
import typing
from abc import ABCMeta
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from math import inf, isfinite
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from interp.support.errors import InputError, require, require_known

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")

_MOST_SEED = 2**63 - 1  # the largest seed that NumPy's and torch's generators both take
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")
_INSIDE: ContextVar[bool] = ContextVar("a checked function is running", default=False)


# Annotations: does a value fit, and what is an annotation in words? A library that checks types,
# such as beartype, looks at one random element of a list, accepts True as an integer, and converts
# nothing.

MISFIT = object()
"""Returned by :func:`convert_value` if the value does not fit the annotation."""
UNCHECKED = (Any, object, inspect.Parameter.empty)
"""Annotations that accept any value."""
_UNIONS = (typing.Union, types.UnionType)
_LISTS = (tuple, list, Sequence, Iterable, Collection)
_MOST_INTEGER = 2**63
"""Integers of this size and larger do not fit into NumPy's 64-bit integers."""


class _Numbers:
    """The type that replaces ``ArrayLike`` in annotations: numbers in a rectangular array.

    NumPy's type would accept strings, too.
    """


def kind_of(annotation: Any, known: Mapping[str, Any]) -> Any:
    """Resolve an annotation, such as the string "int | None", to a type; return Any if it cannot be
    resolved.

    Args:
        annotation: an annotation, possibly a string.
        known: the global names of the module in which the annotation stands.
    """
    namespace = {**vars(builtins), **known, "ArrayLike": _Numbers}
    names = defaultdict(lambda: Any, namespace)  # a name that is unknown here stands for Any
    # `get_type_hints` reads the annotations of an object, so one is made with this annotation.
    annotated = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(annotated, names, names)["it"]
    except (TypeError, AttributeError):
        return Any


def convert_value(kind: Any, value: Any, finite: bool = True) -> Any:
    """Return ``value`` as a value of type ``kind`` (a NumPy scalar becomes a Python number), or the
    marker :data:`MISFIT` if it does not fit.

    Args:
        kind: a type, such as ``int`` or ``tuple[float, ...]``.
        value: any value.
        finite: True if NaN and infinite numbers do not fit.
    """
    return _converter_for(kind)(value, finite)


_Converter = Callable[[Any, bool], Any]
"""Function from (value, ``finite``) to the converted value, or :data:`MISFIT` if it does not fit."""


@cache
def _converter_for(kind: Any) -> _Converter:
    """Return the function that checks values of the type ``kind``; it is cached for each type.

    The function takes a value and ``finite``, and returns the converted value, or :data:`MISFIT` if the
    value does not fit.
    """
    if kind in UNCHECKED:
        return lambda value, finite: value
    if kind in _SCALARS:
        return _SCALARS[kind]
    origin = typing.get_origin(kind)
    if origin is Literal:
        return _make_choice_converter(typing.get_args(kind))
    if origin in _UNIONS:
        return _make_union_converter(typing.get_args(kind))
    if origin in _LISTS:
        return _make_list_converter(origin, typing.get_args(kind))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _make_mapping_converter(origin, typing.get_args(kind))
    # Neither the elements of an array nor the signature of a function are checked.
    if origin in (np.ndarray, Callable):
        return _make_class_converter(origin)
    if type(kind) in (type, ABCMeta):  # an ordinary class; jaxtyping and protocols have their own
        return _make_class_converter(kind)
    return _make_instance_converter(kind)


def _make_choice_converter(choices: tuple[Any, ...]) -> _Converter:
    """Return the function that returns the values in ``choices`` (those of a ``Literal``)
    unchanged, and :data:`MISFIT` for other values.
    """

    def convert(value: Any, finite: bool) -> Any:
        return value if isinstance(value, Hashable) and value in choices else MISFIT

    return convert


def _make_union_converter(kinds: tuple[Any, ...]) -> _Converter:
    """Return the function that converts a value to the first of ``kinds`` that it fits."""
    converters = [_converter_for(kind) for kind in kinds]

    def convert(value: Any, finite: bool) -> Any:
        for convert_to_kind in converters:
            fitting = convert_to_kind(value, finite)
            if fitting is not MISFIT:
                return fitting
        return MISFIT

    return convert


def _make_class_converter(kind: Any) -> _Converter:
    """Return the function that returns instances of the class ``kind`` unchanged, and
    :data:`MISFIT` for other values.
    """
    return lambda value, finite: value if isinstance(value, kind) else MISFIT


def _make_instance_converter(kind: Any) -> _Converter:
    """Return the function that checks instances of a jaxtyping array, a protocol or another class.

    Elements of a generic class are not checked.

    Args:
        kind: the class.
    """
    from jaxtyping import Float, Num, jaxtyped

    expected = typing.get_origin(kind) or kind
    if not isinstance(expected, type):  # no class at run time, such as a type variable
        return lambda value, finite: value
    if getattr(kind, "dtype", None) is Float:  # integers are numbers, too
        expected = Num[kind.array_type, kind.dim_str]

    def convert(value: Any, finite: bool) -> Any:
        with jaxtyped("context"):  # names of axes are this value's alone
            return value if isinstance(value, expected) else MISFIT

    return convert


def _convert_integer(value: Any, finite: bool) -> Any:
    """Return a Python or NumPy integer as an int, and :data:`MISFIT` for any other value; a boolean
    is no integer here.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return MISFIT
    return int(value)


def _convert_real(value: Any, finite: bool) -> Any:
    """Return a number as a Python float or int, or :data:`MISFIT`. An integer stays an int, unless it
    is too large for NumPy's 64-bit integers.

    Args:
        value: any value.
        finite: True if NaN and infinity do not fit.
    """
    if isinstance(value, bool) or not isinstance(value, _REAL):
        return MISFIT
    try:
        number = float(value)
    except OverflowError:  # an integer beyond the largest float
        return MISFIT
    if finite and not isfinite(number):
        return MISFIT
    is_python_number = isinstance(value, float | int) and abs(value) < _MOST_INTEGER
    return value if is_python_number else number


def _convert_truth_value(value: Any, finite: bool) -> Any:
    """Return a Python or NumPy boolean as a bool, and :data:`MISFIT` for any other value."""
    return bool(value) if isinstance(value, bool | np.bool_) else MISFIT


def _convert_numbers(value: Any, finite: bool) -> Any:
    """Return ``value`` unchanged if NumPy can read it as an array of booleans or real numbers, and
    :data:`MISFIT` otherwise.
    """
    try:
        return value if np.asarray(value).dtype.kind in "biuf" else MISFIT
    except (TypeError, ValueError, RuntimeError):
        return MISFIT


_REAL = (int, float, np.integer, np.floating)
_SCALARS: dict[Any, _Converter] = {
    int: _convert_integer,
    float: _convert_real,
    bool: _convert_truth_value,
    _Numbers: _convert_numbers,
}


def _make_list_converter(origin: Any, parts: tuple[Any, ...]) -> _Converter:
    """Return the function that checks a sequence and its elements.

    A list is accepted where a tuple is expected, and a one-dimensional array where a list is
    expected.

    Args:
        origin: the expected class without its parameters, such as ``tuple``.
        parts: the types of its elements, such as ``(int, ...)``.
    """
    converters = [_converter_for(part) for part in parts if part is not ...]
    is_fixed_tuple = origin is tuple and parts[-1] is not ...

    def convert(value: Any, finite: bool) -> Any:
        """Return the converted elements of ``value`` as a tuple or list, or :data:`MISFIT`. Return
        ``value`` itself if no element changes and the expected type is not a tuple.
        """
        if type(value) is not tuple:
            value = _convert_row(value)  # a one-dimensional array as a list
            if isinstance(value, range) and origin is not tuple:
                # A range holds integers only: if 0 fits, all do, so a long range is not walked.
                zero = converters[0](0, finite)
                return MISFIT if zero is MISFIT else value
            # A text is a sequence, too; an array that is still one here has no or several axes.
            if isinstance(value, str | bytes) or hasattr(value, "ndim"):
                return MISFIT
            if not isinstance(value, Sequence | set | frozenset):
                # An iterator, a generator or a mapping: it fits only where an Iterable or Collection
                # is expected, and is not converted.
                return _check_iterable(origin, converters[0], value)
        # A fixed tuple, such as tuple[int, str], has one type per element. Any other sequence has one
        # type for all elements.
        element_converters = converters if is_fixed_tuple else converters[:1] * len(value)
        if len(element_converters) != len(value):
            return MISFIT
        pairs = zip(element_converters, value, strict=True)
        elements = [convert_element(element, finite) for convert_element, element in pairs]
        if any(element is MISFIT for element in elements):
            return MISFIT
        is_same = all(new is old for new, old in zip(elements, value, strict=True))
        if origin is not tuple and is_same:
            return value
        becomes_tuple = origin is tuple or isinstance(value, tuple)
        return tuple(elements) if becomes_tuple else elements

    return convert


def _convert_row(value: Any) -> Any:
    """Return a one-dimensional array as a list, and any other value as it is."""
    is_row = getattr(value, "ndim", None) == 1 and hasattr(value, "tolist")
    has_numbers = not getattr(value, "is_meta", False)  # a tensor on "meta" has only a shape
    return value.tolist() if is_row and has_numbers else value


def _check_iterable(origin: Any, convert: _Converter, value: Any) -> Any:
    """Check an iterable that is not a sequence, and return it, or :data:`MISFIT` if it does not fit.

    The keys of a mapping are checked. The elements of an iterator are not checked, since reading
    them would use it up.

    Args:
        origin: the expected class, such as ``Iterable``.
        convert: function that checks a key.
        value: any value.
    """
    if origin not in (Iterable, Collection) or not isinstance(value, origin):
        return MISFIT
    keys = value if isinstance(value, Mapping) else ()
    finite = True  # a key may not be NaN or infinite
    fits = all(convert(key, finite) is not MISFIT for key in keys)
    return value if fits else MISFIT


def _make_mapping_converter(origin: Any, parts: tuple[Any, ...]) -> _Converter:
    """Return the function that checks a mapping, its keys and its values. It returns the mapping
    itself if no key or value has to be converted, otherwise a new dictionary.

    Args:
        origin: the expected class without its parameters, such as ``dict``.
        parts: the types of its keys and values.
    """
    convert_key, convert_item = map(_converter_for, parts)

    def convert(value: Any, finite: bool) -> Any:
        """Return ``value`` with converted keys and values, or :data:`MISFIT`."""
        if not isinstance(value, origin):
            return MISFIT
        fitting = {}
        is_same = True
        for key, item in value.items():
            new_key, new_item = convert_key(key, finite), convert_item(item, finite)
            if new_key is MISFIT or new_item is MISFIT:
                return MISFIT
            is_same = is_same and new_key == key and new_item is item
            fitting[new_key] = new_item
        return value if is_same else fitting

    return convert


def describe_type(kind: Any) -> str:
    """Return the type ``kind`` in words, such as "an integer", for an error message."""
    if kind in _WORDS:
        return _WORDS[kind]
    origin = typing.get_origin(kind)
    if origin is not None:
        words = _describe_parts(origin, typing.get_args(kind))
        if words:
            return words
    if hasattr(kind, "dim_str"):  # an array type of jaxtyping, with names of axes
        axes = ", ".join(kind.dim_str.split())
        return f"{_add_article(kind.array_type.__name__)} [{axes}]"
    if _is_of_episodes(kind):
        return f"episodes of {kind.task!r}"
    name = getattr(origin or kind, "__name__", str(kind))
    return _NAMED.get(name, _add_article(name))


def _describe_parts(origin: Any, parts: tuple[Any, ...]) -> str:
    """Return a generic type in words, such as "a mapping of a text to an integer"; "" if its class
    name is enough.

    Args:
        origin: the class without its parameters, such as ``dict``.
        parts: its parameters, such as ``(str, int)``.
    """
    if origin in _UNIONS:
        *words, last = dict.fromkeys(describe_type(part) for part in parts)  # each phrase once
        return f"{', '.join(words)} or {last}" if words else last
    if origin is Literal:
        return " or ".join(repr(part) for part in parts)
    if origin is tuple and parts[-1] is not ...:
        return f"{len(parts)} values ({', '.join(describe_type(part) for part in parts)})"
    if origin in _LISTS:
        return f"a list of which each is {describe_type(parts[0])}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        keys, values = map(describe_type, parts)
        return f"a mapping of {keys} to {values}"
    return ""


def _is_of_episodes(value: Any) -> bool:
    """Return True for episodes of a task, and for a class of episodes."""
    return isinstance(getattr(value, "task", None), str) and hasattr(value, "n_rounds")


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
_NAMED = {
    "Machine": "a model",
    "Episodes": "a batch of episodes",
    "Callable": "a function",
    "Metric": "an interp.interventions.pairs.Metric",
}


def _add_article(word: str) -> str:
    """Return a word with "a" or "an", as in "an ndarray"."""
    return f"{'an' if word[:1].lower() in 'aeio' or word.startswith('nd') else 'a'} {word}"


class _Short(reprlib.Repr):
    """A ``repr`` that cuts strings at 80 characters, and shows nested arrays by their shape."""

    def repr_instance(self, x: Any, level: int) -> str:
        shape = getattr(x, "shape", ())
        if not shape:
            return super().repr_instance(x, level)
        return f"{type(x).__name__} of shape {tuple(shape)}"


_SHORT = _Short()
_SHORT.maxstring = _SHORT.maxother = 80


def format_value(value: Any) -> str:
    """Return a short description of a value for an error message: numbers as they are, arrays by
    shape.

    >>> format_value(np.zeros((2, 3))), format_value(float("nan")), format_value({"q": np.zeros(4)})
    ('an ndarray of shape (2, 3)', 'nan', "{'q': ndarray of shape (4,)} (dict)")
    """
    if getattr(value, "shape", ()):
        return f"{_add_article(type(value).__name__)} of shape {tuple(value.shape)}"
    if _is_of_episodes(value):
        return f"episodes of {value.task!r}"
    text = _SHORT.repr(value.item() if isinstance(value, np.generic) else value)
    if isinstance(value, str | int | float | type(None)):
        return text
    return f"{text} ({type(value).__name__})"


# What functions check themselves, and the two decorators.


def integer(name: str, value: object, least: int | None = None, most: int | None = None) -> int:
    """Check that ``value`` is an integer, and return it as a Python int. NumPy integers are
    accepted; booleans and floats are not.

    Args:
        name: the argument's name in the error message.
        value: what was passed.
        least: the smallest value that is accepted; None for no bound.
        most: the largest value that is accepted; None for no bound.
    """
    return cast(int, _convert_within(int, name, value, least, most))


def check_number(
    name: str, value: object, least: float | None = None, most: float | None = None
) -> float:
    """Check that ``value`` is a finite number, and return it as a Python number. Booleans and
    strings are not accepted.

    Args:
        name: the argument's name in the error message.
        value: what was passed.
        least: the smallest value that is accepted; None for no bound.
        most: the largest value that is accepted; None for no bound.
    """
    return cast(float, _convert_within(float, name, value, least, most))


def require_real(name: str, value: object) -> None:
    """Raise InputError unless ``value`` is a real number. NaN and infinity are accepted; booleans
    and strings are not.

    Args:
        name: the argument's name in the error message.
        value: what was passed.
    """
    if isinstance(value, bool) or not isinstance(value, _REAL):
        raise InputError(f"{name} must be a number, got {format_value(value)}")


def _convert_within(
    kind: type, name: str, value: Any, low: float | None, high: float | None
) -> Any:
    """Return ``value`` as an int or float; raise InputError if it is another type or out of bounds.

    Args:
        kind: int or float.
        name: the argument's name in the error message.
        value: any value.
        low, high: the smallest and the largest accepted value; None for no bound.
    """
    fitting = convert_value(kind, value)
    if fitting is not MISFIT:
        is_large = low is None or fitting >= low
        is_small = high is None or fitting <= high
        if is_large and is_small:
            return fitting
    form = "g" if kind is float else ""
    bounds = []
    if low is not None:
        bounds.append(f">= {low:{form}}")
    if high is not None:
        bounds.append(f"<= {high:{form}}")
    rule = f"{describe_type(kind)} {' and '.join(bounds)}".rstrip()
    raise InputError(f"{name} must be {rule}, got {format_value(value)}")


def seed_of(value: object, name: str = "seed") -> int:
    """Return ``value`` if it is a valid seed, an integer from 0 to 2**63 - 1. Raise InputError
    otherwise.

    Args:
        value: what was passed.
        name: the argument's name in the error message.
    """
    seed = integer(name, value, least=0)
    if seed > _MOST_SEED:  # only then does the message name the upper bound
        integer(name, value, least=0, most=_MOST_SEED)
    return seed


def folder_name(name: str, value: object) -> str:
    """Return ``value`` if it is a plain folder name, and raise InputError otherwise. Paths are
    refused, so that files cannot be written outside of the output folder.

    Args:
        name: the argument's name in the error message.
        value: what was passed.
    """
    fits = isinstance(value, str) and len(value) <= 100 and _NAME.fullmatch(value) is not None
    require(
        fits,
        f"{name} must be letters, digits, '-', '_', '+' and '.', not a path, got {format_value(value)}",
    )
    return cast(str, value)


def file_path(value: Any, what: str = "path") -> str:
    """Return a path as a string; refuse an empty path, and names of more than 255 bytes in it.

    Args:
        value: a string or path-like object.
        what: what the path is, for the error message.
    """
    is_path = isinstance(value, str | os.PathLike)
    # No file system accepts a NUL character.
    fits = is_path and str(value) != "" and "\0" not in str(value)
    require(fits, f"{what} must be a path, got {format_value(value)}")
    longest = max((len(os.fsencode(name)) for name in Path(value).parts), default=0)
    require(
        longest < 256,
        f"{what} has a name of more than 255 bytes, which no system keeps, got {format_value(value)}",
    )
    return os.fspath(value)


def find_device(name: Any) -> Any:
    """Return the torch device called ``name``, or ``name`` itself if it is a device. Devices that
    this machine lacks are refused, and so is "meta", which holds no numbers.
    """
    import torch

    try:
        device = torch.device(name)
        torch.empty(0, device=device)  # fails if the machine lacks the device
    except Exception as error:
        raise InputError(
            f"no device {name!r} on this machine ({str(error).splitlines()[0]}); take cpu"
        ) from None
    require(device.type != "meta", "a model on the device 'meta' holds no numbers; take cpu")
    return device


def array_of(what: str, values: Any, finite: bool = False) -> NDArray[Any]:
    """Return numbers as a NumPy array of the same shape. A tensor of half precision is converted to
    float32, and a NumPy array of half precision to float64.

    Args:
        what: name of the values in the error message.
        values: lists, arrays, pandas objects, or tensors of any precision (detached from
            gradients).
        finite: True to refuse NaN and infinity.
    """
    try:
        array: NDArray[Any] = np.asarray(_convert_tensor(values))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{what} must be numbers in a rectangular array, got {format_value(values)}"
        ) from error
    if array.dtype.kind == "O":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            first = array.flat[0] if array.size else None
            raise InputError(
                f"{what} must be numbers, got values such as {format_value(first)}"
            ) from error
    # `require` would format the message, with the name of the dtype, in every call. That takes long
    # compared with a small array, so the error is raised here.
    if array.dtype.kind not in "biuf":
        kind = "real numbers" if array.dtype.kind == "c" else "numbers"
        raise InputError(f"{what} must be {kind}, got dtype {array.dtype}")
    if finite:
        is_finite = np.isfinite(array).all()
        require(is_finite, f"{what} must be finite, got NaN or infinity")
    return array.astype(np.float64) if array.dtype == np.float16 else array


def _convert_tensor(values: Any) -> Any:
    """Return ``values`` as a NumPy array if it is a torch tensor, and unchanged otherwise."""
    if not hasattr(values, "detach"):
        return values
    tensor = values.detach().cpu()
    is_half_precision = tensor.is_floating_point() and tensor.element_size() < 4
    return tensor.float().numpy() if is_half_precision else tensor.numpy()


def non_empty(name: str, values: Iterable[Any], what: str = "at least one") -> list[Any]:
    """Return values as a list; refuse an empty one.

    Args:
        name: name of the values in the error message.
        values: the values.
        what: what the user should pass instead, in words.
    """
    items = list(values)
    require(items, f"{name} is empty; give {what}")
    return items


def index_by_key(records: Iterable[Any], kind: str) -> dict[str, Any]:
    """Return a dictionary of records, in the same order: ``key`` of a record -> the record. Two
    records that share a key, a name or a short name are refused.

    Args:
        records: objects with a ``key``, and possibly a ``name`` and a ``short_name``.
        kind: what the records are, for the error message.
    """
    by_key: dict[str, Any] = {}
    owners: dict[tuple[str, str], str] = {}
    for record in records:
        for field_name in ("key", "name", "short_name"):
            value = getattr(record, field_name, None)
            if value is None:
                continue
            owner = owners.setdefault((field_name, str(value)), record.key)
            # ``owner`` is the key of the first record with this value. It equals the key of this record
            # if the value is new, or if an earlier record has the same key; the second condition
            # excludes the latter.
            is_new = owner == record.key and record.key not in by_key
            require(
                is_new, f"{kind} {record.key!r} reuses the {field_name} {value!r}; choose another"
            )
        by_key[record.key] = record
    return by_key


def require_columns(what: str, frame: Any, *names: str) -> None:
    """Refuse a table that lacks one of the columns ``names``.

    Args:
        what: name of the table in the error message.
        frame: a data frame.
        names: the columns that it must have.
    """
    missing = [name for name in names if name not in frame.columns]
    present = ", ".join(map(str, frame.columns)) or "none"
    require(not missing, f"{what} needs the columns {', '.join(names)}; it has {present}")


MOST_GB = 10.0
"""Default limit for the memory of one model, in units of 1e9 bytes."""


def refuse_above(what: str, n_bytes: float, max_gb: float) -> None:
    """Refuse an operation that would need more memory than a limit.

    Args:
        what: what would need the memory, in words, for the error message.
        n_bytes: the number of bytes needed.
        max_gb: the limit, in units of 1e9 bytes.
    """
    require(
        n_bytes <= max_gb * 1e9,
        f"{what} would take about {n_bytes / 1e9:.3g} GB, more than {max_gb:g} GB; take smaller sizes, "
        "or give max_gb=...",
    )


def refuse_beyond_machine(what: str, n_bytes: float) -> None:
    """Refuse an operation that needs more memory than this process may use.

    Args:
        what: what would need the memory, in words, for the error message.
        n_bytes: the number of bytes needed.
    """
    available, owner = _find_memory()
    require(
        n_bytes <= available,
        f"{what} would take about {n_bytes / 1e9:.3g} GB, and {owner} {available / 1e9:.3g} GB; take fewer or smaller",
    )


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
_REPEATS: Mapping[str, float] = _TABLES["seconds"]
"""Arguments that say how often something is repeated, each with the seconds of the quickest such
repetition.
"""
_MOST_SECONDS = 100.0
"""Limit for all repetitions if each were as quick as the quickest; slow ones take over a thousand
times longer.
"""


def refuse_endless(name: str, count: int, seconds_each: float | None = None) -> None:
    """Refuse a number of repetitions that could not finish in reasonable time.

    Args:
        name: the argument that holds the number, such as "n_resamples".
        count: the number of repetitions.
        seconds_each: the least time of one repetition. When None, a time is looked up by ``name``;
            for a name without an entry it is 10 microseconds.

    >>> refuse_endless("n_resamples", 10**12)
    Traceback (most recent call last):
    interp.support.errors.InputError: n_resamples=1000000000000 would take at least 2778 hours, at 10 \
microseconds each, the least that any takes; give at most 10000000
    """
    if seconds_each is None:
        seconds_each = _REPEATS.get(name, 1e-5)
    max_count = round(_MOST_SECONDS / seconds_each)
    if count > max_count:
        hours = count * seconds_each / 3600
        raise InputError(
            f"{name}={count} would take at least {hours:.4g} hours, at {seconds_each * 1e6:.0f} microseconds each, "
            f"the least that any takes; give at most {max_count}"
        )


_MOST_AT_ONCE = 10.0  # seconds in which nothing is shown, and a key that stops a run is not heeded


def refuse_slow(what: str, seconds: float) -> None:
    """Refuse a computation that would take more than 10 seconds. To be called before computations
    that cannot be interrupted.

    Args:
        what: what would be computed, in words, for the error message.
        seconds: the least time that the computation takes.
    """
    bound = f"and at most {_MOST_AT_ONCE:g} can pass in one step"
    require(
        seconds <= _MOST_AT_ONCE,
        f"{what} would take at least {seconds:.3g} seconds, {bound}; take smaller ones",
    )


def _find_memory() -> tuple[float, str]:
    """Return how many bytes of memory this process may use, and a phrase that names what sets this
    limit.

    The limit is the machine's memory, its container's, or the shell's ``ulimit``, whichever is
    lowest.
    """
    try:
        machine_bytes = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # the system does not report its memory
        machine_bytes = inf
    # Pairs (bytes, phrase before the number in a message), of which the least is returned.
    bounds = [
        (machine_bytes, "this machine has"),
        (container_bytes(), "its container (cgroup) has"),
    ]
    try:
        import resource
    except ImportError:  # no such limits on this system
        return min(bounds)
    for name in ("RLIMIT_AS", "RLIMIT_DATA"):
        soft, _ = resource.getrlimit(getattr(resource, name))
        if soft != resource.RLIM_INFINITY:
            bounds.append((float(soft), "the limit of this shell (ulimit) is"))
    return min(bounds)


@cache
def container_bytes(root: str = "/") -> float:
    """Return the smallest memory limit, in bytes, of this process's control groups (cgroups);
    infinity if there is none.

    Args:
        root: the root folder of the file system.
    """
    try:
        lines = Path(root, "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return inf
    limit = inf
    for line in lines:
        if line.count(":") < 2:  # a line is "number:controllers:path of the group"
            continue
        _, controllers, group = line.split(":", 2)
        if not controllers:  # version 2 of cgroups
            home = Path(root, "sys/fs/cgroup")
            limit = min(limit, _group_bytes(home, group, "memory.max"))
        elif "memory" in controllers.split(","):
            home = Path(root, "sys/fs/cgroup/memory")
            limit = min(limit, _group_bytes(home, group, "memory.limit_in_bytes"))
    return limit


def _group_bytes(home: Path, group: str, file_name: str) -> float:
    """Return the smallest memory limit of a control group and its parent groups, in bytes.

    Args:
        home: the folder of all control groups.
        group: path of the group, relative to ``home``.
        file_name: name of the file that holds a group's limit.
    """
    limit = inf
    inner = home / group.lstrip("/")
    for place in (inner, *inner.parents):
        if not place.is_relative_to(home):
            break
        # A container may not show the group's own path, and a group without a limit says "max".
        with suppress(OSError, ValueError):
            limit = min(limit, float((place / file_name).read_text()))
    return limit


@contextmanager
def without_inference_or_autocast() -> Iterator[None]:
    """Turn off torch's inference mode and autocast, which a caller may have turned on. Usable as a
    context manager or a decorator.
    """
    torch: Any = sys.modules.get("torch")
    with ExitStack() as stack:
        if hasattr(torch, "inference_mode"):  # torch may not be imported, or not yet whole
            # Leaving inference mode turns gradients on, which a caller's no_grad forbids.
            if torch.is_inference_mode_enabled():
                stack.enter_context(torch.inference_mode(False))
            for device in ("cpu", "cuda"):
                if torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, enabled=False))
        yield


def checked(function: _F) -> _F:
    """Decorate a function so that its arguments are checked against its annotations. Arguments that
    do not fit raise InputError; NumPy scalars become Python numbers.

    Arguments called ``seed`` must pass :func:`seed_of`. While the decorated function runs, torch's
    inference mode and autocast are off (:func:`without_inference_or_autocast`), and calls of other
    decorated functions are not checked. Applied to a class, the decorator decorates every public
    method.
    """
    if isinstance(function, type):
        _check_methods(function)
        return cast(_F, function)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        """Check the arguments, unless another decorated function is running, and call it."""
        if _INSIDE.get():  # a decorated function called this one, with arguments of its own making
            return function(*args, **kwargs)
        token = _INSIDE.set(True)
        try:
            signature, kinds = _parameters(function)  # kinds: name -> (type, default)
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:
                if "unexpected keyword" in str(error):
                    valid = [name for name in signature.parameters if name != "self"]
                    for name in kwargs:
                        require_known(f"argument of {function.__qualname__}:", name, valid, 20)
                raise InputError(f"{function.__qualname__}: {error}") from error
            for name, (kind, default) in kinds.items():
                if name in bound.arguments:
                    bound.arguments[name] = check_type(name, bound.arguments[name], kind, default)
            with without_inference_or_autocast():
                return function(*bound.args, **bound.kwargs)
        finally:
            _INSIDE.reset(token)

    run.checked = True  # type: ignore[attr-defined]
    return cast(_F, run)


def _check_methods(cls: type) -> None:
    """Apply :func:`checked` to every public method of a class, including class and static methods."""
    for name, attribute in list(vars(cls).items()):
        function = getattr(attribute, "__func__", attribute)
        is_public = not name.startswith("_") and name not in cls.__annotations__
        if not inspect.isfunction(function) or not is_public:
            continue
        method = checked(function)
        # A class or static method is unwrapped above, and wrapped again here.
        wrapped = method if function is attribute else type(attribute)(method)
        setattr(cls, name, wrapped)


def checked_fields(cls: type[_T], finite: bool = True) -> type[_T]:
    """Decorate a dataclass so that its fields are checked against their annotations when an
    instance is made, and the arguments of its public methods when they are called. A misfit raises
    InputError.

    Write the decorator below ``@dataclass``.

    Args:
        cls: a class with annotated fields.
        finite: True to refuse fields that are NaN or infinite.
    """
    post_init: Callable[[Any], None] = getattr(cls, "__post_init__", lambda self: None)

    def check_then_post_init(self: Any) -> None:
        check_fields(self, finite)
        post_init(self)

    cls.__post_init__ = check_then_post_init  # type: ignore[attr-defined]
    return checked(cls)


def checked_result(cls: type[_T]) -> type[_T]:
    """Decorate a dataclass of results like :func:`checked_fields`: fields are checked when an
    instance is made. NaN and infinity are allowed, for undefined numbers.
    """
    return checked_fields(cls, finite=False)


def check_fields(record: Any, finite: bool = True) -> None:
    """Check every field of a dataclass instance against its annotation, and convert NumPy scalars
    to Python numbers.

    Args:
        record: the instance; its fields are replaced by the converted values.
        finite: True to refuse numbers that are NaN or infinite.
    """
    _, kinds = _parameters(type(record))  # type: ignore[arg-type]
    for name, (kind, default) in kinds.items():
        value = getattr(record, name)
        # Fits make hundreds of thousands of records, so the most frequent values are not checked.
        is_plain_text = kind is str and type(value) is str
        if value is not default and not is_plain_text:
            object.__setattr__(record, name, check_type(name, value, kind, default, finite))


def check_type(
    name: str, value: Any, kind: Any, default: Any = UNCHECKED, finite: bool = True
) -> Any:
    """Check that ``value`` is of type ``kind``, and return it with NumPy scalars converted to
    Python numbers. Raise InputError otherwise.

    Some names have further rules. A ``seed`` must pass :func:`seed_of`, and a ``level`` must be in
    (0, 1]. A number of repetitions, such as ``n_resamples``, must pass :func:`refuse_endless`.

    Args:
        name: name of the argument or field.
        value: what was passed.
        kind: annotation of the argument or field, resolved to a type.
        default: the parameter's default, which is always accepted. If the default is NaN or
            infinite, other values may be NaN or infinite, too.
        finite: True to refuse numbers that are NaN or infinite.
    """
    if value is default:
        return value
    takes_infinity = isinstance(default, float) and not isfinite(default)
    fitting = convert_value(kind, value, finite=finite and not takes_infinity)
    if fitting is MISFIT:
        raise InputError(
            f"{name} must be {describe_type(kind)}, got {format_value(value)}{_find_hint(kind, value)}"
        )
    if name == "level":
        is_share = isinstance(fitting, int | float) and 0 < fitting <= 1
        require(is_share, f"level is between 0 and 1, got {format_value(fitting)}")
    if type(fitting) is int:  # no boolean
        _check_integer(name, fitting)
    return fitting


def _find_hint(kind: Any, value: Any) -> str:
    """Return a hint for an error message: how to load a model, if the name of a model was passed
    where a model is expected, and "" otherwise.

    Args:
        kind: the expected type.
        value: what was passed.
    """
    wants_model = getattr(kind, "__name__", "") in ("HookedLatentTransformer", "Machine")
    if not wants_model or not isinstance(value, str):
        return ""
    return f"; load it first: interp.load({value!r})"


def _check_integer(name: str, value: int) -> None:
    """Refuse an integer outside of the range that the argument's name implies, such as a negative
    ``seed``.

    Args:
        name: name of the argument.
        value: the integer that was passed.
    """
    if name == "seed" or name.endswith("_seed"):
        seed_of(value, name)
    require(
        -_MOST_INTEGER <= value < _MOST_INTEGER,
        f"{name} must be an integer of at most 64 bits, got {format_value(value)}",
    )
    integer(name, value, _TABLES["least"].get(name))  # the least value of arguments with this name
    if name in _REPEATS:
        refuse_endless(name, value)


@cache
def _parameters(
    function: Callable[..., Any],
) -> tuple[inspect.Signature, dict[str, tuple[Any, Any]]]:
    """Return a function's or dataclass's signature, and the parameters to check: name -> (type,
    default). Parameters that accept any value are left out.
    """
    signature = inspect.signature(function)
    module_names = getattr(inspect.unwrap(function), "__globals__", None)
    if module_names is None:  # a class
        module_names = vars(sys.modules[function.__module__])
    kinds = {}
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        kind = kind_of(parameter.annotation, module_names)
        if kind not in UNCHECKED:
            kinds[parameter.name] = (kind, parameter.default)
    return signature, kinds
