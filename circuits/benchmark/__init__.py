"""Methods of interpretability, graded on machines whose insides are known.

    from circuits import benchmark
    found = benchmark.run(quick=True)                        # or benchmark.run(n_jobs=2, out="output/benchmark")
    found.summary("edges")                                   # which method finds edges, with intervals
    found.table("edges", ["ap", "auroc constant", "auroc clean-up"])

In this room:

* :mod:`circuits.benchmark.subject`: machines with their truth, in variants that look different, and
  :mod:`circuits.benchmark.subjects`: all of them by name;
* :mod:`circuits.benchmark.questions`: what is asked, what is true, how answers are scored;
* :mod:`circuits.benchmark.methods`: one file for each method; :func:`register` adds one of your own
  (:mod:`circuits.benchmark.method` shows how);
* :mod:`circuits.benchmark.material`: what methods share, and what it cost; :mod:`circuits.benchmark.cuts`: every edge
  cut on its own, in batches;
* :func:`run` (:mod:`circuits.benchmark.driver`) and what it gives, a :class:`Result`.

Not here: methods themselves where they are useful without a benchmark (``interp.interventions``, ``probes``). What a
grade is not evidence of: how a method does on a machine that was not made, or trained, to be known.
"""

from circuits.benchmark.driver import run
from circuits.benchmark.material import FULL, QUICK, Effort, Material
from circuits.benchmark.method import METHODS, Answer, Method, register
from circuits.benchmark.result import Result
from circuits.benchmark.subject import Subject, build
from circuits.benchmark.subjects import builders

__all__ = [
    "FULL",
    "METHODS",
    "QUICK",
    "Answer",
    "Effort",
    "Material",
    "Method",
    "Result",
    "Subject",
    "build",
    "builders",
    "register",
    "run",
]
