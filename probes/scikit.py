"""Activations and targets as the arrays that scikit-learn takes: a row a round, and the episode of each row.

    >>> import interp, probes
    >>> from interp.tasks import experts
    >>> from sklearn.linear_model import Ridge
    >>> from sklearn.model_selection import GroupKFold, cross_val_score
    >>> episodes = experts.sample(n_episodes=12, n_rounds=6, n_experts=2, seed=0)
    >>> run = interp.rollout(interp.load("wma-handwired", n_experts=2), episodes)
    >>> x, y, groups = to_sklearn(run.latents[:, 1:], probes.targets.log_weights(episodes))
    >>> x.shape[0], y.shape, groups[:7].tolist()
    (72, (72, 2), [0, 0, 0, 0, 0, 0, 1])
    >>> bool(cross_val_score(Ridge(1e-6), x, y, groups=groups, cv=GroupKFold(4)).min() > 0.999)
    True

Cross-validate by ``groups``: rounds of one episode say much of each other. This has none of the controls that
:func:`probes.fit` gives.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, Shaped
from numpy import ndarray as Array

from interp.checks import checked
from interp.errors import require
from probes.arrays import as_array
from probes.targets.values import TargetValues


class Rows(NamedTuple):
    """Arrays for scikit-learn.

    Attributes:
        x: activations, Float[row, feature]; y: the target, [row, output]; groups: the episode of each row.
    """

    x: Float[Array, "row feature"]
    y: Shaped[Array, "row output"]
    groups: Int[Array, " row"]


@checked
def to_sklearn(activations: Any, target: TargetValues | Any) -> Rows:
    """``activations`` ``[episode, round, ...]`` and a target ``[episode, round, output]`` as rows of rounds.

    Args:
        target: from :mod:`probes.targets`, or values. A target's mask is left alone: it says what is scored.

    Raises:
        InputError: other numbers of episodes or rounds in one than in the other.
    """
    x = as_array(activations, "activations")
    values = target.values if isinstance(target, TargetValues) else as_array(target, "the target")
    require(
        x.ndim >= 2 and values.ndim >= 2 and x.shape[:2] == values.shape[:2],
        f"activations and target are [episode, round, ...] of the same episodes and rounds, got {x.shape} and "
        f"{values.shape}",
    )
    rows = x.shape[0] * x.shape[1]
    groups = np.repeat(np.arange(x.shape[0]), x.shape[1])
    return Rows(x.reshape(rows, -1), values.reshape(rows, -1), groups)
