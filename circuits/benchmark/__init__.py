"""Methods of interpretability, graded on machines whose insides are known.

    from circuits import benchmark
    found = benchmark.run(quick=True)                        # or benchmark.run(n_jobs=2, out="output/benchmark")
    found.summary("edges")                                   # which method finds edges, with intervals
    found.table("edges", ["ap", "auroc constant", "auroc clean-up"])

Each part of this room knows only those before it:

* :mod:`circuits.benchmark.known_machine`: machines with their truth, in variants that look different;
  :mod:`circuits.benchmark.trained`: machines that learned while their truth was tied to them;
* :mod:`circuits.benchmark.question`: what a question and an answer are, and how answers are scored;
* :mod:`circuits.benchmark.material`: what methods share, and what it cost; :mod:`circuits.benchmark.cuts`: every edge
  cut on its own, in batches;
* :mod:`circuits.benchmark.questions`: what is asked, and what is true;
* :mod:`circuits.benchmark.methods`: what is graded; :func:`register` adds a method of your own
  (:mod:`circuits.benchmark.method` shows how);
* :func:`run` and :func:`builders` (:mod:`circuits.benchmark.grading`), and what a run gives, a :class:`Result`.

Not here: methods themselves where they are useful without a benchmark (``interp.interventions``, ``probes``). What a
grade is not evidence of: how a method does on a machine that was not made, or trained, to be known.
"""

from circuits.benchmark.grades import Result
from circuits.benchmark.grading import builders, run
from circuits.benchmark.known_machine import KnownMachine, build
from circuits.benchmark.material import FULL, QUICK, Material, Workload
from circuits.benchmark.method import METHODS, Method, register
from circuits.benchmark.question import Answer, Question, pose

__all__ = [
    "FULL",
    "METHODS",
    "QUICK",
    "Answer",
    "KnownMachine",
    "Material",
    "Method",
    "Question",
    "Result",
    "Workload",
    "build",
    "builders",
    "pose",
    "register",
    "run",
]
