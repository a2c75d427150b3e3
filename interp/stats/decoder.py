"""Read a state out of latents: an affine map fitted on rollouts, for models whose weights do not say where a state is.

    >>> import numpy as np, torch
    >>> from interp.stats.decoder import Decoder
    >>> latents = torch.randn(8, 5, 1, 16, dtype=torch.float64)                       # episode, step, latent, d_model
    >>> states = (latents[..., 0, :3] + 1).numpy()                                    # three numbers that they hold
    >>> decoder = Decoder.fit(latents[:4], states[:4])
    >>> bool(np.allclose(decoder(latents[4:]).numpy(), states[4:]))
    True

The map is least squares, or ridge regression; a penalty shrinks what is read, so leave it out where sizes matter. One
map reads all latents together, or each latent holds a part of the state and has its own map (``per_latent``).
:meth:`Decoder.move` writes: it changes latents so that what is decoded changes by what is asked for, and nothing else
that is decoded with it does. A state that can be decoded may still be idle: interventions show what a model uses.

How latents are moved, and when a penalty is needed: docs/method/decoders.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from torch import Tensor

from interp.stats.intervals import of_whom
from interp.support.errors import require, theirs

N_FOLDS = 5
RIDGE = 1e-3
"""Penalty of decoders of learned models. Latents that add up their updates are sums of random features of every round,
and without a penalty a map reads counts off those even in an untrained network: it then follows 78 to 96 % of the
algorithm's step, with this penalty 27 to 46 % (three seeds of ``wma-learned``'s shape; the learned model 99.8 and
99.7)."""
RANK = 1e-10
"""A direction that varies less than this share of the widest one is left out of a fit: it is rounding."""


@dataclass(frozen=True)
class Affine:
    """``y = (x - centre) slopes + middle``; ``along`` is the covariance of ``y``, as read, with ``x``."""

    centre: Float[Tensor, " feature"]
    middle: Float[Tensor, " output"]
    slopes: Float[Tensor, "feature output"]
    along: Float[Tensor, "output feature"]

    @classmethod
    def fit(
        cls,
        x: Float[Tensor, "sample feature"],
        y: Float[Tensor, "sample output"],
        ridge: float = 0.0,
    ) -> Affine:
        """The least-squares map from ``x`` to ``y``, in double precision.

        Args:
            ridge: penalty on the slopes of features in units of their standard deviation; none when 0.
        """
        x, y = x.double(), y.double()
        centre, middle = x.mean(0), y.mean(0)
        features, outputs = x - centre, y - middle
        if ridge:
            unit = units(features)
            scaled = features / unit
            if is_wide(features):
                slopes = scaled.T @ penalised(scaled @ scaled.T, outputs, len(x), ridge)
                slopes = slopes / unit.unsqueeze(1)
            else:
                fitted = scaled @ penalised(scaled.T @ scaled, scaled.T @ outputs, len(x), ridge)
                slopes = (
                    torch.linalg.pinv(features, rtol=RANK) @ fitted
                )  # nothing along what never varied
        else:
            # Features may have any rank; `lstsq` takes none but the full one on accelerators, and on a CPU its "gelsd"
            # takes 40 times as long for 19,200 outputs (a cache).
            slopes = torch.linalg.pinv(features, rtol=RANK) @ outputs
        return cls(centre, middle, slopes, (features @ slopes).T @ features / max(len(features), 1))

    def __call__(self, x: Float[Tensor, "... feature"]) -> Float[Tensor, "... output"]:
        return (x - self.centre) @ self.slopes + self.middle

    @cached_property
    def steps(self) -> Float[Tensor, "output feature"]:
        """How ``x`` moves for one unit of each output, the others unchanged: ``(A^T C A)^-1 A^T C``.

        Outputs that only vary together (numbers that are centred, say) move together as far as they can.
        """
        return torch.linalg.pinv(self.along @ self.slopes, rtol=RANK, hermitian=True) @ self.along


def is_wide(features: Float[Tensor, "sample feature"]) -> bool:
    """Whether features outnumber samples: a map without a penalty fits anything, and the dual form is the short one."""
    return features.shape[1] > features.shape[0]


def units(features: Float[Tensor, "sample feature"]) -> Float[Tensor, " feature"]:
    """The standard deviation of centred features; infinite for those that hardly vary beside the widest one.

    Divided by it, features have one scale whatever the scales of their coordinates, and a penalty treats them alike.
    """
    size = features.square().mean(0).sqrt()
    return size.where(size > RANK * size.max(), torch.inf)


def penalised(square: Tensor, product: Tensor, n_samples: int, ridge: float) -> Tensor:
    """Ridge regression as :meth:`Affine.fit` has it, from the products of features in their :func:`units`.

    ``features.T @ features`` and ``features.T @ outputs`` give slopes. In the dual form ``features @ features.T`` and
    the outputs give weights of samples, whose slopes are ``features.T @ weights``.
    """
    if not square.any():  # features that never vary say nothing
        return torch.zeros_like(product)
    singular = torch.linalg.LinAlgError  # type: ignore[attr-defined]
    with theirs(
        f"ridge={ridge:g} leaves no one solution ({{error}}); give 0, or more", of=singular
    ):
        return torch.linalg.solve(
            square + ridge * n_samples * torch.eye(len(square)).to(square), product
        )


@dataclass(frozen=True)
class Decoder:
    """A fitted map from latents ``[..., latent, d_model]`` to a state ``[..., *shape]``; calling it decodes.

    Attributes:
        maps: one map for all latents together, or one per latent.
        shape: of the state at one time.
    """

    maps: tuple[Affine, ...]
    shape: tuple[int, ...]

    @classmethod
    def fit(
        cls,
        latents: Float[Tensor, "*sample latent d_model"],
        states: ArrayLike | Tensor,
        *,
        ridge: float = 0.0,
        per_latent: bool = False,
    ) -> Decoder:
        """Fit on a rollout, in double precision.

        Fit it at the rounds that it is used at: how much a state changes in one round depends on the round.

        Args:
            latents: with any leading axes.
            states: what the algorithm holds at the same times, ``[*sample, ...]``; ``[*sample, latent, k]``, the part
                that each latent holds, with ``per_latent``.
        """
        held = torch.as_tensor(np.asarray(states, dtype=np.float64)).to(latents.device)
        sample, shape = latents.shape[:-2], held.shape[latents.ndim - 2 :]
        require(
            held.shape[: len(sample)] == sample,
            f"states must have the leading axes of the latents, {tuple(sample)}, got shape {tuple(held.shape)}",
        )
        require(
            not per_latent or (len(shape) > 1 and shape[0] == latents.shape[-2]),
            f"decoding per latent needs [..., latent, k] with {latents.shape[-2]} latents, got {tuple(held.shape)}",
        )
        n_maps = shape[0] if per_latent else 1
        x, y = (part.reshape(sample.numel(), n_maps, -1) for part in (latents.double(), held))
        return cls(tuple(Affine.fit(x[:, i], y[:, i], ridge) for i in range(n_maps)), tuple(shape))

    def __call__(self, latents: Float[Tensor, "... latent d_model"]) -> Float[Tensor, "*any"]:
        """The state that ``latents`` hold."""
        parts = latents.double().flatten(-2).unflatten(-1, (len(self.maps), -1)).unbind(-2)
        decoded = torch.stack([read(part) for read, part in zip(self.maps, parts, strict=True)], -2)
        return decoded.reshape(*latents.shape[:-2], *self.shape)

    def move(
        self, latents: Float[Tensor, "*batch latent d_model"], change: Float[Tensor, "*any"]
    ) -> Float[Tensor, "*batch latent d_model"]:
        """The latents, changed so that the decoded state changes by ``change``, ``[*batch, *shape]``."""
        fits = tuple(change.shape[change.ndim - len(self.shape) :]) == self.shape
        require(
            fits,
            f"this decoder's states have shape {self.shape}, got a change of shape {tuple(change.shape)}",
        )
        lead = change.shape[: change.ndim - len(self.shape)]
        slopes = self.maps[0].slopes
        parts = change.to(slopes).reshape(*lead, len(self.maps), slopes.shape[1]).unbind(-2)
        steps = torch.stack(
            [part @ read.steps for read, part in zip(self.maps, parts, strict=True)], -2
        )
        return latents + steps.reshape(*lead, *latents.shape[-2:]).to(latents)


def cross_fitted(
    latents: Float[Tensor, "episode *steps latent d_model"],
    states: ArrayLike | Tensor,
    *,
    n_folds: int = N_FOLDS,
    ridge: float = 0.0,
    per_latent: bool = False,
    seed: int = 0,
    participants: Any = None,
) -> Float[Tensor, episode * any]:
    """The states of every episode, each decoded by a map that was fitted without this episode.

    One of ``n_folds`` parts of the ``participants`` (of the episodes, where nobody says whose they are) at a time is
    decoded by a map fitted on the others.
    """
    whose = of_whom(participants, len(latents))
    n = int(whose.max()) + 1
    what = "episodes" if n == len(whose) else "participants"
    require(n >= n_folds, f"decoding held-out episodes needs at least {n_folds} {what}, got {n}")
    held = torch.as_tensor(np.asarray(states, dtype=np.float64))
    fold = torch.from_numpy(np.random.default_rng([seed, 0]).permutation(n)[whose] % n_folds)
    decoded = torch.empty_like(held)
    for k in range(n_folds):
        decoder = Decoder.fit(
            latents[fold != k], held[fold != k], ridge=ridge, per_latent=per_latent
        )
        decoded[fold == k] = decoder(latents[fold == k]).to(decoded)
    return decoded
