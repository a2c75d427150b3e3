"""What type checkers see of the package, and which names it has (`interp.support.lazy.facade`)."""

from interp.evaluation import experts as experts
from interp.evaluation import qlearning as qlearning
from interp.evaluation.plan import MODEL as MODEL
from interp.evaluation.plan import EvaluationPlan as EvaluationPlan
