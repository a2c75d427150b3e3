"""Variants of a model that compute the same: in a wider residual stream, or with a rescaled state.

:mod:`circuits.benchmark.known_machine` has rotated variants, and variants with distractors or
without some directions.
"""

from __future__ import annotations

import torch

from circuits.benchmark.known_machine import transform_residual_stream
from interp.model.transformer import HookedLatentTransformer
from interp.support.errors import require


def widened(model: HookedLatentTransformer, n: int) -> HookedLatentTransformer:
    """Return the model with ``n`` more residual-stream coordinates, which stay 0 since nothing uses
    them.

    Raises:
        InputError: a model with LayerNorm, whose scale the new coordinates would change.
    """
    require(n >= 1, f"n must be an integer >= 1, got {n}")
    require(
        model.config.normalization_type is None,
        f"{model.name!r} has LayerNorm; give a model without it",
    )
    d_model = model.config.d_model
    # The old coordinates stay what they are; the columns of the new ones are 0.
    columns = torch.eye(d_model, d_model + n).to(model.W_E)
    return transform_residual_stream(model, columns, "wider", f"{n} coordinates added")


def rescaled(model: HookedLatentTransformer, factor: float) -> HookedLatentTransformer:
    """Return a handwired model that stores ``factor`` times its state, and computes the same.

    Everything along the state's directions is scaled, and every weight that reads these directions
    is divided by the factor. With a power of two nothing is rounded.

    Raises:
        InputError: a factor of 0, or a model with LayerNorm or without an exact reader of its
            state.
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
    # The projection of the residual stream onto the directions from which the state is read.
    onto_state = torch.linalg.pinv(model.state_map) @ model.state_map
    identity = torch.eye(len(onto_state)).to(onto_state)
    columns = identity + (factor - 1) * onto_state
    back = identity + (1 / factor - 1) * onto_state
    return transform_residual_stream(model, columns, "rescaled", f"state times {factor:g}", back)
