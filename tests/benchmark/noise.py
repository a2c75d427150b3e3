"""A model with noise that a permanent hook draws: interventions must meet the same noise as the plain run."""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from circuits.benchmark.known_machine import name_edited_model
from interp import tasks
from interp.model.rollout import rollout
from interp.model.transformer import HookedLatentTransformer
from interp.support.errors import require

N_EPISODES, N_ROUNDS = 32, 30
"""On so many episodes the spread of a model's latents is measured."""


def noisy(model: HookedLatentTransformer, sd: float, seed: int = 0) -> HookedLatentTransformer:
    """The model with Gaussian noise on every update, ``sd`` times the spread of its own latents.

    The noise has the covariance of the latents over episodes and rounds, so it stays among the directions in which they
    vary. It is added by a permanent hook at ``hook_update``: :func:`interp.rollout` and every intervention meet it, and
    replaying a rollout, whose latents hold it, does not add it again. It is drawn from ``seed`` and what the model is
    given, so that a run can be repeated, and that a round with an activation edited gets the noise of the plain one.
    """
    require(sd >= 0, f"sd must be a number >= 0, got {sd}")
    task, worse = tasks.of(model), copy.deepcopy(model)
    run = rollout(model, task.sample_for(model, N_EPISODES, N_ROUNDS, seed))
    latents = run.latents[:, 1:].flatten(0, 2).double()
    values, vectors = torch.linalg.eigh(torch.cov(latents.T))
    noise = _Noise(sd * values.clamp_min(0).sqrt() * vectors, seed)
    worse.register_forward_pre_hook(noise.see)
    worse.hook_update.add_hook(noise.add, is_permanent=True)
    worse.config = name_edited_model(
        model.config, "noisy", f"noise of {sd:g} in the latents, seed {seed}"
    )
    return worse


class _Noise:
    """Noise ``scale @ normal`` on updates, drawn from a seed and what the model was last given: tokens and latents."""

    def __init__(self, scale: Float[Tensor, "d_model d_model"], seed: int) -> None:
        self.scale, self.seed, self.given = scale, seed, b""

    def see(self, model: HookedLatentTransformer, given: tuple[Tensor, ...]) -> None:
        sha = hashlib.sha256(str(self.seed).encode())
        for tensor in given[:2]:
            numbers = tensor.detach().cpu().contiguous().reshape(-1)
            sha.update(numbers.view(torch.uint8).numpy().tobytes())
        self.given = sha.digest()[:7]

    def add(self, update: Float[Tensor, "batch d_model"], hook: Any) -> Tensor:
        generator = torch.Generator().manual_seed(int.from_bytes(self.given, "little"))
        drawn = torch.randn(update.shape, generator=generator, dtype=torch.float64)
        return update + (drawn @ self.scale.T).to(update)
