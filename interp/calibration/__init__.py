"""How well the toolkit's intervals hold on data whose truth is known.

In this room: :mod:`interp.calibration.designs`, four kinds of episodes with known truth and the coverage of intervals
of refitted scores on them. Not here: the intervals (:mod:`interp.refit`) and the fits, which are given.

    >>> from interp.calibration import DESIGNS
    >>> sorted(DESIGNS)
    ['episode_effects', 'iid', 'random_walk', 'uneven_noise']
"""

from interp.calibration.designs import DESIGNS, Coverage, Fit, Sample, coverage, draw

__all__ = ["DESIGNS", "Coverage", "Fit", "Sample", "coverage", "draw"]
