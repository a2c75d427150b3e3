"""The questions of the benchmark, one file each."""

from circuits.benchmark.question import Question
from circuits.benchmark.questions import algorithm, edges, exists, nodes, rounds, subspace, where
from interp.tasks.task import unique

QUESTIONS: dict[str, Question] = unique(
    tuple(module.QUESTION for module in (edges, nodes, where, subspace, exists, algorithm, rounds)), "question"
)
