"""Further variants of a model for which the right answer is known: wider, and with a rescaled state.

Rotated ones, and those with distractors or without some directions, stand in :mod:`circuits.benchmark.known_machine`.
"""

from __future__ import annotations

import torch

from circuits.benchmark.known_machine import moved
from interp.model.transformer import HookedLatentTransformer
from interp.support.errors import require


def widened(model: HookedLatentTransformer, n: int) -> HookedLatentTransformer:
    """Return the model with ``n`` more coordinates in its residual stream, which nothing reads or writes: they stay 0.

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
    """Return a handwired model that holds ``factor`` times its state, and whatever else lies along the same directions.

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
    onto_state = torch.linalg.pinv(model.state_map) @ model.state_map
    identity = torch.eye(len(onto_state)).to(onto_state)
    columns = identity + (factor - 1) * onto_state
    back = identity + (1 / factor - 1) * onto_state
    return moved(model, columns, "rescaled", f"state times {factor:g}", back)
