"""Public names of :mod:`interp.results.measure`. A measure is a claim about a model, its number
with an interval, controls and a verdict.
"""

from interp.results.measure import Control, Measure, Result, merge_copies

__all__ = ["Control", "Measure", "Result", "merge_copies"]
