"""The questions of the benchmark, in a few files by what they are about; every file adds its own."""

from circuits.benchmark.question import QUESTIONS

from circuits.benchmark.questions import wiring, variables, rounds  # isort: skip  (in the order of tables)

__all__ = ["QUESTIONS", "rounds", "variables", "wiring"]
