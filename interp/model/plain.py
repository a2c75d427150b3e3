"""A quicker form of transformer blocks, used when no hook is attached: the same operations without
modules and hook points.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens import TransformerLensKeyValueCacheEntry as KeyValues
from transformer_lens.hook_points import HookPoint

from interp.model.components import (
    MLP,
    Attention,
    Block,
    Embedding,
    LayerNormPre,
    Projection,
    RuntimeConfig,
    attend_by_rules,
)

_MIN_SPARSE_SIZE = 2**14
"""Number of entries from which a matrix is worth storing as sparse."""
_REPLACEABLE_CLASSES = {
    Block,
    Attention,
    MLP,
    LayerNormPre,
    Embedding,
    Projection,
    HookPoint,
    nn.ModuleList,
    nn.Identity,
}
"""Module classes that a plain block can replace; other classes may compute something else."""
_HOOKS_THAT_FIRE = ("hook_embed", "hook_attn_scores", "hook_resid_post")
"""Endings of hook points that still fire with plain blocks."""
_FLAGS_OF_HOOKS = ("use_attn_result", "use_split_qkv_input", "use_hook_mlp_in", "use_absent_mlp")


def can_run_plainly(
    model: nn.Module, runtime: RuntimeConfig, allowed_hooks: tuple[str, ...] = _HOOKS_THAT_FIRE
) -> bool:
    """Return whether the blocks of ``model`` can run in their quicker form, :class:`PlainBlock`,
    with the same results and without skipping a hook.

    They can if no gradient is recorded, no module or ``forward`` was replaced, and no flag switches
    on further hook points. Hooks may be attached only at the hook points of ``allowed_hooks``.

    Args:
        model: the transformer.
        runtime: the model's flags, which switch hook points on.
        allowed_hooks: endings of names of hook points, such as "hook_resid_post". Hooks may be
            attached to these points, since the quicker form calls them, too.
    """
    # The quicker form overwrites tensors that a gradient would need.
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    # Autocast computes products at half precision; sums in place would keep that precision.
    if torch.is_autocast_enabled(runtime.device.type):
        return False
    # Hooks on all modules of the process would not be called.
    if nn.modules.module._has_any_global_hook():
        return False
    if any(getattr(runtime, flag) for flag in _FLAGS_OF_HOOKS):
        return False
    to_visit: list[Any] = [*model._modules.values(), model]
    while to_visit:
        module = to_visit.pop()
        if module is not model:  # whose class the caller knows, and whose parts are listed already
            if type(module) not in _REPLACEABLE_CLASSES:
                return False
            to_visit.extend(module._modules.values())
        if not _has_original_forward(module, allowed_hooks):
            return False
    return True


def _has_original_forward(module: nn.Module, allowed_hooks: tuple[str, ...]) -> bool:
    """Return whether a module has its original ``forward`` and no hooks, except at hook points that
    may have hooks.

    Args:
        module: the module.
        allowed_hooks: endings of the names of hook points that may have hooks.
    """
    if module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        return False
    if "forward" in module.__dict__:  # set on the object, in place of its class's
        return False
    if not module._forward_hooks:
        return True
    return isinstance(module, HookPoint) and str(module.name).endswith(allowed_hooks)


class PlainBlock:
    """A quicker form of a transformer block with its current weights: the same operations in the
    same order, without PyTorch modules and hook points.

    A round of one episode has little arithmetic, so hook points, modules and attribute look-ups
    take most of its time. Each operation has operands of the same shape as in :class:`Block`.
    Results are therefore equal bit for bit (a test compares them), or up to rounding where weights
    are stored as sparse.

    Args:
        block: the block.
        is_handwired: True for a handwired model. Its matrices are almost all zero, so large
            matrices are stored as sparse.
        narrow: True to leave out, in a handwired block, what has no effect on results: heads that
            write only zeros, and columns of zeros in the query, key and value matrices.
    """

    def __init__(self, block: Block, is_handwired: bool = False, narrow: bool = False) -> None:
        """Arrange the block's weights as a round needs them: the matrices of all heads side by side,
        and of a handwired block only the heads and columns that are used.
        """
        attn = block.attn
        self.block = block
        self.attn = attn
        self.mlp = block.mlp
        self.scale = attn.scale
        # Minus infinity at later positions, where tril_ first sets the scores to 0. Adding it takes
        # half of the time of masked_fill.
        self.mask = attn.W_Q.new_zeros(attn.mask.shape).masked_fill_(attn.mask, float("-inf"))
        self.eps = block.ln1.eps if isinstance(block.ln1, LayerNormPre) else None
        # A hook on attention scores must see all heads.
        self.is_narrow = is_handwired and narrow and not attn.hook_attn_scores._forward_hooks
        n_heads, d_model, d_head = attn.W_Q.shape
        heads = _list_writing_heads(attn) if self.is_narrow else list(range(n_heads))
        self.rules = tuple(attn.rules[head] for head in heads)
        # Small matrices are not worth storing as sparse, nor is a model that is not handwired, in
        # which few entries are 0.
        is_large = len(heads) * d_model * d_head > _MIN_SPARSE_SIZE
        self.is_sparse = is_handwired and is_large and attn.W_Q.device.type == "cpu"
        self.n_query_columns = self.n_read_value_columns = d_head
        """Numbers of columns that the heads use: of queries (and so of keys), and of values."""
        if self.is_sparse:
            self.n_query_columns = _count_used_columns(attn.W_Q, attn.b_Q)
            self.n_read_value_columns = _count_used_columns(attn.W_V, attn.b_V)
        # Columns of keys and values that are computed and cached: those that are used, or all if
        # the cache may come from an ordinary block, which has all.
        self.n_key_columns = self.n_value_columns = d_head
        if self.is_narrow:
            self.n_key_columns = self.n_query_columns
            self.n_value_columns = self.n_read_value_columns
        index = slice(None) if len(heads) == n_heads else heads  # a slice copies no weights
        self.q = self._join_heads(attn.W_Q[index, :, : self.n_query_columns], attn.b_Q[index])
        self.k = self._join_heads(attn.W_K[index, :, : self.n_key_columns], attn.b_K[index])
        self.v = self._join_heads(attn.W_V[index, :, : self.n_value_columns], attn.b_V[index])
        out = attn.W_O[index, : self.n_read_value_columns].flatten(0, 1)
        self.bias = attn.b_O.detach()
        # Coordinates of the residual stream that the attention writes to; None for all.
        self.written_columns: Tensor | None = None
        if self.is_sparse:  # keep only the coordinates of the residual stream that heads write
            self.written_columns = (out.any(0) | (attn.b_O != 0)).nonzero()[:, 0]
            out = out[:, self.written_columns]
            self.bias = self.bias[self.written_columns]
        self.out = _store(out, self.is_sparse)

    def _join_heads(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Join the matrices of all heads to one matrix ``[d_model, head * n]`` in the form of
        :func:`_store`, and their biases to ``[head * n]``.

        Args:
            weight: the first n columns of the matrix of each head, ``[head, d_model, n]``.
            bias: the bias of each head, ``[head, d_head]``; only the first n numbers are used.
        """
        matrix = weight.transpose(0, 1).flatten(1)
        return _store(matrix, self.is_sparse), bias[:, : weight.shape[-1]].flatten()

    def __call__(
        self, resid: Float[Tensor, "batch pos d_model"], past: KeyValues | None = None
    ) -> Float[Tensor, "batch pos d_model"]:
        """Run the block, and return the residual stream after it.

        Args:
            resid: the residual stream before the block.
            past: keys and values of all positions before the first one in ``resid``; None if
                ``resid`` has all positions.
        """
        z = self._attend(self._normalize(resid), past)
        out = _multiply(z, self.out).add_(self.bias)
        # `columns`: the coordinates of the residual stream that the attention writes to. Both forms
        # make a new tensor, which the MLP's output can then be added to in place.
        columns = self.written_columns
        resid = resid + out if columns is None else resid.index_add(2, columns, out)
        mlp = self.mlp
        if mlp is not None:
            pre = (self._normalize(resid) @ mlp.W_in).add_(mlp.b_in)
            resid = resid.add_((mlp.act(pre) @ mlp.W_out).add_(mlp.b_out))
        return self.block.hook_resid_post(resid)

    def _attend(
        self, normalized: Tensor, past: KeyValues | None
    ) -> Float[Tensor, "batch pos head_and_d_head"]:
        """Return the weighted sums of values of all heads, before their output matrices.

        Args:
            normalized: normalised residual stream, ``[batch, pos, d_model]``.
            past: keys and values of earlier positions; None if there are none.
        """
        keys = self._project(normalized, self.k)
        values = self._project(normalized, self.v)
        if past is not None:
            keys, values = past.append(keys, values)
        n_queries = normalized.shape[1]
        n_keys = keys.shape[1]
        n_past = n_keys - n_queries
        queries = self._project(normalized, self.q).transpose(1, 2)  # [batch, head, query, column]
        keys = keys[..., : self.n_query_columns].permute(0, 2, 3, 1)  # [batch, head, column, key]
        read_values = values[..., : self.n_read_value_columns]
        values = read_values.transpose(1, 2)  # [batch, head, key, column]
        # With many positions and few columns, one head at a time stays in the processor's cache.
        n_heads = len(self.rules)
        n_heads_at_once = 1 if self.is_narrow and self.is_sparse else n_heads
        parts = []
        for head in range(0, n_heads, n_heads_at_once):
            heads = slice(head, head + n_heads_at_once)
            scores = queries[:, heads] @ keys[:, heads]
            if self.scale != 1.0:
                scores.div_(self.scale)
            # The mask adds minus infinity at later positions. tril_ first sets their scores to 0, since
            # a score that has overflowed, infinity, would become NaN.
            scores.tril_(n_past).add_(self.mask[n_past:n_keys, :n_keys])
            if not self.is_narrow:  # a narrow block has no hooks here
                scores = self.attn.hook_attn_scores(scores)
            parts.append(attend_by_rules(scores, self.rules[heads]) @ values[:, heads])
        z = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        return z.transpose(1, 2).reshape(*normalized.shape[:2], -1)

    def append_keys_values(
        self, resid: Float[Tensor, "batch pos d_model"], past: KeyValues
    ) -> None:
        """Append the keys and values of the positions in ``resid`` to ``past``, without computing
        the block's output.

        Args:
            resid: the residual stream before the block.
            past: keys and values of earlier positions, extended in place.
        """
        normalized = self._normalize(resid)
        past.append(self._project(normalized, self.k), self._project(normalized, self.v))

    def make_empty_past(self, n_rows: int) -> KeyValues:
        """Return an empty cache of keys and values for ``n_rows`` batch rows, to be passed as
        ``past`` if there are no earlier positions.
        """
        keys = self.bias.new_empty(n_rows, 0, len(self.rules), self.n_key_columns)
        values = self.bias.new_empty(n_rows, 0, len(self.rules), self.n_value_columns)
        return KeyValues(keys, values)

    def _normalize(self, x: Tensor) -> Tensor:
        """Apply LayerNorm without learned parameters; return ``x`` unchanged if the block has no
        normalisation.
        """
        if self.eps is None:
            return x
        x = x - x.mean(-1, keepdim=True)
        variance = x.square().mean(-1, keepdim=True)
        return x.div_(variance.add_(self.eps).sqrt_())

    def _project(
        self, x: Tensor, weights: tuple[Tensor, Tensor]
    ) -> Float[Tensor, "batch pos head d_head"]:
        """Compute queries, keys or values of every head.

        Args:
            x: normalised residual stream, ``[batch, pos, d_model]``.
            weights: the matrix and the bias of all heads, for queries, keys or values.
        """
        matrix, bias = weights
        projected = _multiply(x, matrix).add_(bias)
        return projected.unflatten(-1, (len(self.rules), -1))


def _list_writing_heads(attn: Attention) -> list[int]:
    """Return the indices of the heads with an output matrix that is not 0; [0] if there are none."""
    writes_something = attn.W_O.flatten(1).any(1)  # [head]
    return writes_something.nonzero()[:, 0].tolist() or [0]


def _count_used_columns(weight: Tensor, bias: Tensor) -> int:
    """Return the smallest n such that all non-zero entries of the heads' matrices are in their
    first n columns; at least 1.

    Args:
        weight: ``[head, d_model, d_head]``.
        bias: ``[head, d_head]``; if any bias is not zero, all columns are used.
    """
    if bias.any():
        return weight.shape[-1]
    is_used = weight.any(1).any(0)  # [d_head], in any head
    is_used[0] = True  # so that at least one column counts
    return 1 + int(is_used.nonzero().amax())


def _store(matrix: Tensor, is_sparse: bool) -> Tensor:
    """Return ``matrix``, in a form for :func:`_multiply`: its transpose as a sparse tensor if
    ``is_sparse`` and almost all entries are 0, otherwise unchanged.
    """
    if not is_sparse:
        return matrix
    n_used = int(matrix.count_nonzero())
    # One entry in 32 at most; a matrix of zeros stays dense.
    is_almost_empty = 0 < 32 * n_used <= matrix.numel()
    return matrix.T.to_sparse() if is_almost_empty else matrix


def _multiply(x: Tensor, stored: Tensor) -> Tensor:
    """Return ``x`` times the matrix that :func:`_store` converted to ``stored``; a sparse one takes
    a tenth of the time.
    """
    if not stored.is_sparse:
        return x @ stored
    # (x M) as (M^T x^T)^T, since a product needs the sparse matrix, stored as M^T, on its left.
    product = torch.sparse.mm(stored, x.flatten(0, 1).T)
    return product.T.unflatten(0, x.shape[:2])
