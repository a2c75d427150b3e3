"""Is the learned machine the handwired one? Models held against algorithms and against each other.

    from circuits import compare
    found = compare.run(interp.load("wma-learned"), "wma-handwired")        # or effort=compare.QUICK
    print(found)                                                            # the algorithm and the four measures

:func:`run` gives a :class:`Comparison`, a :class:`~interp.measure.Measure` of each claim. Each question has a file of
its own: what is measured, the claim that it decides, and every threshold with its reason.
:mod:`circuits.compare.choices` asks which algorithm explains choices, and :mod:`circuits.compare.players` those of each
participant.
"""

from circuits.compare.algorithm import AlgorithmPart, FamilyScore, explain
from circuits.compare.driver import Comparison, run
from circuits.compare.question import FULL, QUICK, Effort

__all__ = ["FULL", "QUICK", "AlgorithmPart", "Comparison", "Effort", "FamilyScore", "explain", "run"]
