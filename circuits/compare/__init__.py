"""Is the learned machine the handwired one? Models held against algorithms and against each other.

    from circuits import compare
    found = compare.run(interp.load("wma-learned"), "wma-handwired")        # or effort=compare.QUICK
    print(found)                                                            # the algorithm and the four measures

In this room:

* :func:`run` does all of it and gives a :class:`Comparison`, a :class:`~interp.measure.Measure` of each claim;
* one file for each question, with what is measured, the claim that it decides, and every threshold with its reason:
  :mod:`circuits.compare.algorithm` (which algorithm explains a model's predictions, :func:`explain`; the same
  behaviour?), :mod:`circuits.compare.state` (stitching), :mod:`circuits.compare.update` (step R2),
  :mod:`circuits.compare.effects` (graded moves; what is held where, and where effects travel),
  :mod:`circuits.compare.circuit` (mediated shares and roles);
* :mod:`circuits.compare.choices`: which algorithm explains choices, such as those of language models, by
  :mod:`circuits.compare.link`, and those of each participant, :mod:`circuits.compare.players`.

Not here: the families and the episodes that tell them apart, which belong to each task (``Task.algorithms``), and
machines for which the right answer is known (:mod:`circuits.benchmark.known_machine`).
"""

from circuits.compare.algorithm import AlgorithmPart, FamilyScore, explain
from circuits.compare.driver import Comparison, run
from circuits.compare.question import FULL, QUICK, Effort

__all__ = ["FULL", "QUICK", "AlgorithmPart", "Comparison", "Effort", "FamilyScore", "explain", "run"]
