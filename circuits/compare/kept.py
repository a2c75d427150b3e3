"""Parts of a comparison that are finished are kept as JSON until all are, so that a run that was killed goes on.

A part is a dataclass of numbers, intervals, arrays and tables; a file holds it with the settings that it was computed
under, and counts only where these are the same.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from interp.algorithm import Family
from interp.files import read_json, write_json

T = TypeVar("T")
_ARRAY, _TABLE, _FAMILY = "__array__", "__table__", "__family__"


@dataclass(frozen=True)
class Kept:
    """The folder where the parts of one comparison are kept.

    Attributes:
        folder: None keeps nothing.
        settings: what the parts depend on: models, sizes, effort, versions.
        families: of algorithms, by key, which parts name.
    """

    folder: Path | None
    settings: Mapping[str, Any]
    families: Mapping[str, Family]

    def part(self, name: str, kind: type[T], compute: Callable[[], T]) -> T:
        """The part of that name: read where it was kept under the same settings, else computed and kept.

        Raises:
            InputError: it cannot be written.
        """
        if self.folder is None:
            return compute()
        path, settings = self._path(name), json.loads(json.dumps(encoded(dict(self.settings))))
        if path.is_file():
            known = read_json(path, "settings", "part")
            if known["settings"] == settings:
                return typing.cast(T, decoded(kind, known["part"], self.families))
        found = compute()
        write_json(path, {"settings": settings, "part": encoded(found)})
        return found

    def clear(self) -> None:
        """Remove what was kept: the comparison is finished, and saves its own tables."""
        for path in self.folder.glob(".part-*.json") if self.folder is not None else ():
            path.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f".part-{name}.json"


def encoded(value: Any) -> Any:
    """A part as JSON values, which :func:`decoded` makes a part again."""
    if isinstance(value, Family):
        return {_FAMILY: value.key}
    if isinstance(value, pd.DataFrame):
        return {_TABLE: value.to_json(orient="table", double_precision=15, index=False)}
    if isinstance(value, np.ndarray):
        return {_ARRAY: value.tolist(), "dtype": str(value.dtype)}
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: encoded(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): encoded(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [encoded(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def decoded(kind: Any, value: Any, families: Mapping[str, Family]) -> Any:
    """What :func:`encoded` was given, of the type ``kind``."""
    if isinstance(value, dict) and _FAMILY in value:
        return families[value[_FAMILY]]
    if isinstance(value, dict) and _TABLE in value:
        return pd.read_json(StringIO(value[_TABLE]), orient="table", precise_float=True)
    if isinstance(value, dict) and _ARRAY in value:
        return np.array(value[_ARRAY], dtype=value["dtype"])
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        kinds = [one for one in inner if one is not type(None)]
        return None if value is None else decoded(kinds[0], value, families)
    if is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{f.name: decoded(hints[f.name], value[f.name], families) for f in fields(kind)})  # type: ignore[operator]
    if origin is tuple:
        kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else list(inner)
        return tuple(decoded(one, item, families) for one, item in zip(kinds, value, strict=True))
    if isinstance(value, dict) and inner:
        return {key: decoded(inner[-1], item, families) for key, item in value.items()}
    return value
