"""Is the learned machine the handwired one? Compare models with algorithms and with each other.

    from circuits import compare
    found = compare.machines(interp.load("wma-learned"), "wma-handwired")
    print(found)        # the algorithm and the four measures; budget=compare.Budget.quick() is faster

:func:`machines` gives a :class:`Comparison`, a :class:`~interp.results.measure.Measure` of each
claim. Each question has one file: what is measured, the claim that it decides, and every threshold
with its reason. :mod:`interp.choices.explain` asks which algorithm explains choices, and
:mod:`interp.choices.players` those of each participant.
"""

from interp.support.lazy import facade

__getattr__, __dir__, __all__ = facade(__name__)
