"""Compute once what several analyses need, such as a model's digest and runs, an algorithm's
values, or decoders.

    >>> import interp
    >>> from interp.tasks import experts
    >>> episodes, model = experts.sample(2, 5, 2, seed=0), interp.load("wma-handwired", n_experts=2)
    >>> with session():
    ...     interp.rollout(model, episodes) is interp.rollout(model, episodes)
    True
    >>> interp.rollout(model, episodes) is interp.rollout(model, episodes)
    False

A report, a comparison and a sweep each open a session; within it :func:`compute_once` caches shared
results. They are keyed by the identity of the objects that they depend on: the same model object,
the same episodes object. :func:`cached_in_session` caches results on one object for as long as the object
lives. Cached results are shared, so callers must not modify them. :class:`Finished` stores the
finished parts of long work in files, so that a run that was killed resumes.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> Finished(folder, {"seed": 0}).part("squares", tuple[int, ...], lambda: (1, 4, 9))
    (1, 4, 9)
    >>> [Finished(folder, {"seed": seed}).load("squares", tuple[int, ...]) for seed in (0, 1)]
    [(1, 4, 9), None]
"""

from __future__ import annotations

import json
import logging
import re
import types
import typing
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import numpy as np

from interp.support.errors import require
from interp.support.files import digest_of, folder_to_write, write_text
from interp.support.provenance import versions
from interp.support.shares import divide, end_division, marked_as_running

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Owner = TypeVar("_Owner")
_LOG = logging.getLogger(__name__)
_SESSION_RESULTS: ContextVar[dict[Hashable, tuple[tuple[object, ...], Any]] | None] = ContextVar(
    "session", default=None
)


@contextmanager
def session() -> Iterator[None]:
    """Context manager in which :func:`compute_once` caches results. A session that is opened within a
    session shares the cache of the outer one.
    """
    outer = _SESSION_RESULTS.get()
    token = _SESSION_RESULTS.set({} if outer is None else outer)
    try:
        yield
    finally:
        _SESSION_RESULTS.reset(token)


def compute_once(what: Hashable, *about: object, make: Callable[[], _T]) -> _T:
    """Return the result of ``make``. Within a session, ``make`` is called only once for the same
    arguments; outside of a session, every time.

    Args:
        what: names the result and its settings.
        about: the objects that the result depends on, compared by identity.
        make: function that computes the result.

    >>> with session():
    ...     [compute_once("random", make=lambda i=i: i) for i in range(3)]
    [0, 0, 0]
    >>> [compute_once("random", make=lambda i=i: i) for i in range(3)]
    [0, 1, 2]
    """
    results = _SESSION_RESULTS.get()
    if results is None:
        return make()
    key = (what, *map(id, about))
    if key not in results:
        # The entry also holds ``about``: as long as these objects live, no other object can have one of
        # their ids.
        results[key] = (about, make())
    return results[key][1]


def cached_in_session(
    find: Callable[Concatenate[_Owner, _P], _T],
) -> Callable[Concatenate[_Owner, _P], _T]:
    """Decorate a function so that its results are cached on its first argument, keyed by the other
    arguments.

    Keyword arguments are compared by type and value, so that 1, 1.0 and True differ. Positional
    arguments are compared in this way only if they are strings, integers, tuples or None; others
    are compared by identity.

    Args:
        find: the function; its first argument must have a ``__dict__``.

    >>> class Owner: ...
    >>> count, one, made = cached_in_session(lambda owner, key: made.append(key) or len(made)), Owner(), []
    >>> count(one, "a"), count(one, "b"), count(one, "a"), count(Owner(), "a")
    (1, 2, 1, 3)
    """

    @wraps(find)
    def find_once(owner: _Owner, *args: _P.args, **options: _P.kwargs) -> _T:
        results = owner.__dict__.setdefault("_remembered", {})
        by_value = str | int | tuple | None  # types whose values, not identities, are compared
        keys = [(type(arg), arg if isinstance(arg, by_value) else id(arg)) for arg in args]
        option_keys = [(name, type(value), value) for name, value in options.items()]
        key = (find, *keys, *option_keys)
        if key not in results:
            # The entry also holds ``args``: as long as they live, no other object can have one of their
            # ids.
            results[key] = (args, find(owner, *args, **options))
        return cast(_T, results[key][1])

    return cast(Callable[Concatenate[_Owner, _P], _T], find_once)


@dataclass(frozen=True)
class Finished:
    """The finished parts of a long computation, stored as files. A computation that was killed and
    is run again then computes only the missing parts.

    Attributes:
        folder: folder for these files only; None stores no files.
        settings: everything that all parts depend on, or digests of it, by name. Files that were
            written with other settings are not read.
        named: objects that may occur in parts although JSON cannot represent them, such as records
            of functions: key -> object. For such an object a file stores only its attribute
            ``key``, with which the object is looked up here when the file is read.
    """

    folder: str | Path | None
    settings: Mapping[str, Any]
    named: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise InputError before any part is computed, if the folder cannot be written."""
        if self.folder is not None:
            folder_to_write(self.folder, "the folder of finished parts")

    def part(self, name: str, kind: type[_T], compute: Callable[[], _T]) -> _T:
        """Return the part called ``name``: read it from its file, or compute and save it.

        If several commands divide the work, a file with the host, commit and seconds of the part is
        written, too (:func:`~interp.support.shares.write_note`).

        Args:
            name: name of the part, unique within the computation.
            kind: the part's type: a dataclass, or JSON values, arrays and tables.
            compute: function that computes the part; called if no file has it.
        """
        stored = self.load(name, kind)
        if stored is not None:
            return stored
        with marked_as_running(self.folder, name):
            return self.save(name, kind, compute())

    def divide(self, names: Iterable[str], kind: type[_T], shard: str) -> list[str]:
        """Return the names of the parts that this process should compute, if several processes
        divide the work (:func:`interp.support.shares.divide`).

        Args:
            names: names of all parts.
            kind: type of the parts.
            shard: this process's share, such as "2/64" for the second of 64; empty for all parts.
        """
        if self.folder is None:
            require(not shard, "a share is kept in a folder: give folder=")
            return list(names)
        files = {name: self.file_of(name, kind) for name in names}
        return divide(self.folder, files, self.settings, shard)

    def file_of(self, name: str, kind: type[_T]) -> str:
        """Return the name of a part's file; "" if no files are stored.

        Args:
            name: name of the part.
            kind: type of the part.
        """
        path, _ = self._locate(name, kind)
        return "" if path is None else path.name

    def load(self, name: str, kind: type[_T]) -> _T | None:
        """Read a part from its file; return None if no intact file with the same settings exists.

        Args:
            name: name of the part.
            kind: type of the part.
        """
        path, record = self._locate(name, kind)
        if path is None or not path.is_file():
            return None
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            is_whole = content.pop("sha256") == digest_of(content)
            if is_whole and content["about"] == record:
                return cast(_T, self._decode(kind, content["part"]))
        except Exception:  # a damaged file may raise anything; the part is then computed again
            pass
        _LOG.warning("%s is damaged or was edited; this part is computed again", path)
        return None

    def save(self, name: str, kind: type[_T], part: _T) -> _T:
        """Save a part to its file, unless :attr:`folder` is None, and return the part.

        Args:
            name: name of the part.
            kind: type of the part.
            part: the part.
        """
        path, record = self._locate(name, kind)
        if path is not None:
            content = {"about": record, "part": self._encode(part)}
            write_text(path, json.dumps({"sha256": digest_of(content), **content}, indent=1) + "\n")
        return part

    def clear(self) -> None:
        """Remove all stored parts, even parts with other settings, the files about the division of
        the work into shares, and the folder if it has no other files. To be called once the whole
        result is saved.
        """
        if self.folder is None:
            return
        folder = Path(self.folder)
        end_division(folder)
        with suppress(OSError):  # `rmdir` fails, and the folder stays, if it has other files
            for path in folder.glob("*.json"):
                path.unlink(missing_ok=True)
            folder.rmdir()

    def _locate(self, name: str, kind: Any) -> tuple[Path | None, dict[str, Any]]:
        """Return the path of a part's file (None if no files are stored), and a record of all that
        the part depends on.

        Args:
            name: name of the part.
            kind: type of the part.
        """
        if self.folder is None:
            return None, {}
        # Converted by JSON, as the settings in a file are, with which they are compared.
        settings = json.loads(json.dumps(self._encode(dict(self.settings))))
        record = {
            "name": name,
            "settings": settings,
            "versions": versions(),
            "fields": self._describe_fields(kind),
        }
        # The words are for people; the digest alone makes the name unique.
        words = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")[:60]
        file_name = f"{words}-{digest_of(record)[:16]}.json"
        return Path(self.folder) / file_name, record

    def _describe_fields(self, kind: Any) -> Any:
        """Return the names and types of the fields of all dataclasses that occur in a type. The
        name of a part's file depends on them, so a file from before a change of such a class is not
        read.

        Args:
            kind: the type of the part.
        """
        # Objects in `named` are stored by their key alone, so their fields do not matter.
        named_types: list[Any] = [type(value) for value in self.named.values()]
        if is_dataclass(kind) and kind not in named_types:
            hints = typing.get_type_hints(kind)
            return {field.name: self._describe_fields(hints[field.name]) for field in fields(kind)}
        parts = [self._describe_fields(part) for part in typing.get_args(kind)]
        return parts or str(kind)

    def _encode(self, value: Any) -> Any:
        """Return a value with JSON types only: arrays, tables, tuples and dataclasses become
        dictionaries. :meth:`_decode` is the inverse.
        """
        # An object that JSON cannot represent: only its key, by which `_decode` looks it up.
        if any(type(value) is type(named) for named in self.named.values()):
            return {"__named__": value.key}
        if isinstance(value, np.ndarray):
            return {
                "__array__": value.ravel().tolist(),
                "shape": value.shape,
                "dtype": str(value.dtype),
            }
        if isinstance(value, tuple):
            return {"__tuple__": [self._encode(item) for item in value]}
        if isinstance(value, list):
            return [self._encode(item) for item in value]
        if isinstance(value, Mapping):
            if all(isinstance(key, str) for key in value):
                return {key: self._encode(item) for key, item in value.items()}
            pairs = [[self._encode(key), self._encode(item)] for key, item in value.items()]
            return {"__mapping__": pairs}
        if is_dataclass(value):
            names = [field.name for field in fields(value)]
            return {name: self._encode(getattr(value, name)) for name in names}
        if type(value).__name__ == "DataFrame":
            columns = []
            for name, column in value.items():
                columns.append([name, str(column.dtype), self._encode(column.tolist())])
            return {"__table__": columns}
        return value.item() if isinstance(value, np.generic) else value

    def _decode(self, kind: Any, value: Any) -> Any:
        """Return the value of type ``kind`` that :meth:`_encode` turned into ``value``.

        Args:
            kind: the type of the value.
            value: what :meth:`_encode` returned.
        """
        inner = typing.get_args(kind)  # (str, int) of dict[str, int]
        if typing.get_origin(kind) in (typing.Union, types.UnionType):
            if value is None:
                return None
            not_none = [part for part in inner if part is not type(None)]
            return self._decode(not_none[0], value)  # "X | None" is the only union in parts
        first_kind = inner[0] if inner else Any
        last_kind = inner[-1] if inner else Any
        match value:
            case {"__named__": key}:
                return self.named[key]
            case {"__array__": numbers, "shape": shape, "dtype": dtype}:
                return np.array(numbers, dtype=dtype).reshape(shape)
            case {"__table__": columns}:
                import pandas as pd

                return pd.DataFrame(
                    {name: pd.Series(numbers, dtype=dtype) for name, dtype, numbers in columns}
                )
            case {"__tuple__": items}:
                has_kinds = inner and last_kind is not ...
                kinds = inner if has_kinds else (first_kind,) * len(items)
                kinds_and_items = zip(kinds, items, strict=True)
                return tuple(self._decode(part, item) for part, item in kinds_and_items)
            case {"__mapping__": pairs}:
                return {
                    self._decode(first_kind, key): self._decode(last_kind, item)
                    for key, item in pairs
                }
            case list():
                return [self._decode(first_kind, item) for item in value]
            case dict() if is_dataclass(kind):
                hints = typing.get_type_hints(kind)
                names = [field.name for field in fields(kind)]
                parts = {name: self._decode(hints[name], value[name]) for name in names}
                return cast(type, kind)(**parts)
            case dict():
                return {key: self._decode(last_kind, item) for key, item in value.items()}
        return value
