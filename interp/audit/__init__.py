"""The audit: six checks of the state that a recurrent model carries from round to round.

The checks ask whether the state is used at all, and whether its content matters or only its
presence. They also ask whether the effect of the state lasts, whether the algorithm's memory can be
decoded from the state, whether few directions of the state carry the effect, and whether the model
follows the algorithm or a heuristic.

    >>> from interp.audit import THRESHOLDS, audit
    >>> sorted(THRESHOLDS)
    ['decoded', 'kept', 'side', 'worth']

* ``battery``: run all checks on one model;
* ``trial``: what the checks share: the model, its run, and the thresholds with their reasons;
* ``used``: does the state lower the loss, is it by its content, and for how many rounds?
* ``content``: can the algorithm's memory be decoded, and do few directions carry the effect?
* ``shortcuts``: does the model follow the algorithm on episodes where a heuristic is wrong?
* ``dynamics``: :func:`fixed_points`, the states that a round with fixed inputs does not change.

Elsewhere: pages with figures (``reports``), the share of an effect that each component mediates
(``interp.interventions.mediation``), whether two models compute the same
(``circuits.compare``).
"""

from interp.support.lazy import facade

__getattr__, __dir__, __all__ = facade(__name__)
