"""What softmax forms leave of what hard and linear heads do exactly: the tolerances of their checks are made of it."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

from circuits.circuit import Circuit


def leak(circuit: Circuit) -> float:
    """What one competitor of a hard head's choice weighs in its softmax form; 0 where hard heads are hard.

    Scores of a hard head lie half a margin of the position code apart, or more (a half with one-hot codes), so that
    each key that is not chosen weighs at most ``e^(-eta margin / 2)`` of the one that is.
    """
    eta = circuit.arguments.get("eta")
    return 0.0 if eta is None else math.exp(-float(eta) * min(circuit.basis.positions.margin, 1.0) / 2)


def pair_error(circuit: Circuit, size: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """What a pair (:func:`circuits.heads.softmax_pair`) misses of a sum x of ``size``.

    That is ``epsilon^2 x^3 / 6``, and rounding of its logits.
    """
    epsilon, heavy = circuit.arguments["epsilon"], circuit.arguments["heavy"]
    rounding = 4 * heavy * float(np.finfo(np.float64).eps) / epsilon
    return np.asarray(epsilon**2 * np.abs(size) ** 3 / 6 + rounding)
