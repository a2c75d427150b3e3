"""The ledger of the paper: every claim of it that could be false, beside what models measured here show.

* ``claims``: what the paper says and where, in its order;
* ``experts``, ``qlearning``: how each claim is measured of a model;
* ``book``: measures models part by part, keeps finished parts, and writes the page.
"""

from interp.support.lazy import facade

__getattr__, __dir__, __all__ = facade(__name__)
