"""Grade methods of interpretability on machines with known mechanisms.

    from circuits import benchmark
    found = benchmark.run(effort=benchmark.QUICK)  # or benchmark.run(n_jobs=2, out="output/benchmark")
    found.summary("edges")                         # which method finds edges, with intervals
    found.table("edges", ["ap", "auroc constant", "auroc clean-up"])

:func:`register` adds a method (:mod:`circuits.benchmark.methods`). A grade is no evidence of how
well a method works on a learned model.
"""

from interp.support.lazy import facade

__getattr__, __dir__, __all__ = facade(__name__)
