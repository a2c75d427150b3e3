"""Methods of interpretability, graded on machines whose insides are known.

    from circuits import benchmark
    found = benchmark.run(effort=benchmark.QUICK)            # or benchmark.run(n_jobs=2, out="output/benchmark")
    found.summary("edges")                                   # which method finds edges, with intervals
    found.table("edges", ["ap", "auroc constant", "auroc clean-up"])

Machines with their truth (:mod:`circuits.benchmark.known_machine`) are asked :mod:`circuits.benchmark.questions`, and
:mod:`circuits.benchmark.methods` answer, which also shows how :func:`register` adds a method of your own.

Not here: methods themselves where they are useful without a benchmark (``interp.interventions``, ``probes``). What a
grade is not evidence of: how a method does on a machine that was not made, or trained, to be known.
"""

from interp.lazy import facade

__getattr__, __dir__, __all__ = facade(__name__)
