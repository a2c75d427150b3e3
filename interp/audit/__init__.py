"""Six robustness checks of what a machine carries: is it used, read, for its content, for how long, where, how?

    >>> from interp.audit import THRESHOLDS, audit
    >>> sorted(THRESHOLDS)
    ['decoded', 'kept', 'side', 'worth']

* ``battery``: all checks of one machine; ``trial``: the machine, its run, the thresholds with their reasons;
* ``used``: does the state lower the loss, by its content, and how many rounds on;
* ``content``: can the algorithm's memory be read from it, and how few directions carry the effect;
* ``shortcuts``: heuristics, and episodes on which each is wrong;
* ``dynamics``: :func:`fixed_points`, states that a round with fixed inputs leaves where they are.

Not here: pictures (``reports``), shares of an effect by component (``interp.interventions.mediation``), whether two
machines are the same (``circuits.compare``).
"""

from interp.support.lazy import facade

__getattr__, __dir__, __all__ = facade(__name__)
