"""Hook points at the submodules of a module that has none: what a submodule is given, or gives."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from interp.model.hooked import has_hooks
from interp.support.checks import checked_fields, integer, shown
from interp.support.errors import InputError, require, require_known

_MOST_RUNS = 1000  # of a submodule in a round: every run has a hook point of its own


@dataclass(frozen=True)
@checked_fields
class Point:
    """Where to look into a module: what one of its submodules is given, or gives.

    Attributes:
        module: name of the submodule, as in ``named_modules``; "" for the whole.
        of: its "output", or its "input": the first argument, or one that ``item`` names.
        item: where the tensor is, if not alone: an index (an ``LSTMCell`` gives ``h`` and ``c``), a key, an attribute,
            or several of these, one within the other: ``("past", 0, "h")``.
        times: how often the submodule runs in a round, as in a loop: the site ``KEY[2]`` is its third run.
        axes, labels: what lies between the batch axis and the vector, as in :class:`~interp.core.machine.Component`.
        name: in tables; the key with spaces when empty.
    """

    module: str
    of: Literal["output", "input"] = "output"
    item: int | str | tuple[int | str, ...] = 0
    times: int = 1
    axes: str = ""
    labels: tuple[str, ...] = ()
    name: str = ""

    def __post_init__(self) -> None:
        for key in self.path:
            if isinstance(key, int):
                integer("item of a Point", key, 0)
        integer("times of a Point", self.times, 1, _MOST_RUNS)
        axes = self.axes.split()
        for axis in axes:
            require_known("axis of a Point", axis, ("pos", "latent", "head"))
        has_places = "pos" in axes or "latent" in axes
        require(
            has_places or not self.labels,
            f"labels of Point({self.module!r}) name the places along an axis, and it has none; give axes='pos', too",
        )

    @property
    def path(self) -> tuple[int | str, ...]:
        """The indices, keys and attributes that lead to the tensor."""
        return self.item if isinstance(self.item, tuple) else (self.item,)


def _list_parts(value: Any) -> Mapping[Any, Any]:
    """List what is in a value, by index, and by key or attribute where it has such."""
    if isinstance(value, Tensor):
        return {0: value}
    if isinstance(value, Mapping):
        return {**dict(enumerate(value.values())), **value}
    if isinstance(value, tuple | list):
        names = getattr(value, "_fields", ())
        return {**dict(enumerate(value)), **dict(zip(names, value, strict=False))}
    if hasattr(value, "__dict__"):
        return vars(value)
    return {name: getattr(value, name) for name in getattr(value, "__slots__", ())}


def _replace_part(value: Any, key: Any, part: Any) -> Any:
    """Return a copy of a value in which the part that ``key`` names is replaced."""
    if isinstance(value, Tensor):
        return part
    if isinstance(value, tuple | list):
        names = getattr(value, "_fields", ())
        items = list(value)
        items[key if isinstance(key, int) else names.index(key)] = part
        return type(value)(*items) if names else type(value)(items)
    changed = copy.copy(value)
    if isinstance(value, Mapping):
        changed[key if key in value else list(value)[key]] = part
    else:
        object.__setattr__(changed, key, part)  # of a frozen dataclass, too
    return changed


class Tap(nn.Module):
    """Hook points at one :class:`Point`: one for every time that the submodule runs in a round."""

    def __init__(self, point: Point) -> None:
        super().__init__()
        self.point = point
        self.n_runs = 0
        self.runs = nn.ModuleList(HookPoint() for _ in range(point.times))

    @property
    def is_watched(self) -> bool:
        """Whether a hook is on it; a submodule that nobody looks into runs as it is."""
        return any(map(has_hooks, self.runs))

    @contextmanager
    def attached_to(self, module: nn.Module) -> Iterator[None]:
        """Pass what the submodule is given, or gives, through the hook points."""
        self.n_runs = 0
        if self.point.of == "output":
            handle = module.register_forward_hook(self._pass_output)
        else:
            handle = module.register_forward_pre_hook(self._pass_input, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()
        name, times = self.point.module, self.point.times
        n_runs = self.n_runs
        require(
            n_runs <= times,
            f"submodule {name!r} runs {n_runs} times in a round, more than {times}; say how often: "
            f"Point({name!r}, times={n_runs})",
        )

    def _pass_output(self, module: nn.Module, args: Any, output: Any) -> Any:
        return self._pass(output)

    def _pass_input(
        self, module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[Any, Any]:
        is_named = self.point.path and self.point.path[0] in options
        if is_named or not args:
            return args, self._pass(options)
        return (self._pass(args[0]), *args[1:]), options

    def _pass(self, value: Any) -> Any:
        """Return a value after the hooks of this run have seen the tensor in it."""
        self.n_runs += 1
        if self.n_runs > self.point.times:  # only counted, to report how often it runs
            return value
        return self._pass_tensor(value, self.point.path)

    def _pass_tensor(self, value: Any, path: Sequence[int | str]) -> Any:
        if not path:
            self._require_tensor(value)
            return self.runs[self.n_runs - 1](value)
        key, *rest = path
        parts = _list_parts(value)
        if key not in parts:
            known = ", ".join(map(repr, parts)) or f"{shown(value)}, no tensor"
            raise InputError(
                f"Point({self.point.module!r}, item={self.point.item!r}) names nothing: there is {known}"
            )
        return _replace_part(value, key, self._pass_tensor(parts[key], rest))

    def _require_tensor(self, value: Any) -> None:
        if isinstance(value, Tensor):
            return
        remedy = "name a tensor by item="
        for key, part in _list_parts(value).items():
            if isinstance(part, Tensor) and isinstance(key, str):
                remedy = f"say item={(*self.point.path, key)!r}"
                break
        raise InputError(
            f"at Point({self.point.module!r}, item={self.point.item!r}) is {shown(value)}, no tensor; {remedy}"
        )
