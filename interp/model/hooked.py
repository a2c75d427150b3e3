"""Machines with TransformerLens' hooks, where a hook that never fires is an error.

TransformerLens ignores a filter that matches no hook point, and a hook that never fires. Here an
unknown name is an error that suggests the nearest names. A hook point that is off by default is
switched on when it is used.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from transformer_lens.hook_points import HookPoint
from transformer_lens.HookedRootModule import HookedRootModule

from interp.core.algorithm import Episodes
from interp.core.display import format_machine
from interp.core.machine import Channel, Component, Stepped
from interp.model.layout import EncodedRounds, RoundLayout
from interp.model.locks import MachineLock, exclusive
from interp.support.checks import MISFIT, convert_value, format_value
from interp.support.errors import InputError, convert_errors, require, require_known
from interp.support.lazy import entry
from interp.support.session import compute_once

HookFunction = Callable[[Tensor, HookPoint], Tensor | None]
Hooks = Sequence[tuple[str, HookFunction]]
NamesFilter = str | Sequence[str] | Callable[[str], bool] | None
_get_hook_dicts = attrgetter(
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
)
REAL = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""Dtypes that weights may have."""
CAST_ADVICE = "a model computes in real numbers: call .float() or .double(), or load it again"
"""Advice in errors about the dtypes of weights: an unsuitable one, or several in one model."""


class HookedMachine(HookedRootModule):
    """Base class of all models that are PyTorch modules: TransformerLens' hooks, runs over
    episodes, and a digest that identifies the model.
    """

    layout: RoundLayout
    origin: Mapping[str, Any]
    channels: tuple[Channel, ...]
    points: Mapping[str, Component]
    is_handwired: bool
    step: Callable[..., Stepped]
    """Runs one round of a batch; returns the prediction, and the next round's state ``[batch, row,
    width]``.
    """
    name: str
    """Name by which users load the machine, also used in tables."""
    may_overflow = False
    """True for untrained copies: their state may overflow, which is no error but makes the copy
    useless as a control.
    """
    lock: MachineLock
    """Lock of the thread that runs the machine or has hooks on it (:mod:`interp.model.locks`)."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = MachineLock()

    def __repr__(self) -> str:
        try:
            return format_machine(self)
        except (AttributeError, NotImplementedError):  # a machine that is still being made
            return super().__repr__()

    def stepper(self) -> Callable[[Tensor, EncodedRounds], Stepped]:
        """Return a function that runs one round, with the arguments and results of :meth:`step`,
        for running many rounds without hooks. A subclass may return a quicker function than
        ``step``.
        """
        return self.step

    def prepare(self, fed: EncodedRounds) -> EncodedRounds:
        """Return encoded rounds on the model's device and in its dtype; refuse a model with weights
        that are not real numbers.
        """
        device, dtype = self.device, self.dtype
        require(dtype in REAL, f"the weights of {self.name!r} are of {dtype}; {CAST_ADVICE}")
        require(
            device.type != "meta",
            f"{self.name!r} is on the device 'meta', where no numbers are; take cpu",
        )

        def move(part: Tensor) -> Tensor:
            """Return a tensor on the device; integers and booleans keep their dtype."""
            return part.to(device, dtype if part.is_floating_point() else part.dtype)

        return fed.map_tensors(move)

    def hook_names(self, names: NamesFilter | Iterable[str]) -> list[str]:
        """Return the names of the hook points that a filter selects; refuse unknown names.

        Args:
            names: a name, several names, or a predicate of names; None for all hook points that are
                not switched off.
        """
        if names is None or callable(names):
            selected = [name for name in self.hook_dict if self._is_on(name)]
            if names is not None:
                selected = list(filter(names, selected))
            require(
                selected,
                "the hook filter selects none of the model's hook points; see model.hook_dict",
            )
            return selected
        listed = [names] if isinstance(names, str) else convert_value(list[str], names)
        require(
            listed is not MISFIT,  # what convert_value returns for a value of another type
            f"hook points are a name, several, a predicate or None, got {format_value(names)}",
        )
        selected = list(dict.fromkeys(listed))
        for name in selected:
            require_known("hook point", name, self.hook_dict)
        return selected

    def _find_flag(self, name: str) -> str | None:
        """Return the name of the flag in ``self.runtime`` that switches the hook point ``name`` on;
        None if the point is always on.
        """
        return None

    def _is_on(self, name: str) -> bool:
        return True

    # Episodes, as HookedTransformer takes texts.

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Run episodes and return the predictions, ``[episode, round, ...]``.

        If the arguments are the tensors of one round instead, ``forward`` runs. Options are those
        of :func:`interp.rollout`.
        """
        if _has_episodes(args):
            return _roll_out(self, *args, **options).predictions
        if len(args) == 1 and not options:
            raise InputError(
                f"{self.name!r} is called with episodes, or with a round of a batch and what it carries, got "
                f"{format_value(args[0])}; interp.rollout(model, episodes) runs episodes"
            )
        return super().__call__(*args, **options)

    def run_with_cache(
        self, *args: Any, names_filter: NamesFilter = None, **options: Any
    ) -> tuple[Any, Any]:
        """Run episodes, or one round, and return the output with the cached activations.

        Args:
            args: episodes; or the tensors of one round, for which TransformerLens'
                ``run_with_cache`` runs.
            names_filter: hook points to cache; None for all that are not switched off.
            options: options of :func:`interp.rollout`, such as ``rounds``; for one round, options
                of TransformerLens.

        Returns:
            For episodes, the predictions and a dictionary, name of a hook point -> its activations,
            ``[episode, round, ...]`` each. For one round, what TransformerLens returns: the output
            of the model's ``forward`` and an ``ActivationCache``.
        """
        names = self.hook_names(names_filter)
        if _has_episodes(args):
            run = _roll_out(self, *args, names_filter=names, **options)
            return run.predictions, run.cache
        self._refuse_empty_call(args, options)
        output: tuple[Any, Any] = super().run_with_cache(*args, names_filter=names, **options)
        return output

    def run_with_hooks(self, *args: Any, fwd_hooks: Any = (), **options: Any) -> Any:
        """Run episodes, or one round, with hooks.

        Args:
            args: episodes; or the tensors of one round, for which TransformerLens'
                ``run_with_hooks`` runs.
            fwd_hooks: pairs (name of a hook point, function), as in TransformerLens, for every
                round; or a dictionary, index of a round -> such pairs.
            options: options of :func:`interp.rollout`; for one round, options of TransformerLens.

        Returns:
            For episodes, the predictions, ``[episode, round, ...]``. For one round, the output of
            the model's ``forward``.
        """
        if _has_episodes(args):
            return _roll_out(self, *args, fwd_hooks=fwd_hooks, **options).predictions
        self._refuse_empty_call(args, options)
        return super().run_with_hooks(*args, fwd_hooks=fwd_hooks, **options)

    @contextmanager
    def hooks(
        self,
        fwd_hooks: Sequence[tuple[str | Callable[[str], bool], HookFunction]] = (),
        bwd_hooks: Sequence[tuple[str | Callable[[str], bool], HookFunction]] = (),
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
    ) -> Iterator[Self]:
        """Open a context with hooks, like TransformerLens' ``hooks``.

        Hook points that are off by default are switched on within the context.

        Args:
            fwd_hooks: pairs (name or predicate of hook points, function). Unknown names are
                refused, and so are results of the wrong shape or dtype.
            bwd_hooks: pairs (name or predicate of hook points, function) for gradients.
            reset_hooks_end: True to remove these hooks at the end of the context.
            clear_contexts: True to empty the dictionaries ``ctx`` of all hook points then, too.
        """
        forward = self._list_hooks_by_name("fwd_hooks", fwd_hooks)
        backward = self._list_hooks_by_name("bwd_hooks", bwd_hooks)
        # Names of the flags in self.runtime that switch these hook points on; None stands for
        # points that are always on.
        flags = {self._find_flag(name) for name, _ in (*forward, *backward)}
        checked_hooks = [(name, _wrap_with_checks(name, hook)) for name, hook in forward]
        with self.lock:
            saved = {flag: getattr(self.runtime, flag) for flag in flags if flag}
            for flag in saved:
                setattr(self.runtime, flag, True)
            try:
                with super().hooks(checked_hooks, backward, reset_hooks_end, clear_contexts):
                    yield self
            finally:
                for flag, value in saved.items():
                    setattr(self.runtime, flag, value)

    def _refuse_empty_call(self, args: Sequence[Any], options: Mapping[str, Any]) -> None:
        """Refuse a call without any argument.

        Args:
            args, options: arguments of the call.
        """
        require(
            len(args) + len(options) > 0,
            f"{self.name!r} runs episodes, or a round of a batch and what it carries, and got nothing; give episodes",
        )

    def _list_hooks_by_name(self, argument: str, pairs: Any) -> list[tuple[str, HookFunction]]:
        """Return a pair (name, hook) for every hook point that the filters select.

        Args:
            argument: "fwd_hooks" or "bwd_hooks", for the error message.
            pairs: pairs of a filter (a name or predicate of hook points) and a hook function.
        """
        listed = convert_value(Sequence[Any], pairs)  # MISFIT if it is no sequence
        are_pairs = listed is not MISFIT and all(map(_is_hook, listed))
        require(
            are_pairs,
            f"{argument} must be pairs of a hook point and a function, [(name, hook)], got {format_value(pairs)}",
        )
        hooks = []
        for names, hook in listed:
            hooks += [(name, hook) for name in self.hook_names(names)]
        return hooks

    def remove_all_hook_fns(self, direction: Any = "both", *which: Any, **options: Any) -> None:
        """Remove hooks, like TransformerLens' method, but visit only hook points that have hooks.

        ``hooks(...)`` calls this on exit by default, so it must be quick.

        Args:
            direction: the hooks to remove: those on the "fwd" pass, on the "bwd" pass, or "both".
            which, options: TransformerLens' arguments ``including_permanent``, True to remove
                permanent hooks, too, and ``level``, to remove only the hooks of one nested context.
        """
        for point in self.hook_points():
            if point.fwd_hooks or point.bwd_hooks:
                point.remove_hooks(direction, *which, **options)

    @exclusive
    def is_quiet(self) -> bool:
        """Return True if no hook is attached and no gradient is recorded. Results of an earlier run
        may then be used instead of running again.
        """
        if torch.is_grad_enabled() or nn.modules.module._has_any_global_hook():
            return False
        return not any(map(has_hooks, self.modules()))

    # Identity.

    @property
    def _weight(self) -> Tensor:
        """A floating-point weight, or else a buffer, from which the model's device and dtype are
        read.
        """
        tensors = chain(self.parameters(), self.buffers())
        return next(filter(torch.is_floating_point, tensors), torch.empty(0))

    device = property(attrgetter("_weight.device"))
    dtype = property(attrgetter("_weight.dtype"))

    def precision(self) -> dict[str, Any]:
        """Return a dictionary: "dtype" -> the weights' dtype, such as "float32", and "rounding" ->
        the largest relative error of rounding a number to this dtype.
        """
        dtype = self.dtype
        rounding = torch.finfo(dtype).eps / 2
        return {"dtype": str(dtype).removeprefix("torch."), "rounding": rounding}

    def digest(self) -> str:
        """Return the SHA-256, in hexadecimal, of the model's weights and of a text that describes
        the model, such as its configuration. Results record it to say which model they are about.
        """
        # compute_once computes it again if the weights, the name or the configuration change.
        identity = (self, self.name, getattr(self, "config", None))
        return compute_once(("digest", self.weights_version()), *identity, make=self._digest)

    @exclusive
    def _digest(self) -> str:
        """Compute the hash that :meth:`digest` returns and stores."""
        sha = hashlib.sha256(self.describe_for_digest().encode())
        for name, tensor in sorted(self.state_tensors().items()):
            sha.update(name.encode())
            sha.update(bytes_of(tensor))
        return sha.hexdigest()

    @exclusive
    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a deep copy; stored tensors that have a gradient history are copied without it."""
        for part in self.modules():
            for value in tree_leaves(vars(part)):
                # PyTorch refuses to copy these; deepcopy takes the copy that memo has for an object.
                if isinstance(value, Tensor) and not value.is_leaf:
                    memo[id(value)] = value.detach().clone()
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        with convert_errors(
            f"{self.name!r} cannot be copied, as controls are: {{error}}; keep that outside",
            of=TypeError,
        ):
            copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied

    def state_tensors(self) -> dict[str, Tensor]:
        """Return all weights and buffers by name, including buffers that no checkpoint stores."""
        return {**self.state_dict(keep_vars=True), **dict(self.named_buffers())}

    @exclusive
    def weights_version(self) -> tuple[Any, ...]:
        """Return a value that changes whenever a weight is written to, except through ``.data``.
        Two equal values mean that earlier results of the model may be used again.

        It is a tuple of the memory address and :func:`count_writes` of every weight and buffer. It
        also has the numbers and strings that modules store as attributes, since these may affect
        outputs. Attributes of hook points, and whether a module is in training mode, are left out.
        """
        tensors: list[Tensor | None] = []
        settings = []
        for part in self.modules():
            tensors += part._parameters.values()
            tensors += part._buffers.values()
            if type(part) is HookPoint:  # its attributes affect no output
                continue
            for name, value in vars(part).items():
                if isinstance(value, (str, int, float)) and name != "training":
                    settings.append(value)
        writes = [
            (tensor.data_ptr(), count_writes(tensor)) for tensor in tensors if tensor is not None
        ]
        return (*writes, tuple(settings))


def _has_episodes(args: tuple[Any, ...]) -> bool:
    """Return whether the first of a call's arguments is a batch of episodes."""
    # Tensors are ruled out first, since the check of the protocol would take longer than a round.
    return bool(args) and not isinstance(args[0], Tensor) and isinstance(args[0], Episodes)


def _roll_out(machine: HookedMachine, episodes: Episodes, *extra: Any, **options: Any) -> Any:
    """Call :func:`interp.rollout` on a model and episodes. Refuse options that this function does
    not have, and further positional arguments (``extra``).
    """
    rollout = entry("rollouts").rollout  # its module imports this one
    known = inspect.signature(rollout).parameters.keys() - {"model", "episodes"}
    # Further positional arguments are refused, too: rollout takes its options by name.
    unknown = [*map(format_value, extra), *(name for name in options if name not in known)]
    options_of_rollout = ", ".join(sorted(known))
    require(
        not unknown,
        f"{machine.name!r} runs episodes by interp.rollout, which takes {options_of_rollout}; got "
        f"{', '.join(unknown)}; for TransformerLens' other options, take one round: carried, fed = run.rows([round]); "
        "model(carried, fed, ...), or for a transformer run.activation_cache(round) or interp.model.bound.bind",
    )
    return rollout(machine, episodes, **options)


def has_hooks(module: nn.Module) -> bool:
    """Return whether a PyTorch hook is attached to the module."""
    return any(_get_hook_dicts(module))


def count_writes(tensor: Tensor) -> int:
    """Return a number that changes when a tensor is written to in place: how often it was. For
    inference tensors, which have no counter, it is a hash of their numbers.
    """
    return hash(bytes_of(tensor)) if tensor.is_inference() else tensor._version


def bytes_of(tensor: Tensor) -> bytes:
    """Return the numbers of a tensor as bytes, in the order of its flattened elements."""
    numbers = tensor.detach().cpu().contiguous().reshape(-1)
    return numbers.view(torch.uint8).numpy().tobytes()


def copy_for_file(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of tensors by name, on the CPU, as safetensors can store them. It refuses to
    store one tensor under two names, such as weights that a module uses twice.
    """
    copies = {}
    for name, tensor in tensors.items():
        copies[name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    return copies


def _is_hook(pair: Any) -> bool:
    """Return whether a value is a pair whose second element is callable."""
    return isinstance(pair, tuple | list) and len(pair) == 2 and callable(pair[1])


def _wrap_with_checks(name: str, function: Any) -> Any:
    """Return a hook that calls ``function``, a hook of the user's, and refuses a result of the
    wrong shape or dtype. ``name`` is the hook point, for the error message.
    """

    def run_and_check(activation: Tensor, hook: Any) -> Tensor | None:
        """Call the user's hook, and return its result: a tensor like the activation, or None to
        change nothing. Refuse any other result.
        """
        try:
            result = function(activation, hook=hook)
        except TypeError as error:
            # The last frame is here if the call failed, and in the hook's file if the hook did.
            if traceback.extract_tb(error.__traceback__)[-1].filename != __file__:
                raise
            raise InputError(
                f"the hook at {name!r} must take (activation, hook): {error}"
            ) from error
        if result is None:
            return None
        in_dtype = ""
        if isinstance(result, Tensor):
            if result.shape == activation.shape and result.dtype == activation.dtype:
                return result
            in_dtype = f" in {result.dtype}"
        raise InputError(
            f"the hook at {name!r} must give a tensor of shape {tuple(activation.shape)} in {activation.dtype}, or "
            f"None to change nothing; it gave {format_value(result)}{in_dtype}"
        )

    return run_and_check


class FiringCounter:
    """Counter of how often each of some hooks fires (is called). With it, a hook that never fires
    can be reported as an error.

    Args:
        hooks: pairs (name of a hook point, function).

    Attributes:
        hooks: the same pairs with wrapped functions, to attach in place of the original ones.
        fired: how often each hook has fired.
    """

    def __init__(self, hooks: Hooks) -> None:
        self.fired = [0] * len(hooks)
        self.hooks: list[tuple[str, HookFunction]] = []
        for index, (name, function) in enumerate(hooks):
            self.hooks.append((name, partial(self._count_and_call, index, function)))

    def _count_and_call(
        self, index: int, function: HookFunction, activation: Tensor, hook: Any
    ) -> Tensor | None:
        """Call a hook, return its result and count the call.

        Args:
            index: index of the hook in :attr:`fired`.
            function: the hook.
            activation, hook: arguments of the hook, as TransformerLens passes them.
        """
        self.fired[index] += 1
        return function(activation, hook)

    def require_all_fired(self) -> None:
        """Raise an error if a hook has not fired; the message names the hook points."""
        pairs = zip(self.hooks, self.fired, strict=True)
        silent = ", ".join(name for (name, _), n_firings in pairs if not n_firings)
        require(
            not silent,
            f"hooks that never fired: {silent}; choose points that the forward pass reaches",
        )
