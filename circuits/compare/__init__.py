"""Is the learned machine the handwired one? Compare models with algorithms and with each other.

    from circuits import compare
    found = compare.machines(interp.load("wma-learned"), "wma-handwired")
    print(found)        # the algorithm and the four measures; budget=compare.Budget.quick() is faster

:func:`machines` returns a :class:`Comparison`, with a :class:`~interp.results.measure.Measure` for
each claim. Each question has one file, with what is measured, the claim that it decides, and every
threshold with its reason. :mod:`interp.choices.explain` fits algorithms to recorded choices, and
:mod:`interp.choices.players` to those of each participant.
"""

from interp.support.lazy import facade

__getattr__, __dir__, __all__ = facade(__name__)
