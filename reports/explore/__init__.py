"""A live page of a machine with edits, in a browser: for ``interp explore`` and
:func:`interp.explore`.

>>> import interp
>>> from reports.explore import Explorer, View
>>> explorer = Explorer(interp.load("wma-handwired", n_experts=2))
>>> one, _ = explorer.answer(View.of("edit=input+5+flip-label+-"))
>>> one.differences()["machine"].argmax() > 5
np.True_
"""

from reports.explore.answer import Answer
from reports.explore.server import Explorer, Served, explore
from reports.explore.view import Edit, View

__all__ = ["Answer", "Edit", "Explorer", "Served", "View", "explore"]
