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

from circuits.benchmark.grading import Result, builders, run
from circuits.benchmark.known_machine import KnownMachine, build
from circuits.benchmark.material import FULL, QUICK, Material, Workload
from circuits.benchmark.methods import METHODS, Method, register
from circuits.benchmark.question import Answer, Challenge, pose

__all__ = [
    "FULL",
    "METHODS",
    "QUICK",
    "Answer",
    "Challenge",
    "KnownMachine",
    "Material",
    "Method",
    "Result",
    "Workload",
    "build",
    "builders",
    "pose",
    "register",
    "run",
]
