"""Attributes and methods of HookedTransformer that TransformerLens' tools use."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens import ActivationCache, FactoredMatrix

from interp.core.display import Cache
from interp.model.components import Block, Embedding, Projection, RuntimeConfig
from interp.model.config import LatentTransformerConfig
from interp.model.hooked import HookedMachine, NamesFilter
from interp.model.layout import RoundLayout
from interp.support.checks import array_of, checked, format_value
from interp.support.errors import require, require_known

_FLAG_OF_HOOK = {
    "attn.hook_result": "use_attn_result",
    "attn.hook_q_input": "use_split_qkv_input",
    "attn.hook_k_input": "use_split_qkv_input",
    "attn.hook_v_input": "use_split_qkv_input",
    "hook_mlp_in": "use_hook_mlp_in",
}
"""Hook points that cost time or memory -> the flag that switches them on; using one by name sets
its flag.
"""
_MLP_HOOKS = ("hook_resid_mid", "hook_mlp_in", "hook_mlp_out")
"""Hook points of MLPs. Without MLPs they fire if used, as for MLPs that write zeros."""


def _stack_blocks(name: str) -> property:
    """Make a property that stacks the attention weight ``name``, such as "W_Q", of all blocks:
    ``[layer, head, ...]``, and ``[layer, d_model]`` for b_O.
    """

    def stack(lens: LensSurface) -> Tensor:
        return torch.stack([block.attn.get_parameter(name) for block in lens.blocks])

    return property(stack, doc="This weight of all blocks, stacked: the first axis is the layer.")


def _name_tokens(layout: RoundLayout, tokens: Tensor) -> list[str]:
    """Return the name of the token at every position of one round ``[pos]``; at the positions of
    latents, the position's label.
    """
    vocabulary = layout.vocabulary
    require(
        _has_only_indices(tokens, len(vocabulary)),
        f"tokens of a round must be ids from 0 to {len(vocabulary) - 1}, got {format_value(tokens)}",
    )
    names = []
    for position, token in enumerate(tokens.tolist()):
        is_latent = position in layout.latent_positions
        names.append(layout.labels[position] if is_latent else vocabulary[token])
    return names


def _has_only_indices(numbers: Tensor, n: int) -> bool:
    """Return whether all numbers are integers from 0 to ``n - 1``."""
    if numbers.is_floating_point() or numbers.dtype == torch.bool:
        return False
    return bool(((numbers >= 0) & (numbers < n)).all())


@checked
class LensSurface(HookedMachine):
    """Base class with the attributes and methods of HookedTransformer that TransformerLens' tools
    use.
    """

    runtime: RuntimeConfig
    config: LatentTransformerConfig
    blocks: Sequence[Block]
    embed: Embedding
    pos_embed: Embedding
    unembed: Projection

    def _find_flag(self, name: str) -> str | None:
        """Return the flag that switches a hook point on; None if the point needs no flag."""
        if self.runtime.attn_only and name.endswith(_MLP_HOOKS):
            return "use_absent_mlp"
        return next((flag for suffix, flag in _FLAG_OF_HOOK.items() if name.endswith(suffix)), None)

    def _is_on(self, name: str) -> bool:
        """Return whether a hook point fires without a flag being set first."""
        if self.runtime.attn_only and name.endswith("hook_mlp_in"):
            return self.runtime.use_hook_mlp_in
        flag = self._find_flag(name)
        # Points of an absent MLP count as on: a hook on one sets its flag, and it then has zeros.
        return flag in (None, "use_absent_mlp") or getattr(self.runtime, str(flag))

    def run_with_cache(
        self, *args: Any, names_filter: NamesFilter = None, **options: Any
    ) -> tuple[Any, Cache | ActivationCache]:
        """Run episodes, or one round, and return the output with the cached activations.

        Args:
            args: episodes; or the tensors of one round: tokens ``[batch, pos]``, latents ``[batch,
                latent, d_model]``, and numbers that tokens carry ``[batch, pos]``.
            names_filter: hook points to cache; None for all that are not switched off.
            options: options of :func:`interp.rollout`; for one round, options of TransformerLens.

        Returns:
            For episodes, the predictions and a cache, ``[episode, round, ...]`` each. For one
            round, the model's output and TransformerLens' ``ActivationCache``.
        """
        require(
            args or "tokens" in options,
            "give tokens and latents: run_with_cache(tokens, latents, values)",
        )
        output, cache = super().run_with_cache(*args, names_filter=names_filter, **options)
        is_of_rounds = isinstance(cache, Cache)
        return output, cache if is_of_rounds else ActivationCache(cache, self)

    # Flags, sizes, outcomes and weights.

    @property
    def cfg(self) -> RuntimeConfig:
        """The configuration that TransformerLens' tools read, with the weights' current device and
        dtype.
        """
        self.runtime.device, self.runtime.dtype = self.W_E.device, self.W_E.dtype
        return self.runtime

    def set_use_attn_result(self, flag: bool) -> None:
        """Switch the hook point ``hook_result`` on or off. Its activation is what each head writes
        to the residual stream.
        """
        self.runtime.use_attn_result = flag

    def set_use_split_qkv_input(self, flag: bool) -> None:
        """Switch the hook points ``hook_q_input``, ``hook_k_input`` and ``hook_v_input`` on or off.
        Their activations are what each head reads.
        """
        self.runtime.use_split_qkv_input = flag

    def set_use_hook_mlp_in(self, flag: bool) -> None:
        """Switch the hook point ``hook_mlp_in`` on or off. Its activation is what an MLP reads,
        before normalisation.
        """
        self.runtime.use_hook_mlp_in = flag

    def accumulated_bias(
        self, layer: int, mlp_input: bool = False, include_mlp_biases: bool = True
    ) -> Float[Tensor, " d_model"]:
        """Return the sum of the biases that all earlier layers write to the residual stream before
        a layer.

        Args:
            layer: index of the layer.
            mlp_input: True to include the bias of this layer's attention, as for the input of its
                MLP.
            include_mlp_biases: True to include the biases of MLPs.
        """
        n_layers = len(self.blocks)
        last = n_layers - 1 if mlp_input else n_layers  # n_layers: after the last block
        require(0 <= layer <= last, f"layer must be in [0, {last}], got {layer}")
        n_attentions = layer + 1 if mlp_input else layer
        total = self.b_O[:n_attentions].sum(0)
        for block in self.blocks[:layer]:
            if include_mlp_biases and block.mlp is not None:
                total = total + block.mlp.b_out
        return total

    def to_tokens(self, tokens: Tensor, **_: Any) -> Tensor:
        """Return ``tokens`` unchanged, since the layout encodes rounds and there is no
        tokenizer.
        """
        return tokens

    def to_single_token(self, outcome: str | int) -> int:
        """Return the index of the outcome with a name such as "q1" or "a_2". If ``outcome`` is an
        index, it is returned unchanged.
        """
        if isinstance(outcome, int):
            return outcome
        require_known("outcome", outcome, self.outcomes)
        return self.outcomes.index(outcome)

    def to_str_tokens(self, tokens: Tensor | Sequence[int] | int) -> list[Any]:
        """Return the names of tokens, or of outcomes, as TransformerLens' method of this name does.

        Args:
            tokens: the token ids of a round, a tensor ``[pos]``, or of several rounds, ``[batch,
                pos]``. If the last axis is not as long as a round, they are indices of outcomes.

        Returns:
            For a round, a list with the name of the token at every position, where a position of a
            latent has its label. For several rounds, a list of such lists. For indices, the names
            of the outcomes.
        """
        layout = None
        if isinstance(tokens, Tensor) and tokens.ndim in (1, 2):
            layout = self.config.layout.layout_of_length.get(tokens.shape[-1])
        if layout is None:
            indices = self._read_outcome_indices(tokens).reshape(-1)
            return [self.outcomes[i] for i in indices.tolist()]
        rounds: Any = tokens
        if rounds.ndim == 1:
            return _name_tokens(layout, rounds)
        return [_name_tokens(layout, row) for row in rounds]

    # Names of the outcomes: the columns of ``W_U``.
    outcomes = property(attrgetter("config.layout.max_layout.outcomes"))

    def tokens_to_residual_directions(self, tokens: Tensor | int | str) -> Tensor:
        """Return the column of the unembedding ``W_U`` for each outcome, ``[..., d_model]``.

        ``tokens`` are indices of outcomes, ``[...]``, or the name of one outcome.
        """
        if isinstance(tokens, str):
            tokens = self.to_single_token(tokens)
        return self.W_U.T[self._read_outcome_indices(tokens)]

    def _read_outcome_indices(self, tokens: Any) -> Tensor:
        """Return indices of outcomes as a tensor of integers; refuse other numbers."""
        indices = torch.as_tensor(array_of("tokens", tokens))
        n = len(self.outcomes)
        require(
            _has_only_indices(indices, n),
            f"tokens must be indices of outcomes, 0 to {n - 1}, got {format_value(tokens)}",
        )
        return indices.long()

    # Attention weights ``[layer, head, d_model, d_head]`` (W_O: ``[layer, head, d_head, d_model]``) and
    # biases, embedding tables, unembedding.
    W_Q, b_Q = _stack_blocks("W_Q"), _stack_blocks("b_Q")  # noqa: N815
    W_K, b_K = _stack_blocks("W_K"), _stack_blocks("b_K")  # noqa: N815
    W_V, b_V = _stack_blocks("W_V"), _stack_blocks("b_V")  # noqa: N815
    W_O, b_O = _stack_blocks("W_O"), _stack_blocks("b_O")  # noqa: N815
    W_E = property(attrgetter("embed.table"))
    W_pos = property(attrgetter("pos_embed.table"))
    W_U = property(attrgetter("unembed.weight"))
    b_U = property(attrgetter("unembed.bias"))  # noqa: N815

    @property
    def QK(self) -> FactoredMatrix:
        """``W_Q W_K^T`` of every head, ``[layer, head, d_model, d_model]``, stored as two
        factors.
        """
        return FactoredMatrix(self.W_Q, self.W_K.transpose(-1, -2))

    @property
    def OV(self) -> FactoredMatrix:
        """``W_V W_O`` of every head, ``[layer, head, d_model, d_model]``, stored as two factors."""
        return FactoredMatrix(self.W_V, self.W_O)
