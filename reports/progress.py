"""Progress of a report: one line per step on a terminal, silent elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from interp.progress import display

Step = Callable[[str], None]


@contextmanager
def steps(title: str, total: int) -> Iterator[Step]:
    """Call the step with what starts now; a bar on standard error shows it."""
    with display(title, total, completed=-1) as update:
        yield lambda what: update(advance=1, text=f"{title}: {what}")
        update(completed=total)
