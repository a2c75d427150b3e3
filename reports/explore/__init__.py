"""A machine live in a browser, one edit at a time: what ``interp explore`` and :func:`interp.explore` serve.

* ``view``: all that a page shows, its edits as words of the address and as Python, and a machine on the episodes of one
  setting; ``answer``: what edits do, beside algorithm and controls;
* ``page``: what a page is filled with, and the longer work on one round (layers, carriers, attention);
* ``server``: how it is served.

    >>> import interp
    >>> from reports.explore import Explorer, View
    >>> explorer = Explorer(interp.load("wma-handwired", n_experts=2))
    >>> one, _ = explorer.answer(View.of("edit=input+5+flip-label+-"))
    >>> one.differences()["machine"].argmax() > 5
    np.True_

Not here: interventions themselves (``interp.interventions``), pages that stand alone (``reports.build``).
"""

from reports.explore.answer import Answer
from reports.explore.server import Explorer, Served, explore
from reports.explore.view import Edit, View

__all__ = ["Answer", "Edit", "Explorer", "Served", "View", "explore"]
