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

Calls that are made while a checked function runs are trusted.
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

from interp.support.errors import InputError, require, theirs

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")

_MOST_SEED = 2**63 - 1  # the largest seed that NumPy's and torch's generators both take
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")
_INSIDE: ContextVar[bool] = ContextVar("a checked function is running", default=False)


# Annotations: whether a value fits one, and what one asks for, in words. A library that checks types, such as beartype,
# looks at one random element of a list, takes True for an integer, and converts nothing.

NO = object()
"""What :func:`fitted` returns for a value of another kind."""
FREE = (Any, object, inspect.Parameter.empty)
"""Annotations that take anything."""
_UNIONS = (typing.Union, types.UnionType)
_LISTS = (tuple, list, Sequence, Iterable, Collection)
_MOST_INTEGER = 2**63
"""Integers from here on are no numbers to NumPy."""


class _Numbers:
    """What ``ArrayLike`` means in annotations: numbers in a rectangular array. NumPy's type also
    takes texts.
    """


def kind_of(annotation: Any, known: Mapping[str, Any]) -> Any:
    """Resolve an annotation in the names ``known`` to its module; one that cannot be resolved takes anything."""
    namespace = {**vars(builtins), **known, "ArrayLike": _Numbers}
    names = defaultdict(lambda: Any, namespace)
    annotated = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(annotated, names, names)["it"]
    except (TypeError, AttributeError):
        return Any


def fitted(kind: Any, value: Any, finite: bool = True) -> Any:
    """Return ``value`` as ``kind``, or :data:`NO` if it does not fit.

    Args:
        kind: a type.
        value: any value.
        finite: whether numbers must be finite.
    """
    return _judge(kind)(value, finite)


_Judge = Callable[[Any, bool], Any]


@cache
def _judge(kind: Any) -> _Judge:
    """Return the function that turns a value into ``kind`` or :data:`NO`; it is made once for each kind."""
    if kind in FREE:
        return lambda value, finite: value
    if kind in _SCALARS:
        return _SCALARS[kind]
    origin = typing.get_origin(kind)
    if origin is Literal:
        return _judge_of_choices(typing.get_args(kind))
    if origin in _UNIONS:
        return _judge_of_union(typing.get_args(kind))
    if origin in _LISTS:
        return _judge_of_list(origin, typing.get_args(kind))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _judge_of_mapping(origin, typing.get_args(kind))
    if origin in (np.ndarray, Callable):
        return _judge_of_class(origin)
    if type(kind) in (type, ABCMeta):
        return _judge_of_class(kind)
    return _judge_of_instance(kind)


def _judge_of_choices(choices: tuple[Any, ...]) -> _Judge:
    def judge(value: Any, finite: bool) -> Any:
        return value if isinstance(value, Hashable) and value in choices else NO

    return judge


def _judge_of_union(kinds: tuple[Any, ...]) -> _Judge:
    judges = [_judge(kind) for kind in kinds]

    def judge(value: Any, finite: bool) -> Any:
        for judge_of_kind in judges:
            fitting = judge_of_kind(value, finite)
            if fitting is not NO:
                return fitting
        return NO

    return judge


def _judge_of_class(kind: Any) -> _Judge:
    return lambda value, finite: value if isinstance(value, kind) else NO


def _judge_of_instance(kind: Any) -> _Judge:
    """Check arrays with named axes, protocols and other classes; of a generic class only the class,
    not its elements.
    """
    from jaxtyping import Float, Num, jaxtyped

    class_asked = typing.get_origin(kind) or kind
    if not isinstance(class_asked, type):  # a type variable, or what is no class at run time
        return lambda value, finite: value
    if getattr(kind, "dtype", None) is Float:  # integers are numbers, too
        class_asked = Num[kind.array_type, kind.dim_str]

    def judge(value: Any, finite: bool) -> Any:
        with jaxtyped("context"):  # names of axes are this value's alone
            return value if isinstance(value, class_asked) else NO

    return judge


def _as_integer(value: Any, finite: bool) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return NO
    return int(value)


def _as_real(value: Any, finite: bool) -> Any:
    if isinstance(value, bool) or not isinstance(value, _REAL):
        return NO
    try:
        number = float(value)
    except OverflowError:
        return NO
    if finite and not isfinite(number):
        return NO
    is_python_number = isinstance(value, float | int) and abs(value) < _MOST_INTEGER
    return value if is_python_number else number


def _as_truth_value(value: Any, finite: bool) -> Any:
    return bool(value) if isinstance(value, bool | np.bool_) else NO


def _as_numbers(value: Any, finite: bool) -> Any:
    try:
        return value if np.asarray(value).dtype.kind in "biuf" else NO
    except (TypeError, ValueError, RuntimeError):
        return NO


_REAL = (int, float, np.integer, np.floating)
_SCALARS: dict[Any, _Judge] = {
    int: _as_integer,
    float: _as_real,
    bool: _as_truth_value,
    _Numbers: _as_numbers,
}


def _judge_of_list(origin: Any, parts: tuple[Any, ...]) -> _Judge:
    """Check a sequence and its elements; a list is accepted for a tuple, and a one-dimensional
    array for a list.
    """
    judges = [_judge(part) for part in parts if part is not ...]
    is_fixed_tuple = origin is tuple and parts[-1] is not ...

    def judge(value: Any, finite: bool) -> Any:
        if type(value) is not tuple:
            value = _listed(value)
            if isinstance(value, range) and origin is not tuple:
                return value if judges[0](0, True) is not NO else NO
            if isinstance(value, str | bytes) or hasattr(value, "ndim"):
                return NO
            if not isinstance(value, Sequence | set | frozenset):
                return _unread_iterable(origin, judges[0], value)
        element_judges = judges if is_fixed_tuple else judges[:1] * len(value)
        if len(element_judges) != len(value):
            return NO
        pairs = zip(element_judges, value, strict=True)
        elements = [judge_of_element(element, finite) for judge_of_element, element in pairs]
        if any(element is NO for element in elements):
            return NO
        is_same = all(new is old for new, old in zip(elements, value, strict=True))
        if origin is not tuple and is_same:
            return value
        becomes_tuple = origin is tuple or isinstance(value, tuple)
        return tuple(elements) if becomes_tuple else elements

    return judge


def _listed(value: Any) -> Any:
    """Return a one-dimensional array as a list, and any other value as it is."""
    is_row = getattr(value, "ndim", None) == 1 and hasattr(value, "tolist")
    has_numbers = not getattr(value, "is_meta", False)
    return value.tolist() if is_row and has_numbers else value


def _unread_iterable(origin: Any, judge: _Judge, value: Any) -> Any:
    """Check an iterable that is no sequence. Only keys are checked, since reading an iterator would
    use it up.

    Args:
        origin: the expected class.
        judge: checks a key.
        value: any value.
    """
    if origin not in (Iterable, Collection) or not isinstance(value, origin):
        return NO
    keys = value if isinstance(value, Mapping) else ()
    fits = all(judge(key, True) is not NO for key in keys)
    return value if fits else NO


def _judge_of_mapping(origin: Any, parts: tuple[Any, ...]) -> _Judge:
    judge_key, judge_value = map(_judge, parts)

    def judge(value: Any, finite: bool) -> Any:
        if not isinstance(value, origin):
            return NO
        fitting = {}
        is_same = True
        for key, item in value.items():
            new_key, new_item = judge_key(key, finite), judge_value(item, finite)
            if new_key is NO or new_item is NO:
                return NO
            is_same = is_same and new_key == key and new_item is item
            fitting[new_key] = new_item
        return value if is_same else fitting

    return judge


def described(kind: Any) -> str:
    """Return a kind in words, for the sentence of an error."""
    if kind in _WORDS:
        return _WORDS[kind]
    origin = typing.get_origin(kind)
    if origin is not None:
        words = _described_by_parts(origin, typing.get_args(kind))
        if words:
            return words
    if hasattr(kind, "dim_str"):
        axes = ", ".join(kind.dim_str.split())
        return f"{_article(kind.array_type.__name__)} [{axes}]"
    if _is_of_episodes(kind):
        return f"episodes of {kind.task!r}"
    name = getattr(origin or kind, "__name__", str(kind))
    return _NAMED.get(name, _article(name))


def _described_by_parts(origin: Any, parts: tuple[Any, ...]) -> str:
    """Return a composite kind in words; "" where its name is enough."""
    if origin in _UNIONS:
        *words, last = dict.fromkeys(described(part) for part in parts)
        return f"{', '.join(words)} or {last}" if words else last
    if origin is Literal:
        return " or ".join(repr(part) for part in parts)
    if origin is tuple and parts[-1] is not ...:
        return f"{len(parts)} values ({', '.join(described(part) for part in parts)})"
    if origin in _LISTS:
        return f"a list of which each is {described(parts[0])}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        keys, values = map(described, parts)
        return f"a mapping of {keys} to {values}"
    return ""


def _is_of_episodes(value: Any) -> bool:
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
_NAMED = {"Machine": "a model", "Episodes": "a batch of episodes", "Callable": "a function"}


def _article(word: str) -> str:
    return f"{'an' if word[:1].lower() in 'aeio' or word.startswith('nd') else 'a'} {word}"


class _Short(reprlib.Repr):
    """Texts cut at 80 letters, and arrays within lists and mappings by their shape."""

    def repr_instance(self, x: Any, level: int) -> str:
        shape = getattr(x, "shape", ())
        if not shape:
            return super().repr_instance(x, level)
        return f"{type(x).__name__} of shape {tuple(shape)}"


_SHORT = _Short()
_SHORT.maxstring = _SHORT.maxother = 80


def shown(value: Any) -> str:
    """Return a value in a few words: a number as it is, an array by its shape, other values
    shortened.

    >>> shown(np.zeros((2, 3))), shown(float("nan")), shown({"q": np.zeros(4)})
    ('an ndarray of shape (2, 3)', 'nan', "{'q': ndarray of shape (4,)} (dict)")
    """
    if getattr(value, "shape", ()):
        return f"{_article(type(value).__name__)} of shape {tuple(value.shape)}"
    if _is_of_episodes(value):
        return f"episodes of {value.task!r}"
    text = _SHORT.repr(value.item() if isinstance(value, np.generic) else value)
    if isinstance(value, str | int | float | type(None)):
        return text
    return f"{text} ({type(value).__name__})"


# What functions check themselves, and the two decorators.


def integer(name: str, value: object, least: int | None = None, most: int | None = None) -> int:
    """Return ``value`` as an integer of Python; NumPy's integers are integers, booleans and floats are not.

    Args:
        name: what an error calls it.
        value: what was passed.
        least: the smallest that is taken; any when None.
        most: the largest that is taken; any when None.
    """
    return cast(int, _within(int, name, value, least, most))


def number(
    name: str, value: object, least: float | None = None, most: float | None = None
) -> float:
    """Return ``value`` as a finite number of Python; booleans and texts are none.

    Args:
        name: what an error calls it.
        value: what was passed.
        least: the smallest that is taken; any when None.
        most: the largest that is taken; any when None.
    """
    return cast(float, _within(float, name, value, least, most))


def require_real(name: str, value: object) -> None:
    """Refuse what is no real number; NaN and infinity are numbers here, booleans and texts are not."""
    if isinstance(value, bool) or not isinstance(value, _REAL):
        raise InputError(f"{name} must be a number, got {shown(value)}")


def _within(kind: type, name: str, value: Any, least: float | None, most: float | None) -> Any:
    """Return ``value`` as a ``kind`` between two bounds.

    Args:
        kind: int or float.
        name: names the value in errors.
        value: any value.
        least, most: bounds; None for none.
    """
    fitting = fitted(kind, value)
    if fitting is not NO:
        is_large = least is None or fitting >= least
        is_small = most is None or fitting <= most
        if is_large and is_small:
            return fitting
    form = "g" if kind is float else ""
    bounds = []
    if least is not None:
        bounds.append(f">= {least:{form}}")
    if most is not None:
        bounds.append(f"<= {most:{form}}")
    rule = f"{described(kind)} {' and '.join(bounds)}".rstrip()
    raise InputError(f"{name} must be {rule}, got {shown(value)}")


def seed_of(value: object, name: str = "seed") -> int:
    """Return ``value`` as a seed: an integer from 0 to 2**63 - 1."""
    seed = integer(name, value, 0)
    if seed > _MOST_SEED:
        integer(name, value, 0, _MOST_SEED)
    return seed


def folder_name(name: str, value: object) -> str:
    """Return ``value`` as the name of one folder, so that what is written under it stays in the output folder."""
    fits = isinstance(value, str) and len(value) <= 100 and _NAME.fullmatch(value) is not None
    require(
        fits,
        f"{name} must be letters, digits, '-', '_', '+' and '.', not a path, got {shown(value)}",
    )
    return cast(str, value)


def file_path(value: Any, what: str = "path") -> str:
    """Return ``value`` as a path: a text or a path, which is not empty."""
    is_path = isinstance(value, str | os.PathLike)
    fits = is_path and str(value) != "" and "\0" not in str(value)
    require(fits, f"{what} must be a path, got {shown(value)}")
    longest = max((len(os.fsencode(name)) for name in Path(value).parts), default=0)
    require(
        longest < 256,
        f"{what} has a name of more than 255 bytes, which no system keeps, got {shown(value)}",
    )
    return os.fspath(value)


def device_called(name: Any) -> Any:
    """Return the device of torch called ``name``, or ``name`` itself where it is a device."""
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
    """Return numbers as an array: lists, arrays, tensors of any precision (without gradients) and pandas objects.

    Args:
        what: what an error calls them.
        values: what was passed.
        finite: refuse NaN and infinity.
    """
    try:
        array: NDArray[Any] = np.asarray(_without_torch(values))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{what} must be numbers in a rectangular array, got {shown(values)}"
        ) from error
    if array.dtype.kind == "O":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            first = array.flat[0] if array.size else None
            raise InputError(
                f"{what} must be numbers, got values such as {shown(first)}"
            ) from error
    # Not by `require`: most calls are small, and the name of a dtype takes long.
    if array.dtype.kind not in "biuf":
        kind = "real numbers" if array.dtype.kind == "c" else "numbers"
        raise InputError(f"{what} must be {kind}, got dtype {array.dtype}")
    if finite:
        is_finite = bool(np.isfinite(array).all())
        require(is_finite, f"{what} must be finite, got NaN or infinity")
    return array.astype(np.float64) if array.dtype == np.float16 else array


def _without_torch(values: Any) -> Any:
    """Return a tensor as an array, and any other value as it is."""
    if not hasattr(values, "detach"):
        return values
    tensor = values.detach().cpu()
    is_half_precision = tensor.is_floating_point() and tensor.element_size() < 4
    return tensor.float().numpy() if is_half_precision else tensor.numpy()


def non_empty(name: str, values: Iterable[Any], what: str = "at least one") -> list[Any]:
    """Return values as a list, which must not be empty.

    Args:
        name: names them in errors.
        values: the values.
        what: what to give instead, in words.
    """
    items = list(values)
    require(bool(items), f"{name} is empty; give {what}")
    return items


def unique(records: Iterable[Any], kind: str) -> dict[str, Any]:
    """Return records by key, in order; no two may share a key, a name or a short name."""
    by_key: dict[str, Any] = {}
    owners: dict[tuple[str, str], str] = {}
    for record in records:
        for field_name in ("key", "name", "short_name"):
            value = getattr(record, field_name, None)
            if value is None:
                continue
            owner = owners.setdefault((field_name, str(value)), record.key)
            is_new = owner == record.key and record.key not in by_key
            require(
                is_new, f"{kind} {record.key!r} reuses the {field_name} {value!r}; choose another"
            )
        by_key[record.key] = record
    return by_key


def require_columns(what: str, frame: Any, *names: str) -> None:
    """Refuse a table that lacks columns."""
    missing = [name for name in names if name not in frame.columns]
    present = ", ".join(map(str, frame.columns)) or "none"
    require(not missing, f"{what} needs the columns {', '.join(names)}; it has {present}")


MOST_GB = 10.0
"""The default bound for one model."""


def refuse_above(what: str, n_bytes: float, max_gb: float) -> None:
    """Refuse what would take more memory than a bound.

    Args:
        what: would be made, in words.
        n_bytes: it would take.
        max_gb: the bound, in units of 1e9 bytes.
    """
    require(
        n_bytes <= max_gb * 1e9,
        f"{what} would take about {n_bytes / 1e9:.3g} GB, more than {max_gb:g} GB; take smaller sizes, "
        "or give max_gb=...",
    )


def refuse_beyond_machine(what: str, n_bytes: float) -> None:
    """Refuse what this machine's memory cannot hold."""
    available, owner = _memory()
    require(
        n_bytes <= available,
        f"{what} would take about {n_bytes / 1e9:.3g} GB, and {owner} {available / 1e9:.3g} GB; take fewer or smaller",
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
    seconds_each = _REPEATS.get(name, 1e-5) if seconds is None else seconds
    most = round(_MOST_SECONDS / seconds_each)
    if count > most:
        hours = count * seconds_each / 3600
        raise InputError(
            f"{name}={count} would take at least {hours:.4g} hours, at {seconds_each * 1e6:.0f} microseconds each, "
            f"the least that any takes; give at most {most}"
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
    """Return the bytes that this process may take, and where that bound comes from: the machine,
    the shell, ...
    """
    try:
        machine = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # the system does not say
        machine = inf
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
    """Return the least memory of the control groups that hold this process; infinity where there are none."""
    try:
        lines = Path(root, "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return inf
    least = inf
    for line in lines:
        if line.count(":") < 2:
            continue
        _, controllers, group = line.split(":", 2)
        if not controllers:
            least = min(least, _group_bytes(Path(root, "sys/fs/cgroup"), group, "memory.max"))
        elif "memory" in controllers.split(","):
            home = Path(root, "sys/fs/cgroup/memory")
            least = min(least, _group_bytes(home, group, "memory.limit_in_bytes"))
    return least


def _group_bytes(home: Path, group: str, file_name: str) -> float:
    """Return the least limit of a control group and of those around it, up to ``home``.

    Args:
        home: folder of all groups.
        group: path of the group below it.
        file_name: of the limit.
    """
    least = inf
    inner = home / group.lstrip("/")
    for place in (inner, *inner.parents):
        if not place.is_relative_to(home):
            break
        # A container may not show the group's own path, and a group without a limit says "max".
        with suppress(OSError, ValueError):
            least = min(least, float((place / file_name).read_text()))
    return least


@contextmanager
def plainly() -> Iterator[None]:
    """Compute as usual, although a caller may be in inference mode or autocast; a context manager or a decorator."""
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
    """Check the arguments of a function against its annotations, its seeds against :func:`seed_of`; run it plainly.

    Every public method of a class is checked so; a function under the name of a field is that field's default.
    """
    if isinstance(function, type):
        _check_methods(function)
        return cast(_F, function)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if _INSIDE.get():
            return function(*args, **kwargs)
        token = _INSIDE.set(True)
        try:
            signature, kinds = _parameters(function)
            with theirs(f"{function.__qualname__}: {{error}}", of=TypeError):
                bound = signature.bind(*args, **kwargs)
            for name, (kind, default) in kinds.items():
                if name in bound.arguments:
                    bound.arguments[name] = fit(name, bound.arguments[name], kind, default)
            with plainly():
                return function(*bound.args, **bound.kwargs)
        finally:
            _INSIDE.reset(token)

    run.checked = True  # type: ignore[attr-defined]
    return cast(_F, run)


def _check_methods(cls: type) -> None:
    """Replace every public method of a class, a class's or a static one, too, by one that is :func:`checked`."""
    for name, attribute in list(vars(cls).items()):
        function = getattr(attribute, "__func__", attribute)
        is_public = not name.startswith("_") and name not in cls.__annotations__
        if not inspect.isfunction(function) or not is_public:
            continue
        method = checked(function)
        wrapped = method if function is attribute else type(attribute)(method)
        setattr(cls, name, wrapped)


def checked_fields(cls: type[_T], finite: bool = True) -> type[_T]:
    """Check the fields of a class whenever an instance is made (:func:`check_fields`), and its methods' arguments.

    Stands below ``@dataclass``.
    """
    then: Callable[[Any], None] = getattr(cls, "__post_init__", lambda self: None)

    def check(self: Any) -> None:
        check_fields(self, finite)
        then(self)

    cls.__post_init__ = check  # type: ignore[attr-defined]
    return checked(cls)


def checked_result(cls: type[_T]) -> type[_T]:
    """Like :func:`checked_fields`, for what is computed: NaN stands for a number that does not exist."""
    return checked_fields(cls, finite=False)


def check_fields(record: Any, finite: bool = True) -> None:
    """Check every field of a dataclass against its annotation, keeping NumPy's numbers as Python's;
    they must be ``finite``.
    """
    _, kinds = _parameters(type(record))  # type: ignore[arg-type]
    for name, (kind, default) in kinds.items():
        value = getattr(record, name)
        # Fits make records by the hundred thousand: what needs no look gets none.
        is_plain_text = kind is str and type(value) is str
        if value is not default and not is_plain_text:
            object.__setattr__(record, name, fit(name, value, kind, default, finite))


def fit(name: str, value: Any, kind: Any, default: Any = FREE, finite: bool = True) -> Any:
    """Return ``value`` where it is of ``kind``, with NumPy's numbers as Python's.

    An argument named ``seed`` must be one, ``level`` a share, and one of :data:`_REPEATS` must be done in time.

    Args:
        name: the argument's or the field's.
        value: what was passed.
        kind: its annotation, resolved.
        default: always fits; where it is not finite, numbers need not be.
        finite: whether other numbers must be finite.
    """
    if value is default:
        return value
    takes_infinity = isinstance(default, float) and not isfinite(default)
    fitting = fitted(kind, value, finite=finite and not takes_infinity)
    if fitting is NO:
        raise InputError(
            f"{name} must be {described(kind)}, got {shown(value)}{_hint_of(kind, value)}"
        )
    if name == "level":
        is_share = isinstance(fitting, int | float) and 0 < fitting <= 1
        require(is_share, f"level is between 0 and 1, got {shown(fitting)}")
    if type(fitting) is int:  # no boolean
        _check_integer(name, fitting)
    return fitting


def _hint_of(kind: Any, value: Any) -> str:
    """Return what to do about a name that stands in the place of a model; empty elsewhere."""
    wants_model = getattr(kind, "__name__", "") in ("HookedLatentTransformer", "Machine")
    if not wants_model or not isinstance(value, str):
        return ""
    return f"; load it first: interp.load({value!r})"


def _check_integer(name: str, value: int) -> None:
    """Refuse an integer that is out of the range of what its name stands for."""
    if name == "seed" or name.endswith("_seed"):
        seed_of(value, name)
    require(
        -_MOST_INTEGER <= value < _MOST_INTEGER,
        f"{name} must be an integer of at most 64 bits, got {shown(value)}",
    )
    integer(name, value, _TABLES["least"].get(name))
    require(
        name != "n_jobs" or value != 0,
        "n_jobs must be the number of workers, or -1 for one per core, got 0",
    )
    if name in _REPEATS:
        refuse_endless(name, value)


@cache
def _parameters(
    function: Callable[..., Any],
) -> tuple[inspect.Signature, dict[str, tuple[Any, Any]]]:
    """Return the signature of a function or dataclass, and the kind and default of each parameter to be checked."""
    signature = inspect.signature(function)
    known = getattr(inspect.unwrap(function), "__globals__", None)
    if known is None:
        known = vars(sys.modules[function.__module__])
    kinds = {}
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        kind = kind_of(parameter.annotation, known)
        if kind not in FREE:
            kinds[parameter.name] = (kind, parameter.default)
    return signature, kinds
