"""The ledger of the paper: every claim of it that could be false, with what models measured here
show.

* ``claims``: the paper's sentences and their places, in order;
* ``experts``, ``qlearning``: how each claim is measured of a model;
* ``book``: measures models part by part, stores finished parts, and writes the page.
"""

from interp.support.lazy import facade

__getattr__, __dir__, __all__ = facade(__name__)
