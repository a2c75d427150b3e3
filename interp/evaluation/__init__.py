"""How well a model performs, as frozen results with intervals, controls and provenance.

    >>> import interp
    >>> from interp.evaluation import suite
    >>> model = interp.load("qlearning-handwired")
    >>> len(suite.plan_of(model).parts(model))                         # what suite.evaluate(model) measures
    24

``suite`` holds all tables and the headline of one model, ``plan`` what a task gives and what its
evaluation is made of. ``experts``, ``qlearning`` and ``reachability`` hold what is measured of
models of these tasks; a task's record finds its plan there by name. Not in this room: the inside of
a model (``probes``, ``interp.interventions``), handwired against learned (``circuits``), pictures
(``reports``).
"""

from interp.support.lazy import facade

__getattr__, __dir__, __all__ = facade(__name__)
