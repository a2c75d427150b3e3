"""The questions of the benchmark, one file each."""

from circuits.benchmark.question import Question
from circuits.benchmark.questions import edges, nodes
from interp.tasks.task import unique

QUESTIONS: dict[str, Question] = unique((edges.QUESTION, nodes.QUESTION), "question")
