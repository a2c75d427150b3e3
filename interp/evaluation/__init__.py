"""What a model is worth, as frozen results with intervals, controls and provenance.

    >>> import interp
    >>> from interp.evaluation import suite
    >>> len(suite.parts_of(interp.load("qlearning-handwired")))        # what suite.evaluate(model) measures
    25

``suite`` (all tables and the headline of one model), ``plan`` (what a task gives, and what its evaluation is made of).
Tasks' folders say what is measured. Not in this room: the inside of a model (``probes``, ``interp.interventions``),
handwired against learned (``circuits``), pictures (``reports``).
"""

from interp.evaluation.plan import MODEL, EvaluationPlan, row

__all__ = ["MODEL", "EvaluationPlan", "row"]
