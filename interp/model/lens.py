"""What TransformerLens' tools read of a transformer: points that fire on request, stacked weights, outcomes, biases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens import ActivationCache, FactoredMatrix

from interp.checks import array_of, checked, fit
from interp.errors import require, require_known
from interp.kinds import shown
from interp.model.components import Block, Embedding, Projection, RuntimeConfig
from interp.model.config import LatentTransformerConfig
from interp.model.hooked import HookedMachine, NamesFilter

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


def _stacked(name: str) -> Any:
    """The weights of all heads, layer by layer."""

    def stacked(model: Any) -> Tensor:
        """The weights of all heads: ``[layer, head, d_model, d_head]``."""
        return torch.stack([block.attn.get_parameter(name) for block in model.blocks])

    return property(stacked)


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
        self, *args: Any, names_filter: NamesFilter = None, **kwargs: Any
    ) -> tuple[Any, ActivationCache]:
        """TransformerLens' ``run_with_cache``, for one round; the cache is an ``ActivationCache``."""
        require(bool(args) or "tokens" in kwargs, "give tokens and latents: run_with_cache(tokens, latents, values)")
        output, cache = super().run_with_cache(*args, names_filter=self.hook_names(names_filter), **kwargs)
        return output, ActivationCache(cache, self)

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
        require(not flag, "hook_attn_in does not exist here; use hook_q_input, hook_k_input and hook_v_input")

    def blocks_with(self, submodule: str) -> list[tuple[int, nn.Module]]:
        """Layers that have ``submodule`` ("attn" or "mlp"), with their index."""
        return [(i, block) for i, block in enumerate(self.blocks) if getattr(block, submodule, None) is not None]

    def accumulated_bias(
        self, layer: int, mlp_input: bool = False, include_mlp_biases: bool = True
    ) -> Float[Tensor, " d_model"]:
        """Sum of the biases written to the residual stream before ``layer`` (and by its attention, for its MLP)."""
        n = len(self.blocks)
        inside = 0 <= layer < n or (layer == n and not mlp_input)
        require(inside, f"layer must be in [0, {n}], or in [0, {n - 1}] for the input of its MLP, got {layer}")
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

    def to_str_tokens(self, tokens: Tensor | Sequence[int] | int) -> list[str]:
        """Names of outcome indices."""
        return [self.outcomes[i] for i in self._outcome_indices(tokens).reshape(-1).tolist()]

    outcomes = property(attrgetter("config.layout.max_layout.outcomes"))  # names of the columns of ``W_U``

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
    W_Q, W_K, W_V, W_O = map(_stacked, ("W_Q", "W_K", "W_V", "W_O"))
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
