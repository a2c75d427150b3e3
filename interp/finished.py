"""Finished parts of long work, kept in files, so that a run that was killed goes on where it was.

A part is a number, text, array, table or dataclass, or a list, tuple or mapping of these. Its file holds the settings
that it was computed under and the SHA-256 of its content, and is named by a digest of all that it depends on: its name,
the settings, the versions of the libraries and the fields of its dataclasses. A part of other settings lies beside it
and is never read; a file that was damaged or edited is computed again.

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
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from interp.files import digest_of, folder_to_write, write_text
from interp.provenance import versions

_T = TypeVar("_T")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Finished:
    """The finished parts of one piece of work.

    Attributes:
        folder: holds nothing else; None keeps nothing.
        settings: everything that all parts depend on, or digests of it.
        named: what parts hold and no file can (records of functions), by the ``key`` that each of them has.
    """

    folder: str | Path | None
    settings: Mapping[str, Any]
    named: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a folder that cannot be written before any part is computed."""
        if self.folder is not None:
            folder_to_write(self.folder, "the folder of finished parts")

    def part(self, name: str, kind: type[_T], compute: Callable[[], _T]) -> _T:
        """The part called ``name``, of type ``kind``: read where it was kept, else computed and kept."""
        known = self.load(name, kind)
        return self.save(name, kind, compute()) if known is None else known

    def load(self, name: str, kind: type[_T]) -> _T | None:
        """The part called ``name``; None where no whole one of these settings is kept."""
        path, about = self._place(name, kind)
        if path is None or not path.is_file():
            return None
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content.pop("sha256") == digest_of(content) and content["about"] == about:
                return typing.cast(_T, self._decoded(kind, content["part"]))
        except Exception:  # whatever its contents break: a file is no reason to stop
            pass
        _LOG.warning("%s is damaged or was edited; this part is computed again", path)
        return None

    def save(self, name: str, kind: type[_T], part: _T) -> _T:
        """Keep a part, where there is a folder, and give it back."""
        path, about = self._place(name, kind)
        if path is not None:
            content = {"about": about, "part": self._encoded(part)}
            write_text(path, json.dumps({"sha256": digest_of(content), **content}, indent=1) + "\n")
        return part

    def clear(self) -> None:
        """Remove the folder with every part in it, of other settings, too: the work is done, and its result saved."""
        if self.folder is not None and Path(self.folder).is_dir():
            with suppress(OSError):  # what someone else put there stays, with the folder
                for path in Path(self.folder).glob("*.json"):
                    path.unlink(missing_ok=True)
                Path(self.folder).rmdir()

    def _place(self, name: str, kind: Any) -> tuple[Path | None, dict[str, Any]]:
        """The file of a part, and all that the part depends on."""
        if self.folder is None:
            return None, {}
        settings = json.loads(json.dumps(self._encoded(dict(self.settings))))
        about = {"name": name, "settings": settings, "versions": versions(), "fields": self._fields(kind)}
        words = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")[:60]
        return Path(self.folder) / f"{words}-{digest_of(about)[:16]}.json", about

    @property
    def _kinds(self) -> set[type]:
        return {type(known) for known in self.named.values()}

    def _fields(self, kind: Any) -> Any:
        """The fields of the dataclasses in a type: what was kept before a class changed is not read."""
        if is_dataclass(kind) and kind not in self._kinds:
            hints = typing.get_type_hints(kind)
            return {one.name: self._fields(hints[one.name]) for one in fields(kind)}
        return [self._fields(one) for one in typing.get_args(kind)] or str(kind)

    def _encoded(self, value: Any) -> Any:
        """A part as JSON values, which :meth:`_decoded` makes a part again."""
        if type(value) in self._kinds:
            return {"__named__": value.key}
        if isinstance(value, np.ndarray):
            return {"__array__": value.ravel().tolist(), "shape": value.shape, "dtype": str(value.dtype)}
        if isinstance(value, tuple):
            return {"__tuple__": [self._encoded(item) for item in value]}
        if isinstance(value, list):
            return [self._encoded(item) for item in value]
        if isinstance(value, Mapping):
            if all(isinstance(key, str) for key in value):
                return {key: self._encoded(item) for key, item in value.items()}
            return {"__mapping__": [[self._encoded(key), self._encoded(item)] for key, item in value.items()]}
        if is_dataclass(value):
            return {one.name: self._encoded(getattr(value, one.name)) for one in fields(value)}
        if type(value).__name__ == "DataFrame":
            return {"__table__": [[name, str(one.dtype), self._encoded(one.tolist())] for name, one in value.items()]}
        return value.item() if isinstance(value, np.generic) else value

    def _decoded(self, kind: Any, value: Any) -> Any:
        """What :meth:`_encoded` was given, of type ``kind``."""
        inner = typing.get_args(kind)
        if typing.get_origin(kind) in (typing.Union, types.UnionType):
            return None if value is None else self._decoded(next(one for one in inner if one is not type(None)), value)
        each = inner[0] if inner else Any
        match value:
            case {"__named__": key}:
                return self.named[key]
            case {"__array__": numbers, "shape": shape, "dtype": dtype}:
                return np.array(numbers, dtype=dtype).reshape(shape)
            case {"__table__": columns}:
                import pandas as pd

                return pd.DataFrame({name: pd.Series(numbers, dtype=dtype) for name, dtype, numbers in columns})
            case {"__tuple__": items}:
                kinds = inner if inner and inner[-1] is not ... else (each,) * len(items)
                return tuple(self._decoded(one, item) for one, item in zip(kinds, items, strict=True))
            case {"__mapping__": pairs}:
                last = inner[-1] if inner else Any
                return {self._decoded(each, key): self._decoded(last, item) for key, item in pairs}
            case list():
                return [self._decoded(each, item) for item in value]
            case dict() if is_dataclass(kind):
                hints = typing.get_type_hints(kind)
                parts = {one.name: self._decoded(hints[one.name], value[one.name]) for one in fields(kind)}
                return typing.cast(type, kind)(**parts)
            case dict():
                return {key: self._decoded(inner[-1] if inner else Any, item) for key, item in value.items()}
        return value
