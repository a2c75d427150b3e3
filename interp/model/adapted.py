"""Make a machine from any ``nn.Module``, such as a recurrent cell or a loop, without changing its
code.

The user describes one round (``step``), the state that passes to the next round (``channels``, the
named parts of the state) and the submodules to attach hooks to (``points``, by name).

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
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from math import prod
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from interp.core import catalog
from interp.core.algorithm import Algorithm
from interp.core.machine import Channel, Component, Stepped
from interp.core.task import Task
from interp.model.carried import append_rows, pack, unpack
from interp.model.checks import SKIPS_CHECKS, TOLERANCES, check_machine
from interp.model.drawing import draw_anew, reset_parameters
from interp.model.hooked import HookedMachine
from interp.model.layout import EncodedRounds, RoundLayout, add_axes
from interp.model.locks import exclusive, lock_of
from interp.model.new_tensors import NewTensorDtype
from interp.model.opened import OpenedCell, list_gates
from interp.model.outside import OutsideReads
from interp.model.run import limit_rounds
from interp.model.taps import Point, Tap
from interp.support.checks import (
    check_type,
    checked,
    format_value,
    integer,
    refuse_beyond_machine,
    without_inference_or_autocast,
)
from interp.support.errors import InputError, convert_errors, require, unknown_name

_Tree = Mapping[str, Tensor]
_Step = Callable[[Any, dict[str, Tensor], Any], tuple[Tensor, _Tree]]
_LATENT = "latent"
_N_DIGEST_DIGITS = 3
"""Significant digits of outputs in a digest; rounding on another computer changes about the
eighth.
"""
_N_DIGEST_ROUNDS = 6
"""Number of rounds whose outputs are part of a digest.

Running them takes as long as sampling the two rounds, each of which is run three times.
"""


class _Carried(dict[str, Tensor]):
    """The state that a step reads, by name of a channel; other names are refused."""

    def __missing__(self, name: str) -> Tensor:
        raise unknown_name("channel", name, self)


class AdaptedMachine(HookedMachine):
    """A model that the toolkit can run round by round, made from a PyTorch module by :func:`adapt`.

    Args:
        module: the module.
        layout: token layout of the rounds.
        step: function that runs one round, ``(module, carried, fed) -> (scores, carried)``, as for
            :func:`adapt`.
        channels: the named parts of the carried state.
        points: name of an activation -> the :class:`~interp.model.taps.Point` at which hooks can be
            attached to it: the input or the output of a submodule of ``module``.
        output: what the scores are: "logits", "probability" or "value".
    """

    make_start: Callable[..., _Tree] | None
    start_seed: int | None = None
    """Seed of the random initial state; None if the initial state is not random."""
    state_reader: Callable[[dict[str, Tensor]], Tensor] | None
    reset: Callable[[Any], None] | None
    algorithm: Algorithm | None
    all_rounds: _Step | None = None
    """Like the step, but for all rounds in one call; its results are ``[batch * round, ...]``. None
    if unsupported.
    """

    def __init__(
        self,
        module: nn.Module,
        layout: RoundLayout,
        step: _Step,
        channels: Sequence[Channel],
        points: Mapping[str, Point],
        output: str,
    ) -> None:
        """Describe the carried state and the points, and attach hook points to them. The arguments
        are those of the class.
        """
        super().__init__()
        self.module = module
        self.layout = layout
        self.one_step = step
        self.output = output
        # Only one thread at a time may run the module, also by other machines that adapt it.
        self.lock = lock_of(module)
        # A growing channel is carried together with the number of its filled rows.
        self.channel_of_length = {
            f"{channel.name}_length": channel for channel in channels if channel.grows
        }
        self.channels = (*channels, *(Channel(name, (1,)) for name in self.channel_of_length))
        self.hook_latents = HookPoint()
        labels = sum((channel.labels for channel in self.channels), ())
        self.points = {
            _LATENT: Component(
                _LATENT, hook="hook_latents", axes="latent", name="carried state", labels=labels
            )
        }
        for key, point in points.items():
            hook = f"points.{key}"
            n_layers = 0
            if point.times > 1:  # each run has a hook point, as each layer of a transformer
                hook += ".{layer}"
                n_layers = point.times
            self.points[key] = Component(
                key,
                hook=hook,
                axes=point.axes,
                name=point.name or key.replace("_", " "),
                n_layers=n_layers,
                labels=point.labels,
            )
        # A tap has the hook points of a point, and calls their hooks while the module runs.
        self.taps = {key: Tap(point) for key, point in points.items()}
        self.tapped = nn.ModuleList(self.taps.values())
        # The function `alive` of a point says which rows of a batch go on in a loop that may halt.
        self.may_halt = any(point.alive is not None for point in points.values())
        # PyTorch's fused recurrent cells are run gate by gate if a point is at a gate.
        self.opened_cells = _open_cells(module, points.values())
        self.setup()

    def setup(self) -> None:
        """Give the hook points their names: ``hook_latents`` for the carried state, and
        ``points.NAME`` for the activation that ``points=`` of :func:`adapt` calls NAME. If a
        submodule runs several times in a round, its third run has the hook point ``points.NAME.2``.
        """
        modules = self.__dict__["_modules"]  # PyTorch's dictionary of submodules
        # Taken out while names are given: hook points within the user's module keep their names.
        module = modules.pop("module")
        super().setup()  # names a tap's hook points by their place, such as "tapped.0.runs.2"
        self.module = module
        for key, tap in self.taps.items():
            hook_points: Any = tap.runs  # one for each run of the submodule in a round
            for run_index, hook_point in enumerate(hook_points):
                del self.hook_dict[hook_point.name], self.mod_dict[hook_point.name]
                # The name of a point that runs once has no "{layer}", so it stays as it is.
                hook_point.name = self.points[key].hook.format(layer=run_index)
                self.hook_dict[hook_point.name] = hook_point
                self.mod_dict[hook_point.name] = hook_point

    def train(self, mode: bool = True) -> Self:
        """Set the model to training mode, or to evaluation mode, and return it.

        Training mode is set on the model and on all parts of the user's module, and rounds run in
        it. Evaluation mode is set on the model only. The user's module then keeps its mode, except
        while a round runs, in which it is in evaluation mode, too.
        """
        if check_type("mode", mode, bool):  # which refuses anything but a bool
            return super().train()
        self.training = False
        return self

    def to(self, *args: Any, **options: Any) -> Self:
        """Move the model to a device, or cast it to a dtype, with the arguments of
        ``torch.nn.Module.to``. Complex buffers stay complex, in the precision of the weights.
        """
        complex_buffers = []
        for part in self.modules():
            for name, buffer in part._buffers.items():
                if buffer is not None and buffer.is_complex():
                    complex_buffers.append((part, name, buffer))
        for part, name, _ in complex_buffers:
            part._buffers[name] = None  # PyTorch would cast it to real numbers
        try:
            super().to(*args, **options)
        finally:
            dtype = torch.complex128 if self.dtype == torch.float64 else torch.complex64
            for part, name, buffer in complex_buffers:
                part._buffers[name] = buffer.to(self.device, dtype)
        return self

    @property
    def is_handwired(self) -> bool:  # type: ignore[override]
        """Whether the algorithm's state can be decoded exactly: True if :func:`adapt` got a
        function ``read=``.
        """
        return self.state_reader is not None

    @exclusive
    @checked
    def initial(self, n_episodes: int, layout: RoundLayout | None = None) -> Tensor:
        """Return the state that the first round reads, ``[batch, row, width]``.

        It is zero unless :func:`adapt` got ``initial=``.

        Args:
            n_episodes: size of the batch.
            layout: not used, since the state has one size.
        """
        start: Any = {}
        if self.make_start is not None:
            start = self._call_start()
        require(
            isinstance(start, Mapping),
            f"initial= of {self.name!r} gives a mapping of channels, got {format_value(start)}",
        )
        state = dict(start)  # by channel; pack refuses names of no channel
        for channel in self.channels:
            value = start.get(channel.name, torch.zeros(channel.shape))
            if not isinstance(value, Tensor) or value.is_complex():
                raise InputError(
                    f"initial= of {self.name!r}: {channel.name!r} is a tensor of real numbers, got "
                    f"{format_value(value)}"
                )
            state[channel.name] = value.to(self.device, self.dtype).unsqueeze(0)
        return pack(self.channels, state).expand(n_episodes, -1, -1)

    def _call_start(self) -> Any:
        """Call the user's function ``initial=``, and return what it returned. Random numbers are
        drawn in float32 for every dtype.

        A copy of the model in another precision then has the same initial state.
        """
        assert self.make_start is not None
        if self.start_seed is None:
            with self.open_mode(self.dtype):
                return self._call("initial=", self.make_start, self.module)
        generator = torch.Generator().manual_seed(self.start_seed)
        with self.open_mode(torch.float32):
            return self._call("initial=", self.make_start, self.module, generator)

    def started(self, seed: int) -> Self:
        """Return a copy of the model with another random initial state. The copy shares the
        weights.

        The argument ``initial=`` of :func:`adapt` must have been a function that draws the state.
        All episodes begin with the same new state, so its effect can be measured separately from
        the effect of the episode.

        Args:
            seed: seed of the initial state.
        """
        require(
            self.start_seed is not None,
            f"{self.name!r} draws no start: give adapt(..., initial=) a function of the module and a generator",
        )
        machine = copy.copy(self)
        machine.start_seed = integer("seed of a start", seed, 0)
        return machine

    def stepper(self) -> Callable[[Tensor, EncodedRounds], Stepped]:
        """Return a function that runs one round, ``(carried, fed) -> Stepped``, for running many
        rounds without interventions. If the model's output is "probability", the function refuses
        scores that are no probabilities; :meth:`step` accepts them.
        """
        return partial(self.step, checks_probabilities=True)

    @exclusive
    def step(
        self, carried: Tensor, fed: EncodedRounds, checks_probabilities: bool = False
    ) -> Stepped:
        """Run one round of a batch.

        Args:
            carried: the state that the round reads, ``[batch, row, width]``.
            fed: the encoded inputs of the round.
            checks_probabilities: True to refuse scores that are no probabilities if the output is
                "probability". False for a state after an intervention, from which scores may be any
                numbers.

        Returns:
            The prediction, and the state that the next round reads.
        """
        if not isinstance(carried, Tensor):
            raise InputError(
                f"{self.name!r} is called with (carried, fed), what it carries before the round's inputs, got "
                f"{type(carried).__name__} first"
            )
        carried = self.hook_latents(carried)
        # An entry of the batch is void if a hook left it without a valid result (Halting.void).
        is_void = None  # without a loop that may halt, no entry can be void
        if self.may_halt:
            # An entry that was void in an earlier round carries NaN. It runs from 0, and stays void.
            is_nan = carried.isnan()
            is_void = is_nan.flatten(1).any(1)  # [batch]
            carried = carried.masked_fill(is_nan, 0.0)
        state = unpack(self.channels, carried)
        # A channel that grows is carried with its number of filled rows, as a real number.
        for name in self.channel_of_length:
            state[name] = state[name].squeeze(-1).round().long()
        with self.open_mode(carried.dtype), self._open_points(len(carried)):
            result = self._call("a round", self.one_step, self.module, _Carried(state), fed)
        scores, new_state = self._split_result(result)
        for name, channel in self.channel_of_length.items():
            # Of a channel that grows, the step returns only the rows that this round adds.
            new_rows = new_state.get(channel.name)
            cache, length = append_rows(
                channel, cache=state[channel.name], length=state[name], rows=new_rows
            )
            new_state[channel.name] = cache
            new_state[name] = length.unsqueeze(-1).to(carried.dtype)
        stepped = Stepped(
            self._predict(scores, fed, checks_probabilities), pack(self.channels, new_state)
        )
        return stepped if is_void is None else self._mark_void(stepped, is_void)

    def _predict(self, scores: Tensor, fed: EncodedRounds, checks_probabilities: bool) -> Tensor:
        """Convert the module's scores to predictions.

        Args:
            scores: what the module returned: logits, probabilities or values, ``[batch, outcome]``.
            fed: the rounds, one per row.
            checks_probabilities: True to refuse scores that are no probabilities if the output is
                "probability".
        """
        n_rows, n_positions = fed.tokens.shape
        layout = self.layout.layout_of_length.get(n_positions, self.layout)
        scores = self._fit_scores(scores, layout, n_rows)
        if self.output == "logits":
            scores = scores.softmax(-1)
        elif self.output == "probability" and checks_probabilities and not self._has_hooks():
            # Without hooks only: after an intervention, scores need not be probabilities.
            self._require_probabilities(scores)
        return layout.prediction(scores)

    @exclusive
    def unroll(self, carried: Tensor, fed: EncodedRounds) -> Stepped | None:
        """Run several rounds of a batch in one call, if that is possible. Three conditions must
        hold: the model has a function for it, as models made from a GRU have; no hook is attached;
        and no round is missing.

        Args:
            carried: the state that the first of these rounds reads, ``[batch, row, width]``.
            fed: the rounds, ``[batch, round, ...]``.

        Returns:
            The predictions and the state after each round, ``[batch, round, ...]`` each; None if
            the rounds must be run one by one.
        """
        if self.all_rounds is None or fed.missing is not None or not self.is_quiet():
            return None
        batch_and_round = fed.tokens.shape[:2]
        rows = fed.map_tensors(lambda part: part.flatten(0, 1))  # [batch * round, ...]
        first_state = unpack(self.channels, carried)
        with self.open_mode(carried.dtype):
            result = self._call("a round", self.all_rounds, self.module, first_state, rows)
        scores, new_states = self._split_result(result)
        predictions = self._predict(scores, rows, checks_probabilities=True)
        new_carried = pack(self.channels, new_states)
        return Stepped(
            predictions.unflatten(0, batch_and_round), new_carried.unflatten(0, batch_and_round)
        )

    def _mark_void(self, stepped: Stepped, is_void: Tensor) -> Stepped:
        """Return the result of a round with NaN in the void entries of the batch.

        An entry is void if :attr:`Halting.void` of a loop says so, or if it was void before.

        Args:
            stepped: the result of the round.
            is_void: Bool[batch], True for entries that became void in an earlier round.
        """
        for tap in self.taps.values():
            if tap.halting is not None:
                is_void = is_void | tap.halting.void.to(is_void.device)
        # The prediction [batch, ...] and the carried state [batch, row, width].
        parts = [part.masked_fill(add_axes(is_void, part.ndim), torch.nan) for part in stepped]
        return Stepped(*parts)

    forward = step  # for tools that call a module

    def _has_hooks(self) -> bool:
        return any(hook_point.fwd_hooks for hook_point in self.hook_points())

    def _split_result(self, result: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the scores, and the new state as a dictionary of channels, from what the user's
        function ``step=`` returned; refuse anything else.
        """
        if isinstance(result, tuple) and len(result) == 2:
            scores, new_state = result
            if isinstance(scores, Tensor) and isinstance(new_state, Mapping):
                return scores, dict(new_state)
        values = result if isinstance(result, tuple) else (result,)
        got = ", ".join(map(format_value, values))
        raise InputError(
            f"{self.name!r}: a step returns (scores, carried), a tensor and a mapping of channels to tensors, got {got}"
        )

    def _fit_scores(self, scores: Tensor, layout: RoundLayout, n_rows: int) -> Tensor:
        """Check the scores that the module returned, and return them without those of outcomes that
        the layout does not have.

        Args:
            scores: what the module returned, ``[batch, outcome]``.
            layout: layout of the rounds.
            n_rows: number of rows of the batch.
        """
        if layout.kind == "mean" and scores.ndim == 1:
            scores = scores.unsqueeze(-1)  # [batch] -> [batch, 1]
        n_outputs = layout.n_outputs
        # A module for rounds of several sizes may return the scores of the largest ones.
        sizes = (n_outputs, self.layout.max_layout.n_outputs)
        fits = scores.ndim == 2 and len(scores) == n_rows and scores.shape[1] in sizes
        outcomes = ", ".join(layout.outcomes)
        require(
            fits and scores.is_floating_point(),
            f"{self.name!r}: scores are [batch, outcome] = {[n_rows, n_outputs]}, one for each of {outcomes}, got "
            f"{list(scores.shape)} of {scores.dtype}",
        )
        return scores[:, :n_outputs]

    def _require_probabilities(self, scores: Tensor) -> None:
        """Raise InputError if scores ``[batch, outcome]`` are negative, or do not add up to 1."""
        tolerance = TOLERANCES.get(scores.dtype, 1e-2)  # .01 for half precision
        lowest = float(scores.min())
        sums = scores.sum(-1)
        worst_sum = float(sums[(sums - 1).abs().argmax()])
        are_probabilities = lowest >= -tolerance and abs(worst_sum - 1) <= tolerance
        require(
            are_probabilities,
            f"{self.name!r}: predictions are no probabilities of the outcomes: they must be 0 or more and add up "
            f"to 1, the least is {lowest:.4g} and a sum is {worst_sum:.6g}; give output='logits' where they are scores",
        )

    def _call(self, what: str, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function of the user's and return its result. An error in it becomes an InputError
        that names the function.

        Args:
            what: name of the function in the error message.
            function: the user's function.
            *args: its arguments.
        """
        remedy = "what is made of tokens must be, too, .to(fed.values)"

        def about_dtypes() -> str:
            """Return a hint that is appended to errors about dtypes."""
            return f" (the machine is in {self.dtype}: {remedy})"

        with convert_errors(f"{self.name!r}: {what}", of_dtypes=about_dtypes):
            return function(*args)

    @contextmanager
    def open_mode(self, dtype: torch.dtype) -> Iterator[None]:
        """Open a context in which the module is in evaluation mode, unless the model is being
        trained, and in which tensors that it makes have ``dtype`` if it asks for no other.
        """
        in_training_mode = []
        if not self.training:
            in_training_mode = [part for part in self.module.modules() if part.training]
        try:
            for part in in_training_mode:  # directly, since a module's own __setattr__ is slow
                part.__dict__["training"] = False
            # Entered only where it is needed, since it slows each call of PyTorch.
            is_default = dtype == torch.get_default_dtype()
            with nullcontext() if is_default else NewTensorDtype(dtype):
                yield
        finally:
            for part in in_training_mode:
                part.__dict__["training"] = True

    @contextmanager
    def _open_points(self, n_rows: int) -> Iterator[None]:
        """Open a context in which submodules with hooks are connected to their hook points, and
        fused recurrent cells run gate by gate.

        Args:
            n_rows: number of rows of the batch that runs.
        """
        with ExitStack() as stack:
            for cell in self.opened_cells.values():
                stack.enter_context(cell.replace_fused())
            for tap in self.taps.values():
                tap.halting = None  # may be left from a round that an error ended
                if tap.is_hooked:
                    submodule = self._find_submodule(tap.point.module)
                    gate = self._find_submodule(tap.point.gate or tap.point.module)
                    stack.enter_context(tap.attached_to(submodule, gate, n_rows))
            yield

    def _find_submodule(self, name: str) -> nn.Module:
        """Return the submodule called ``name``, or the gate of a fused recurrent cell
        ("cell.reset").
        """
        cell, _, gate = name.rpartition(".")
        if cell in self.opened_cells:
            return self.opened_cells[cell].get_submodule(gate)
        try:
            return self.module.get_submodule(name)
        except AttributeError:
            raise InputError(
                f"{self.name!r} has no submodule {name!r} any more; adapt it again"
            ) from None

    def read_state(self, latents: Tensor) -> Tensor:
        """Return the algorithm's state, decoded exactly from carried states ``[..., row, width]``.
        The decoder is the function that was passed to :func:`adapt` as ``read=``.
        """
        if self.state_reader is None:
            raise InputError(
                f"{self.name!r} has no exact state readout; decode with a probe, or adapt it with read="
            )
        state: Tensor = self._call("read=", self.state_reader, unpack(self.channels, latents))
        require(
            isinstance(state, Tensor),
            f"read= of {self.name!r} gives the state, a tensor, got {format_value(state)}",
        )
        return state

    @checked
    def untrained(self, seed: int = 0) -> AdaptedMachine:
        """Return a control: a copy with fresh random weights, drawn with ``seed``. The global
        random generator is not changed.

        Raises:
            InputError: rounds read weights that are in no module of the model, such as those of a
                module in a closure. The copy would share these trained weights.
        """
        draw = self.reset or reset_parameters  # reset= of the user's, if there is one
        fresh = draw_anew(self, seed, lambda machine: self._call("reset=", draw, machine.module))
        fresh.name = f"{self.name}-untrained"
        fresh.state_reader = None
        fresh.algorithm = None
        # Run a few rounds to record reads of weights outside the module.
        reads = OutsideReads(fresh.state_tensors().values())
        fresh._describe_behaviour(reads)
        shapes = ", ".join(sorted(reads.shapes))
        require(
            not shapes,
            f"rounds of {self.name!r} read weights of shape {shapes} that none of its modules "
            "holds, and an untrained copy would have them: make them its parameters or submodules, constants buffers",
        )
        return fresh

    def describe_for_digest(self) -> str:
        """Return the text that :meth:`digest` includes besides the weights: a description of the
        model, and its outputs in a few rounds.

        These are six rounds of two episodes, fewer if the model has a cache with less room. They
        are run anew each time, since a step may depend on values outside of the module's state: a
        closure, a global, an attribute. The digest misses changes that appear only in later rounds,
        or that are smaller than .0005 of the largest output.
        """
        step: Any = self.one_step
        # Where the step is defined, such as "my_models.step"; for an object, where its class is.
        name = getattr(step, "__qualname__", type(step).__qualname__)
        code = f"{getattr(step, '__module__', '')}.{name}"
        layout = self.layout.to_dict()
        points = {}
        for key, tap in self.taps.items():
            # A function is named, since its repr has an address that differs between processes.
            name_of_alive = getattr(tap.point.alive, "__qualname__", None)
            points[key] = {**vars(tap.point), "alive": name_of_alive}
        parts: list[Any] = [
            self.name,
            repr(self.module),
            code,
            layout,
            self.channels,
            points,
            self.output,
        ]
        if self.start_seed is not None:
            parts.append(self.start_seed)
        parts.append(self._describe_behaviour())
        return json.dumps(parts, sort_keys=True, default=str)

    @exclusive
    @without_inference_or_autocast()
    def _describe_behaviour(self, reads: OutsideReads | None = None) -> str:
        """Run a few rounds of two episodes, and return predictions and mean absolute states as
        text, rounded.

        Args:
            reads: records weights that are read from outside of the model; None to record nothing.
                It does not record the sampling of the episodes, since the sampler may read the
                trained module.
        """
        try:
            numbers = self._run_digest_rounds(reads)
        except Exception as error:  # a machine that cannot run has the error in its digest
            return type(error).__name__
        texts = []
        for part in numbers:
            largest = float(part.abs().max())
            # Numbers are rounded relative to the largest; to 1 if all are 0.
            rounded = (part.double().cpu() / (largest or 1)).round(decimals=_N_DIGEST_DIGITS)
            texts.append(f"{largest:.{_N_DIGEST_DIGITS}g} {rounded.tolist()}")
        return str(texts)

    def _run_digest_rounds(self, reads: OutsideReads | None) -> list[Tensor]:
        """Run a few rounds of two episodes. Return two tensors for each round: the predictions,
        flattened, and the mean absolute carried state after the round, ``[episode]``.

        Args:
            reads: records weights that are read from outside of the model; None to record nothing.
        """
        task = catalog.get(self.layout.task)
        episodes = task.sample_for(self, n_episodes=2, n_rounds=2, seed=0)
        layout = self.layout.fit(episodes)
        fed = self.prepare(layout.encode(episodes))
        n_sampled = fed.tokens.shape[1]
        # The sampled rounds are run several times, since a step may change in later rounds.
        rounds = [
            fed.take_round(t % n_sampled) for t in range(limit_rounds(self, _N_DIGEST_ROUNDS))
        ]
        if reads is not None:
            for fed_round in rounds:
                reads.allow(fed_round.tensors().values())  # inputs of a round are no weights
        numbers = []
        with self._remove_hooks(), reads or nullcontext(), torch.no_grad():
            carried = self.initial(2, layout)
            for t, fed_round in enumerate(rounds):
                if reads is not None:
                    reads.round = t
                prediction, carried = self.step(carried, fed_round)
                numbers += [prediction.flatten(), carried.abs().mean((1, 2))]
        return numbers

    @contextmanager
    def _remove_hooks(self) -> Iterator[None]:
        """Open a context in which the model runs without its hooks and in evaluation mode."""
        with ExitStack() as stack:
            for part in (self, *self.hook_points()):
                # In __dict__, without PyTorch's checks. On exit the same hooks are there again.
                attributes = part.__dict__
                stack.callback(
                    attributes.update,
                    _forward_hooks=attributes["_forward_hooks"],
                    training=attributes["training"],
                )
                attributes.update(_forward_hooks={}, training=False)
            yield


@checked
def adapt(
    module: nn.Module,
    task: str | Task | RoundLayout,
    *,
    step: _Step,
    channels: Sequence[Channel],
    points: Any = None,
    sizes: Mapping[str, Any] | None = None,
    initial: Callable[..., _Tree] | None = None,
    read: Callable[[dict[str, Tensor]], Tensor] | None = None,
    algorithm: Algorithm | None = None,
    reset: Callable[[Any], None] | None = None,
    output: Literal["logits", "probability", "value"] | None = None,
    name: str = "",
    origin: Mapping[str, Any] | None = None,
    check: bool = True,
) -> AdaptedMachine:
    """Make a model that the toolkit can run from a PyTorch module, and check it on a few episodes
    of its task.

    Rounds run in evaluation mode, whatever mode the module is in. Its mode must not be changed while
    a round runs, for example by another thread. The module itself is not changed.

    Args:
        module: the module; the model shares its weights.
        task: a registered task (its key, or the ``Task``); or the layout of a round.
        step: ``(module, carried, fed) -> (scores, carried)`` runs one round of a batch. ``carried``
            maps each channel's name to ``[batch, *shape]``. For a growing channel, ``carried`` also
            has ``NAME_length``, Int[batch], the number of rows that are filled, and the step
            returns only the new rows. ``fed`` has the round's ``tokens`` and ``values`` (numbers
            that tokens carry, 0 if none), ``[batch, pos]`` each. ``scores`` are ``[batch,
            outcome]``. For a real number they are its mean, ``[batch]`` or ``[batch, 1]``, or mean
            and log variance, ``[batch, 2]``. The step must be pure, and must not use the tokens
            after the prediction to predict.
        channels: everything that passes from round to round: name and shape of each part.
        points: where hooks can be attached: name of the activation -> name of a submodule (for its
            output), or a :class:`Point`. With ``points={"cell": "cell"}``, the output of the
            submodule ``cell`` has the hook point ``points.cell``.
        sizes: sizes of the task's episodes by name, such as ``{"n_experts": 4}``; the task's
            defaults for those that are left out. Not allowed with a layout, which has its sizes.
        initial: function of the module that returns the state that the first round reads: name of a
            channel -> tensor ``[*shape]``; missing channels are zero. If it takes a second
            argument, a ``torch.Generator``, it draws a random initial state; choose its seed with
            ``model.started(seed)``. When None, the state is zero.
        read: function of a carried state (name of a channel -> tensor ``[..., *shape]``) that
            returns the algorithm's state. None unless the algorithm's state can be decoded exactly.
        algorithm: the algorithm that a model with ``read`` was built to compute; analyses compare
            the model with it. None for the task's default.
        reset: function of a copy of the module that initialises its weights anew, for untrained
            controls; when None, ``reset_parameters`` of every submodule is called.
        output: what the scores are: "logits" (when None), "probability" of each outcome, or "value"
            if the layout predicts a real number.
        name: name of the model; the class name of the module when empty.
        origin: record of how to build the model again, for results and checkpoints, such as
            ``{"builder": "my-gru", "arguments": {"width": 16}}``. ``interp.load`` sets it for
            builders that were registered by ``interp.register_machine``.
        check: True to run :func:`check_machine`, which raises an error that names the broken rule.

    Returns:
        The model.
    """
    layout = layout_for(task, sizes)
    scores_are = _choose_output(layout, output)
    has_state = read is not None
    require(
        algorithm is None or (has_state and algorithm.task == layout.task),
        f"algorithm= is what a machine of {layout.task!r} with a known state computes: give read=, too, and an "
        "algorithm of its task; which one explains a learned machine, circuits.compare.machines(machine) says",
    )
    _require_names(channels)
    require(
        isinstance(points, Mapping | None),
        "points= names what to look at: {key: submodule or Point}, such as {'cell': 'cell'}, "
        f"got {format_value(points)}",
    )
    named_points = {}
    for key, point in (points or {}).items():
        named_points[key] = point if isinstance(point, Point) else Point(point)
    _require_submodules(module, named_points)
    machine = AdaptedMachine(
        module, layout, step=step, channels=channels, points=named_points, output=scores_are
    )
    machine.make_start = initial
    if initial is not None and len(inspect.signature(initial).parameters) > 1:
        machine.start_seed = 0  # its second parameter is a generator: it draws the state
    machine.state_reader = read
    machine.reset = reset
    machine.algorithm = algorithm
    machine.name = name or type(module).__name__
    machine.origin = dict(origin or {})
    machine.training = False  # of the machine only: the user's module keeps its mode
    _require_dense(machine)
    n_numbers = sum(prod(channel.shape) for channel in channels)
    n_bytes = 4.0 * n_numbers  # in float32
    refuse_beyond_machine(f"what {machine.name!r} carries", n_bytes)
    if check and not SKIPS_CHECKS.get():
        check_machine(machine, cheap=True)
    return machine


def _choose_output(layout: RoundLayout, output: str | None) -> str:
    """Return what a module's scores are: "logits", "probability" or "value". Refuse an output that
    does not suit the layout.

    Args:
        layout: layout of the rounds, which determines whether classes or a real number are
            predicted.
        output: the output that the user named; None for the default.
    """
    is_real = layout.kind != "classes"
    if output is None:
        return "value" if is_real else "logits"
    predicted, choices = "outcomes", "logits or probability"
    if is_real:
        predicted, choices = "a real number", "value"
    require(
        is_real == (output == "value"),
        f"rounds of {layout.task!r} predict {predicted}: output must be {choices!r}, or None, got {output!r}",
    )
    return output


def _require_names(channels: Sequence[Channel]) -> None:
    """Refuse an empty list of channels, and channels with one name."""
    require(
        len(channels) >= 1, "a machine carries something: give at least one Channel(name, shape)"
    )
    names = [channel.name for channel in channels]
    # A growing channel is carried with its number of filled rows, in a channel of this name.
    names += [f"{channel.name}_length" for channel in channels if channel.grows]
    require(
        len(set(names)) == len(names),
        f"channels must have names of their own, got {', '.join(names)}",
    )


def _require_submodules(module: nn.Module, points: Mapping[str, Point]) -> None:
    """Refuse points at submodules that do not exist, or that cannot call hooks; and keys that are no
    names for hook points.

    Args:
        module: the user's module.
        points: key -> point. A point names a submodule or, as CELL.GATE, a gate within a recurrent
            cell; its ``gate`` names the submodule that decides whether a loop halts.
    """
    parts = _list_modules(module)
    known = list(parts)
    for name, part in parts.items():
        known += [f"{name}.{gate}" for gate in list_gates(part)]
    for key, point in points.items():
        # The key _LATENT is that of the carried state.
        is_name = isinstance(key, str) and key.isidentifier() and key != _LATENT
        require(is_name, f"a point's key must be an identifier but {_LATENT!r}, got {key!r}")
        # "" is the name of the whole module, and `gate` is "" by default.
        for name in (point.module, point.gate):
            if name not in known:
                error = unknown_name("submodule", name, filter(None, known), limit=40)
                if hasattr(module, "_orig_mod"):  # where torch.compile puts the user's module
                    raise InputError(f"{error}; adapt the module as before torch.compile")
                raise error
        is_scripted = isinstance(parts.get(point.module), torch.jit.ScriptModule)
        require(
            not is_scripted,
            f"{point.module!r} is scripted, and calls no hooks: adapt the module that was scripted",
        )


def _require_dense(machine: AdaptedMachine) -> None:
    """Refuse a model with a complex weight, or with a sparse weight or buffer: it could not be
    copied, cast or initialised anew. A dense buffer may have any dtype.
    """
    module = machine.module
    state = {**module.state_dict(), **dict(module.named_buffers())}
    refused = []
    for name, tensor in state.items():
        is_dense = isinstance(tensor, Tensor) and tensor.layout == torch.strided
        if not is_dense:
            refused.append(name)
    refused += [name for name, weight in module.named_parameters() if weight.is_complex()]
    require(
        not refused,
        f"{machine.name!r} keeps {', '.join(refused)} as no dense tensors of real numbers, which alone can be drawn, "
        "copied and cast: take torch.view_as_real of complex ones, and keep others outside",
    )


def layout_for(
    task: str | Task | RoundLayout, sizes: Mapping[str, Any] | None = None
) -> RoundLayout:
    """Return the token layout of a task's rounds; if ``task`` is a layout, return it unchanged.

    Args:
        task: a task, its key, or a layout.
        sizes: sizes of the rounds, such as ``n_experts``; the task's defaults for missing ones.
    """
    if isinstance(task, RoundLayout):
        require(not sizes, f"a layout has its sizes, so sizes={sizes} says nothing; give either")
        return task
    record = task if isinstance(task, Task) else catalog.get(task)
    return record.layout(**record.complete_sizes(sizes or {}))


def _list_modules(module: nn.Module) -> dict[str, nn.Module]:
    """Return every submodule of a module by name; a submodule that is used twice is listed under
    both names.
    """
    return dict(module.named_modules(remove_duplicate=False))


def _open_cells(module: nn.Module, points: Any) -> dict[str, OpenedCell]:
    """Return a gate-by-gate version of each fused recurrent cell that has gates among the points,
    by the cell's name.
    """
    # A point at a gate is called CELL.GATE, such as "core.reset".
    possible_cells = {point.module.rpartition(".")[0] for point in points}
    parts = _list_modules(module).items()
    return {
        name: OpenedCell(part)
        for name, part in parts
        if name in possible_cells and list_gates(part)
    }
