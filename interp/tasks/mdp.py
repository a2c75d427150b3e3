"""Episodes and samplers of the Q-learning task, for ``from interp.tasks import mdp``."""

from interp.tasks.qlearning.episodes import MDPEpisodes, MDPs, read
from interp.tasks.qlearning.mdps import EVALUATION, REGIMES, SHIFTS, MDPRegime, chain, ladder
from interp.tasks.qlearning.sampling import Interaction, sample, sample_mdps

# fmt: off
__all__ = [
    "EVALUATION", "REGIMES", "SHIFTS", "Interaction", "MDPEpisodes", "MDPRegime", "MDPs", "chain", "ladder", "read",
    "sample", "sample_mdps",
]
