"""The critics' battery: is what a machine carries used, for what, when, how does it move, and is it a shortcut?

    >>> from interp.audit import THRESHOLDS, audit
    >>> sorted(THRESHOLDS)
    ['common', 'decoded', 'in time', 'kept', 'longer', 'settled', 'side', 'stays', 'unseen', 'worth']

* ``battery``: all claims about one machine; ``trial``: the machine, its run and what predictions are compared by;
* ``used``: what is put in the place of a state, whether it is used, and carried on; ``content``: how few
  directions carry the effect, and whether the algorithm's memory can be read;
* ``timing``: when the answer is there, and after more rounds; ``dynamics``: where states go under held inputs, and
  where they would stay;
* ``shortcuts``: heuristics, episodes on which each is wrong, and right and wrong rounds apart;
* ``claims.json``: what is fixed of every claim, and all thresholds with their reasons.

Not here: pictures (``reports``), shares of an effect by component (``interp.interventions.mediation``), whether two
machines are the same (``circuits.compare``).
"""

from interp.support.lazy import facade

__getattr__, __dir__, __all__ = facade(__name__)
