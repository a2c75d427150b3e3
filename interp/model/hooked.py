"""Machines with TransformerLens' hooks, which are never silent here.

TransformerLens ignores a filter that matches nothing and a hook that never fires; here a name that does not exist is an
error that offers the nearest ones, and a hook point that fires only on request is switched on by asking for it.
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
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens import ActivationCache, FactoredMatrix
from transformer_lens.hook_points import HookPoint
from transformer_lens.HookedRootModule import HookedRootModule

from interp.core.algorithm import Episodes
from interp.core.display import Cache, described
from interp.core.machine import Channel, Component, Stepped
from interp.model.components import Block, Embedding, Projection, RuntimeConfig
from interp.model.config import LatentTransformerConfig
from interp.model.layout import EncodedRounds, RoundLayout
from interp.model.locks import DRAWING, MachineLock, exclusive
from interp.support.checks import NO, array_of, checked, fit, fitted, shown
from interp.support.errors import InputError, require, require_known, theirs
from interp.support.lazy import entry
from interp.support.session import once

HookFunction = Callable[[Tensor, HookPoint], Tensor | None]
Hooks = Sequence[tuple[str, HookFunction]]
NamesFilter = str | Sequence[str] | Callable[[str], bool] | None
_HOOKS_OF_TORCH = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


REAL = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""What weights may be stored as."""
AS_REAL = "a model computes in real numbers: call .float() or .double(), or load it again"


class HookedMachine(HookedRootModule):
    """What all machines that are modules have in common: hooks that cannot be silent, and who the machine is."""

    layout: RoundLayout
    origin: Mapping[str, Any]
    channels: tuple[Channel, ...]
    points: Mapping[str, Component]
    is_handwired: bool
    step: Callable[..., Stepped]
    """One round of a batch: the prediction, and what the next round reads, ``[batch, row, width]``."""
    said: Callable[[], str]
    """What the machine is beside its weights, as a text."""
    name: str
    """What users load it by, and what tables call it."""
    may_overflow = False
    """True of an untrained copy: its numbers may grow beyond all, which makes it no control and is no error."""
    lock: MachineLock
    """Held by the thread that runs the machine or has hooks on it (:mod:`interp.model.locks`)."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = MachineLock()

    def __repr__(self) -> str:
        try:
            return described(self)
        except (AttributeError, NotImplementedError):  # a machine that is still being made
            return super().__repr__()

    def stepper(self) -> Callable[[Tensor, EncodedRounds], Stepped]:
        """:meth:`step`, for callers that run many rounds without hooks."""
        return self.step

    def prepare(self, fed: EncodedRounds) -> EncodedRounds:
        """The rounds on the machine's device, their numbers in its dtype, which must be one of real numbers."""
        device, dtype = self.device, self.dtype
        require(dtype in REAL, f"the weights of {self.name!r} are of {dtype}; {AS_REAL}")
        require(
            device.type != "meta",
            f"{self.name!r} is on the device 'meta', where no numbers are; take cpu",
        )
        return fed.each(
            lambda part: part.to(device, dtype if part.is_floating_point() else part.dtype)
        )

    def hook_names(self, names: NamesFilter | Iterable[str]) -> list[str]:
        """The hook points that a filter selects: a name, several, a predicate, or None for all that fire now."""
        if names is None or callable(names):
            selected = [
                name
                for name in self.hook_dict
                if self._fires(name) and (names is None or names(name))
            ]
            require(
                bool(selected),
                "the hook filter selects none of the model's hook points; see model.hook_dict",
            )
            return selected
        several = [names] if isinstance(names, str) else fitted(list[str], names)
        require(
            several is not NO,
            f"hook points are a name, several, a predicate or None, got {shown(names)}",
        )
        selected = list(dict.fromkeys(several))
        for name in selected:
            require_known("hook point", name, self.hook_dict)
        return selected

    def _flag(self, name: str) -> str | None:
        """The attribute of ``self.runtime`` that makes a hook point fire; None where it always does."""
        return None

    def _fires(self, name: str) -> bool:
        return True

    # Episodes, as HookedTransformer takes texts.

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Return the predictions of episodes, ``[episode, round, ...]``; a batch of rounds goes to ``forward``."""
        if _are_episodes(args):
            return _roll_out(self, *args, **options).predictions
        if len(args) == 1 and not options:
            raise InputError(
                f"{self.name!r} is called with episodes, or with a round of a batch and what it carries, got "
                f"{shown(args[0])}; interp.rollout(model, episodes) runs episodes"
            )
        return super().__call__(*args, **options)

    def run_with_cache(
        self, *args: Any, names_filter: NamesFilter = None, **options: Any
    ) -> tuple[Any, Any]:
        """Run episodes and cache activations, ``[episode, round, ...]``, as :func:`interp.rollout` does.

        Args:
            args: episodes; or one round, as ``forward`` takes it, which TransformerLens' ``run_with_cache`` runs.
            names_filter: hook points to cache; all that fire when None.
            options: of :func:`interp.rollout`, such as ``rounds``; for one round those of TransformerLens.

        Returns:
            The predictions and the cache.
        """
        names = self.hook_names(names_filter)
        if _are_episodes(args):
            run = _roll_out(self, *args, names_filter=names, **options)
            return run.predictions, run.cache
        self._refuse_nothing(args, options)
        output: tuple[Any, Any] = super().run_with_cache(*args, names_filter=names, **options)
        return output

    def run_with_hooks(self, *args: Any, fwd_hooks: Any = (), **options: Any) -> Any:
        """Run episodes with hooks in every round, or in those of ``{round: hooks}``, and return the predictions.

        One round, as ``forward`` takes it, is run by TransformerLens' ``run_with_hooks``.
        """
        if _are_episodes(args):
            return _roll_out(self, *args, fwd_hooks=fwd_hooks, **options).predictions
        self._refuse_nothing(args, options)
        return super().run_with_hooks(*args, fwd_hooks=fwd_hooks, **options)

    @contextmanager
    def hooks(
        self,
        fwd_hooks: Sequence[tuple[str | Callable[[str], bool], HookFunction]] = (),
        bwd_hooks: Sequence[tuple[str | Callable[[str], bool], HookFunction]] = (),
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
    ) -> Iterator[Self]:
        """TransformerLens' context manager: names and what hooks give are checked, points on request switched on."""
        forward = self._hooks_by_name("fwd_hooks", fwd_hooks)
        backward = self._hooks_by_name("bwd_hooks", bwd_hooks)
        flags = {self._flag(name) for name, _ in (*forward, *backward)}
        fitting = [(name, _fitting(name, hook)) for name, hook in forward]
        with self.lock:
            saved = {flag: getattr(self.runtime, flag) for flag in flags if flag}
            for flag in saved:
                setattr(self.runtime, flag, True)
            try:
                with super().hooks(fitting, backward, reset_hooks_end, clear_contexts):
                    yield self
            finally:
                for flag, value in saved.items():
                    setattr(self.runtime, flag, value)

    def _refuse_nothing(self, args: Sequence[Any], options: Mapping[str, Any]) -> None:
        """Refuse a call without episodes and without a round."""
        require(
            len(args) + len(options) > 0,
            f"{self.name!r} runs episodes, or a round of a batch and what it carries, and got nothing; give episodes",
        )

    def _hooks_by_name(self, side: str, pairs: Any) -> list[tuple[str, HookFunction]]:
        """Return a pair of a name and a hook for every hook point that ``pairs`` of filters and hooks select."""
        listed = fitted(Sequence[Any], pairs)
        are_pairs = listed is not NO and all(map(_is_hook, listed))
        require(
            are_pairs,
            f"{side} must be pairs of a hook point and a function, [(name, hook)], got {shown(pairs)}",
        )
        return [(name, hook) for names, hook in listed for name in self.hook_names(names)]

    def remove_all_hook_fns(self, direction: Any = "both", *which: Any, **options: Any) -> None:
        """TransformerLens' method, passing by the points without hooks: it runs at the end of every context."""
        for point in self.hook_points():
            if point.fwd_hooks or point.bwd_hooks:
                point.remove_hooks(direction, *which, **options)

    @exclusive
    def is_quiet(self) -> bool:
        """Whether no hook is attached and no gradient asked for, so that a run may be shared."""
        if torch.is_grad_enabled() or nn.modules.module._has_any_global_hook():
            return False
        return not any(
            getattr(module, name) for module in self.modules() for name in _HOOKS_OF_TORCH
        )

    # Identity.

    @property
    def _weight(self) -> Tensor:
        """A weight that says where and in what precision the machine computes, or a buffer where it has none."""
        return next(
            (w for w in chain(self.parameters(), self.buffers()) if w.is_floating_point()),
            torch.empty(0),
        )

    device = property(attrgetter("_weight.device"))
    dtype = property(attrgetter("_weight.dtype"))

    def precision(self) -> dict[str, Any]:
        """The dtype of the weights, and the largest relative error of rounding one number to it: in every rollout."""
        return {
            "dtype": str(self.dtype).removeprefix("torch."),
            "rounding": torch.finfo(self.dtype).eps / 2,
        }

    def digest(self) -> str:
        """SHA-256 of what :meth:`said` says and of the weights: the machine's identity in every result."""
        # It is computed again once the weights, the name or the configuration are others.
        about = (self, self.name, getattr(self, "config", None))
        return once(("digest", self.weights_version()), *about, make=self._digest)

    def _drawn_anew(self, seed: int, draw: Callable[[Self], object] | None = None) -> Self:
        """A copy in evaluation mode whose weights are fresh, and given by no global generator.

        ``draw`` draws them, or every module's own ``reset_parameters`` does.
        """
        fresh = copy.deepcopy(self).cpu()
        weights = {
            name: weight for name, weight in fresh.named_parameters() if weight.is_floating_point()
        }
        kept = [
            (buffer, buffer.clone()) for buffer in fresh.buffers() if buffer.is_floating_point()
        ]
        with DRAWING, torch.random.fork_rng(devices=[]), torch.no_grad():
            # What is not drawn is still not a number afterwards, however a module keeps or computes its weights.
            for tensor in (*weights.values(), *(buffer for buffer, _ in kept)):
                tensor.fill_(torch.nan)
            torch.default_generator.manual_seed(seed)
            kept_as = self.weights_version()
            (draw or reset_parameters)(fresh)
            is_drawn = any(not weight.isnan().any() for weight in weights.values())
            if (
                is_drawn or getattr(self, "reset", None) is None
            ):  # a reset= that draws nothing is refused
                draw_the_rest(fresh)
            for buffer, constant in kept:
                if buffer.isnan().all():  # nothing draws it: a mask, or the codes of positions
                    buffer.copy_(constant)
        stored = {**weights, **dict(fresh.named_buffers()), **dict(fresh.named_parameters())}
        left = ", ".join(
            n for n, tensor in stored.items() if tensor.is_floating_point() and tensor.isnan().any()
        )
        left = left.replace("module.", "")
        require(
            not left and bool(weights),
            f"nothing says how to draw {left or 'anything'} of {self.name!r} anew; give adapt(..., reset=...)",
        )
        own = {weight.data_ptr() for weight in self.parameters() if weight.numel()}
        apart = kept_as == self.weights_version() and own.isdisjoint(
            w.data_ptr() for w in fresh.parameters()
        )
        require(
            apart,
            f"reset= of {self.name!r} takes the trained weights, and may have drawn over them",
        )
        fresh.may_overflow = True
        return fresh.to(self.device).eval()

    @exclusive
    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy; tensors that a module keeps of a run with gradients have a past, which is not copied."""
        for part in self.modules():
            memo.update({id(value): value.detach().clone() for value in _with_a_past(vars(part))})
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        with theirs(
            f"{self.name!r} cannot be copied, as controls are: {{error}}; keep that outside",
            of=TypeError,
        ):
            copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied

    def _held(self) -> dict[str, Tensor]:
        """The tensors that make it what it is: weights and buffers, those that no checkpoint holds, too."""
        return {**self.state_dict(keep_vars=True), **dict(self.named_buffers())}

    @exclusive
    def weights_version(self) -> tuple[Any, ...]:
        """Where every tensor of weights lies and how often it was written to, but for writes through ``.data``.

        Beside them all numbers and texts that its modules keep, which may change what they compute; hook points do not.
        """
        parts = list(self.modules())
        held = (
            x
            for part in parts
            for x in (*part._parameters.values(), *part._buffers.values())
            if x is not None
        )
        every = (vars(part).items() for part in parts if type(part) is not HookPoint)
        plain = tuple(
            v
            for own in every
            for k, v in own
            if isinstance(v, (str, int, float)) and k != "training"
        )
        return (*((tensor.data_ptr(), written(tensor)) for tensor in held), plain)

    @exclusive
    def _digest(self) -> str:
        sha = hashlib.sha256(self.said().encode())
        for name, tensor in sorted(self._held().items()):
            sha.update(name.encode())
            sha.update(
                tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            )
        return sha.hexdigest()


def _are_episodes(args: tuple[Any, ...]) -> bool:
    # A tensor is asked for first: whether it has what a protocol has would take longer than a round.
    return bool(args) and not isinstance(args[0], Tensor) and isinstance(args[0], Episodes)


def _roll_out(machine: HookedMachine, episodes: Episodes, *more: Any, **options: Any) -> Any:
    """Call :func:`interp.rollout` with those of its options that are known."""
    rollout = entry("rollouts").rollout  # its module imports this one
    known = inspect.signature(rollout).parameters.keys() - {"model", "episodes"}
    require(
        not more and options.keys() <= known,
        f"{machine.name!r} runs episodes by interp.rollout, which takes {', '.join(sorted(known))}; got "
        f"{', '.join([*map(shown, more), *(name for name in options if name not in known)])}; of one round "
        "run.activation_cache(round) and interp.model.bound.bind are TransformerLens'",
    )
    return rollout(machine, episodes, **options)


def _with_a_past(value: Any) -> Iterator[Tensor]:
    """Tensors with a gradient's history, at any depth of lists and mappings."""
    if isinstance(value, Tensor):
        if not value.is_leaf:
            yield value
    elif isinstance(value, Mapping | list | tuple | set):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _with_a_past(one)


def written(tensor: Tensor) -> int:
    """How often a tensor was written to; 0 of those that were made in inference mode, which do not count."""
    return 0 if tensor.is_inference() else tensor._version


def reset_parameters(module: nn.Module) -> None:
    """Draw the weights of every submodule that says how."""
    for part in module.modules():
        if reset := getattr(part, "reset_parameters", None):
            reset()


def draw_the_rest(module: nn.Module) -> None:
    """Draw the weights that are not numbers yet: by their submodule, or by what the module says of its parts.

    ``reset_parameters`` is PyTorch's, and ``_init_weights(submodule)`` that of transformers' models.
    """
    said_by_owners = [getattr(owner, "_init_weights", None) for owner in module.modules()]
    initializers: list[Any] = [draw for draw in said_by_owners if callable(draw)]
    for part in module.modules():
        for draw in (getattr(part, "reset_parameters", None), *initializers):
            weights = [w for w in part.parameters(recurse=False) if w.is_floating_point()]
            drawn = [(w, w.clone()) for w in weights if not w.isnan().any()]
            if draw is None or len(drawn) == len(weights):
                continue
            draw(*([part] if draw in initializers else []))
            for weight, value in drawn:  # what reset= drew stays
                weight.copy_(value)


def _is_hook(pair: Any) -> bool:
    """Return whether a hook is a pair of a filter of names and a function."""
    return isinstance(pair, tuple | list) and len(pair) == 2 and callable(pair[1])


def _fitting(name: str, function: Any) -> Any:
    """A hook that is refused when it gives what does not fit in the place of the activation."""

    def checked(activation: Tensor, hook: Any) -> Tensor | None:
        try:
            given = function(activation, hook=hook)
        except TypeError as error:
            if traceback.extract_tb(error.__traceback__)[-1].filename != __file__:
                raise
            raise InputError(
                f"the hook at {name!r} must take (activation, hook): {error}"
            ) from error
        like = activation.shape, activation.dtype
        if given is None or (isinstance(given, Tensor) and (given.shape, given.dtype) == like):
            return given
        raise InputError(
            f"the hook at {name!r} must give a tensor of shape {tuple(activation.shape)} in {activation.dtype}, or "
            f"None to change nothing; it gave {shown(given)}{f' in {given.dtype}' if isinstance(given, Tensor) else ''}"
        )

    return checked


class FiringCounter:
    """Wraps hooks (``hooks`` are the same, counted) so that one that never fires is an error."""

    def __init__(self, hooks: Hooks) -> None:
        self.fired = [0] * len(hooks)
        self.names = [name for name, _ in hooks]
        self.hooks: list[tuple[str, HookFunction]] = [
            (name, partial(self._counted, i, function)) for i, (name, function) in enumerate(hooks)
        ]

    def _counted(
        self, i: int, function: HookFunction, activation: Tensor, hook: Any
    ) -> Tensor | None:
        self.fired[i] += 1
        return function(activation, hook)

    def check(self) -> None:
        """Refuse hooks that have not fired, by their names."""
        silent = [name for name, count in zip(self.names, self.fired, strict=True) if not count]
        if silent:
            raise InputError(
                f"hooks that never fired: {', '.join(silent)}; choose points that the forward pass reaches"
            )


_ON_REQUEST = {
    "attn.hook_result": "use_attn_result",
    "attn.hook_q_input": "use_split_qkv_input",
    "attn.hook_k_input": "use_split_qkv_input",
    "attn.hook_v_input": "use_split_qkv_input",
    "hook_mlp_in": "use_hook_mlp_in",
}
"""Hook points that cost time or memory, and the flag that makes them fire; asking for one by name sets its flag."""
_OF_AN_MLP = ("hook_resid_mid", "hook_mlp_in", "hook_mlp_out")
"""In a model without MLPs these fire like those of an MLP that writes zeros, when a hook or a cache asks for them."""


def _switch(name: str) -> Callable[[Any, bool], None]:
    """The method of HookedTransformer that makes points fire, or not."""

    def switch(self: Any, flag: bool) -> None:
        """Whether these points fire."""
        setattr(self.runtime, name, fit("flag", flag, bool))

    return switch


_HEADS = "The weights of all heads: ``[layer, head, d_model, d_head]``."


def _stacked_heads(lens: LensSurface, name: str) -> Tensor:
    """Stack one weight of every block: ``[layer, head, d_model, d_head]``, or as ``W_O`` has it."""
    return torch.stack([block.attn.get_parameter(name) for block in lens.blocks])


def _name_tokens(layout: RoundLayout, tokens: Tensor) -> list[str]:
    """Return the token at every position of one round ``[pos]``, and at those of latents their labels."""
    vocabulary = layout.vocabulary
    inside = not tokens.is_floating_point() and bool(
        ((tokens >= 0) & (tokens < len(vocabulary))).all()
    )
    require(
        inside,
        f"tokens of a round must be ids from 0 to {len(vocabulary) - 1}, got {shown(tokens)}",
    )
    names = []
    for position, token in enumerate(tokens.tolist()):
        is_latent = position in layout.latent_positions
        names.append(layout.labels[position] if is_latent else vocabulary[token])
    return names


@checked
class LensSurface(HookedMachine):
    """What TransformerLens' tools ask of a model by HookedTransformer's names."""

    runtime: RuntimeConfig
    config: LatentTransformerConfig
    blocks: Sequence[Block]
    embed: Embedding
    pos_embed: Embedding
    unembed: Projection

    def _flag(self, name: str) -> str | None:
        if self.runtime.attn_only and name.endswith(_OF_AN_MLP):
            return "use_absent_mlp"
        return next((flag for suffix, flag in _ON_REQUEST.items() if name.endswith(suffix)), None)

    def _fires(self, name: str) -> bool:
        if self.runtime.attn_only and name.endswith("hook_mlp_in"):
            return self.runtime.use_hook_mlp_in
        flag = self._flag(name)
        return flag in (None, "use_absent_mlp") or getattr(self.runtime, str(flag))

    def run_with_cache(
        self, *args: Any, names_filter: NamesFilter = None, **options: Any
    ) -> tuple[Any, Cache | ActivationCache]:
        """Run episodes, or one round: ``run_with_cache(tokens, latents, values)``, with an ``ActivationCache``."""
        require(
            bool(args) or "tokens" in options,
            "give tokens and latents: run_with_cache(tokens, latents, values)",
        )
        output, cache = super().run_with_cache(*args, names_filter=names_filter, **options)
        is_of_rounds = isinstance(cache, Cache)
        return output, cache if is_of_rounds else ActivationCache(cache, self)

    # Flags, sizes, outcomes and weights.

    @property
    def cfg(self) -> RuntimeConfig:
        """What TransformerLens' tools read; the device and dtype are those of the weights now."""
        self.runtime.device, self.runtime.dtype = self.W_E.device, self.W_E.dtype
        return self.runtime

    # Whether what each head writes, what it reads, and what an MLP reads before its normalisation fires.
    set_use_attn_result = _switch("use_attn_result")
    set_use_split_qkv_input = _switch("use_split_qkv_input")
    set_use_hook_mlp_in = _switch("use_hook_mlp_in")

    def set_use_attn_in(self, flag: bool) -> None:
        """Refuse to switch on ``hook_attn_in``, which this model does not have."""
        require(
            not flag,
            "hook_attn_in does not exist here; use hook_q_input, hook_k_input and hook_v_input",
        )

    def blocks_with(self, submodule: str) -> list[tuple[int, nn.Module]]:
        """Layers that have ``submodule`` ("attn" or "mlp"), with their index."""
        return [
            (i, block)
            for i, block in enumerate(self.blocks)
            if getattr(block, submodule, None) is not None
        ]

    def accumulated_bias(
        self, layer: int, mlp_input: bool = False, include_mlp_biases: bool = True
    ) -> Float[Tensor, " d_model"]:
        """Sum of the biases written to the residual stream before ``layer`` (and by its attention, for its MLP)."""
        n = len(self.blocks)
        inside = 0 <= layer < n or (layer == n and not mlp_input)
        require(
            inside,
            f"layer must be in [0, {n}], or in [0, {n - 1}] for the input of its MLP, got {layer}",
        )
        total = torch.zeros_like(self.blocks[0].attn.b_O)
        for block in self.blocks[:layer]:
            total = total + block.attn.b_O
            if include_mlp_biases and block.mlp is not None:
                total = total + block.mlp.b_out
        return total + self.blocks[layer].attn.b_O if mlp_input else total

    def to_tokens(self, tokens: Tensor, **_: Any) -> Tensor:
        """``tokens`` as they are: rounds are encoded by the layout, not by a tokenizer."""
        return tokens

    def to_single_token(self, outcome: str | int) -> int:
        """Index of an outcome, such as "q1" or "a_2"."""
        if isinstance(outcome, int):
            return outcome
        require_known("outcome", outcome, self.outcomes)
        return int(self.outcomes.index(outcome))

    def to_str_tokens(self, tokens: Tensor | Sequence[int] | int) -> list[Any]:
        """Name what stands at every position of a round, or outcomes.

        Args:
            tokens: a round ``[pos]`` or rounds ``[batch, pos]``, a tensor as long as a round of the model; or
                indices of outcomes.

        Returns:
            For a round the token at every position, and at those of latents their labels; a list of these for a
            batch; for indices the outcomes' names.
        """
        layout = self._layout_of_round(tokens)
        if layout is None:
            return [self.outcomes[i] for i in self._outcome_indices(tokens).reshape(-1).tolist()]
        rounds = [
            _name_tokens(layout, row)
            for row in torch.as_tensor(tokens).reshape(-1, layout.n_positions)
        ]
        return rounds[0] if torch.as_tensor(tokens).ndim == 1 else rounds

    def _layout_of_round(self, tokens: Any) -> RoundLayout | None:
        """Return the layout of rounds of tokens, None where they are no tensor as long as a round."""
        if not isinstance(tokens, Tensor) or tokens.ndim not in (1, 2):
            return None
        layouts = (*self.config.layout.family, self.config.layout)
        fitting = [layout for layout in layouts if layout.n_positions == tokens.shape[-1]]
        return fitting[-1] if fitting else None

    outcomes = property(
        attrgetter("config.layout.max_layout.outcomes")
    )  # names of the columns of ``W_U``

    def tokens_to_residual_directions(self, tokens: Tensor | int | str) -> Tensor:
        """Columns of ``W_U`` for outcome indices: ``[...] -> [..., d_model]``."""
        if isinstance(tokens, str):
            tokens = self.to_single_token(tokens)
        return self.W_U.T[self._outcome_indices(tokens)]

    def _outcome_indices(self, tokens: Any) -> Tensor:
        indices, n = torch.as_tensor(array_of("tokens", tokens)), len(self.outcomes)
        whole = not indices.is_floating_point() and indices.dtype != torch.bool
        inside = whole and bool(((indices >= 0) & (indices < n)).all())
        require(inside, f"tokens must be indices of outcomes, 0 to {n - 1}, got {shown(tokens)}")
        return indices.long()

    # Weights: ``[layer, head, d_model, d_head]`` (W_O: ``[..., d_head, d_model]``), tables by id, and the unembedding.
    W_Q = property(partial(_stacked_heads, name="W_Q"), doc=_HEADS)
    W_K = property(partial(_stacked_heads, name="W_K"), doc=_HEADS)
    W_V = property(partial(_stacked_heads, name="W_V"), doc=_HEADS)
    W_O = property(partial(_stacked_heads, name="W_O"), doc=_HEADS)
    W_E = property(attrgetter("embed.table"))
    W_pos = property(attrgetter("pos_embed.table"))
    W_U = property(attrgetter("unembed.weight"))
    b_U = property(attrgetter("unembed.bias"))  # noqa: N815

    @property
    def QK(self) -> FactoredMatrix:
        """``W_Q W_K^T`` of every head, ``[layer, head, d_model, d_model]``, kept as two factors."""
        return FactoredMatrix(self.W_Q, self.W_K.transpose(-1, -2))

    @property
    def OV(self) -> FactoredMatrix:
        """``W_V W_O`` of every head, ``[layer, head, d_model, d_model]``, kept as two factors."""
        return FactoredMatrix(self.W_V, self.W_O)
