"""Further variants of a model for which the right answer is known: wider, with a rescaled state, with noise.

Rotated ones, and those with distractors or without some directions, stand in :mod:`circuits.benchmark.known_machine`.
"""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from circuits.benchmark.known_machine import moved, renamed
from interp import tasks
from interp.model.rollout import rollout
from interp.model.transformer import HookedLatentTransformer
from interp.support.errors import require

N_EPISODES, N_ROUNDS = 32, 30
"""On so many episodes the spread of a model's latents is measured."""


def widened(model: HookedLatentTransformer, n: int) -> HookedLatentTransformer:
    """The model with ``n`` more coordinates in its residual stream, which nothing reads or writes: they stay 0.

    Raises:
        InputError: a model with LayerNorm, whose scale the new coordinates would change.
    """
    require(n >= 1, f"n must be an integer >= 1, got {n}")
    require(
        model.config.normalization_type is None,
        f"{model.name!r} has LayerNorm; give a model without it",
    )
    d_model = model.config.d_model
    return moved(
        model, torch.eye(d_model, d_model + n).to(model.W_E), "wider", f"{n} coordinates added"
    )


def rescaled(model: HookedLatentTransformer, factor: float) -> HookedLatentTransformer:
    """A handwired model that holds ``factor`` times its state, and whatever else lies along the same directions.

    Every weight that reads them takes the factor out again, so it computes the same; a power of two rounds nothing.

    Raises:
        InputError: a factor of 0, or a model with LayerNorm or without an exact state readout.
    """
    require(factor != 0, "factor must be a number other than 0, got 0")
    require(
        model.is_handwired,
        f"{model.name!r} is a learned model; give a handwired one, whose state is known",
    )
    require(
        model.config.normalization_type is None,
        f"{model.name!r} has LayerNorm; give a model without it",
    )
    held = torch.linalg.pinv(model.state_map) @ model.state_map
    whole = torch.eye(len(held)).to(held)
    columns, back = whole + (factor - 1) * held, whole + (1 / factor - 1) * held
    return moved(model, columns, "rescaled", f"state times {factor:g}", back)


def noisy(model: HookedLatentTransformer, sd: float, seed: int = 0) -> HookedLatentTransformer:
    """The model with Gaussian noise on every update, ``sd`` times the spread of its own latents.

    The noise has the covariance of the latents over episodes and rounds, so it stays among the directions in which they
    vary. It is added by a permanent hook at ``hook_update``: :func:`interp.rollout` and every intervention meet it, and
    replaying a rollout, whose latents hold it, does not add it again. It is drawn from ``seed`` and what the model is
    given, so that a run can be repeated, and that a round with an activation edited gets the noise of the plain one.
    """
    require(sd >= 0, f"sd must be a number >= 0, got {sd}")
    task, worse = tasks.of(model), copy.deepcopy(model)
    latents = (
        rollout(model, task.sample_for(model, N_EPISODES, N_ROUNDS, seed))
        .latents[:, 1:]
        .flatten(0, 2)
        .double()
    )
    values, vectors = torch.linalg.eigh(torch.cov(latents.T))
    noise = _Noise(sd * values.clamp_min(0).sqrt() * vectors, seed)
    worse.register_forward_pre_hook(noise.see)
    worse.hook_update.add_hook(noise.add, is_permanent=True)
    worse.config = renamed(model.config, "noisy", f"noise of {sd:g} in the latents, seed {seed}")
    return worse


class _Noise:
    """Noise ``scale @ normal`` on updates, drawn from a seed and what the model was last given: tokens and latents."""

    def __init__(self, scale: Float[Tensor, "d_model d_model"], seed: int) -> None:
        self.scale, self.seed, self.given = scale, seed, b""

    def see(self, model: HookedLatentTransformer, given: tuple[Tensor, ...]) -> None:
        sha = hashlib.sha256(str(self.seed).encode())
        for tensor in given[:2]:
            sha.update(
                tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            )
        self.given = sha.digest()[:7]

    def add(self, update: Float[Tensor, "batch d_model"], hook: Any) -> Tensor:
        generator = torch.Generator().manual_seed(int.from_bytes(self.given, "little"))
        drawn = torch.randn(update.shape, generator=generator, dtype=torch.float64)
        return update + (drawn @ self.scale.T).to(update)
