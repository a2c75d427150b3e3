"""Affine decoders: maps from latents to a state, fitted on rollouts.

They are for models in which the weights do not show where a state is stored.

    >>> import numpy as np, torch
    >>> from interp.stats.decoder import Decoder
    >>> latents = torch.randn(8, 5, 1, 16, dtype=torch.float64)                       # episode, step, latent, d_model
    >>> states = (latents[..., 0, :3] + 1).numpy()                                    # three numbers that they hold
    >>> decoder = Decoder.fit(latents[:4], states[:4])
    >>> bool(np.allclose(decoder(latents[4:]).numpy(), states[4:]))
    True

The map is fitted by least squares or ridge regression. A ridge penalty shrinks the decoded values,
so use none where their sizes matter. One map reads all latents together. :meth:`Decoder.move`
changes latents so that the decoded state changes by a chosen amount. A model need not use a state
that can be decoded: interventions show what it uses.

How latents are moved, and when a penalty is needed: docs/method/decoders.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from torch import Tensor

from interp.stats.intervals import number_participants
from interp.support.checks import checked_result
from interp.support.errors import convert_errors, require

N_FOLDS = 5
RIDGE = 1e-3
"""Ridge penalty for decoders of learned models.

Latents that add up their updates are sums of random features of every round. Without a penalty a
map can decode counts from these features even in an untrained network: its decoded step then
matches 78 to 96 % of the algorithm's step, with this penalty 27 to 46 % (three seeds of
``wma-learned-additive``'s shape; the learned model has 99.8 and 99.7).
"""
RANK = 1e-10
"""Directions with less than this share of the largest direction's size are rounding, and not
fitted.
"""


@dataclass(frozen=True)
@checked_result
class Affine:
    """An affine map from features to outputs: ``y = (x - centre) @ slopes + middle``.

    Attributes:
        centre: mean of the features ``x`` in the fit, ``[feature]``.
        middle: mean of the outputs ``y`` in the fit, ``[output]``.
        slopes: change of each output per unit of each feature, ``[feature, output]``.
        along: covariance of each decoded output with each feature, in the data of the fit,
            ``[output, feature]``. The row of an output is the direction in which the features vary
            with it.
    """

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
            x: the features, ``[sample, feature]``.
            y: the outputs to decode, ``[sample, output]``.
            ridge: penalty per sample on the squared slopes, for features scaled to standard
                deviation 1; 0 for none.
        """
        x = x.double()
        y = y.double()
        centre = x.mean(0)
        middle = y.mean(0)
        features = x - centre
        outputs = y - middle
        if ridge:
            slopes = _fit_ridge(features, outputs, ridge)
        else:
            # lstsq needs full rank on accelerators, and its CPU driver "gelsd" takes 40 times as
            # long for 19,200 outputs.
            inverse = torch.linalg.pinv(features, rtol=RANK)
            slopes = inverse @ outputs
        # Covariance of each decoded output with each feature, for `steps`.
        decoded = features @ slopes
        along = decoded.T @ features / max(len(features), 1)
        return cls(centre, middle, slopes, along)

    def __call__(self, x: Float[Tensor, "... feature"]) -> Float[Tensor, "... output"]:
        return (x - self.centre) @ self.slopes + self.middle

    @cached_property
    def steps(self) -> Float[Tensor, "output feature"]:
        """For each output, a change of the features that changes this output by 1 and no other
        output, ``[output, feature]``. Of the many changes that have this result, it is the one that
        follows the covariance of features and outputs in the data of the fit (``along``).

        The formula is ``(A^T C A)^-1 A^T C``, with slopes A and feature covariance C. Outputs that
        cannot vary alone, such as numbers that sum to zero, get the closest possible change.
        """
        covariance = self.along  # A^T C
        output_covariance = covariance @ self.slopes  # A^T C A
        return torch.linalg.pinv(output_covariance, rtol=RANK, hermitian=True) @ covariance


def _fit_ridge(
    features: Float[Tensor, "sample feature"], outputs: Float[Tensor, "sample output"], ridge: float
) -> Float[Tensor, "feature output"]:
    """Fit ridge regression on standardised features, and return the slopes for the original
    features, ``[feature, output]``.

    Args:
        features, outputs: the data, with the mean of each column subtracted.
        ridge: penalty on the squared slopes of standardised features, per sample.
    """
    n_samples = len(features)
    unit = units(features)
    scaled = features / unit
    if is_wide(features):  # the dual form has one equation per sample
        slopes = scaled.T @ solve_ridge(scaled @ scaled.T, outputs, n_samples, ridge)
        return slopes / unit.unsqueeze(1)
    fitted = scaled @ solve_ridge(scaled.T @ scaled, scaled.T @ outputs, n_samples, ridge)
    # Slopes divided by the units would have the same fitted outputs, but need not be 0 along
    # directions in which the features never varied. The least-squares slopes are.
    return torch.linalg.pinv(features, rtol=RANK) @ fitted


def is_wide(features: Float[Tensor, "sample feature"]) -> bool:
    """Return True if an array ``[sample, feature]`` has more features than samples.

    If so, a map without a penalty can fit any outputs, and the dual form of ridge regression is
    quicker.
    """
    return features.shape[1] > features.shape[0]


def units(features: Float[Tensor, "sample feature"]) -> Float[Tensor, " feature"]:
    """Return the unit by which each feature is to be divided, ``[feature]``: its standard
    deviation. The unit of a feature that hardly varies (less than 1e-10 of the largest deviation)
    is infinity. The mean of each feature must already be 0.

    After the division, all features that vary have standard deviation 1. A ridge penalty then
    weighs equally on all of them.
    """
    size = features.square().mean(0).sqrt()
    return size.where(size > RANK * size.max(), torch.inf)


def solve_ridge(square: Tensor, product: Tensor, n_samples: int, ridge: float) -> Tensor:
    """Solve the linear equations of ridge regression, in its primal or its dual form, for
    standardised features.

    In the primal form pass ``features.T @ features`` and ``features.T @ outputs``; the solution is
    the slopes. In the dual form pass ``features @ features.T`` and ``outputs``; the solution is a
    weight for each sample, and the slopes are ``features.T @ weights``.

    Args:
        square: product of the features with themselves: ``features.T @ features`` or
            ``features @ features.T``.
        product: ``features.T @ outputs`` in the primal form, ``outputs`` in the dual form.
        n_samples: number of samples, by which ``ridge`` is multiplied.
        ridge: penalty per sample.
    """
    if not square.any():  # the features never vary: every slope is 0
        return torch.zeros_like(product)
    singular = torch.linalg.LinAlgError  # type: ignore[attr-defined]
    with convert_errors(
        f"ridge={ridge:g} leaves no one solution ({{error}}); give 0, or more", of=singular
    ):
        penalty = ridge * n_samples * torch.eye(len(square)).to(square)
        return torch.linalg.solve(square + penalty, product)


@dataclass(frozen=True)
@checked_result
class Decoder:
    """A fitted affine map from latents (the vectors that a model carries from round to round),
    ``[..., latent, d_model]``, to states of an algorithm, ``[..., *shape]``. Calling the decoder
    with latents returns the decoded states.

    Attributes:
        affine: the map, which reads all latents together.
        shape: shape of the state of one episode at one round.
    """

    affine: Affine
    shape: tuple[int, ...]

    @classmethod
    def fit(
        cls,
        latents: Float[Tensor, "*sample latent d_model"],
        states: ArrayLike | Tensor,
        *,
        ridge: float = 0.0,
    ) -> Decoder:
        """Fit a linear map (with offset) from latents to an algorithm's states, in double precision.

        Fit the decoder on the rounds in which it will be used. In a learned model, the same update
        of the state can change the latents by different amounts in different rounds.

        Args:
            latents: the vectors that a model carries from round to round,
                ``[*sample, latent, d_model]``. ``*sample`` are any leading axes, such as episode
                and round.
            states: the algorithm's states at the same samples, ``[*sample, ...]``.
            ridge: penalty per sample on the squared slopes, for features scaled to standard
                deviation 1; 0 for least squares.
        """
        targets = torch.as_tensor(np.asarray(states, dtype=np.float64)).to(latents.device)
        sample = latents.shape[:-2]
        n_leading = len(sample)
        leading_axes, shape = tuple(targets.shape[:n_leading]), tuple(targets.shape[n_leading:])
        require(
            leading_axes == tuple(sample),
            f"states must have the leading axes of the latents, {tuple(sample)}, got shape {tuple(targets.shape)}",
        )
        n_samples = prod(sample)
        x = latents.double().reshape(n_samples, -1)  # [sample, feature]
        y = targets.reshape(n_samples, -1)  # [sample, output]
        return cls(Affine.fit(x, y, ridge), shape)

    def __call__(self, latents: Float[Tensor, "... latent d_model"]) -> Float[Tensor, "*any"]:
        """Decode states ``[..., *shape]`` from latents ``[..., latent, d_model]``."""
        decoded = self.affine(latents.double().flatten(-2))  # [..., output]
        leading_axes = latents.shape[:-2]
        return decoded.reshape(*leading_axes, *self.shape)

    def move(
        self, latents: Float[Tensor, "*batch latent d_model"], change: Float[Tensor, "*any"]
    ) -> Float[Tensor, "*batch latent d_model"]:
        """Return a copy of the latents, changed so that the decoded state changes by ``change``.
        Many changes of the latents have this result. The one that is made follows the covariance of
        latents and state in the data of the fit.

        Args:
            latents: latents to change, ``[*batch, latent, d_model]``.
            change: change of the decoded state, ``[*batch, *shape]``, where ``shape`` is the shape
                of the decoder's states.
        """
        shape = self.shape
        n_leading = change.ndim - len(shape)
        leading_axes, last_axes = change.shape[:n_leading], tuple(change.shape[n_leading:])
        require(
            last_axes == shape,
            f"this decoder's states have shape {shape}, got a change of shape {tuple(change.shape)}",
        )
        slopes = self.affine.slopes  # [feature, output]
        outputs = change.to(slopes).reshape(*leading_axes, slopes.shape[1])
        step = (outputs @ self.affine.steps).reshape(*leading_axes, *latents.shape[-2:])
        return latents + step.to(latents)


def predict_across_folds(
    latents: Float[Tensor, "episode *steps latent d_model"],
    states: ArrayLike | Tensor,
    *,
    n_folds: int = N_FOLDS,
    ridge: float = 0.0,
    seed: int = 0,
    participants: Any = None,
) -> Float[Tensor, episode * any]:
    """Decode the states of each episode with a decoder that was fitted on other episodes only
    (cross-validation).

    Args:
        latents: the vectors that a model carries from round to round,
            ``[episode, ..., latent, d_model]``, where ``...`` are axes such as the round.
        states: the algorithm's states at the same samples, ``[episode, ..., *shape]``.
        n_folds: number of folds. All episodes of a participant are in one fold, which is decoded by
            a fit to the other folds.
        ridge: penalty per sample on the squared slopes, for features scaled to standard deviation
            1; 0 for least squares.
        seed: seed of the random folds.
        participants: name or number of each episode's participant; when None, each episode counts
            as one participant.

    Returns:
        The decoded states, in the shape of ``states``.
    """
    participant = number_participants(participants, len(latents))
    n_units = int(participant.max()) + 1
    units_in_words = "episodes" if n_units == len(participant) else "participants"
    require(
        2 <= n_folds <= n_units,
        f"decoding held-out episodes needs 2 folds or more, and at least {n_folds} {units_in_words}, got {n_units}",
    )
    targets = torch.as_tensor(np.asarray(states, dtype=np.float64))
    # Each participant gets a random number from 0 to n_units - 1, and all of their episodes the
    # fold of this number.
    order = np.random.default_rng([seed, 0]).permutation(n_units)
    fold = torch.from_numpy(order[participant] % n_folds)  # [episode]
    decoded = torch.empty_like(targets)
    for k in range(n_folds):
        held_out = fold == k
        decoder = Decoder.fit(latents[~held_out], targets[~held_out], ridge=ridge)
        decoded[held_out] = decoder(latents[held_out]).to(decoded)
    return decoded
