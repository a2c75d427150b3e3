"""The ledger: every claim of the paper that could be false, and what models measured here show.

* ``claims``: the paper's sentences, with their places in the paper, in order;
* ``experts``, ``qlearning``: how each claim is measured for a model;
* ``book``: measures models part by part, stores finished parts, and writes the page.
"""

from interp.support.lazy import facade

__getattr__, __dir__, __all__ = facade(__name__)
