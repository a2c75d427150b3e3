"""Whether a prediction is right."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.tasks.reachability.episodes import ReachabilityEpisodes


def correct(predictions: NDArray[Any], episodes: ReachabilityEpisodes) -> NDArray[np.float64]:
    """Float[episode, round]: 1 where the target is more probable than the negative, a half where neither is.

    Args:
        predictions: Float[episode, round, node].
    """
    p_target, p_negative = (
        np.take_along_axis(predictions, nodes[:, None, None], -1)[..., 0]
        for nodes in (episodes.targets, episodes.negatives)
    )
    return (p_target > p_negative) + 0.5 * (p_target == p_negative)
