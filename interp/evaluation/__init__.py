"""What a model is worth, as frozen results with intervals, controls and provenance.

    >>> import interp
    >>> from interp.evaluation import suite
    >>> len(suite.parts_of(interp.load("qlearning-handwired")))        # what suite.evaluate(model) measures
    25

``record`` (the plan that a task gives), ``suite`` (all tables and the headline of one model), ``controls`` (latents cut
or swapped), ``attention`` (the mean pattern of a round), ``lookup`` (one number of a result). What is measured is in
the tasks' folders (``interp.tasks.experts.evaluation``, ``interp.tasks.qlearning.evaluation``). Not in this room: the
inside of a model (``probes``, ``interp.interventions``), handwired against learned (``circuits``), pictures
(``reports``).
"""

from interp.evaluation.record import MODEL, EvaluationPlan, row

__all__ = ["MODEL", "EvaluationPlan", "row"]
