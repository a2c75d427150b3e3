"""Rounds without hooks: the operations of the hooked modules, in their order, without the modules.

    residual stream -> (normalise, q, k, v, scores, pattern, z, W_O) + (normalise, W_in, act, W_out) -> ...

A round of one episode is little arithmetic and many calls: hook points, modules and look-ups of parameters take more
time than the matrices. ``model(...)``, ``model.predict(...)``, ``rollout``, ``replay`` and ``play`` therefore run here
whenever nobody can tell the difference (:func:`unobserved`): no hook anywhere, no gradient, no autocast, no module but
the model's own kinds. Each operation has the same operands in the same shape as in :mod:`interp.model.components`, so
the numbers are equal bit for bit; a property test holds it over shipped and handwired models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from interp.model.components import MLP, Affine, Attention, Block, Embedding, LayerNormPre, embed_tokens
from interp.model.layout import LATENT_START, PREDICT_INDEX

if TYPE_CHECKING:
    from interp.model.transformer import HookedLatentTransformer, RoundOutput

_KINDS = {Block, Attention, MLP, LayerNormPre, Embedding, Affine, HookPoint, nn.ModuleList, nn.Identity}
_FLAGS = ("use_attn_result", "use_split_qkv_input", "use_hook_mlp_in", "use_absent_mlp")


def unobserved(model: HookedLatentTransformer, own: type) -> bool:
    """Whether a forward pass of ``model`` can run without its modules and nobody can tell.

    Args:
        own: the class whose forward pass is known here; a class derived from it may do anything.
    """
    if type(model) is not own or torch.is_grad_enabled() or torch.is_autocast_enabled(model.W_E.device.type):
        return False
    if nn.modules.module._has_any_global_hook() or any(getattr(model.runtime, flag) for flag in _FLAGS):
        return False
    waiting: list[nn.Module | None] = [model]
    while waiting:
        module = waiting.pop()
        if module is None:
            continue
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
            return False
        if "forward" in module.__dict__ or not (type(module) in _KINDS or module is model):
            return False
        waiting.extend(module._modules.values())
    return True


class PlainAttention:
    """An attention layer and what it needs, laid out once: ``[d_model, head d_head]`` instead of a matrix a head."""

    def __init__(self, attn: Attention) -> None:
        self.attn, self.scale = attn, attn.scale
        self.n_heads, d_model, self.d_head = attn.W_Q.shape
        self.q, self.k, self.v = (
            (weight.transpose(0, 1).reshape(d_model, -1), bias.reshape(-1))
            for weight, bias in ((attn.W_Q, attn.b_Q), (attn.W_K, attn.b_K), (attn.W_V, attn.b_V))
        )
        self.out, self.bias = attn.W_O.flatten(0, 1), attn.b_O
        self.mask = attn.mask

    def project(self, x: Tensor, weights: tuple[Tensor, Tensor]) -> Float[Tensor, "batch pos head d_head"]:
        """Queries, keys or values of every head."""
        matrix, bias = weights
        return (x @ matrix).add_(bias).view(*x.shape[:2], self.n_heads, self.d_head)

    def read(
        self, x: Float[Tensor, "batch pos d_model"], keys: Tensor, values: Tensor
    ) -> Float[Tensor, "batch pos d_model"]:
        """What the last positions, ``x``, read of all positions' ``keys`` and ``values``, ``[batch, pos, head, d]``."""
        n_queries, n = x.shape[1], keys.shape[1]
        scores = _scores(self.project(x, self.q), keys).div_(self.scale)
        scores.masked_fill_(self.mask[n - n_queries : n, :n], float("-inf"))
        z = _weighted(self.attn.pattern(scores), values)
        return (z.reshape(*x.shape[:2], -1) @ self.out).add_(self.bias)


def _scores(q: Tensor, k: Tensor) -> Float[Tensor, "batch head query key"]:
    """``einsum("bqhd,bkhd->bhqk", q, k)``, by the product that einsum makes of it where no size is 1."""
    (n_batch, n_queries, n_heads, d_head), n = q.shape, k.shape[1]
    if 1 in (n_queries, n, d_head):
        return torch.einsum("bqhd,bkhd->bhqk", q, k)
    left = q.permute(0, 2, 1, 3).reshape(-1, n_queries, d_head)
    return torch.bmm(left, k.permute(0, 2, 3, 1).reshape(-1, d_head, n)).view(n_batch, n_heads, n_queries, n)


def _weighted(pattern: Tensor, v: Tensor) -> Float[Tensor, "batch query head d_head"]:
    """``einsum("bhqk,bkhd->bqhd", pattern, v)``, in the same way."""
    (n_batch, n_heads, n_queries, n), d_head = pattern.shape, v.shape[-1]
    if 1 in (n_queries, n, d_head):
        return torch.einsum("bhqk,bkhd->bqhd", pattern, v)
    left, right = pattern.reshape(-1, n_queries, n), v.permute(0, 2, 1, 3).reshape(-1, n, d_head)
    return torch.bmm(left, right).view(n_batch, n_heads, n_queries, d_head).permute(0, 2, 1, 3)


class PlainRounds:
    """A model's rounds without hooks, for its weights as they are now: make another after changing them.

    Args:
        model: one that is :func:`unobserved`.
    """

    def __init__(self, model: HookedLatentTransformer) -> None:
        self.model, self.eps = model, model.runtime.eps
        self.normalized = model.config.normalization_type is not None
        self.blocks = [(PlainAttention(block.attn), block.mlp) for block in model.blocks]
        self.positions: dict[int, Tensor] = {}

    def normalize(self, x: Tensor) -> Tensor:
        """LayerNorm without affine parameters, or nothing."""
        if not self.normalized:
            return x
        x = x - x.mean(-1, keepdim=True)
        return x.div_(x.square().mean(-1, keepdim=True).add_(self.eps).sqrt_())

    def embedded(self, tokens: Tensor, latents: Tensor, values: Tensor | None) -> Tensor:
        """The residual stream before the first block."""
        model, n = self.model, tokens.shape[1]
        embedded = embed_tokens(tokens, model.W_E)
        if values is not None:
            payload = values.to(embedded.dtype).unsqueeze(-1)
            embedded = embedded + payload * embed_tokens(tokens, model.value_embed.table)
        end = LATENT_START + latents.shape[1]
        embedded = torch.cat([embedded[:, :LATENT_START], latents, embedded[:, end:]], dim=1)
        if n not in self.positions:
            self.positions[n] = model.W_pos[model.position_ids[n, :n]]
        return embedded.add_(self.positions[n])

    def through(self, resid: Tensor, n_read: int | None = None) -> Tensor:
        """The normalised residual stream after the last block, of the last ``n_read`` positions (all when None)."""
        for i, (attention, mlp) in enumerate(self.blocks):
            passed = None
            if n_read is not None and i == len(self.blocks) - 1:
                # As in ``advance``: the others are looked at, and what becomes of them is not computed.
                passed, resid = self.normalize(resid[:, :-n_read]), resid[:, -n_read:]
            reading = self.normalize(resid)
            resid = resid + attention.read(reading, *self.keys_values(attention, reading, passed))
            if mlp is not None:
                resid = resid.add_(self.wide(mlp, self.normalize(resid)))
        return self.normalize(resid)

    def keys_values(self, attention: PlainAttention, x: Tensor, before: Tensor | None) -> list[Tensor]:
        """Keys and values of the positions ``x``, after those of the positions before them."""
        parts = [x] if before is None else [before, x]
        kinds = (attention.k, attention.v)
        found = [[attention.project(part, weights) for part in parts] for weights in kinds]
        return [part[0] if len(part) == 1 else torch.cat(part, 1) for part in found]

    def wide(self, mlp: MLP, x: Tensor) -> Tensor:
        """``W_out act(W_in x + b_in) + b_out``."""
        return (mlp.act((x @ mlp.W_in).add_(mlp.b_in)) @ mlp.W_out).add_(mlp.b_out)

    def __call__(
        self,
        tokens: Int[Tensor, "batch pos"],
        latents: Float[Tensor, "batch latent d_model"],
        values: Float[Tensor, "batch pos"] | None = None,
    ) -> RoundOutput:
        """What ``model(tokens, latents, values)`` gives."""
        return self.model.read_normalized(self.through(self.embedded(tokens, latents, values)), latents)

    def predict(
        self,
        tokens: Int[Tensor, "batch pos"],
        latents: Float[Tensor, "batch latent d_model"],
        values: Float[Tensor, "batch pos"] | None = None,
    ) -> Tensor:
        """What ``model.predict(tokens, latents, values)`` gives."""
        prefix = self.embedded(tokens, latents, values)[:, : PREDICT_INDEX + 1]
        outcome = self.model.unembed(self.through(prefix, n_read=1)[:, 0])
        return self.model.read_prediction(outcome, tokens.shape[1])
