"""The public names of :mod:`interp.results.measure`: a claim, its number with an interval, controls and a verdict."""

from interp.results.measure import Control, Found, Measure, best_of

__all__ = ["Control", "Found", "Measure", "best_of"]
