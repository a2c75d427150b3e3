"""Make a machine of any ``nn.Module``: a cell, a loop, a model that thinks in embeddings, with no line of it changed.

The module keeps its weights and its code. What the toolkit has to be told is what a round does (``step``), what passes
to the next one (``channels``) and which of its submodules to look into (``points``).

    >>> import torch, interp
    >>> from torch import nn
    >>> class Counter(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.cell, self.read = nn.GRUCell(5, 8), nn.Linear(12, 2)
    >>> def step(module, carried, fed):
    ...     advice, truth = fed.tokens[:, 3:11:2].float() - 3, fed.tokens[:, -2:-1].float() - 3
    ...     scores = module.read(torch.cat([carried["h"], advice], 1))
    ...     return scores, {"h": module.cell(torch.cat([advice, truth], 1), carried["h"])}
    >>> machine = adapt(Counter(), "experts", sizes={"n_experts": 4}, step=step, channels=[Channel("h", (8,))],
    ...                 points={"read_in": Point("read", of="input"), "cell": "cell"}, name="counter")
    >>> from interp.tasks import experts
    >>> run = interp.rollout(machine, experts.sample(3, 5, 4, seed=0), names_filter="points.cell")
    >>> tuple(run.latents.shape), tuple(run.cache["points.cell"].shape)
    ((3, 6, 1, 8), (3, 5, 8))
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformer_lens.hook_points import HookPoint

from interp.core import catalog
from interp.core.algorithm import Algorithm
from interp.core.machine import Channel, Component, Stepped
from interp.core.task import Task
from interp.model.checks import CLOSE, TRUSTED, check_machine
from interp.model.hooked import HookedMachine, reset_parameters
from interp.model.layout import EncodedRounds, RoundLayout
from interp.model.locks import DefaultDtype, exclusive, lock_of
from interp.model.run import room
from interp.support.checks import (
    checked,
    checked_fields,
    fit,
    integer,
    plainly,
    refuse_beyond_machine,
    shown,
)
from interp.support.errors import InputError, require, require_known, theirs, unknown_name

_Tree = Mapping[str, Tensor]
_Step = Callable[[Any, dict[str, Tensor], Any], tuple[Tensor, _Tree]]
_LATENT = "latent"
_MOST_RUNS = 1000  # how often a submodule may run in a round: every run has a hook point of its own
_DIGITS = 3  # to how many digits a digest holds what a machine does: rounding on another computer moves the eighth
_LOOKED_AT = (
    6  # rounds of it: together they take as long as to draw the two that are played three times
)


def _pack(channels: Sequence[Channel], tree: Mapping[str, Tensor]) -> Tensor:
    """What is carried, ``[batch, row, width]``, from each channel's ``[batch, *shape]``."""
    width, parts = max(channel.shape[-1] for channel in channels), []
    for channel in channels:
        value = tree.get(channel.name)
        if not isinstance(value, Tensor) or value.shape[1:] != channel.shape:
            got = (
                tuple(value.shape)
                if isinstance(value, Tensor)
                else "nothing"
                if value is None
                else shown(value)
            )
            raise InputError(f"channel {channel.name!r} is [batch, *{channel.shape}], got {got}")
        rows = value.reshape(len(value), channel.rows, channel.shape[-1])
        parts.append(torch.nn.functional.pad(rows, (0, width - channel.shape[-1])))
    for name in tree.keys() - {channel.name for channel in channels}:
        raise InputError(f"{name!r} is carried but in no channel; declare Channel({name!r}, shape)")
    return torch.cat(parts, 1) if len(parts) > 1 else parts[0]


def _unpack(channels: Sequence[Channel], carried: Tensor) -> dict[str, Tensor]:
    """Each channel's part ``[..., *shape]`` of what is carried, ``[..., row, width]``."""
    parts = zip(channels, carried.split([channel.rows for channel in channels], -2), strict=True)
    return {
        c.name: part[..., : c.shape[-1]].reshape(*carried.shape[:-2], *c.shape) for c, part in parts
    }


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
        for index in (one for one in self.path if isinstance(one, int)):
            integer("item of a Point", index, 0)
        integer("times of a Point", self.times, 1, _MOST_RUNS)
        for axis in self.axes.split():
            require_known("axis of a Point", axis, ("pos", "latent", "head"))
        require(
            not self.labels or bool({"pos", "latent"} & set(self.axes.split())),
            f"labels of Point({self.module!r}) name the places along an axis, and it has none; give axes='pos', too",
        )

    @property
    def path(self) -> tuple[int | str, ...]:
        """The indices, keys and attributes that lead to the tensor."""
        return self.item if isinstance(self.item, tuple) else (self.item,)


def _parts(value: Any) -> Mapping[Any, Any]:
    """What is in a value, by index, and by key or attribute where it has such."""
    if isinstance(value, Tensor):
        return {0: value}
    if isinstance(value, Mapping):
        return {**dict(enumerate(value.values())), **value}
    if isinstance(value, tuple | list):
        return {**dict(enumerate(value)), **getattr(value, "_asdict", dict)()}
    return getattr(
        value, "__dict__", {name: getattr(value, name) for name in getattr(value, "__slots__", ())}
    )


class _Tap(nn.Module):
    """Hook points at one :class:`Point`: one for every time that the submodule runs in a round."""

    def __init__(self, point: Point) -> None:
        super().__init__()
        self.point, self.runs = point, 0
        self.at = [HookPoint() for _ in range(point.times)]
        self.all = nn.ModuleList(self.at)

    def pass_on(self, value: Any) -> Any:
        """The value after the hooks of this run, which the tensor at the point's place in it passes."""
        self.runs += 1
        if self.runs > self.point.times:  # only counted, to report how often it runs
            return value
        return self._passed(value, self.point.path)

    def _require_its_runs(self) -> None:
        name, times = self.point.module, self.point.times
        require(
            self.runs <= times,
            f"submodule {name!r} runs {self.runs} times in a round, more than {times}; say how often: "
            f"Point({name!r}, times={self.runs})",
        )

    def _passed(self, value: Any, path: Sequence[int | str]) -> Any:
        if not path:
            self._require_tensor(value)
            return self.at[self.runs - 1](value)
        (key, *rest), parts = path, _parts(value)
        if key not in parts:
            known = ", ".join(map(repr, parts)) or f"{shown(value)}, no tensor"
            raise InputError(
                f"Point({self.point.module!r}, item={self.point.item!r}) names nothing: there is {known}"
            )
        part = self._passed(parts[key], rest)
        if isinstance(value, Tensor):
            return part
        if isinstance(value, tuple | list):
            at = key if isinstance(key, int) else list(parts)[len(value) :].index(key)
            every = (*value[:at], part, *value[at + 1 :])
            return type(value)(*every) if hasattr(value, "_fields") else type(value)(every)
        changed = copy.copy(value)
        if isinstance(value, Mapping):
            changed[key if key in value else list(value)[int(key)]] = part
        else:
            object.__setattr__(changed, str(key), part)  # of a frozen dataclass, too
        return changed

    def _require_tensor(self, value: Any) -> None:
        if isinstance(value, Tensor):
            return
        path = self.point.path
        inside = [
            (*path, key)
            for key, part in _parts(value).items()
            if isinstance(part, Tensor) and isinstance(key, str)
        ]
        remedy = "name a tensor by item="
        if inside:
            remedy = f"say item={inside[0]!r}"
        raise InputError(
            f"at Point({self.point.module!r}, item={self.point.item!r}) is {shown(value)}, no tensor; {remedy}"
        )

    def _given(
        self, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[Any, Any]:
        if not args or set(self.point.path[:1]) & named.keys():
            return args, self.pass_on(named)
        return (self.pass_on(args[0]), *args[1:]), named

    @contextmanager
    def on(self, module: nn.Module) -> Iterator[None]:
        """While it is open, what the submodule is given or gives passes the hook points."""
        self.runs = 0
        if self.point.of == "output":
            handle = module.register_forward_hook(
                lambda module, given, output: self.pass_on(output)
            )
        else:
            handle = module.register_forward_pre_hook(self._given, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()
        self._require_its_runs()


class _Read(TorchDispatchMode):
    """While it is open, ``beside`` takes the shapes of weights that are read and not in the state of a machine.

    They are what no operation made: parameters, and matrices of real numbers that lie where they lay in another round.
    """

    _should_skip_dynamo = classmethod(
        lambda cls: False
    )  # which would load torch's compiler: a second

    def __init__(self, own: Iterable[Tensor]) -> None:
        super().__init__()
        self.own, self.round, self.made, self.beside = (
            {one.data_ptr() for one in own},
            0,
            dict[int, Any](),
            set[str](),
        )
        self.seen = dict[int, tuple[int, Tensor]]()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        for one in tree_leaves((args, kwargs)):
            if (
                isinstance(one, Tensor)
                and id(one) not in self.made
                and one.data_ptr() not in self.own
            ):
                first, _ = self.seen.setdefault(one.data_ptr(), (self.round, one))
                learned = isinstance(one, nn.Parameter) or (
                    one.requires_grad and one.is_leaf and one._base is None
                )
                if learned or (one.ndim > 1 and one.is_floating_point() and first < self.round):
                    self.beside.add(str(list(one.shape)))
        done = function(*args, **kwargs or {})
        self.made.update((id(one), one) for one in tree_leaves(done))
        return done


class AdaptedMachine(HookedMachine):
    """A module as a machine; :func:`adapt` makes one."""

    start: Callable[[Any], _Tree] | None
    reader: Callable[[dict[str, Tensor]], Tensor] | None
    reset: Callable[[Any], None] | None
    algorithm: Algorithm | None

    def __init__(
        self,
        module: nn.Module,
        layout: RoundLayout,
        step: _Step,
        channels: Sequence[Channel],
        points: Mapping[str, Point],
        output: str,
    ) -> None:
        super().__init__()
        self.module, self.layout, self.one_step, self.output = module, layout, step, output
        self.lock = lock_of(module)
        # What grows is carried with how far it is written.
        self.lengths = {f"{channel.name}_length": channel for channel in channels if channel.grows}
        self.channels = (*channels, *(Channel(name, (1,)) for name in self.lengths))
        self.hook_latents = HookPoint()
        labels = tuple(label for channel in self.channels for label in channel.labels)
        self.points = {
            _LATENT: Component(_LATENT, "hook_latents", "latent", "carried state", labels=labels)
        }
        for key, point in points.items():
            hook, several = (
                f"points.{key}" + (".{layer}" if point.times > 1 else ""),
                point.times * (point.times > 1),
            )
            name = point.name or key.replace("_", " ")
            self.points[key] = Component(key, hook, point.axes, name, several, labels=point.labels)
        self.taps = {key: _Tap(point) for key, point in points.items()}
        self.tapped = nn.ModuleList(self.taps.values())
        asked = {point.module.rpartition(".")[0] for point in points.values()}
        cells = {
            name: part for name, part in _named(module).items() if name in asked and gates(part)
        }
        self.opened = {name: _Open(part) for name, part in cells.items()}
        self._largest = layout.max_layout
        self._of_length = {one.n_positions: one for one in (*layout.family, layout)}
        self.setup()

    def setup(self) -> None:
        """Name the hook points: ``hook_latents``, and ``points.KEY`` or ``points.KEY.RUN`` for those asked for."""
        own = self.__dict__["_modules"].pop(
            "module"
        )  # whose parts, which may have names of their own, get none
        super().setup()
        self.module = own
        for key, tap in self.taps.items():
            for run, at in enumerate(tap.at):
                self.hook_dict.pop(at.name)
                self.mod_dict.pop(at.name)
                at.name = self.points[key].hook.format(layer=run)
                self.hook_dict[at.name] = self.mod_dict[at.name] = at

    def train(self, mode: bool = True) -> Self:
        """Train the module, or run it in evaluation mode whatever mode its parts are in: those are their owner's."""
        if fit("mode", mode, bool):
            return super().train()
        self.training = False
        return self

    def to(self, *args: Any, **options: Any) -> Self:
        """Move and cast the machine; a complex constant takes the precision of the weights, and stays complex."""
        constants = [
            (part, name, buffer)
            for part in self.modules()
            for name, buffer in part.named_buffers(recurse=False)
            if buffer.is_complex()
        ]
        for part, name, _ in constants:
            part._buffers[name] = None  # PyTorch would cast it to real numbers
        try:
            super().to(*args, **options)
        finally:
            dtype = torch.complex128 if self.dtype == torch.float64 else torch.complex64
            for part, name, buffer in constants:
                part._buffers[name] = buffer.to(self.device, dtype)
        return self

    @property
    def is_handwired(self) -> bool:  # type: ignore[override]
        """Whether its state can be read exactly."""
        return self.reader is not None

    @exclusive
    @checked
    def initial(self, n_episodes: int, layout: RoundLayout | None = None) -> Tensor:
        """What the first round reads, ``[batch, row, width]``: zeros unless ``adapt`` was told otherwise."""
        with self._settled(self.dtype, looked_into=False):
            tree = {} if self.start is None else self._tried("initial=", self.start, self.module)
        require(
            isinstance(tree, Mapping),
            f"initial= of {self.name!r} gives a mapping of channels, got {shown(tree)}",
        )
        one = {}
        for channel in self.channels:
            value = tree.get(channel.name, torch.zeros(channel.shape))
            if not isinstance(value, Tensor) or value.is_complex():
                wanted = f"initial= of {self.name!r}: {channel.name!r} is a tensor of real numbers"
                raise InputError(f"{wanted}, got {shown(value)}")
            one[channel.name] = value.to(self.device, self.dtype)
        packed = _pack(
            self.channels, {name: value.unsqueeze(0) for name, value in {**tree, **one}.items()}
        )
        return packed.expand(n_episodes, -1, -1)

    def stepper(self) -> Callable[[Tensor, EncodedRounds], Stepped]:
        """The same from states that occur, where predictions must be probabilities: no edit promises that."""
        return partial(self.step, occurs=True)

    @exclusive
    def step(self, carried: Tensor, fed: EncodedRounds, occurs: bool = False) -> Stepped:
        """One round of a batch; where its state ``occurs``, predictions must be probabilities."""
        tree = _unpack(self.channels, self.hook_latents(carried))
        known = {**tree, **{name: tree[name].squeeze(-1).round().long() for name in self.lengths}}
        with self._settled(carried.dtype):
            done = self._tried("a round", self.one_step, self.module, dict(known), fed)
        scores, after = done if isinstance(done, tuple) and len(done) == 2 else (None, None)
        if not (isinstance(scores, Tensor) and isinstance(after, Mapping)):
            raise InputError(
                f"{self.name!r}: a step returns (scores, carried), a tensor and a mapping of channels to tensors, got "
                f"{', '.join(map(shown, done)) if isinstance(done, tuple) else shown(done)}"
            )
        for name, channel in self.lengths.items():
            cache, length = _grown(
                channel, known[channel.name], known[name], after.get(channel.name)
            )
            after = {**after, channel.name: cache, name: length.unsqueeze(-1).to(carried.dtype)}
        fitted = self._of_length.get(fed.tokens.shape[-1], self.layout)
        if fitted.kind == "mean" and scores.ndim == 1:
            scores = scores.unsqueeze(-1)
        wanted = [(len(carried), layout.n_outputs) for layout in (fitted, self._largest)]
        require(
            tuple(scores.shape) in wanted and scores.is_floating_point(),
            f"{self.name!r}: scores are [batch, outcome] = {list(wanted[0])}, one for each of "
            f"{', '.join(fitted.outcomes)}, got {list(scores.shape)} of {scores.dtype}",
        )
        scores = scores[:, : fitted.n_outputs]
        if self.output == "logits":
            scores = scores.softmax(-1)
        elif (
            occurs
            and self.output == "probability"
            and not any(p.fwd_hooks for p in self.hook_dict.values())
        ):
            low, sums = float(scores.min()), scores.sum(-1)
            close, worst = CLOSE.get(scores.dtype, 1e-2), float(sums[(sums - 1).abs().argmax()])
            require(
                low >= -close and abs(worst - 1) <= close,
                f"{self.name!r}: predictions are no probabilities of the outcomes: they must be 0 or more and add up "
                f"to 1, the least is {low:.4g} and a sum is {worst:.6g}; give output='logits' where they are scores",
            )
        return Stepped(fitted.prediction(scores), _pack(self.channels, after))

    forward = step  # for tools that call a module

    def _tried(self, what: str, function: Callable[..., Any], *given: Any) -> Any:
        """What a function of the user's gives; whatever it raises is told as its own."""
        made = "what is made of tokens must be, too, .to(fed.values)"
        with theirs(f"{self.name!r}: {what}", lambda: f" (the machine is in {self.dtype}: {made})"):
            done = function(*given)
        return done

    @contextmanager
    def _settled(self, dtype: torch.dtype, looked_into: bool = True) -> Iterator[None]:
        """While it is open, the module is in evaluation mode unless the machine is trained, and makes ``dtype``.

        Where it is looked into, hook points see the submodules and cells are open. All is as it was afterwards.
        """
        awake = [] if self.training else [part for part in self.module.modules() if part.training]
        with ExitStack() as stack:
            for own in map(
                vars, awake
            ):  # without the look at every kind of attribute that modules take at a change
                own["training"] = False
                stack.callback(own.update, training=True)
            stack.enter_context(DefaultDtype(dtype))
            for cell in self.opened.values() if looked_into else ():
                stack.enter_context(cell.instead())
            known = _named(self.module) if looked_into and self.taps else {}
            for tap in self.taps.values() if looked_into else ():
                name, _, gate = tap.point.module.rpartition(".")
                opened = self.opened.get(name)  # a gate of a fused cell, or a submodule
                at: Any = (
                    known.get(tap.point.module) if opened is None else opened.get_submodule(gate)
                )
                if at is None:
                    raise InputError(
                        f"{self.name!r} has no submodule {tap.point.module!r} any more; adapt it again"
                    )
                stack.enter_context(tap.on(at))
            yield

    def read_state(self, latents: Tensor) -> Tensor:
        """The state that the machine carries, exactly; only where ``adapt`` was told how to read it."""
        if self.reader is None:
            raise InputError(
                f"{self.name!r} has no exact state readout; decode with a probe, or adapt it with read="
            )
        state: Tensor = self._tried("read=", self.reader, _unpack(self.channels, latents))
        require(
            isinstance(state, Tensor),
            f"read= of {self.name!r} gives the state, a tensor, got {shown(state)}",
        )
        return state

    @checked
    def untrained(self, seed: int = 0) -> AdaptedMachine:
        """The control of every claim: a copy with fresh random weights, which no global generator gave."""
        draw = self.reset or reset_parameters
        blank = self._drawn_anew(seed, lambda blank: self._tried("reset=", draw, blank.module))
        blank.name, blank.reader, blank.algorithm = f"{self.name}-untrained", None, None
        read = _Read(blank._held().values())
        blank._done(read)
        of = f"rounds of {self.name!r} read weights of shape {', '.join(sorted(read.beside))} that none of its modules "
        how = "holds, and an untrained copy would have them: make them its parameters or submodules, constants buffers"
        require(not read.beside, of + how)
        return blank

    def said(self) -> str:
        """What its digest holds beside the weights: what it is, and what it does in six fixed rounds, each time anew.

        What a step reads outside the state of its module (a closure, a global, an attribute) may change. A change that
        shows in later rounds only, or moves what is largest by less than .0005 of it, has the same digest.
        """
        what = getattr(self.one_step, "__qualname__", type(self.one_step).__qualname__)
        code = f"{getattr(self.one_step, '__module__', '')}.{what}"
        points = {key: vars(tap.point) for key, tap in self.taps.items()}
        said = [
            self.name,
            repr(self.module),
            code,
            self.layout.to_dict(),
            self.channels,
            points,
            self.output,
        ]
        return json.dumps([*said, self._done()], sort_keys=True, default=str)

    @exclusive
    @plainly()
    def _done(self, watched: _Read | None = None) -> str:
        """What it predicts, and how much it carries, in rounds of two episodes: relative to the largest.

        Not ``watched`` is the sampler of the task, which may ask the trained module.
        """
        try:
            episodes = catalog.get(self.layout.task).sample_for(self, 2, 2, 0)
            fitted = self.layout.fit(episodes)
            fed = self.prepare(fitted.encode(episodes))
            rounds = [fed.at(t % fed.tokens.shape[1]) for t in range(room(self, _LOOKED_AT))]
            reading: Any = watched or nullcontext()
            if watched:
                watched.own |= {one.data_ptr() for now in rounds for one in now.tensors().values()}
            with ExitStack() as stack, reading, torch.no_grad():
                # No hook is run, and nothing is trained.
                for part in (one.__dict__ for one in (self, *self.hook_points())):
                    stack.callback(
                        part.update,
                        _forward_hooks=part["_forward_hooks"],
                        training=part["training"],
                    )
                    part.update(_forward_hooks={}, training=False)
                carried, done = self.initial(2, fitted), []
                for reading.round, now in enumerate(rounds):
                    prediction, carried = self.step(carried, now)
                    done += [prediction.flatten(), carried.abs().mean((1, 2))]
        except Exception as error:  # what cannot run does nothing, and its digest says so
            return type(error).__name__
        numbers = [(float(part.abs().max()), part.double().cpu()) for part in done]
        return str(
            [
                f"{most:.{_DIGITS}g} {(part / (most or 1)).round(decimals=_DIGITS).tolist()}"
                for most, part in numbers
            ]
        )


@checked
def adapt(
    module: nn.Module,
    task: str | Task | RoundLayout,
    *,
    step: _Step,
    channels: Sequence[Channel],
    points: Any = None,
    sizes: Mapping[str, Any] | None = None,
    initial: Callable[[Any], _Tree] | None = None,
    read: Callable[[dict[str, Tensor]], Tensor] | None = None,
    algorithm: Algorithm | None = None,
    reset: Callable[[Any], None] | None = None,
    output: Literal["logits", "probability", "value"] | None = None,
    name: str = "",
    origin: Mapping[str, Any] | None = None,
    check: bool = True,
) -> AdaptedMachine:
    """A machine of ``module``, checked on a few episodes of its task.

    Its rounds run in evaluation mode, whatever mode the module is in; the module is left as it was.

    Args:
        task: what it learns: a registered task (its key or record) with its ``sizes``, or the layout of its rounds.
        step: ``(module, carried, fed) -> (scores, carried)``, one round of a batch. ``carried`` maps each channel's
            name to ``[batch, *shape]``; of a channel that grows, the step returns only the new rows, and reads in
            ``NAME_length``, Int[batch], how many are written. ``fed`` holds the round's ``tokens`` and ``values``,
            ``[batch, pos]`` each; ``scores`` are ``[batch, outcome]``; of a real number its mean, ``[batch]`` or
            ``[batch, 1]``, or mean and log variance, ``[batch, 2]``. It must be pure, and predict without the tokens
            after the prediction.
        channels: all that passes from round to round.
        points: where to look: key -> submodule (its output), or a :class:`Point`.
        initial: module to what the first round reads, per channel ``[*shape]``; zeros where it says nothing.
        read: channels ``{name: [..., *shape]}`` to the algorithm's state, for a machine whose state is known exactly.
        algorithm: what such a machine was made to compute, for all that holds it against an algorithm; the one that its
            task names when None.
        reset: draws the weights of a module anew; ``reset_parameters`` of every submodule when None.
        output: what the scores are: "logits" of the outcomes (when None), a "probability" each, or where the layout
            predicts a real number the "value" itself.
        origin: how to make it again, for results and checkpoints.
        check: whether :func:`check_machine` runs; it says in a sentence what part of the contract is not kept.
    """
    layout = layout_for(task, sizes)
    real = layout.kind != "classes"
    output = output or ("value" if real else "logits")
    require(
        real == (output == "value"),
        f"rounds of {layout.task!r} predict {'a real number' if real else 'outcomes'}: output must be "
        f"{'value' if real else 'logits or probability'!r}, or None, got {output!r}",
    )
    require(
        algorithm is None or (read is not None and algorithm.task == layout.task),
        f"algorithm= is what a machine of {layout.task!r} with a known state computes: give read=, too, and an "
        "algorithm of its task; which one explains a learned machine, circuits.compare.machines(machine) says",
    )
    require(
        len(channels) >= 1, "a machine carries something: give at least one Channel(name, shape)"
    )
    names = [
        name for one in channels for name in (one.name, f"{one.name}_length")[: 1 + bool(one.grows)]
    ]
    require(
        len(set(names)) == len(names),
        f"channels must have names of their own, got {', '.join(names)}",
    )
    parts = _named(module)
    known = [*parts, *(f"{name}.{gate}" for name, part in parts.items() for gate in gates(part))]
    require(
        isinstance(points or {}, Mapping),
        f"points= names what to look at: {{key: submodule or Point}}, such as {{'cell': 'cell'}}, got {shown(points)}",
    )
    where = {
        key: point if isinstance(point, Point) else Point(point)
        for key, point in (points or {}).items()
    }
    for key, point in where.items():
        good = isinstance(key, str) and key.isidentifier() and key != _LATENT
        require(good, f"a point's key must be an identifier but {_LATENT!r}, got {key!r}")
        if point.module not in known:
            raise unknown_name("submodule", point.module, filter(None, known), limit=40)
        scripted = isinstance(parts.get(point.module), torch.jit.ScriptModule)
        require(
            not scripted,
            f"{point.module!r} is scripted, and calls no hooks: adapt the module that was scripted",
        )
    machine = AdaptedMachine(module, layout, step, channels, where, output)
    machine.start, machine.reader, machine.reset, machine.algorithm = (
        initial,
        read,
        reset,
        algorithm,
    )
    machine.name, machine.origin, machine.training = (
        name or type(module).__name__,
        dict(origin or {}),
        False,
    )
    _require_dense(machine)
    refuse_beyond_machine(
        f"what {machine.name!r} carries", 4.0 * sum(prod(channel.shape) for channel in channels)
    )
    if check and not TRUSTED.get():
        check_machine(machine, cheap=True)
    return machine


def _require_dense(machine: AdaptedMachine) -> None:
    """Refuse weights that cannot be drawn anew, and what cannot be copied; a constant may have any dtype."""
    module = machine.module
    state = {**module.state_dict(), **dict(module.named_buffers())}
    not_dense = [
        name
        for name, tensor in state.items()
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided
    ]
    complex_weights = [name for name, weight in module.named_parameters() if weight.is_complex()]
    odd = [*not_dense, *complex_weights]
    require(
        not odd,
        f"{machine.name!r} keeps {', '.join(odd)} as no dense tensors of real numbers, which alone can be drawn, "
        "copied and cast: take torch.view_as_real of complex ones, and keep others outside",
    )


def layout_for(
    task: str | Task | RoundLayout, sizes: Mapping[str, Any] | None = None
) -> RoundLayout:
    """The layout of a task's rounds, of the sizes given and of the task's own where none is; a layout is itself."""
    if isinstance(task, RoundLayout):
        require(not sizes, f"a layout has its sizes, so sizes={sizes} says nothing; give either")
        return task
    record = task if isinstance(task, Task) else catalog.get(task)
    own = {size.name: size.default for size in record.sizes}
    for name in sizes or {}:
        require_known(f"size of {record.key!r}", name, own)
    return record.layout(**own | dict(sizes or {}))


def _named(module: nn.Module) -> dict[str, nn.Module]:
    """Every submodule by all of its names: one that is used twice has two."""
    return dict(module.named_modules(remove_duplicate=False))


def _grown(
    channel: Channel, cache: Tensor, length: Tensor, new: Tensor | None
) -> tuple[Tensor, Tensor]:
    """A cache with new rows ``[batch, grows, ...]`` behind those that are written, and how far it is written then."""
    wanted, room = (channel.grows, *channel.shape[1:]), channel.shape[0]
    got = "nothing" if new is None else tuple(new.shape[1:])
    if new is None or got != wanted:
        raise InputError(
            f"a round writes [batch, *{wanted}] into the channel {channel.name!r}, got [batch, *{got}]"
        )
    at = length.unsqueeze(1) + torch.arange(channel.grows, device=length.device)
    if int(at.max()) >= room:
        raise InputError(
            f"channel {channel.name!r} has room for {room} rows and a round writes {channel.grows}: "
            f"no round fits after {room // channel.grows}; give it a larger shape"
        )
    cache = cache.clone()
    cache[torch.arange(len(cache), device=cache.device).unsqueeze(1), at] = new.to(cache.dtype)
    return cache, at[:, -1] + 1


class _Open(nn.Module):
    """The gates of a fused recurrent cell or of layers of one direction, as submodules that can be looked into.

    PyTorch computes these in one kernel. Here it is done with the module's own weights, gate by gate, to rounding (a
    test compares them); the gates of several layers are numbered: ``reset_1``.
    """

    def __init__(self, fused: Any) -> None:
        super().__init__()
        self.of = [fused]  # in a list: the weights stay the fused module's, under its names
        for gate in gates(fused):
            self.add_module(gate, nn.Identity())

    @contextmanager
    def instead(self) -> Iterator[None]:
        """While it is open, the fused module computes in this form."""
        fused = self.of[0]
        fused.forward = self.forward
        try:
            yield
        finally:
            del fused.forward

    def forward(self, x: Tensor, state: Any = None) -> Any:
        fused = self.of[0]
        state = state if isinstance(state, tuple) or state is None else (state,)
        if isinstance(fused, nn.RNNCellBase):
            after = self._cell(x, state, "", "")
            return after if len(after) > 1 else after[0]
        time, left = 1 if fused.batch_first else 0, []
        for layer in range(fused.num_layers):
            now, shown = None if state is None else tuple(part[layer] for part in state), []
            for x_t in x.unbind(time):
                now = self._cell(
                    x_t, now, f"_l{layer}", f"_{layer + 1}" if fused.num_layers > 1 else ""
                )
                shown.append(now[0])
            x = torch.stack(shown, time)
            left.append(now)
        parts = tuple(torch.stack(part) for part in zip(*left, strict=True))
        return x, parts if len(parts) > 1 else parts[0]

    def _cell(self, x: Tensor, state: Any, weights: str, number: str) -> tuple[Tensor, ...]:
        """One step: ``(h,)`` of an RNN or a GRU, ``(h, c)`` of an LSTM."""
        fused, names = self.of[0], _GATES[type(self.of[0])]
        state = (x.new_zeros(len(x), fused.hidden_size),) * 2 if state is None else state
        (w_x, b_x), (w_h, b_h) = (  # a layer may have no bias
            (getattr(fused, f"weight_{of}{weights}"), getattr(fused, f"bias_{of}{weights}", None))
            for of in ("ih", "hh")
        )
        given = nn.functional.linear(x, w_x, b_x).chunk(len(names), 1)
        kept = nn.functional.linear(state[0], w_h, b_h).chunk(len(names), 1)
        seen = [self.get_submodule(f"{name}{number}") for name in names]
        if len(names) == 1:
            return (seen[0](getattr(torch, fused.nonlinearity)(given[0] + kept[0])),)
        if len(names) == 3:
            reset, update = (seen[i]((given[i] + kept[i]).sigmoid()) for i in (0, 1))
            new = seen[2]((given[2] + reset * kept[2]).tanh())
            return (new + update * (state[0] - new),)
        acts = (torch.sigmoid, torch.sigmoid, torch.tanh, torch.sigmoid)
        taken, held, new, shown = (
            look(act(a + b)) for look, act, a, b in zip(seen, acts, given, kept, strict=True)
        )
        c = held * state[1] + taken * new
        return shown * c.tanh(), c


_GATES: dict[type[nn.Module], tuple[str, ...]] = {
    **dict.fromkeys((nn.RNNCell, nn.RNN), ("new",)),
    **dict.fromkeys((nn.GRUCell, nn.GRU), ("reset", "update", "new")),
    **dict.fromkeys((nn.LSTMCell, nn.LSTM), ("input", "forget", "new", "output")),
}
"""The gates of fused cells and layers, by their class."""


def gates(part: nn.Module) -> tuple[str, ...]:
    """The names of the gates that can be looked into; none where a module is no fused cell or one-way layers."""
    names = _GATES.get(type(part), ())
    if not isinstance(part, nn.RNNBase) or not names or "forward" in vars(part):
        return (
            () if "forward" in vars(part) else names
        )  # where its owner runs it otherwise, there are none
    if part.bidirectional or part.proj_size:
        return ()
    several = range(1, part.num_layers + 1)
    return (
        tuple(f"{name}_{layer}" for layer in several for name in names)
        if part.num_layers > 1
        else names
    )
