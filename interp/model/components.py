"""Parts of the hooked latent transformer: embeddings, attention, MLP, normalisation.

Names of weights and hooks are those of TransformerLens' HookedTransformer. Attention (paper,
Algorithm 2) has one of three rules per head. It turns causally masked scores
``s_ij = <q_i, k_j> / scale`` into an attention pattern A:

* ``softmax``: ``A_i = softmax(s_i)``;
* ``hard``: uniform over the positions with the maximal score (softmax in the limit of infinite
  inverse temperature);
* ``linear``: ``A_ij = s_ij`` for j <= i, and 0 otherwise: the head sums instead of averaging.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens import TransformerLensKeyValueCacheEntry as KeyValues
from transformer_lens.config import TransformerLensConfig
from transformer_lens.hook_points import HookPoint

from interp.model.config import LatentTransformerConfig
from interp.support.checks import checked_fields

_CPU_LANES = 16
"""Number of float32 values in the widest vector register of a CPU."""


@dataclass
@checked_fields
class RuntimeConfig(TransformerLensConfig):
    """The configuration that TransformerLens' tools read from ``model.cfg``: the model's sizes, and
    flags (``use_...``) that switch on expensive hook points.
    """

    device: Any = None  # a torch.device
    d_vocab_out: int = 0
    use_hook_mlp_in: bool = False
    use_attn_in: bool = False
    use_absent_mlp: bool = False
    parallel_attn_mlp: bool = False
    model_name: str = "latent-context"


class LayerNormPre(nn.Module):
    """LayerNorm without learned scale and bias, "LNPre" in TransformerLens. Both would be
    redundant, since the linear map that follows can also scale and shift.

    Args:
        eps: number that is added to the variance.
    """

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.hook_scale = HookPoint()
        self.hook_normalized = HookPoint()

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Normalise the last axis: subtract its mean and divide by its standard deviation."""
        is_hooked = self.hook_scale._forward_hooks or self.hook_normalized._forward_hooks
        if self.training and not is_hooked:
            # One operation if no hook reads what is between: equal up to rounding, and a training
            # step takes a fifth less time.
            return nn.functional.layer_norm(x, x.shape[-1:], eps=self.eps)
        x = x - x.mean(-1, keepdim=True)
        variance = x.pow(2).mean(-1, keepdim=True)
        scale = self.hook_scale((variance + self.eps).sqrt())
        return self.hook_normalized(x / scale)


def make_normalization(config: LatentTransformerConfig, eps: float) -> nn.Module:
    """Return the normalisation layer that ``config.normalization_type`` names.

    For "LNPre" it is LayerNorm without learned parameters, with ``eps`` added to the variance. For
    None it is the identity.
    """
    return LayerNormPre(eps) if config.normalization_type == "LNPre" else nn.Identity()


def _make_empty(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape))


class _Drawn(nn.Module):
    """Base class of modules whose weights are initialised from a normal distribution."""

    std: float

    def reset_parameters(self) -> None:
        """Initialise weights from a normal distribution, and biases (named ``b_...``) to 0."""
        for name, parameter in self.named_parameters(recurse=False):
            if name.startswith("b_"):
                nn.init.zeros_(parameter)
            else:
                nn.init.normal_(parameter, std=self.std)


class Embedding(_Drawn):
    """A table of learned vectors, one per row, in a parameter called ``name``.

    Tables for tokens and positions have TransformerLens' names, ``W_E`` and ``W_pos``. ``W_val``
    has one vector per token: if a token carries a number, such as a reward, the number times this
    vector is added to its embedding. ``init`` has the latents that the first round reads.

    Args:
        name: name of the parameter.
        n_rows: number of vectors.
        config: configuration of the model, which determines the width and the initial weights.
    """

    def __init__(self, name: str, n_rows: int, config: LatentTransformerConfig) -> None:
        super().__init__()
        self.table_name = name
        self.std = config.init_std
        self.register_parameter(name, _make_empty(n_rows, config.d_model))
        self.reset_parameters()

    @property
    def table(self) -> Tensor:
        """The table of vectors, ``[id, d_model]``."""
        return self.get_parameter(self.table_name)


class Attention(_Drawn):
    """Multi-head causal attention in which each head has its own rule (softmax, hard or linear).

    Args:
        config: configuration of the model.
        runtime: the flags that switch on expensive hook points.
        layer: index of the layer.
    """

    mask: Tensor

    def __init__(self, config: LatentTransformerConfig, runtime: RuntimeConfig, layer: int) -> None:
        """Make the weights of all heads, drawn at random, and hook points with TransformerLens' names."""
        super().__init__()
        self.std = config.init_std
        self.scale = config.scale
        self.runtime = runtime
        n_heads, d_model, d_head = config.n_heads, config.d_model, config.d_head
        self.W_Q = _make_empty(n_heads, d_model, d_head)
        self.W_K = _make_empty(n_heads, d_model, d_head)
        self.W_V = _make_empty(n_heads, d_model, d_head)
        self.W_O = _make_empty(n_heads, d_head, d_model)
        self.b_Q = _make_empty(n_heads, d_head)
        self.b_K = _make_empty(n_heads, d_head)
        self.b_V = _make_empty(n_heads, d_head)
        self.b_O = _make_empty(d_model)
        # One rule a head: "softmax", "hard" or "linear".
        self.rules = tuple(config.attention_rules[layer])
        is_later = torch.ones(config.n_ctx, config.n_ctx, dtype=torch.bool).triu(1)
        self.register_buffer("mask", is_later, persistent=False)
        self.hook_q_input = HookPoint()
        self.hook_k_input = HookPoint()
        self.hook_v_input = HookPoint()
        self.hook_q = HookPoint()
        self.hook_k = HookPoint()
        self.hook_v = HookPoint()
        self.hook_attn_scores = HookPoint()
        self.hook_pattern = HookPoint()
        self.hook_z = HookPoint()
        self.hook_result = HookPoint()
        self.reset_parameters()

    def forward(
        self, q_in: Tensor, k_in: Tensor, v_in: Tensor, past: KeyValues | None = None
    ) -> Float[Tensor, "batch pos d_model"]:
        """Return what the layer adds to the residual stream: the sum of the outputs of all heads,
        plus the bias.

        Args:
            q_in, k_in, v_in: normalised inputs, ``[batch, pos, d_model]``, or ``[batch, pos, head,
                d_model]`` if each head has a separate copy.
            past: keys and values of earlier positions, to which the new keys and values are
                appended; None if there are none.
        """
        q = self.hook_q(_project_per_head(q_in, self.W_Q) + self.b_Q)
        k, v = self.keys_values(k_in, v_in)
        if past is not None:
            k, v = past.append(k, v)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / self.scale
        n_queries, n_keys = scores.shape[-2:]
        # The queries are those of the last positions, and the keys of all up to the last one.
        is_later = self.mask[n_keys - n_queries : n_keys, :n_keys]
        scores = self.hook_attn_scores(scores.masked_fill(is_later, float("-inf")))
        pattern = self.hook_pattern(attend_by_rules(scores, self.rules))
        z = self.hook_z(torch.einsum("bhqk,bkhd->bqhd", pattern, v))
        if self.runtime.use_attn_result:
            result = self.hook_result(torch.einsum("bqhd,hdm->bqhm", z, self.W_O))
            return result.sum(2) + self.b_O
        # The same sum over heads in one matrix product.
        return z.flatten(2) @ self.W_O.flatten(0, 1) + self.b_O

    def keys_values(self, k_in: Tensor, v_in: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and the values of the positions in the input, ``[batch, pos, head,
        d_head]`` each.

        Args:
            k_in, v_in: normalised inputs, ``[batch, pos, d_model]``, or ``[batch, pos, head,
                d_model]`` if each head has a separate copy.
        """
        keys = self.hook_k(_project_per_head(k_in, self.W_K) + self.b_K)
        values = self.hook_v(_project_per_head(v_in, self.W_V) + self.b_V)
        return keys, values


def attend_by_rules(
    scores: Tensor, rules: tuple[str, ...]
) -> Float[Tensor, "batch head query key"]:
    """Turn masked attention scores into attention patterns, with the rule of each head.

    * "softmax": the softmax over keys.
    * "hard": 1 for the key with the highest score, 0 for all others. Several keys with the highest
      score share the 1 equally. It has no gradient.
    * "linear": the scores as they are, not normalised; 0 where masked.

    Args:
        scores: ``[batch, head, query, key]``, minus infinity where masked.
        rules: the rule of each head.
    """
    # Consecutive heads with the same rule are computed together: (rule, number of heads).
    groups = [(rule, len(list(heads))) for rule, heads in groupby(rules)]
    if len(groups) == 1:
        return _RULES[rules[0]](scores)
    parts = scores.split([n_heads for _, n_heads in groups], dim=1)
    patterns = [_RULES[rule](part) for (rule, _), part in zip(groups, parts, strict=True)]
    return torch.cat(patterns, dim=1)


def _project_per_head(
    x: Tensor, weight: Float[Tensor, "head d_model d_head"]
) -> Float[Tensor, "batch pos head d_head"]:
    """Return the queries, keys or values of every head.

    Args:
        x: inputs, ``[batch, pos, d_model]``, or ``[batch, pos, head, d_model]`` if each head has a
            separate copy.
        weight: the query, key or value matrix of each head.
    """
    if x.ndim == 4:
        return torch.einsum("bphm,hmd->bphd", x, weight)
    side_by_side = weight.transpose(0, 1).flatten(1)  # [d_model, head * d_head]
    return (x @ side_by_side).unflatten(-1, (len(weight), -1))


def _apply_softmax(scores: Tensor) -> Tensor:
    """Return the softmax over keys, ``[batch, head, query, key]``."""
    if scores.device.type != "cpu" or scores.dtype == torch.float64:
        return scores.softmax(-1)
    # PyTorch's softmax is vectorised on a CPU in float32 and from _CPU_LANES columns on, which takes
    # a tenth of the time for the 13 positions of a round of four experts.
    n_keys = scores.shape[-1]
    padded = scores.float()
    if n_keys < _CPU_LANES:  # columns of minus infinity, whose softmax is 0
        padded = nn.functional.pad(padded, (0, _CPU_LANES - n_keys), value=float("-inf"))
    return padded.softmax(-1)[..., :n_keys].to(scores.dtype)


def _apply_hard(scores: Tensor) -> Tensor:
    """Return 1 for the key with the highest score and 0 for the others, ``[batch, head, query,
    key]``; several keys with the highest score share the 1 equally.
    """
    scores = scores.detach()  # a maximum's place has no gradient
    highest = scores.amax(-1, keepdim=True)
    # 1.0 or 0.0; without out= the result would be booleans, which take a second pass to convert.
    is_highest = torch.eq(scores, highest, out=torch.empty_like(scores))
    return is_highest.mul_(is_highest.sum(-1, keepdim=True).reciprocal_())


def _apply_linear(scores: Tensor) -> Tensor:
    """Return the scores themselves, ``[batch, head, query, key]``; masked ones, which are minus
    infinity, become 0.
    """
    return scores.nan_to_num(nan=torch.nan, posinf=torch.inf, neginf=0.0)


_RULES = {"softmax": _apply_softmax, "hard": _apply_hard, "linear": _apply_linear}


class MLP(_Drawn):
    """A two-layer perceptron: ``W_out act(W_in x + b_in) + b_out``, with the width and the
    activation function of ``config``.
    """

    def __init__(self, config: LatentTransformerConfig) -> None:
        super().__init__()
        self.std = config.init_std
        self.act = nn.functional.gelu if config.act_fn == "gelu" else torch.relu
        self.W_in = _make_empty(config.d_model, config.d_mlp)
        self.b_in = _make_empty(config.d_mlp)
        self.W_out = _make_empty(config.d_mlp, config.d_model)
        self.b_out = _make_empty(config.d_model)
        self.hook_pre = HookPoint()
        self.hook_post = HookPoint()
        self.reset_parameters()

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        """Return the MLP's output, which the block adds to the residual stream."""
        pre = self.hook_pre(x @ self.W_in + self.b_in)
        post = self.hook_post(self.act(pre))
        return post @ self.W_out + self.b_out


class Block(nn.Module):
    """One transformer layer: attention, then an MLP (if any), each added to the residual stream.

    Args:
        config: configuration of the model.
        runtime: the flags that switch on expensive hook points.
        layer: index of the layer.
    """

    hook_out_is_single_residual_stream = True

    def __init__(self, config: LatentTransformerConfig, runtime: RuntimeConfig, layer: int) -> None:
        """Make the attention, the MLP if there is one, and hook points with TransformerLens' names."""
        super().__init__()
        self.runtime = runtime
        self.ln1 = make_normalization(config, runtime.eps)
        self.attn = Attention(config, runtime, layer)
        self.hook_resid_pre = HookPoint()
        self.hook_attn_out = HookPoint()
        self.hook_resid_post = HookPoint()
        self.hook_resid_mid = HookPoint()
        self.hook_mlp_in = HookPoint()
        self.hook_mlp_out = HookPoint()
        self.mlp: MLP | None = None
        if config.d_mlp:
            self.ln2 = make_normalization(config, runtime.eps)
            self.mlp = MLP(config)

    def forward(
        self, resid: Float[Tensor, "batch pos d_model"], past: KeyValues | None = None
    ) -> Float[Tensor, "batch pos d_model"]:
        """Run the block, and return the residual stream after it, at the positions in ``resid``:
        all positions of a round, or only its last ones.

        Args:
            resid: the residual stream before the block.
            past: keys and values of all positions before the first one in ``resid``; None if
                ``resid`` has all positions.
        """
        resid = self.hook_resid_pre(resid)
        if self.runtime.use_split_qkv_input:
            # A copy for each head, [batch, pos, head, d_model], so that hooks can edit one head's.
            copies = resid.unsqueeze(2).expand(-1, -1, self.runtime.n_heads, -1)
            points = (self.attn.hook_q_input, self.attn.hook_k_input, self.attn.hook_v_input)
            inputs = [self.ln1(point(copies)) for point in points]
            attn_out = self.attn(*inputs, past)
        else:
            normalized = self.ln1(resid)
            attn_out = self.attn(normalized, normalized, normalized, past)
        resid = resid + self.hook_attn_out(attn_out)
        if self.mlp is not None:
            resid = self.hook_resid_mid(resid)
            mlp_in = self.hook_mlp_in(resid) if self.runtime.use_hook_mlp_in else resid
            resid = resid + self.hook_mlp_out(self.mlp(self.ln2(mlp_in)))
        elif self.runtime.use_absent_mlp:
            # An MLP that writes zeros, since TransformerLens' tools read these points of every block,
            # and take gradients at them.
            resid = self.hook_resid_mid(resid)
            resid = resid + self.hook_mlp_out(0.0 * self.hook_mlp_in(resid))
        return self.hook_resid_post(resid)

    def append_keys_values(
        self, resid: Float[Tensor, "batch pos d_model"], past: KeyValues
    ) -> None:
        """Append the keys and values of the positions in ``resid`` to ``past``, without computing
        the block's output.

        This is enough in the last block, at positions where its output is not read.

        Args:
            resid: the residual stream before the block.
            past: keys and values of earlier positions, extended in place.
        """
        normalized = self.ln1(resid)
        past.append(*self.attn.keys_values(normalized, normalized))

    def make_empty_past(self, n_rows: int) -> KeyValues:
        """Return an empty cache of keys and values for ``n_rows`` batch rows, to be passed as
        ``past`` if there are no earlier positions.
        """
        weight = self.attn.W_Q
        n_heads, _, d_head = weight.shape
        nothing = weight.new_empty(n_rows, 0, n_heads, d_head)
        return KeyValues(nothing, nothing)


class Projection(_Drawn):
    """An affine map ``x W + b`` with parameters ``W_NAME`` and ``b_NAME``. It is the unembedding
    ("U"), or the map from the residual stream to a latent's update ("write").

    Args:
        name: name of the map, "U" or "write".
        d_out: width of the output.
        config: configuration of the model, which determines the width of the input and the initial
            weights.
    """

    def __init__(self, name: str, d_out: int, config: LatentTransformerConfig) -> None:
        super().__init__()
        self.map_name = name
        self.std = config.init_std
        self.register_parameter(f"W_{name}", _make_empty(config.d_model, d_out))
        self.register_parameter(f"b_{name}", _make_empty(d_out))
        self.reset_parameters()

    @property
    def weight(self) -> Tensor:
        """The matrix, ``[in, out]``."""
        return self.get_parameter(f"W_{self.map_name}")

    @property
    def bias(self) -> Tensor:
        """The bias, ``[out]``."""
        return self.get_parameter(f"b_{self.map_name}")

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_out"]:
        """Apply the affine map to the last axis."""
        return x @ self.weight + self.bias
