"""Progress of long work: a bar on standard error when that is a terminal, nothing elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


class Update(Protocol):
    """Changes what a bar shows; what is left out stays."""

    def __call__(self, *, advance: int | None = None, completed: int | None = None, text: str | None = None) -> None:
        """Go ``advance`` steps further, or to step ``completed``; ``text`` stands before the bar."""


@contextmanager
def display(text: str, total: int, completed: int = 0, shown: bool = True) -> Iterator[Update]:
    """A bar from ``completed`` to ``total`` steps; call what it gives as the work goes on.

    Args:
        shown: False hides it on a terminal, too: for all but the first of several processes.
    """
    from rich import progress as rich
    from rich.console import Console

    console = Console(stderr=True)
    columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), rich.MofNCompleteColumn())
    times = (rich.TimeElapsedColumn(), rich.TimeRemainingColumn())
    hidden = not (shown and console.is_terminal)
    with rich.Progress(*columns, *times, console=console, disable=hidden, transient=True) as bars:
        task = bars.add_task(text, total=total, completed=completed)

        def update(*, advance: int | None = None, completed: int | None = None, text: str | None = None) -> None:
            bars.update(task, advance=advance, completed=completed, description=text)

        yield update


@contextmanager
def bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Call what it gives with how many of ``total`` steps were just done."""
    with display(title, total) as update:
        yield lambda steps: update(advance=steps)
