"""What a model's forward pass takes: the check that turns PyTorch's errors about shapes into a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from interp.errors import require
from interp.kinds import shown

if TYPE_CHECKING:
    from interp.model.transformer import HookedLatentTransformer


def check_round(model: HookedLatentTransformer, tokens: Any, latents: Any, values: Any) -> None:
    """Refuse tokens, latents and payloads that are no batch of rounds of ``model``.

    Args:
        tokens: Int[batch, pos], ids of the vocabulary; rounds as long as the model knows them.
        latents: Float[batch, latent, d_model], as many as such a round holds.
        values: Float[batch, pos], or None.

    Raises:
        InputError: another kind of value, another shape, or an id outside the vocabulary.
    """
    lengths = model.layout_of_length
    ok = isinstance(tokens, Tensor) and tokens.ndim == 2 and tokens.dtype in (torch.int64, torch.int32)
    require(
        ok and tokens.shape[1] in lengths,
        f"tokens must be whole numbers [batch, pos] with {' or '.join(map(str, lengths))} positions, got "
        f"{shown(tokens)}; model.layout.encode(episodes) makes them",
    )
    d_model, n_latents = model.config.d_model, lengths[tokens.shape[1]].n_latents
    wanted = (len(tokens), n_latents, d_model)
    ok = isinstance(latents, Tensor) and latents.is_floating_point() and tuple(latents.shape) == wanted
    require(ok, f"latents must be a float tensor [batch, latent, d_model] = {list(wanted)}, got {shown(latents)}")
    ok = values is None or (isinstance(values, Tensor) and values.shape == tokens.shape)
    require(ok, f"values must be a tensor [batch, pos] = {list(tokens.shape)} or None, got {shown(values)}")
    if tokens.device.type == "cpu" and tokens.numel():  # elsewhere, looking would wait for the device
        low, high = (int(bound) for bound in tokens.aminmax())
        n_ids = model.config.d_vocab
        require(low >= 0 and high < n_ids, f"tokens must be ids from 0 to {n_ids - 1}, got {low} to {high}")
