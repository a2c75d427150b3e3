"""Attach TransformerLens hook points to the inputs and outputs of any module's submodules.

A :class:`Point` says where, and :func:`interp.adapt` takes a dictionary of points. The key of a
point becomes the name of an activation, such as ``cell``: the hook point is ``points.cell``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from interp.model.hooked import count_writes, has_hooks
from interp.model.layout import add_axes
from interp.support.checks import checked_fields, format_value, integer
from interp.support.errors import InputError, require, require_known

_MOST_RUNS = 1000
"""Largest number of runs of a submodule in a round, since every run has a separate hook point."""


@dataclass(frozen=True)
@checked_fields
class Point:
    """A place in a PyTorch module to attach hooks to: the input or the output of a submodule.

    A point gets its name from the dictionary in which it is passed, such as
    ``interp.adapt(..., points={"read_in": Point("read", of="input")})``. Hooks are attached to
    ``points.read_in``, and interventions and probes name the activation "read_in".

    Attributes:
        module: name of the submodule, as in ``named_modules``; "" for the whole module.
        of: the submodule's "output", or its "input": the first positional argument, or the keyword
            argument that ``item`` names.
        item: where the tensor is if the output or input has several parts, such as the output
            ``(h, c)`` of an ``LSTMCell``: an index, a key or the name of an attribute; or a tuple
            of these that leads to the tensor step by step, such as ``("past", 0, "h")``.
        times: how often the submodule runs in a round, as in a loop. If this is not 1, each run has
            a separate activation: that of the third run of a point "block" is ``block[2]``. For a
            loop that may halt early, ``times`` is the maximum number of runs.
        alive: for a loop that may halt early, a function that decides which rows of the batch run
            once more; otherwise None. It is called after each run, with a list of the outputs of
            ``gate`` in all runs so far, ``[row, ...]`` each. It returns Bool[row] or Bool[row,
            pos], True where the next run takes place. A row that has halted stays halted. Hooks and
            caches see NaN for a run that does not take place. If a hook changes this NaN, the
            round's prediction and state are NaN.
        gate: name of the submodule with the outputs that are passed to ``alive``; when empty, the
            outputs of ``module`` are passed. A loop may drop rows that have halted from the batch.
            It must then drop them for both ``module`` and ``gate``.
        name: name in tables; when empty, the point's key in the dictionary with spaces in place of
            underscores.
        axes: names of the axes between the batch axis and the feature axis, separated by blanks:
            "pos", "latent" or "head".
        labels: names of the entries along the axis "pos" or "latent".
    """

    module: str
    of: Literal["output", "input"] = "output"
    item: int | str | tuple[int | str, ...] = 0
    times: int = 1
    alive: Callable[[list[Tensor]], Tensor] | None = None
    gate: str = ""
    axes: str = ""
    labels: tuple[str, ...] = ()
    name: str = ""

    def __post_init__(self) -> None:
        """Refuse numbers out of range, unknown axes, and fields that have no effect alone: ``labels``
        without an axis of positions or latents, and ``gate`` without ``alive``.
        """
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
        require(
            self.alive is not None or not self.gate,
            f"gate={self.gate!r} of Point({self.module!r}) decides nothing without alive=; give alive=, a function "
            "from the gate's outputs to whether the next run takes place",
        )

    @property
    def path(self) -> tuple[int | str, ...]:
        """The field ``item`` as a tuple: the indices, keys and attributes that lead from the
        submodule's output (or input) to the tensor.

        >>> Point("cell").path, Point("cell", item=("past", 0, "h")).path
        ((0,), ('past', 0, 'h'))
        """
        return self.item if isinstance(self.item, tuple) else (self.item,)


def list_parts(value: Any) -> Mapping[Any, Any]:
    """Return the parts of a value, such as a module's output, in a dictionary.

    The keys of the dictionary depend on the value:

    - a tensor is a single part, under 0;
    - the parts of a list or tuple are under their indices, and under the field names of a named
      tuple as well;
    - the parts of a mapping are under their indices and under their keys;
    - the parts of any other object are under the names of its attributes.
    """
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


def replace_part(value: Any, key: Any, part: Any) -> Any:
    """Return a copy of a value, such as a module's output, with one part replaced.

    Args:
        value: a tensor, a sequence, a mapping or an object.
        key: index, key or attribute name of the part; ignored for a tensor.
        part: the new part.
    """
    if isinstance(value, Tensor):
        return part
    if isinstance(value, tuple | list):
        names = getattr(value, "_fields", ())  # empty unless it is a named tuple
        items = list(value)
        index = key if isinstance(key, int) else names.index(key)
        items[index] = part
        # A named tuple takes its items one by one, a list or tuple all together.
        return type(value)(*items) if names else type(value)(items)
    changed = copy.copy(value)
    if isinstance(value, Mapping):
        key_of_part = key if key in value else list(value)[key]
        changed[key_of_part] = part
    else:
        object.__setattr__(changed, key, part)  # which sets fields of a frozen dataclass, too
    return changed


class Halting:
    """Record of which rows of the batch have halted, during one round of a loop that may halt
    early.

    Args:
        point: the point in the loop; its function ``alive`` decides which rows run once more.
        n_rows: number of rows of the batch.
        alters_halted: True to alter activations of halted rows, to test that they have no effect.

    Attributes:
        alive: Bool[row] or Bool[row, pos], True where the loop has not halted.
        void: Bool[row], True for rows without a valid result; the model's prediction and state
            become NaN there. A row becomes void if it has halted, and a hook changes the NaN
            that it sees there. It also becomes void if it has not halted, and a hook returns NaN or
            infinity.
    """

    def __init__(self, point: Point, n_rows: int, alters_halted: bool = False) -> None:
        self.point = point
        self.alters_halted = alters_halted
        self.n_rows = n_rows
        self.alive = torch.ones(n_rows, dtype=torch.bool)
        self.void = torch.zeros(n_rows, dtype=torch.bool)
        self.outputs: list[Tensor] = []

    def update_from_gate(self, gate: nn.Module, args: Any, output: Any) -> None:
        """Update the mask :attr:`alive` from an output of the gate, the submodule that decides
        about halting. This method is attached to the gate as a forward hook.

        Args:
            gate, args: not used; PyTorch passes them to every forward hook.
            output: the gate's output: a tensor ``[row, ...]``, or a value with this tensor as its
                first part.
        """
        value = list_parts(output)[0]  # the tensor itself if the output is one
        self.outputs.append(self._fill_in_halted(value))
        assert self.point.alive is not None
        # A copy of the list, since the user's function may change it.
        goes_on = self.point.alive(list(self.outputs))
        is_mask = isinstance(goes_on, Tensor) and goes_on.dtype == torch.bool
        require(
            is_mask and goes_on.shape[:1] == (self.n_rows,),
            f"alive= of Point({self.point.module!r}) gives Bool[row] or Bool[row, pos] of {self.n_rows} rows, got "
            f"{format_value(goes_on)}",
        )
        alive = self.alive.to(goes_on.device)
        n_axes = max(alive.ndim, goes_on.ndim)  # 1 for [row], 2 for [row, pos]
        # Both masks, since what has halted once stays halted.
        self.alive = add_axes(alive, n_axes) & add_axes(goes_on, n_axes)

    @property
    def _is_running(self) -> Tensor:
        """Bool[row], True for rows in which at least one position has not halted."""
        return self.alive.flatten(1).any(1) if self.alive.ndim > 1 else self.alive

    def _fill_in_halted(self, value: Tensor) -> Tensor:
        """Return a tensor with one row for each row of the batch, ``[batch, ...]``, and NaN in rows
        that have halted and were left out.

        Args:
            value: the tensor, ``[row, ...]``, with all rows of the batch, or with only those that
                have not halted.
        """
        if len(value) == self.n_rows:
            return value
        is_running = self._is_running
        n_running = int(is_running.sum())
        require(
            len(value) == n_running,
            f"a run of {self.point.module!r} is of {len(value)} rows where alive= says that "
            f"{n_running} of {self.n_rows} go on",
        )
        whole = value.new_full((self.n_rows, *value.shape[1:]), torch.nan)
        return whole.index_put((is_running,), value)

    def run_hooks(self, hook_point: nn.Module, value: Tensor) -> Tensor:
        """Pass the activation of one run of the submodule through its hook point. Hooks see NaN in
        rows that have halted.

        Args:
            hook_point: the hook point of this run.
            value: the activation, ``[row, ...]``; the loop may leave out rows that have halted.

        Returns:
            The activation after the hooks, for the same rows as ``value``. It is unchanged in halted
            rows, and where hooks returned NaN or infinity.
        """
        has_all_rows = len(value) == self.n_rows
        whole = self._fill_in_halted(value)
        alive = add_axes(self.alive.to(whole.device), whole.ndim)
        visible = whole.masked_fill(~alive, torch.nan)
        n_writes = count_writes(visible)
        result = hook_point(visible)
        if result is visible and count_writes(visible) == n_writes:  # no hook changed anything
            if self.alters_halted and has_all_rows:
                # For the check that halted rows have no effect: 1 - value differs from value, unless
                # this is 1/2.
                return torch.where(alive, value, 1 - value)
            return value
        self.void = self.void.to(whole.device) | self._find_void(alive, whole, result)
        edited = torch.where(alive & result.isfinite(), result, whole)
        return edited if has_all_rows else edited[self._is_running]

    def _find_void(self, alive: Tensor, whole: Tensor, result: Tensor) -> Tensor:
        """Find the rows of the batch that hooks have made void (without a valid result) in one run
        of the submodule, Bool[row].

        A row is void in two cases: it has halted, and a hook changed its activation; or it has not
        halted, and a hook returned NaN or infinity for it.

        Hooks see NaN in halted rows. A hook that adds a number to NaN leaves NaN, so its change
        cannot be seen. Therefore, a hook that changed all rows that have not halted is assumed to
        have changed the halted rows, too.

        This method is called only if a hook returned another tensor or wrote into the activation.

        Args:
            alive: True for rows, or for rows and positions, that have not halted. It has as many
                axes as ``whole``; all later axes have size 1.
            whole: the activation before the hooks.
            result: the activation after the hooks.
        """
        # Activations of a run must be finite, and those of a run that does not take place stay NaN.
        is_void = torch.where(alive, ~result.isfinite(), ~result.isnan())
        void = is_void.flatten(1).any(1)
        alive = alive.expand_as(whole).flatten(1)  # [row, number]
        is_running = alive.any(1)  # [row]
        if is_running.any():
            is_changed = (alive & (result != whole).flatten(1)).any(1)  # [row]
            changes_every_row = bool(is_changed[is_running].all())
        else:
            # Every row has halted, so the hook, which changed something, changed halted rows. If
            # none of them shows it, the hook added to NaN, and is taken to have changed all.
            changes_every_row = not void.any()
        if not changes_every_row:
            return void
        # Then rows in which any position has halted were changed, too, though it cannot be seen.
        return void | ~alive.all(1)


class Tap(nn.Module):
    """The hook points of one :class:`Point` (a submodule's input or output): one hook point for
    each run of the submodule in a round.

    Args:
        point: the point.
    """

    def __init__(self, point: Point) -> None:
        super().__init__()
        self.point = point
        self.n_runs = 0
        self.halting: Halting | None = None
        self.alters_halted = False
        self.last_activation: Tensor | None = None
        """Activation in the last run of the round, if the loop may halt."""
        self.runs = nn.ModuleList(HookPoint() for _ in range(point.times))
        """Hook points, one for each run that the point declares; named after the runs since their
        place ("runs.2") is part of a hook's name.
        """

    @property
    def is_hooked(self) -> bool:
        """Whether a hook is attached to any of the hook points; if not, the submodule runs
        unchanged.
        """
        return any(map(has_hooks, self.runs))

    @contextmanager
    def attached_to(self, module: nn.Module, gate: nn.Module, n_rows: int) -> Iterator[None]:
        """Open a context in which a submodule's input or output passes through the hook points.

        Args:
            module: the submodule.
            gate: the submodule that decides about halting, if the point has ``alive``.
            n_rows: number of rows of the batch.
        """
        self.n_runs = 0
        if self.point.of == "output":
            # Before the gate's own hook, since the gate may be the submodule itself.
            handles = [module.register_forward_hook(self._pass_output, prepend=True)]
        else:
            handles = [module.register_forward_pre_hook(self._pass_input, with_kwargs=True)]
        if self.point.alive is not None:
            self.halting = Halting(self.point, n_rows, alters_halted=self.alters_halted)
            handles.append(gate.register_forward_hook(self.halting.update_from_gate))
        try:
            yield
            self._require_runs()
        finally:
            for handle in handles:
                handle.remove()

    def _require_runs(self) -> None:
        """Refuse more runs of the submodule in a round than the point declares. If the loop has
        halted early, call the hooks of the runs that it left out, with NaN as the activation.
        """
        name = self.point.module
        n_runs = self.n_runs
        require(
            n_runs <= self.point.times,
            f"submodule {name!r} runs {n_runs} times in a round, more than {self.point.times}; say how often: "
            f"Point({name!r}, times={n_runs})",
        )
        if self.halting is None:
            return
        if self.last_activation is None:
            raise InputError(
                f"submodule {name!r} has not run in any round yet, so what it gives is unknown; look at episodes in "
                "which it does"
            )
        # The loop ended before it made all runs that the point declares. In the remaining ones every
        # row has halted, so hooks see NaN in place of these zeros.
        self.halting.alive = torch.zeros_like(self.halting.alive)
        shape = (self.halting.n_rows, *self.last_activation.shape[1:])
        hook_points = list(self.runs)  # one for each declared run
        for hook_point in hook_points[n_runs:]:
            self.halting.run_hooks(hook_point, self.last_activation.new_zeros(shape))

    def _pass_output(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Pass a submodule's output through the hook point; this method is a forward hook of
        PyTorch.

        Args:
            module, args: not used; PyTorch passes them to every hook.
            output: the output of the submodule.
        """
        return self._pass(output)

    def _pass_input(
        self, module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[Any, Any]:
        """Pass a submodule's input through the hook point, as a forward pre-hook of PyTorch, and
        return its arguments with the result.

        Args:
            module: not used; PyTorch passes the submodule to every hook.
            args: positional arguments of the submodule; only the first passes the hook point.
            options: keyword arguments; used if the point's path begins with the name of one.
        """
        is_named = self.point.path and self.point.path[0] in options
        if is_named or not args:
            return args, self._pass(options)
        return (self._pass(args[0]), *args[1:]), options

    def _pass(self, value: Any) -> Any:
        """Pass a submodule's input or output through the hook point of the current run, and return
        the result.

        Args:
            value: the input or output. If it has several parts, only the one that the point names
                passes the hook point.
        """
        self.n_runs += 1
        if self.n_runs > self.point.times:  # only counted, to report how often it runs
            return value
        return self._pass_tensor(value, self.point.path)

    def _pass_tensor(self, value: Any, path: Sequence[int | str]) -> Any:
        """Return ``value`` with the tensor at the end of ``path`` passed through the hook point of
        the current run.

        Args:
            value: the submodule's input or output, or a part of it.
            path: the indices, keys and attributes that lead from ``value`` to the tensor.
        """
        if not path:
            self._require_tensor(value)
            hook_point = self.runs[self.n_runs - 1]  # of the current run, which is counted already
            if self.halting is None:
                return hook_point(value)
            self.last_activation = value.detach()
            return self.halting.run_hooks(hook_point, value)
        key, *rest = path
        parts = list_parts(value)
        if key not in parts:
            known = ", ".join(map(repr, parts)) or f"{format_value(value)}, no tensor"
            raise InputError(
                f"Point({self.point.module!r}, item={self.point.item!r}) names nothing: there is {known}"
            )
        return replace_part(value, key, self._pass_tensor(parts[key], rest))

    def _require_tensor(self, value: Any) -> None:
        """Refuse a value that is no tensor, and suggest the name of a part of it that is one.

        Args:
            value: the part of the submodule's input or output that the point names.
        """
        if isinstance(value, Tensor):
            return
        remedy = "name a tensor by item="
        for key, part in list_parts(value).items():
            if isinstance(part, Tensor) and isinstance(key, str):
                remedy = f"say item={(*self.point.path, key)!r}"
                break
        raise InputError(
            f"at Point({self.point.module!r}, item={self.point.item!r}) is {format_value(value)}, no tensor; {remedy}"
        )
