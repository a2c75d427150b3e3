"""Measure how well a model performs. Results are frozen and have intervals, controls and
provenance.

    >>> import interp
    >>> from interp.evaluation import suite
    >>> model = interp.load("qlearning-handwired")
    >>> len(suite.plan_of(model).parts(model))                         # what suite.evaluate(model) measures
    24

``suite`` computes all tables of one model. ``plan`` defines what a task must provide for this, and
functions that several tasks share. ``experts``, ``qlearning`` and ``reachability`` define the
measurements for models of these tasks. Elsewhere: what happens inside a model (``probes``,
``interp.interventions``), comparisons of handwired and learned models (``circuits``), pages with
figures (``reports``).
"""

from interp.support.lazy import facade

__getattr__, __dir__, __all__ = facade(__name__)
