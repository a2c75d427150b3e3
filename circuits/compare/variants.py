"""Variants of a model for which the right answer is known: what a comparison is calibrated on.

>>> import interp
>>> model = interp.load("wma-handwired", n_experts=3)
>>> other = rotated(model, seed=0)
>>> episodes = interp.tasks.of(model).sample(2, 5, n_experts=3, seed=0)
>>> here, there = (interp.rollout(m, episodes).predictions for m in (model, other))
>>> bool((here - there).abs().max() < 1e-9)
True
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import require
from interp.model.components import Block
from interp.model.config import LatentTransformerConfig
from interp.model.transformer import HookedLatentTransformer


def rotated(model: HookedLatentTransformer, seed: int = 0) -> HookedLatentTransformer:
    """The model in a random orthogonal basis of its residual stream: every weight that reads or writes it is turned.

    LayerNorm subtracts the mean over coordinates, so a model that has one is turned about the direction of equal
    coordinates, which keeps mean and norm. Predictions are the same but for rounding; hard attention that rests on
    exact ties could lose them.
    """
    return moved(model, rotation(model, seed), "rotated", f"rotated, seed {seed}")


def without(model: HookedLatentTransformer, lost: Float[Tensor, "lost d_model"]) -> HookedLatentTransformer:
    """The model in a smaller residual stream: what it reads and writes along the directions ``lost`` is gone.

    A machine that reads no more than differences of n numbers computes the same when their sum is lost. It then holds
    them in n - 1 dimensions, and their directions overlap: they point to the corners of a simplex.

    Raises:
        InputError: a model with LayerNorm, whose scale the lost coordinates belong to.

    Example:
        >>> import interp
        >>> model = interp.load("wma-handwired", n_experts=2)
        >>> model.config.d_model - without(model, model.state_map.sum(0, keepdim=True)).config.d_model
        1
    """
    require(model.config.normalization_type is None, f"{model.name!r} has LayerNorm; give a model without it")
    columns = columns_without(lost)
    return moved(model, columns, "without", f"{len(columns) - columns.shape[1]} directions taken out")


def columns_without(lost: Float[Tensor, "lost d_model"]) -> Float[Tensor, "d_model left"]:
    """An orthonormal basis of everything that is orthogonal to ``lost``."""
    _, sizes, rows = torch.linalg.svd(lost, full_matrices=True)
    return rows[int((sizes > 1e-9 * sizes.max()).sum()) :].T


def moved(
    model: HookedLatentTransformer,
    columns: Float[Tensor, "d_model new"],
    suffix: str,
    edit: str,
    back: Float[Tensor, "new d_model"] | None = None,
) -> HookedLatentTransformer:
    """The model in the coordinates that ``columns`` give its residual stream, and ``back`` takes back to its own.

    ``back`` is the transpose where it is None, as for orthonormal columns.
    """
    config = replace(renamed(model.config, suffix, edit), d_model=columns.shape[1])
    back = columns.T if back is None else back
    other = HookedLatentTransformer(config, model.state_map @ back.T).to(model.W_E)
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            last, weight = name.rpartition(".")[2], own[name]
            weight = back @ weight if last in _READS else weight
            parameter.copy_(weight @ columns if last in _WRITES else weight)
    return other.train(model.training)


_READS = ("W_Q", "W_K", "W_V", "W_in", "W_U", "W_write")
_WRITES = ("W_E", "W_val", "W_pos", "init", "W_O", "b_O", "W_out", "b_out", "W_write", "b_write")
"""Parameters that meet the residual stream, by the last part of their names; ``W_write`` does both."""


def with_distractors(model: HookedLatentTransformer, n: int = 2, seed: int = 0) -> HookedLatentTransformer:
    """The model with ``n`` more heads in every layer, and ``n`` more neurons where it has MLPs, of random weights.

    They read what the model's own parts write. Without LayerNorm they write to ``n`` new coordinates, which nothing
    reads: the latents hold them, too. With LayerNorm, whose scale new coordinates would change, they write nothing.
    """
    require(n >= 1, f"n must be an integer >= 1, got {n}")
    config, has_norm = model.config, model.config.normalization_type is not None
    d_model = config.d_model + (0 if has_norm else n)
    named = config.head_names and tuple((*row, *(f"distractor {i + 1}" for i in range(n))) for row in config.head_names)
    larger = replace(
        renamed(config, "distractors", f"{n} distractors a layer, seed {seed}"),
        d_model=d_model,
        n_heads=config.n_heads + n,
        d_mlp=config.d_mlp and config.d_mlp + n,
        attention_rules=tuple((*row, *("softmax",) * n) for row in config.attention_rules),
        head_names=named,
    )
    state_map = model.state_map.new_zeros(len(model.state_map), d_model)
    grown = HookedLatentTransformer(larger, state_map).to(model.W_E)
    generator = torch.Generator().manual_seed(seed)
    own = dict(model.named_parameters())
    with torch.no_grad():
        grown.state_map[:, : config.d_model] = model.state_map
        for name, parameter in grown.named_parameters():
            parameter.zero_()
            parameter[tuple(slice(0, size) for size in own[name].shape)] = own[name]
        for block in grown.blocks:
            _distract(block, config, generator, writes=not has_norm)
    return grown.eval()


def renamed(config: LatentTransformerConfig, suffix: str, edit: str) -> LatentTransformerConfig:
    """The configuration of an edited model, which cannot be built again by name."""
    origin = dict(config.origin)
    return replace(config, name=f"{config.name}-{suffix}", origin={**origin, "edits": [*origin.get("edits", []), edit]})


def rotation(model: HookedLatentTransformer, seed: int) -> Float[Tensor, "d_model d_model"]:
    """A random orthogonal matrix; with LayerNorm one that leaves the direction of equal coordinates where it is."""
    d, generator = model.config.d_model, torch.Generator().manual_seed(seed)
    kept = int(model.config.normalization_type is not None)
    start = torch.cat([torch.ones(d, kept), torch.randn(d, d - kept, generator=generator)], 1).double()
    frame, _ = torch.linalg.qr(start)
    turn, _ = torch.linalg.qr(torch.randn(d - kept, d - kept, generator=generator).double())
    return (frame @ torch.block_diag(torch.eye(kept).double(), turn) @ frame.T).to(model.W_E)


def _distract(block: Block, config: LatentTransformerConfig, generator: torch.Generator, *, writes: bool) -> None:
    """Random weights for the heads and neurons of a block that came after those of ``config``."""
    old, first, attn, mlp = config.d_model, config.n_heads, block.attn, block.mlp

    def fill(weight: Tensor, fan_in: int) -> None:
        weight.copy_(torch.randn(weight.shape, generator=generator) / fan_in**0.5)

    for read in (attn.W_Q, attn.W_K, attn.W_V):
        fill(read[first:, :old], old)
    if writes:
        fill(attn.W_O[first:, :, old:], config.d_head)
    if mlp is not None:
        fill(mlp.W_in[:old, config.d_mlp :], old)
        if writes:
            fill(mlp.W_out[config.d_mlp :, old:], 1)
