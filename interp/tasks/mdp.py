"""The data side of the Q-learning task under the name that users type: ``from interp.tasks import mdp``."""

from interp.tasks.qlearning.sampling import (
    EVALUATION,
    REGIMES,
    SHIFTS,
    Interaction,
    MDPEpisodes,
    MDPRegime,
    MDPs,
    chain,
    ladder,
    sample,
    sample_grid,
    sample_mdps,
)

__all__ = [
    "EVALUATION",
    "REGIMES",
    "SHIFTS",
    "Interaction",
    "MDPEpisodes",
    "MDPRegime",
    "MDPs",
    "chain",
    "ladder",
    "sample",
    "sample_grid",
    "sample_mdps",
]
