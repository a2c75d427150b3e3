"""Blocks without hooks: the operations of the hooked modules, in their order, without the modules.

    residual stream -> (normalise, q, k, v, scores, pattern, z, W_O) + (normalise, W_in, act, W_out) -> ...

A round of one episode is little arithmetic and many calls: hook points, modules and look-ups of parameters take more
time than the matrices. ``model.run_from``, and with it every forward pass, therefore runs these blocks whenever nobody
can tell the difference (:func:`unobserved`): no hook anywhere, no gradient, no autocast, no module but the model's own
kinds. Each operation has the same operands in the same shape as in :mod:`interp.model.components`, so the numbers are
equal bit for bit; a property test holds it over shipped and handwired models.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens import TransformerLensKeyValueCacheEntry as KeyValues
from transformer_lens.hook_points import HookPoint

from interp.model.components import MLP, Affine, Attention, Block, Embedding, LayerNormPre
from interp.model.hooked import CheckedHooks

_KINDS = {Block, Attention, MLP, LayerNormPre, Embedding, Affine, HookPoint, nn.ModuleList, nn.Identity}
_FLAGS = ("use_attn_result", "use_split_qkv_input", "use_hook_mlp_in", "use_absent_mlp")


def unobserved(model: CheckedHooks, device: torch.device) -> bool:
    """Whether the blocks of ``model``, whose weights are on ``device``, can run here and nobody can tell."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.is_autocast_enabled(device.type):
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


class PlainBlock:
    """A block for its weights as they are now, laid out once: ``[d_model, head d_head]`` instead of a matrix a head."""

    def __init__(self, block: Block) -> None:
        attn = block.attn
        self.attn, self.mlp, self.scale, self.mask = attn, block.mlp, attn.scale, attn.mask
        self.eps = block.ln1.eps if isinstance(block.ln1, LayerNormPre) else None
        self.n_heads, d_model, self.d_head = attn.W_Q.shape
        self.q, self.k, self.v = (
            (weight.transpose(0, 1).reshape(d_model, -1), bias.reshape(-1))
            for weight, bias in ((attn.W_Q, attn.b_Q), (attn.W_K, attn.b_K), (attn.W_V, attn.b_V))
        )
        self.out, self.bias = attn.W_O.flatten(0, 1), attn.b_O

    def __call__(
        self, resid: Float[Tensor, "batch pos d_model"], past: KeyValues | None = None
    ) -> Float[Tensor, "batch pos d_model"]:
        """What :class:`~interp.model.components.Block` gives."""
        normalized = self._normalize(resid)
        keys, values = self._project(normalized, self.k), self._project(normalized, self.v)
        if past is not None:
            keys, values = past.append(keys, values)
        n_queries, n = resid.shape[1], keys.shape[1]
        scores = _scores(self._project(normalized, self.q), keys).div_(self.scale)
        scores.masked_fill_(self.mask[n - n_queries : n, :n], float("-inf"))
        z = _weighted(self.attn.pattern(scores), values)
        resid = resid + (z.reshape(*resid.shape[:2], -1) @ self.out).add_(self.bias)
        if (mlp := self.mlp) is not None:
            post = mlp.act((self._normalize(resid) @ mlp.W_in).add_(mlp.b_in))
            resid = resid.add_((post @ mlp.W_out).add_(mlp.b_out))
        return resid

    def pass_by(self, resid: Float[Tensor, "batch pos d_model"], past: KeyValues) -> None:
        """Only add these positions' keys and values to ``past``."""
        normalized = self._normalize(resid)
        past.append(self._project(normalized, self.k), self._project(normalized, self.v))

    def _normalize(self, x: Tensor) -> Tensor:
        """LayerNorm without affine parameters, or nothing."""
        if self.eps is None:
            return x
        x = x - x.mean(-1, keepdim=True)
        return x.div_(x.square().mean(-1, keepdim=True).add_(self.eps).sqrt_())

    def _project(self, x: Tensor, weights: tuple[Tensor, Tensor]) -> Float[Tensor, "batch pos head d_head"]:
        """Queries, keys or values of every head."""
        matrix, bias = weights
        return (x @ matrix).add_(bias).view(*x.shape[:2], self.n_heads, self.d_head)


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
