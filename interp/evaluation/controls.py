"""Hooks that take a model's memory away, or give it another episode's.

    >>> import interp
    >>> from interp.tasks import experts
    >>> model, episodes = interp.load("wma-handwired", n_experts=2), experts.sample(8, 10, 2, seed=0)
    >>> forgetful = interp.rollout(model, episodes, fwd_hooks=[cut(model)]).predictions
    >>> split = episodes.advice[..., 0] != episodes.advice[..., 1]             # without memory: a tie
    >>> bool((forgetful[split] == 0.5).all())
    True

With its latents *cut* to the initial ones a model knows nothing of earlier rounds; with them *swapped* it knows as much
as usual, of another episode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from interp.model.transformer import HookedLatentTransformer

_HOOK = "hook_latents"
Hook = tuple[str, Callable[[Tensor, Any], Tensor]]


def cut(model: HookedLatentTransformer) -> Hook:
    """A forward hook that replaces every latent by the initial one."""

    def replaced(latents: Tensor, hook: Any) -> Tensor:
        return model.initial_latents(*latents.shape[:2])

    return _HOOK, replaced


def swap() -> Hook:
    """A forward hook that gives every episode the latents of the one before it in the batch."""

    def replaced(latents: Tensor, hook: Any) -> Tensor:
        return latents.roll(1, 0)

    return _HOOK, replaced
