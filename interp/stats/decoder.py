"""Read a state out of latents: an affine map fitted on rollouts, for models where the weights do
not show where a state is.

    >>> import numpy as np, torch
    >>> from interp.stats.decoder import Decoder
    >>> latents = torch.randn(8, 5, 1, 16, dtype=torch.float64)                       # episode, step, latent, d_model
    >>> states = (latents[..., 0, :3] + 1).numpy()                                    # three numbers that they hold
    >>> decoder = Decoder.fit(latents[:4], states[:4])
    >>> bool(np.allclose(decoder(latents[4:]).numpy(), states[4:]))
    True

The map is least squares, or ridge regression; a penalty shrinks what is read, so leave it out where
sizes matter. One map reads all latents together; with ``per_latent`` each latent holds a part of
the state and has a separate map. :meth:`Decoder.move` writes: it changes latents so that the
decoded state changes by a given amount and the rest of what is decoded with it stays. A state that
can be decoded may still be idle: interventions show what a model uses.

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
from interp.support.checks import checked_result
from interp.support.errors import require, theirs

N_FOLDS = 5
RIDGE = 1e-3
"""Penalty of decoders of learned models. Latents that add up their updates are sums of random features of every round,
and without a penalty a map reads counts off those even in an untrained network: it then follows 78 to 96 % of the
algorithm's step, with this penalty 27 to 46 % (three seeds of
``wma-learned-additive``'s shape; the learned model 99.8 and 99.7)."""
RANK = 1e-10
"""A direction that varies less than this share of the widest one is left out of a fit: it is rounding."""


@dataclass(frozen=True)
@checked_result
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
        """Fit the least-squares map from ``x`` to ``y``, in double precision.

        Args:
            x: what is read.
            y: what is decoded.
            ridge: penalty on the slopes of features in units of their standard deviation; none when 0.
        """
        x = x.double()
        y = y.double()
        centre = x.mean(0)
        middle = y.mean(0)
        features = x - centre
        outputs = y - middle
        fit = _ridge_slopes if ridge else _least_squares_slopes
        slopes = fit(features, outputs, ridge)
        decoded = features @ slopes
        along = decoded.T @ features / max(len(features), 1)
        return cls(centre, middle, slopes, along)

    def __call__(self, x: Float[Tensor, "... feature"]) -> Float[Tensor, "... output"]:
        return (x - self.centre) @ self.slopes + self.middle

    @cached_property
    def steps(self) -> Float[Tensor, "output feature"]:
        """How ``x`` moves for one unit of each output while the rest is unchanged: ``(A^T C A)^-1
        A^T C``.

        Outputs that only vary together (numbers that are centred, say) move together as far as they
        can.
        """
        decoded = self.along @ self.slopes
        return torch.linalg.pinv(decoded, rtol=RANK, hermitian=True) @ self.along


def _least_squares_slopes(
    features: Float[Tensor, "sample feature"], outputs: Float[Tensor, "sample output"], ridge: float
) -> Float[Tensor, "feature output"]:
    """Fit least squares without a penalty; features may have any rank.

    `lstsq` takes only full rank on accelerators, and on a CPU its "gelsd" takes 40 times as long
    for 19,200 outputs (a cache).

    Args:
        features, outputs: centred.
        ridge: 0; not used.
    """
    return torch.linalg.pinv(features, rtol=RANK) @ outputs


def _ridge_slopes(
    features: Float[Tensor, "sample feature"], outputs: Float[Tensor, "sample output"], ridge: float
) -> Float[Tensor, "feature output"]:
    """Fit ridge regression.

    Args:
        features, outputs: centred.
        ridge: the penalty, see :meth:`Affine.fit`.
    """
    n_samples = len(features)
    unit = units(features)
    scaled = features / unit
    if is_wide(features):
        slopes = scaled.T @ penalised(scaled @ scaled.T, outputs, n_samples, ridge)
        return slopes / unit.unsqueeze(1)
    fitted = scaled @ penalised(scaled.T @ scaled, scaled.T @ outputs, n_samples, ridge)
    return torch.linalg.pinv(features, rtol=RANK) @ fitted  # nothing along what never varied


def is_wide(features: Float[Tensor, "sample feature"]) -> bool:
    """Return whether features outnumber samples: a map without a penalty fits anything; the dual form is shorter."""
    return features.shape[1] > features.shape[0]


def units(features: Float[Tensor, "sample feature"]) -> Float[Tensor, " feature"]:
    """Return the standard deviation of centred features; infinite for those that hardly vary
    compared with the widest one.

    Divided by it, features have one scale whatever the scales of their coordinates, so that a
    penalty is the same for all.
    """
    size = features.square().mean(0).sqrt()
    return size.where(size > RANK * size.max(), torch.inf)


def penalised(square: Tensor, product: Tensor, n_samples: int, ridge: float) -> Tensor:
    """Compute the ridge regression of :meth:`Affine.fit`, from the products of features in their
    :func:`units`.

    ``features.T @ features`` and ``features.T @ outputs`` give slopes. In the dual form ``features
    @ features.T`` and the outputs give weights of samples; the slopes are then ``features.T @
    weights``.

    Args:
        square: the features times themselves.
        product: the features times the outputs, or the outputs.
        n_samples: that the penalty is multiplied by.
        ridge: the penalty.
    """
    if not square.any():  # features that never vary say nothing
        return torch.zeros_like(product)
    singular = torch.linalg.LinAlgError  # type: ignore[attr-defined]
    with theirs(
        f"ridge={ridge:g} leaves no one solution ({{error}}); give 0, or more", of=singular
    ):
        penalty = ridge * n_samples * torch.eye(len(square)).to(square)
        return torch.linalg.solve(square + penalty, product)


@dataclass(frozen=True)
@checked_result
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
            states: the algorithm's at the same times, ``[*sample, ...]``; ``[*sample, latent, k]``, the part of each
                latent, with ``per_latent``.
            ridge: penalty of :meth:`Affine.fit`.
            per_latent: fit one map for each latent, to its part of the state.
        """
        targets = torch.as_tensor(np.asarray(states, dtype=np.float64)).to(latents.device)
        sample = latents.shape[:-2]
        shape = targets.shape[len(sample) :]
        n_latents = latents.shape[-2]
        has_leading_axes = targets.shape[: len(sample)] == sample
        require(
            has_leading_axes,
            f"states must have the leading axes of the latents, {tuple(sample)}, got shape {tuple(targets.shape)}",
        )
        has_latents = len(shape) > 1 and shape[0] == n_latents
        require(
            not per_latent or has_latents,
            f"decoding per latent needs [..., latent, k] with {n_latents} latents, got {tuple(targets.shape)}",
        )
        n_maps = n_latents if per_latent else 1
        x = latents.double().reshape(sample.numel(), n_maps, -1)
        y = targets.reshape(sample.numel(), n_maps, -1)
        maps = tuple(Affine.fit(x[:, i], y[:, i], ridge) for i in range(n_maps))
        return cls(maps, tuple(shape))

    def __call__(self, latents: Float[Tensor, "... latent d_model"]) -> Float[Tensor, "*any"]:
        """Decode the state that ``latents`` hold."""
        flat = latents.double().flatten(-2)
        parts = flat.unflatten(-1, (len(self.maps), -1)).unbind(-2)
        decoded = torch.stack([read(part) for read, part in zip(self.maps, parts, strict=True)], -2)
        leading = latents.shape[:-2]
        return decoded.reshape(*leading, *self.shape)

    def move(
        self, latents: Float[Tensor, "*batch latent d_model"], change: Float[Tensor, "*any"]
    ) -> Float[Tensor, "*batch latent d_model"]:
        """Move latents so that the decoded state changes by ``change``.

        Args:
            latents: ``[*batch, latent, d_model]``.
            change: ``[*batch, *shape]``, with the shape of the decoder's states.
        """
        n_leading = change.ndim - len(self.shape)
        shape = tuple(change.shape[n_leading:])
        require(
            shape == self.shape,
            f"this decoder's states have shape {self.shape}, got a change of shape {tuple(change.shape)}",
        )
        lead = change.shape[:n_leading]
        slopes = self.maps[0].slopes
        by_map = change.to(slopes).reshape(*lead, len(self.maps), slopes.shape[1])
        parts = by_map.unbind(-2)
        steps = torch.stack(
            [part @ read.steps for read, part in zip(self.maps, parts, strict=True)], -2
        )
        shaped = steps.reshape(*lead, *latents.shape[-2:])
        return latents + shaped.to(latents)


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
    """Decode the states of every episode by maps that were fitted without this episode.

    Args:
        latents: ``[episode, ..., latent, d_model]``.
        states: as in :meth:`Decoder.fit`.
        n_folds: parts of the participants; each is decoded by a map that was fitted on the
            remaining parts.
        ridge: penalty of :meth:`Affine.fit`.
        per_latent: as in :meth:`Decoder.fit`.
        seed: of the folds.
        participants: of each episode; when None, each episode is one.
    """
    participant = of_whom(participants, len(latents))
    n = int(participant.max()) + 1
    what = "episodes" if n == len(participant) else "participants"
    require(n >= n_folds, f"decoding held-out episodes needs at least {n_folds} {what}, got {n}")
    targets = torch.as_tensor(np.asarray(states, dtype=np.float64))
    order = np.random.default_rng([seed, 0]).permutation(n)
    fold = torch.from_numpy(order[participant] % n_folds)
    decoded = torch.empty_like(targets)
    for k in range(n_folds):
        held_out = fold == k
        decoder = Decoder.fit(
            latents[~held_out], targets[~held_out], ridge=ridge, per_latent=per_latent
        )
        decoded[held_out] = decoder(latents[held_out]).to(decoded)
    return decoded
