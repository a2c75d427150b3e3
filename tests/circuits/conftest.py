"""Shared by the tests of handwired models: running one round, and what every causal circuit must satisfy."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from interp.model.transformer import HookedLatentTransformer


def hook_values(model: HookedLatentTransformer, tokens: torch.Tensor, latents: torch.Tensor) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens, latents)
    return dict(cache.items())


@pytest.fixture
def assert_causal() -> Any:
    """Changing the token at a position changes no activation at an earlier one, bitwise, in every head."""

    def check(model: HookedLatentTransformer, tokens: torch.Tensor, latents: torch.Tensor, position: int) -> None:
        other = tokens.clone()
        other[:, position] = (tokens[:, position] + 1) % model.config.d_vocab
        before, after = hook_values(model, tokens, latents), hook_values(model, other, latents)
        for name, value in before.items():
            if name == "hook_latents" or value.ndim < 3:
                continue
            query_axis = 2 if name.endswith(("attn_scores", "pattern")) else 1
            earlier = (slice(None),) * query_axis + (slice(0, position),)
            assert torch.equal(value[earlier], after[name][earlier]), f"{name} saw position {position} too early"
        assert not torch.equal(before["hook_embed"], after["hook_embed"])

    return check
