"""How many directions of a variable the choices of an algorithm depend on: the rank that a learned subspace needs.

Adding one number to all log-weights changes no prediction, so of n log-weights only n - 1 directions can be found from
predictions. The directions that count are the normals of the surfaces at which the choice changes. Each informative
pair crosses such a surface on the way from the base's value to the source's: the crossing is found by halving, and its
normal by how far the crossing moves when one element does. The rank is that of all normals together. It is a property
of the algorithm on these pairs, never of a model.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from interp.algorithm import Algorithm, Values
from interp.interventions.alignment.pairs import Pairs, outcome_of, rows_of

N_CROSSINGS = 128
"""Informative pairs whose crossings are looked at."""
HALVINGS = 45
REACH = 0.02
"""Share of the way from base to source within which a moved crossing is looked for."""
STEP = 1e-4
"""How far an element moves, in standard deviations of the variable."""
TOLERANCE = 1e-3
"""Singular values below this share of the largest count as zero."""


def identified_rank(algorithm: Algorithm, own: Values, other: Values, variable: str, pairs: Pairs) -> int:
    """The number of directions of ``variable`` that the algorithm's choices identify, on informative pairs.

    For a class variable, an element of k classes has k - 1 directions.

    Args:
        own, other: every variable at the rounds of base and source episodes, ``[episode, round, ...]``.

    >>> from interp.interventions.alignment.pairs import make_pairs
    >>> from interp.tasks import experts
    >>> algorithm = experts.TASK.algorithm("weighted_majority", gain=0.5)
    >>> own, other = (algorithm.run(experts.sample(8, 20, 5, seed=seed)) for seed in (0, 1))
    >>> pairs = make_pairs(algorithm, own, other, "log_weights", range(8))
    >>> identified_rank(algorithm, own, other, "log_weights", pairs)
    4
    """
    shape = own[variable].shape[2:]
    n, record = int(np.prod(shape)), algorithm.variable(variable)
    if record.n_classes is not None:
        return n * (record.n_classes(own) - 1)
    informative = np.flatnonzero(pairs.informative.numpy())
    if n == 1 or not len(informative):
        return n
    at = informative[:: max(1, len(informative) // N_CROSSINGS)][:N_CROSSINGS]
    base, source = pairs.base.numpy()[at], pairs.source.numpy()[at]
    start, end = (rows_of({variable: v[variable]}, rows)[variable] for v, rows in ((own, base), (other, source)))
    start, path = start.reshape(len(at), n), (end - start).reshape(len(at), n)
    surface = _Surface(algorithm, own, variable, base, start)
    ones = np.ones(len(at))
    crossing, _ = surface.cross(start, path, 0 * ones, ones)
    h = STEP * float(own[variable].std())
    moved = np.stack([sign * h * np.eye(n)[j] for j in range(n) for sign in (1, -1)])
    low, high = (np.repeat(crossing + sign * REACH, 2 * n) for sign in (-1, 1))
    along = np.repeat(path, 2 * n, 0)
    shifted, bracketed = surface.cross(np.repeat(start, 2 * n, 0) + np.tile(moved, (len(at), 1)), along, low, high)
    normals = (shifted.reshape(len(at), n, 2) @ np.array([1.0, -1.0]))[bracketed.reshape(len(at), -1).all(-1)]
    lengths = np.linalg.norm(normals, axis=-1, keepdims=True)
    normals = normals[lengths[:, 0] > 0] / lengths[lengths[:, 0] > 0]
    if not len(normals):
        return n
    singular = np.linalg.svd(normals, compute_uv=False)
    return int((singular > TOLERANCE * singular[0]).sum())


class _Surface:
    """Where the choice in some base rows leaves what it is without an intervention, along paths of the variable."""

    def __init__(self, algorithm: Algorithm, own: Values, variable: str, base: Int[NDArray, " row"], start: NDArray):
        self.algorithm, self.own, self.variable, self.base = algorithm, own, variable, base
        self.shape = own[variable].shape[2:]
        self.before = self._choice(start)

    def _choice(self, value: Float[NDArray, "row element"]) -> NDArray:
        rows = np.repeat(self.base, len(value) // len(self.base))
        return outcome_of(
            self.algorithm, rows_of(self.own, rows), value.reshape(len(value), 1, *self.shape), self.variable
        ).argmax(-1)

    def cross(
        self, start: NDArray, path: NDArray, low: NDArray, high: NDArray
    ) -> tuple[Float[NDArray, " row"], Bool[NDArray, " row"]]:
        """The share of each ``path`` at which the choice changes, and whether it does between ``low`` and ``high``."""
        before = np.repeat(self.before, len(start) // len(self.base))

        def left(share: NDArray) -> NDArray:
            return self._choice(start + share[:, None] * path) != before

        bracketed = ~left(low) & left(high)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            beyond = left(middle)
            low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
        return (low + high) / 2, bracketed
