"""The one place where what a user gives is checked: whole numbers, finite numbers, seeds, names, selections.

:func:`checked` makes a public function check its arguments against its annotations before it does any work,
:func:`check_fields` the fields of a configuration. Both keep NumPy's numbers as Python's and raise
:class:`~interp.support.errors.InputError` in one sentence; ranges, shapes and names that exist the
functions check themselves.

    >>> import numpy as np
    >>> @checked
    ... def double(n_rounds: int, scale: float = 1.0) -> float:
    ...     return 2 * scale * n_rounds
    >>> double(np.int64(3), 0.5)
    3.0
    >>> double(True)
    Traceback (most recent call last):
    interp.support.errors.InputError: n_rounds must be an integer, got True

Calls that are made while a checked function runs are trusted. What is converted: docs/method/input.md.
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
from math import isfinite
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from interp.support.errors import InputError, require, theirs

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")

_MOST_SEED = 2**63 - 1  # the largest seed that NumPy's and torch's generators both take
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")
_INSIDE: ContextVar[bool] = ContextVar("a checked function is running", default=False)


# What an annotation says of a value: whether it fits, and what is wanted, in words.

NO = object()
"""What :func:`fitted` gives for a value of another kind."""
FREE = (Any, object, inspect.Parameter.empty)
"""Annotations that take anything."""
_UNIONS = (typing.Union, types.UnionType)
_LISTS = (tuple, list, Sequence, Iterable, Collection)


class _Numbers:
    """What ``ArrayLike`` stands for in annotations: numbers in a rectangular array. NumPy's own takes texts, too."""


def kind_of(annotation: Any, known: Mapping[str, Any]) -> Any:
    """What an annotation means, in the names ``known`` to its module; one that cannot be resolved takes anything."""
    names = defaultdict(lambda: Any, {**vars(builtins), **known, "ArrayLike": _Numbers})
    try:
        return typing.get_type_hints(
            types.SimpleNamespace(__annotations__={"it": annotation}), names, names
        )["it"]
    except (TypeError, AttributeError):
        return Any


def fitted(kind: Any, value: Any, finite: bool = True) -> Any:
    """``value`` as ``kind``, or :data:`NO`."""
    return _judge(kind)(value, finite)


_Judge = Callable[[Any, bool], Any]


@cache
def _judge(kind: Any) -> _Judge:
    """What turns a value into ``kind`` or :data:`NO`, worked out once."""
    if kind in FREE:
        return lambda value, finite: value
    if kind in _SCALARS:
        return _SCALARS[kind]
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return lambda value, finite: value if isinstance(value, Hashable) and value in parts else NO
    if origin in _UNIONS:
        judges = [_judge(part) for part in parts]
        return lambda value, finite: next(
            (v for judge in judges if (v := judge(value, finite)) is not NO), NO
        )
    if origin in _LISTS:
        elements = [_judge(part) for part in parts if part is not ...]
        return lambda value, finite: _list(origin, elements, parts[-1] is not ..., value, finite)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        keys, values = map(_judge, parts)
        return lambda value, finite: (
            _mapping(keys, values, value, finite) if isinstance(value, origin) else NO
        )
    kind = origin if origin in (np.ndarray, Callable) else kind
    if type(kind) in (type, ABCMeta):
        return lambda value, finite: value if isinstance(value, kind) else NO
    from beartype.door import is_bearable
    from jaxtyping import Float, Num, jaxtyped

    if getattr(kind, "dtype", None) is Float:  # integers are numbers, too
        kind = Num[kind.array_type, kind.dim_str]

    def bearable(value: Any, finite: bool) -> Any:
        with jaxtyped(
            "context"
        ):  # names of axes are this value's own, whatever is checked around it
            return value if is_bearable(value, kind) else NO

    return bearable


def _real(value: Any, finite: bool) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return NO
    try:
        number = float(value)
    except OverflowError:
        return NO
    if finite and not isfinite(number):
        return NO
    # An integer beyond 64 bits is no number to NumPy.
    return value if isinstance(value, float | int) and abs(value) < 2**63 else number


def _numbers(value: Any, finite: bool) -> Any:
    try:
        return value if np.asarray(value).dtype.kind in "biuf" else NO
    except (TypeError, ValueError, RuntimeError):
        return NO


_SCALARS: dict[Any, Callable[[Any, bool], Any]] = {
    int: lambda value, finite: (
        NO if isinstance(value, bool) or not isinstance(value, int | np.integer) else int(value)
    ),
    float: _real,
    bool: lambda value, finite: bool(value) if isinstance(value, bool | np.bool_) else NO,
    _Numbers: _numbers,
}


def _list(origin: Any, judges: list[_Judge], fixed: bool, value: Any, finite: bool) -> Any:
    """A sequence with its elements; a list may stand for a tuple, and a one-dimensional array for a list.

    A ``fixed`` tuple has as many elements as judges; others have one judge for all elements.
    """
    if type(value) is not tuple:
        if (
            getattr(value, "ndim", None) == 1
            and hasattr(value, "tolist")
            and not getattr(value, "is_meta", False)
        ):
            value = value.tolist()
        if isinstance(value, range) and origin is not tuple:
            return value if judges[0](0, True) is not NO else NO
        if isinstance(value, str | bytes) or hasattr(value, "ndim"):
            return NO
        if not isinstance(value, Sequence | set | frozenset):
            elements = value if isinstance(value, Mapping) else ()  # an iterator would be used up
            fits = all(judges[0](one, True) is not NO for one in elements)
            return (
                value
                if fits and origin in (Iterable, Collection) and isinstance(value, origin)
                else NO
            )
    each = judges if origin is tuple and fixed else judges[:1] * len(value)
    found = [judge(one, finite) for judge, one in zip(each, value, strict=False)]
    if len(each) != len(value) or any(one is NO for one in found):
        return NO
    if origin is not tuple and all(new is old for new, old in zip(found, value, strict=True)):
        return value
    return tuple(found) if origin is tuple or isinstance(value, tuple) else found


def _mapping(keys: _Judge, values: _Judge, value: Mapping[Any, Any], finite: bool) -> Any:
    found = {keys(key, finite): values(one, finite) for key, one in value.items()}
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
        return (
            f"{type(x).__name__} of shape {tuple(shape)}"
            if shape
            else super().repr_instance(x, level)
        )


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
    return (
        text
        if isinstance(value, str | int | float | type(None))
        else f"{text} ({type(value).__name__})"
    )


# What functions check themselves, and the two decorators.


def integer(name: str, value: object, least: int | None = None, most: int | None = None) -> int:
    """``value`` as an integer of Python; NumPy's integers are integers, booleans and floats are not."""
    return cast(int, _within(int, name, value, least, most))


def number(
    name: str, value: object, least: float | None = None, most: float | None = None
) -> float:
    """``value`` as a finite number of Python; booleans and texts are none."""
    return cast(float, _within(float, name, value, least, most))


def require_real(name: str, value: object) -> None:
    """Refuse what is no real number; NaN and infinity are numbers here, booleans and texts are not."""
    if isinstance(value, bool) or not isinstance(value, _REAL):
        raise InputError(f"{name} must be a number, got {shown(value)}")


_REAL = (int, float, np.integer, np.floating)


def _within(kind: type, name: str, value: Any, least: float | None, most: float | None) -> Any:
    """``value`` as a ``kind`` between two bounds."""
    found = fitted(kind, value)
    if found is not NO and (least is None or found >= least) and (most is None or found <= most):
        return found
    form = "g" if kind is float else ""
    bounds = [
        f"{sign} {bound:{form}}"
        for sign, bound in ((">=", least), ("<=", most))
        if bound is not None
    ]
    raise InputError(
        f"{name} must be {described(kind)} {' and '.join(bounds)}".rstrip()
        + f", got {shown(value)}"
    )


def seed_of(value: object, name: str = "seed") -> int:
    """``value`` as a seed: an integer from 0 to 2**63 - 1."""
    given = integer(name, value, 0)
    return given if given <= _MOST_SEED else integer(name, value, 0, _MOST_SEED)


def folder_name(name: str, value: object) -> str:
    """``value`` as the name of one folder, so that what is written under it stays in the output folder."""
    fits = isinstance(value, str) and len(value) <= 100 and _NAME.fullmatch(value) is not None
    require(
        fits,
        f"{name} must be letters, digits, '-', '_', '+' and '.', not a path, got {shown(value)}",
    )
    return cast(str, value)


def file_path(value: Any, what: str = "path") -> str:
    """``value`` as a path: a text or a path, which is not empty."""
    fits = isinstance(value, str | os.PathLike) and "\0" not in str(value) and bool(str(value))
    require(fits, f"{what} must be a path, got {shown(value)}")
    short = all(len(os.fsencode(name)) < 256 for name in Path(value).parts)
    require(
        short,
        f"{what} has a name of more than 255 bytes, which no system keeps, got {shown(value)}",
    )
    return os.fspath(value)


def device_called(name: Any) -> Any:
    """The device of torch called ``name``, or ``name`` where it is one."""
    import torch

    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except Exception as error:
        raise InputError(
            f"no device {name!r} on this machine ({str(error).splitlines()[0]}); take cpu"
        ) from None
    require(device.type != "meta", "a model on the device 'meta' holds no numbers; take cpu")
    return device


def array_of(what: str, values: Any, finite: bool = False) -> NDArray[Any]:
    """Numbers as an array: of lists, arrays, tensors of any precision (gradients are let go) and pandas objects."""
    try:
        if hasattr(values, "detach"):
            values = values.detach().cpu()
            values = (
                values.float()
                if values.is_floating_point() and values.element_size() < 4
                else values
            ).numpy()
        array: NDArray[Any] = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{what} must be numbers in a rectangular array, got {shown(values)}"
        ) from error
    if array.dtype.kind == "O":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            seen = array.flat[0] if array.size else None
            raise InputError(f"{what} must be numbers, got values such as {shown(seen)}") from error
    if (
        array.dtype.kind not in "biuf"
    ):  # not by `require`: most calls are small, and the name of a dtype takes long
        kind = "real numbers" if array.dtype.kind == "c" else "numbers"
        raise InputError(f"{what} must be {kind}, got dtype {array.dtype}")
    require(
        not finite or bool(np.isfinite(array).all()), f"{what} must be finite, got NaN or infinity"
    )
    return array.astype(np.float64) if array.dtype == np.float16 else array


def non_empty(name: str, values: Iterable[Any], what: str = "at least one") -> list[Any]:
    """``values`` as a list, which must not be empty."""
    found = list(values)
    require(bool(found), f"{name} is empty; give {what}")
    return found


def unique(records: Iterable[Any], kind: str) -> dict[str, Any]:
    """Records by key, in order; no two may share a key, a name or a short name."""
    by_key: dict[str, Any] = {}
    taken: dict[str, str] = {}
    for record in records:
        for field_name in ("key", "name", "short_name"):
            value = getattr(record, field_name, None)
            if value is not None:
                new = (
                    taken.setdefault(f"{field_name} {value}", record.key) == record.key
                    and record.key not in by_key
                )
                require(
                    new, f"{kind} {record.key!r} reuses the {field_name} {value!r}; choose another"
                )
        by_key[record.key] = record
    return by_key


def require_columns(what: str, frame: Any, *names: str) -> None:
    """Refuse a table that lacks columns."""
    missing = [name for name in names if name not in frame.columns]
    held = ", ".join(map(str, frame.columns)) or "none"
    require(not missing, f"{what} needs the columns {', '.join(names)}; it has {held}")


MOST_GB = 10.0
"""The default bound for one model."""


def refuse_above(what: str, n_bytes: float, max_gb: float) -> None:
    """Refuse what would take more than a bound, in units of 1e9 bytes; ``what`` says what would be made."""
    require(
        n_bytes <= max_gb * 1e9,
        f"{what} would take about {n_bytes / 1e9:.3g} GB, more than {max_gb:g} GB; take smaller sizes, "
        "or give max_gb=...",
    )


def refuse_beyond_machine(what: str, n_bytes: float) -> None:
    """Refuse what this machine's memory cannot hold."""
    held, whose = _memory()
    require(
        n_bytes <= held,
        f"{what} would take about {n_bytes / 1e9:.3g} GB, and {whose} {held / 1e9:.3g} GB; take fewer or smaller",
    )


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
_REPEATS: Mapping[str, float] = _TABLES["seconds"]
"""Arguments and fields that say how often something is done, each with the seconds that the quickest of these takes."""
_MOST_SECONDS = 100.0
"""What the quickest repetitions may take together: the others take a thousand times as long, and more."""


def refuse_endless(name: str, count: int, seconds: float | None = None) -> None:
    """Refuse repetitions that no run lives to finish.

    >>> refuse_endless("n_resamples", 10**12)
    Traceback (most recent call last):
    interp.support.errors.InputError: n_resamples=1000000000000 would take at least 2778 hours, at 10 \
microseconds each, the least that any takes; give at most 10000000
    """
    each = _REPEATS.get(name, 1e-5) if seconds is None else seconds
    most = round(_MOST_SECONDS / each)
    require(
        count <= most,
        f"{name}={count} would take at least {count * each / 3600:.4g} hours, at {each * 1e6:.0f} microseconds each, "
        f"the least that any takes; give at most {most}",
    )


_MOST_AT_ONCE = 10.0  # seconds in which nothing is shown, and a key that stops a run is not heeded


def refuse_slow(what: str, seconds: float) -> None:
    """Refuse one step of work that cannot be stopped and takes at least so many seconds."""
    bound = f"and at most {_MOST_AT_ONCE:g} can pass in one step"
    require(
        seconds <= _MOST_AT_ONCE,
        f"{what} would take at least {seconds:.3g} seconds, {bound}; take smaller ones",
    )


def _memory() -> tuple[float, str]:
    """The bytes that this process may take, and whose bound that is: the machine's, the shell's or the container's."""
    try:
        machine = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # the system does not say
        machine = float("inf")
    bounds = [(machine, "this machine has"), (_container_bytes(), "its container (cgroup) has")]
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
def _container_bytes(root: str = "/") -> float:
    """The least memory of the control groups that hold this process; without end where there are none."""
    try:
        lines = Path(root, "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return float("inf")
    found = [float("inf")]
    for _, kinds, group in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        if kinds and "memory" not in kinds.split(","):
            continue
        home = Path(root, "sys/fs/cgroup", "memory" if kinds else "")
        inner = home / group.lstrip("/")
        for place in [one for one in (inner, *inner.parents) if one.is_relative_to(home)]:
            with suppress(
                OSError, ValueError
            ):  # none here (a container may not show the group's own path), or "max"
                found.append(
                    float(
                        (place / ("memory.limit_in_bytes" if kinds else "memory.max")).read_text()
                    )
                )
    return min(found)


@contextmanager
def plainly() -> Iterator[None]:
    """While it is open, or as a decorator: numbers as anywhere, though a caller be in inference mode or autocast."""
    torch: Any = sys.modules.get("torch")
    with ExitStack() as stack:
        if hasattr(torch, "inference_mode"):  # it may not be there yet
            if (
                torch.is_inference_mode_enabled()
            ):  # leaving it turns gradients on, which a caller's no_grad forbids
                stack.enter_context(torch.inference_mode(False))
            for device in filter(torch.is_autocast_enabled, ("cpu", "cuda")):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def checked(function: _F) -> _F:
    """``function`` with its arguments checked against its annotations, its seeds against :func:`seed_of`, run plainly.

    Of a class every public method is checked so; a function under the name of a field is that field's default.
    """
    if isinstance(function, type):
        for name, held in list(vars(function).items()):
            method = getattr(held, "__func__", held)
            if (
                inspect.isfunction(method)
                and not name.startswith("_")
                and name not in function.__annotations__
            ):
                setattr(
                    function,
                    name,
                    checked(method) if method is held else type(held)(checked(method)),
                )
        return cast(_F, function)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if _INSIDE.get():
            return function(*args, **kwargs)
        outside = _INSIDE.set(True)
        try:
            signature, wanted = _parameters(function)
            with theirs(f"{function.__qualname__}: {{error}}", of=TypeError):
                given = signature.bind(*args, **kwargs)
            for name, kind in wanted.items():
                if name in given.arguments:
                    given.arguments[name] = fit(name, given.arguments[name], *kind)
            with plainly():
                return function(*given.args, **given.kwargs)
        finally:
            _INSIDE.reset(outside)

    run.checked = True  # type: ignore[attr-defined]
    return cast(_F, run)


def checked_fields(cls: type[_T]) -> type[_T]:
    """A class, to stand below ``@dataclass``, whose fields are checked whenever one is made (:func:`check_fields`).

    Its public methods are :func:`checked`, too.
    """
    then: Callable[[Any], None] = getattr(cls, "__post_init__", lambda self: None)

    def check(self: Any) -> None:
        check_fields(self)
        then(self)

    cls.__post_init__ = check  # type: ignore[attr-defined]
    return checked(cls)


def check_fields(record: Any) -> None:
    """Check every field of a dataclass against its annotation, keeping NumPy's numbers as Python's."""
    for name, (kind, default) in _parameters(type(record))[1].items():  # type: ignore[arg-type]
        value = getattr(record, name)
        if not (
            value is default or type(value) is kind is str
        ):  # fits make records by the hundred thousand
            object.__setattr__(record, name, fit(name, value, kind, default))


def fit(name: str, value: Any, kind: Any, default: Any = FREE) -> Any:
    """``value``, when it is of ``kind``, with NumPy's numbers as Python's.

    An argument named ``seed`` must be one, ``level`` a share, and one of :data:`_REPEATS` must be done in time. The
    ``default`` always fits, and where it is not finite, numbers need not be.
    """
    if value is default:
        return value
    given = fitted(kind, value, finite=not (isinstance(default, float) and not isfinite(default)))
    if given is NO:
        hint = ""
        if isinstance(value, str) and getattr(kind, "__name__", "") in (
            "HookedLatentTransformer",
            "Machine",
        ):
            hint = f"; load it first: interp.load({value!r})"
        raise InputError(f"{name} must be {described(kind)}, got {shown(value)}{hint}")
    if name == "level":
        require(
            isinstance(given, int | float) and 0 < given <= 1,
            f"level is between 0 and 1, got {shown(given)}",
        )
    if type(given) is int:  # no boolean
        if name == "seed" or name.endswith("_seed"):
            seed_of(given, name)
        require(
            -(2**63) <= given < 2**63,
            f"{name} must be an integer of at most 64 bits, got {shown(value)}",
        )
        integer(name, given, _TABLES["least"].get(name))
        require(
            name != "n_jobs" or given != 0,
            "n_jobs must be the number of workers, or -1 for one per core, got 0",
        )
        if name in _REPEATS:
            refuse_endless(name, given)
    return given


@cache
def _parameters(
    function: Callable[..., Any],
) -> tuple[inspect.Signature, dict[str, tuple[Any, Any]]]:
    """The signature of a function or dataclass, and what each parameter that is checked must be, with its default."""
    signature = inspect.signature(function)
    known = getattr(inspect.unwrap(function), "__globals__", None) or vars(
        sys.modules[function.__module__]
    )
    single = [
        one
        for one in signature.parameters.values()
        if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    kinds = {one.name: (kind_of(one.annotation, known), one.default) for one in single}
    return signature, {name: kind for name, kind in kinds.items() if kind[0] not in FREE}
