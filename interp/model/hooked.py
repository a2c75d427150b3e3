"""Hooks that are never silent: a HookedRootModule whose names are checked, and the runtime switches of costly points.

TransformerLens ignores a filter that matches nothing and a hook that never fires; here a name that does not exist is an
error that offers the nearest ones, and a hook point that fires only on request is switched on by asking for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor
from transformer_lens import ActivationCache
from transformer_lens.hook_points import HookPoint
from transformer_lens.HookedRootModule import HookedRootModule

from interp.errors import InputError, require, unknown_name
from interp.kinds import NO, fitted, shown

HookFunction = Callable[[Tensor, HookPoint], Tensor | None]
Hooks = Sequence[tuple[str, HookFunction]]
NamesFilter = str | Sequence[str] | Callable[[str], bool] | None

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


@dataclass
class RuntimeConfig:
    """What TransformerLens reads from ``model.cfg``: the sizes, and the flags that switch costly hooks on."""

    n_layers: int
    n_heads: int
    d_model: int
    d_head: int
    d_mlp: int
    n_ctx: int
    d_vocab: int
    d_vocab_out: int
    act_fn: str
    attn_only: bool
    normalization_type: str | None
    device: torch.device
    dtype: torch.dtype
    eps: float = 1e-5
    use_attn_result: bool = False
    use_split_qkv_input: bool = False
    use_hook_mlp_in: bool = False
    use_attn_in: bool = False
    use_absent_mlp: bool = False
    n_key_value_heads: int | None = None
    gated_mlp: bool = False
    parallel_attn_mlp: bool = False
    final_rms: bool = False
    positional_embedding_type: str = "standard"
    model_name: str = "latent-context"


class CheckedHooks(HookedRootModule):
    """A HookedRootModule in which a hook or filter that cannot act is an error."""

    runtime: RuntimeConfig

    def hook_names(self, names: NamesFilter | Iterable[str]) -> list[str]:
        """The hook points that a filter selects: a name, several, a predicate, or None for all that fire now.

        Raises:
            InputError: a name that does not exist, or a predicate that selects nothing, or no names at all.
        """
        if names is None or callable(names):
            keep = names or (lambda name: True)
            selected = [name for name in self.hook_dict if self._fires(name) and keep(name)]
            if not selected:
                raise InputError("the hook filter selects none of the model's hook points; see model.hook_dict")
            return selected
        several = [names] if isinstance(names, str) else fitted(list[str], names)
        require(several is not NO, f"hook points are a name, several, a predicate or None, got {shown(names)}")
        selected = list(dict.fromkeys(several))
        for name in selected:
            if name not in self.hook_dict:
                raise unknown_name("hook point", name, self.hook_dict)
        return selected

    def _flag(self, name: str) -> str | None:
        if self.runtime.attn_only and name.endswith(_OF_AN_MLP):
            return "use_absent_mlp"
        return next((flag for suffix, flag in _ON_REQUEST.items() if name.endswith(suffix)), None)

    def _fires(self, name: str) -> bool:
        if self.runtime.attn_only and name.endswith("hook_mlp_in"):
            return self.runtime.use_hook_mlp_in
        flag = self._flag(name)
        return flag in (None, "use_absent_mlp") or getattr(self.runtime, str(flag))

    @contextmanager
    def hooks(
        self,
        fwd_hooks: Sequence[tuple[str | Callable[[str], bool], HookFunction]] = (),
        bwd_hooks: Sequence[tuple[str | Callable[[str], bool], HookFunction]] = (),
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
    ) -> Iterator[Self]:
        """TransformerLens' context manager, with names checked and points that fire on request switched on."""
        resolved = [
            [(name, hook) for given, hook in pairs for name in self.hook_names(given)]
            for pairs in (fwd_hooks, bwd_hooks)
        ]
        flags = {self._flag(name) for pairs in resolved for name, _ in pairs} - {None}
        saved = {flag: getattr(self.runtime, flag) for flag in flags if flag}
        for flag in saved:
            setattr(self.runtime, flag, True)
        try:
            with super().hooks(resolved[0], resolved[1], reset_hooks_end, clear_contexts):
                yield self
        finally:
            for flag, value in saved.items():
                setattr(self.runtime, flag, value)

    def remove_all_hook_fns(
        self,
        direction: Literal["fwd", "bwd", "both"] = "both",
        including_permanent: bool = False,
        level: int | None = None,
    ) -> None:
        """TransformerLens' method, passing by the points without hooks: it runs at the end of every context."""
        for point in self.hook_points():
            if point.fwd_hooks or point.bwd_hooks:
                point.remove_hooks(direction, including_permanent, level)

    def run_with_cache(
        self, *args: Any, names_filter: NamesFilter = None, **kwargs: Any
    ) -> tuple[Any, ActivationCache]:
        """TransformerLens' ``run_with_cache``, for one round; the cache is an ``ActivationCache``."""
        require(bool(args) or "tokens" in kwargs, "give tokens and latents: run_with_cache(tokens, latents, values)")
        output, cache = super().run_with_cache(*args, names_filter=self.hook_names(names_filter), **kwargs)
        return output, ActivationCache(cache, self)


class FiringCounter:
    """Wraps hooks so that one that never fires is an error.

    Attributes:
        hooks: the same, counted.
    """

    def __init__(self, hooks: Hooks) -> None:
        self.fired = [0] * len(hooks)
        self.names = [name for name, _ in hooks]
        self.hooks = [(name, self._counting(i, function)) for i, (name, function) in enumerate(hooks)]

    def _counting(self, i: int, function: HookFunction) -> HookFunction:
        def counted(activation: Tensor, hook: Any) -> Tensor | None:
            self.fired[i] += 1
            return function(activation, hook)

        return counted

    def check(self) -> None:
        """Refuse hooks that have not fired.

        Raises:
            InputError: with their names.
        """
        silent = [name for name, count in zip(self.names, self.fired, strict=True) if not count]
        if silent:
            raise InputError(
                f"hooks that never fired: {', '.join(silent)}; choose points that the forward pass reaches"
            )
