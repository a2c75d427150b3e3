"""Is the learned machine the handwired one? Models held against algorithms and against each other.

In this room:

* :mod:`circuits.compare.algorithm`: which algorithm explains a model's predictions (:func:`explain`), with
  :mod:`circuits.compare.fitting`, which fits a family of algorithms to predictions.

Not here: the families and the episodes that tell them apart, which belong to each task (``Task.families``,
``Task.battery``). Importing this package imports no torch.
"""

from circuits.compare.algorithm import AlgorithmPart, FamilyScore, explain

__all__ = ["AlgorithmPart", "FamilyScore", "explain"]
