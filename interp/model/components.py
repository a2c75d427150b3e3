"""The parts of the hooked latent transformer: embeddings, attention with per-head rules, MLP, normalisation.

Weight and hook names are those of TransformerLens' HookedTransformer. Attention (paper, Algorithm 2) with a rule per
head, over causally masked scores ``s_ij = <q_i, k_j> / scale``:

* ``softmax``: ``A_i = softmax(s_i)``;
* ``hard``: uniform over the exact argmax set of ``s_i`` (softmax in the limit of infinite inverse temperature);
* ``linear``: ``A_ij = s_ij`` for j <= i, else 0 (raw scores: the head sums instead of averaging).
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

_LARGE = 2**14  # numbers in a matrix from which on a sparse form saves time
_CPU_LANES = 16  # float32 numbers in the widest vector register of a CPU


@dataclass
class RuntimeConfig(TransformerLensConfig):
    """What TransformerLens reads from ``model.cfg``: the sizes, and the flags that switch costly hooks on."""

    device: Any = None  # of torch
    d_vocab_out: int = 0
    use_hook_mlp_in: bool = False
    use_attn_in: bool = False
    use_absent_mlp: bool = False
    parallel_attn_mlp: bool = False
    model_name: str = "latent-context"


class _LayerNormPre(nn.Module):
    """LayerNorm without affine parameters ("LNPre": the next matrix would absorb them)."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.hook_scale = HookPoint()
        self.hook_normalized = HookPoint()

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        if self.training and not (
            self.hook_scale._forward_hooks or self.hook_normalized._forward_hooks
        ):
            # One operation where nobody looks between: a fifth less of a training step, and equal to rounding.
            return nn.functional.layer_norm(x, x.shape[-1:], eps=self.eps)
        x = x - x.mean(-1, keepdim=True)
        return self.hook_normalized(
            x / self.hook_scale((x.pow(2).mean(-1, keepdim=True) + self.eps).sqrt())
        )


def normalization(config: LatentTransformerConfig, eps: float) -> nn.Module:
    """The normalisation of ``config``: pre-norm, or the identity."""
    return _LayerNormPre(eps) if config.normalization_type == "LNPre" else nn.Identity()


class _Drawn(nn.Module):
    """A module with parameters of its own, which are drawn when it is made."""

    std: float

    def reset_parameters(self) -> None:
        """Draw the weights from a normal distribution; biases, named ``b_...``, are 0."""
        for name, parameter in self.named_parameters(recurse=False):
            if name.startswith("b_"):
                nn.init.zeros_(parameter)
            else:
                nn.init.normal_(parameter, std=self.std)


class Embedding(_Drawn):
    """A table of vectors, one a row, named as in TransformerLens (``W_E``, ``W_pos``) or ``W_val`` for payloads."""

    def __init__(self, name: str, n_rows: int, config: LatentTransformerConfig) -> None:
        super().__init__()
        self.table_name, self.std = name, config.init_std
        self.register_parameter(name, nn.Parameter(torch.empty(n_rows, config.d_model)))
        self.reset_parameters()

    @property
    def table(self) -> Tensor:
        """The vectors, ``[id, d_model]``."""
        return self.get_parameter(self.table_name)


class Attention(_Drawn):
    """Multi-head causal attention with a rule per head."""

    mask: Tensor

    def __init__(self, config: LatentTransformerConfig, runtime: RuntimeConfig, layer: int) -> None:
        super().__init__()
        self.std, self.scale, self.runtime = config.init_std, config.scale, runtime
        shape = (config.n_heads, config.d_model, config.d_head)
        self.W_Q, self.W_K, self.W_V = (nn.Parameter(torch.empty(shape)) for _ in "QKV")
        self.W_O = nn.Parameter(torch.empty(config.n_heads, config.d_head, config.d_model))
        self.b_Q, self.b_K, self.b_V = (
            nn.Parameter(torch.empty(config.n_heads, config.d_head)) for _ in "QKV"
        )
        self.b_O = nn.Parameter(torch.empty(config.d_model))
        self.rules = tuple(config.attention_rules[layer])
        self.register_buffer(
            "mask",
            torch.ones(config.n_ctx, config.n_ctx, dtype=torch.bool).triu(1),
            persistent=False,
        )
        self.hook_q_input, self.hook_k_input, self.hook_v_input = (
            HookPoint(),
            HookPoint(),
            HookPoint(),
        )
        self.hook_q, self.hook_k, self.hook_v = HookPoint(), HookPoint(), HookPoint()
        self.hook_attn_scores, self.hook_pattern = HookPoint(), HookPoint()
        self.hook_z, self.hook_result = HookPoint(), HookPoint()
        self.reset_parameters()

    def forward(
        self, q_in: Tensor, k_in: Tensor, v_in: Tensor, past: KeyValues | None = None
    ) -> Float[Tensor, "batch pos d_model"]:
        """Inputs are normalised: ``[batch, pos, d_model]``, or ``[batch, pos, head, d_model]`` when forked per head."""
        q = self.hook_q(_per_head(q_in, self.W_Q) + self.b_Q)
        k, v = self.keys_values(k_in, v_in)
        if past is not None:
            k, v = past.append(k, v)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / self.scale
        n_queries, n = scores.shape[-2:]
        scores = self.hook_attn_scores(
            scores.masked_fill(self.mask[n - n_queries : n, :n], float("-inf"))
        )
        z = self.hook_z(
            torch.einsum("bhqk,bkhd->bqhd", self.hook_pattern(_attention(scores, self.rules)), v)
        )
        if self.runtime.use_attn_result:
            return self.hook_result(torch.einsum("bqhd,hdm->bqhm", z, self.W_O)).sum(2) + self.b_O
        return z.flatten(2) @ self.W_O.flatten(0, 1) + self.b_O

    def keys_values(self, k_in: Tensor, v_in: Tensor) -> tuple[Tensor, Tensor]:
        """What later positions read of these ones, ``[batch, pos, head, d_head]`` each."""
        return self.hook_k(_per_head(k_in, self.W_K) + self.b_K), self.hook_v(
            _per_head(v_in, self.W_V) + self.b_V
        )


def _attention(scores: Tensor, rules: tuple[str, ...]) -> Float[Tensor, "batch head query key"]:
    """Masked scores ``[batch, head, query, key]`` to attention, each head by its rule."""
    runs = [(rule, len(list(heads))) for rule, heads in groupby(rules)]
    parts = zip(runs, scores.split([n for _, n in runs], dim=1), strict=True)
    patterns = [_RULES[rule](part) for (rule, _), part in parts]
    return torch.cat(patterns, dim=1) if patterns[1:] else patterns[0]


def _per_head(
    x: Tensor, weight: Float[Tensor, "head d_model d_head"]
) -> Float[Tensor, "batch pos head d_head"]:
    n_heads, d_model, d_head = weight.shape
    if x.ndim == 4:
        return torch.einsum("bphm,hmd->bphd", x, weight)
    return (x @ weight.transpose(0, 1).reshape(d_model, n_heads * d_head)).unflatten(
        -1, (n_heads, d_head)
    )


def _softmax(scores: Tensor) -> Tensor:
    if scores.device.type != "cpu" or scores.dtype == torch.float64:
        return scores.softmax(-1)
    # PyTorch's softmax is vectorised on a CPU in float32 and from _CPU_LANES columns on: ten times faster at 13.
    wide, n = scores.float(), scores.shape[-1]
    if n < _CPU_LANES:
        wide = nn.functional.pad(wide, (0, _CPU_LANES - n), value=float("-inf"))
    return wide.softmax(-1)[..., :n].to(scores.dtype)


def _hard(scores: Tensor) -> Tensor:
    scores = scores.detach()  # a maximum's place has no gradient
    is_max = torch.eq(scores, scores.amax(-1, keepdim=True), out=torch.empty_like(scores))
    return is_max.mul_(is_max.sum(-1, keepdim=True).reciprocal_())


_RULES = {
    "softmax": _softmax,
    "hard": _hard,
    "linear": lambda scores: scores.nan_to_num(torch.nan, torch.inf, 0.0),
}


class MLP(_Drawn):
    """``W_out act(W_in x + b_in) + b_out``."""

    def __init__(self, config: LatentTransformerConfig) -> None:
        super().__init__()
        self.std = config.init_std
        self.act = nn.functional.gelu if config.act_fn == "gelu" else torch.relu
        self.W_in = nn.Parameter(torch.empty(config.d_model, config.d_mlp))
        self.b_in = nn.Parameter(torch.empty(config.d_mlp))
        self.W_out = nn.Parameter(torch.empty(config.d_mlp, config.d_model))
        self.b_out = nn.Parameter(torch.empty(config.d_model))
        self.hook_pre, self.hook_post = HookPoint(), HookPoint()
        self.reset_parameters()

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        return (
            self.hook_post(self.act(self.hook_pre(x @ self.W_in + self.b_in))) @ self.W_out
            + self.b_out
        )


class Block(nn.Module):
    """Attention, then MLP (if any), each added to the residual stream."""

    hook_out_is_single_residual_stream = True

    def __init__(self, config: LatentTransformerConfig, runtime: RuntimeConfig, layer: int) -> None:
        super().__init__()
        self.runtime = runtime
        self.ln1 = normalization(config, runtime.eps)
        self.attn = Attention(config, runtime, layer)
        self.hook_resid_pre, self.hook_attn_out = HookPoint(), HookPoint()
        self.hook_resid_post = HookPoint()
        self.hook_resid_mid, self.hook_mlp_in, self.hook_mlp_out = (
            HookPoint(),
            HookPoint(),
            HookPoint(),
        )
        self.mlp: MLP | None = None
        if config.d_mlp:
            self.ln2 = normalization(config, runtime.eps)
            self.mlp = MLP(config)

    def forward(
        self, resid: Float[Tensor, "batch pos d_model"], past: KeyValues | None = None
    ) -> Float[Tensor, "batch pos d_model"]:
        """Run the block on all positions, or on a suffix of them whose ``past`` keys and values are known."""
        resid = self.hook_resid_pre(resid)
        if self.runtime.use_split_qkv_input:
            fork = resid.unsqueeze(2).expand(-1, -1, self.runtime.n_heads, -1)
            points = (self.attn.hook_q_input, self.attn.hook_k_input, self.attn.hook_v_input)
            attn_out = self.attn(*(self.ln1(point(fork)) for point in points), past)
        else:
            normalized = self.ln1(resid)
            attn_out = self.attn(normalized, normalized, normalized, past)
        resid = resid + self.hook_attn_out(attn_out)
        if self.mlp is not None:
            resid = self.hook_resid_mid(resid)
            mlp_in = self.hook_mlp_in(resid) if self.runtime.use_hook_mlp_in else resid
            resid = resid + self.hook_mlp_out(self.mlp(self.ln2(mlp_in)))
        elif self.runtime.use_absent_mlp:
            # An MLP that writes zeros: TransformerLens' tools read (and take gradients at) these points of every block.
            resid = self.hook_resid_mid(resid)
            resid = resid + self.hook_mlp_out(0.0 * self.hook_mlp_in(resid))
        return self.hook_resid_post(resid)

    def pass_by(self, resid: Float[Tensor, "batch pos d_model"], past: KeyValues) -> None:
        """Only add these positions' keys and values to ``past``: all that the last block has to know of most."""
        normalized = self.ln1(resid)
        past.append(*self.attn.keys_values(normalized, normalized))


class Projection(_Drawn):
    """``x W_name + b_name``: the unembedding ("U", as in TransformerLens), or what writes updates ("write")."""

    def __init__(self, name: str, d_out: int, config: LatentTransformerConfig) -> None:
        super().__init__()
        self.map_name, self.std = name, config.init_std
        self.register_parameter(f"W_{name}", nn.Parameter(torch.empty(config.d_model, d_out)))
        self.register_parameter(f"b_{name}", nn.Parameter(torch.empty(d_out)))
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
        return x @ self.weight + self.bias


_KINDS = {
    Block,
    Attention,
    MLP,
    _LayerNormPre,
    Embedding,
    Projection,
    HookPoint,
    nn.ModuleList,
    nn.Identity,
}
_SERVED = (
    "hook_embed",
    "hook_attn_scores",
    "hook_resid_post",
)  # hook points that run beside plain blocks
_FLAGS = ("use_attn_result", "use_split_qkv_input", "use_hook_mlp_in", "use_absent_mlp")


def unobserved(model: nn.Module, runtime: RuntimeConfig, served: tuple[str, ...] = _SERVED) -> bool:
    """Whether nobody, but by hooks at ``served``, can tell if the blocks of ``model`` run as :class:`PlainBlock`."""
    if (
        torch.is_grad_enabled()
        or torch.compiler.is_compiling()
        or torch.is_autocast_enabled(runtime.device.type)
    ):
        return False
    if nn.modules.module._has_any_global_hook() or any(getattr(runtime, flag) for flag in _FLAGS):
        return False
    waiting: list[nn.Module | None] = [model]
    while waiting:
        module = waiting.pop()
        if module is None:
            continue
        hooked = module._forward_hooks and not (
            isinstance(module, HookPoint) and str(module.name).endswith(served)
        )
        if (
            hooked
            or module._forward_pre_hooks
            or module._backward_hooks
            or module._backward_pre_hooks
        ):
            return False
        if "forward" in module.__dict__ or not (type(module) in _KINDS or module is model):
            return False
        waiting.extend(module._modules.values())
    return True


class PlainBlock:
    """A block without its modules, for its weights as they are now: the same operations in the same order.

    A round of one episode is little arithmetic and many calls: hook points, modules and look-ups of parameters take
    more time than the matrices. Each operation has the operands of :class:`Block`'s in the same shape, so the numbers
    are equal bit for bit (a property test), but to rounding where ``sparse`` weights are large and almost all 0. Of a
    handwired block, which is ``sparse``, heads that write nothing are left out where it is ``narrow``, too.
    """

    def __init__(self, block: Block, sparse: bool = False, narrow: bool = False) -> None:
        attn = block.attn
        self.block, self.attn, self.mlp, self.scale = block, attn, block.mlp, attn.scale
        # Added where scores are 0, which takes half of the time of filling them.
        self.mask = attn.W_Q.new_zeros(attn.mask.shape).masked_fill_(attn.mask, float("-inf"))
        self.eps = block.ln1.eps if isinstance(block.ln1, _LayerNormPre) else None
        self.narrow = sparse and narrow and not attn.hook_attn_scores._forward_hooks
        writes = attn.W_O.flatten(1).any(1).tolist() if self.narrow else [True] * len(attn.rules)
        writing = [head for head, does in enumerate(writes) if does] or [0]
        heads = slice(None) if all(writes) else writing
        self.rules, (d_model, d_head) = (
            tuple(attn.rules[head] for head in writing),
            attn.W_Q.shape[1:],
        )
        self.sparse = sparse = (
            sparse and len(writing) * d_model * d_head > _LARGE and attn.W_Q.device.type == "cpu"
        )
        self.n_scored, self.n_moved = (  # columns that heads use, of queries and of values
            1 + int(weight.any(1).any(0).nonzero().amax()) if sparse and not bias.any() else d_head
            for weight, bias in ((attn.W_Q, attn.b_Q), (attn.W_V, attn.b_V))
        )
        self.kept = (
            (self.n_scored, self.n_moved) if self.narrow else (d_head, d_head)
        )  # of keys and of values
        maps = (
            (attn.W_Q, attn.b_Q, self.n_scored),
            (attn.W_K, attn.b_K, self.kept[0]),
            (attn.W_V, attn.b_V, self.kept[1]),
        )
        self.q, self.k, self.v = (
            (
                _stored(weight[heads, :, :n].transpose(0, 1).flatten(1), sparse),
                bias[heads, :n].flatten(),
            )
            for weight, bias, n in maps
        )
        out, self.bias, self.written = (
            attn.W_O[heads, : self.n_moved].flatten(0, 1),
            attn.b_O.detach(),
            None,
        )
        if sparse:  # of the residual stream's columns only those that the heads write
            self.written = (out.any(0) | (attn.b_O != 0)).nonzero()[:, 0]
            out, self.bias = out[:, self.written], self.bias[self.written]
        self.out = _stored(out, sparse)

    def __call__(
        self, resid: Float[Tensor, "batch pos d_model"], past: KeyValues | None = None
    ) -> Float[Tensor, "batch pos d_model"]:
        """What :class:`~interp.model.components.Block` gives."""
        normalized = self._normalize(resid)
        keys, values = self._project(normalized, self.k), self._project(normalized, self.v)
        if past is not None:
            keys, values = past.append(keys, values)
        n_queries, n, used = resid.shape[1], keys.shape[1], slice(self.n_scored)
        queries = self._project(normalized, self.q).transpose(1, 2)
        keys, values = (
            keys[..., used].permute(0, 2, 3, 1),
            values[..., : self.n_moved].transpose(1, 2),
        )
        # Many positions of a few columns: what one head computes stays in the processor's cache.
        n_alone, parts = 1 if self.narrow and self.sparse else len(self.rules), []
        for first in range(0, len(self.rules), n_alone):
            heads = slice(first, first + n_alone)
            scores = queries[:, heads] @ keys[:, heads]
            if self.scale != 1.0:
                scores.div_(self.scale)
            scores.tril_(n - n_queries).add_(self.mask[n - n_queries : n, :n])
            scores = scores if self.narrow else self.attn.hook_attn_scores(scores)
            parts.append(_attention(scores, self.rules[heads]) @ values[:, heads])
        z = (torch.cat(parts, 1) if parts[1:] else parts[0]).transpose(1, 2)
        out = _times(z.reshape(*resid.shape[:2], -1), self.out).add_(self.bias)
        resid = resid + out if self.written is None else resid.index_add(2, self.written, out)
        if (mlp := self.mlp) is not None:
            post = mlp.act((self._normalize(resid) @ mlp.W_in).add_(mlp.b_in))
            resid = resid.add_((post @ mlp.W_out).add_(mlp.b_out))
        return self.block.hook_resid_post(resid)

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

    def _project(
        self, x: Tensor, weights: tuple[Tensor, Tensor]
    ) -> Float[Tensor, "batch pos head d_head"]:
        """Queries, keys or values of every head."""
        matrix, bias = weights
        return _times(x, matrix).add_(bias).unflatten(-1, (len(self.rules), -1))


def _stored(matrix: Tensor, sparse: bool) -> Tensor:
    """A matrix; its transpose, sparse, where that is asked and it is almost all 0."""
    return (
        matrix.T.to_sparse()
        if sparse and 0 < 32 * int(matrix.count_nonzero()) <= matrix.numel()
        else matrix
    )


def _times(x: Tensor, stored: Tensor) -> Tensor:
    """The product with a matrix that :func:`_stored` gave; with a sparse one in a tenth of the time."""
    return (
        torch.sparse.mm(stored, x.flatten(0, 1).T).T.unflatten(0, x.shape[:2])
        if stored.is_sparse
        else x @ stored
    )
