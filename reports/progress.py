"""Progress of a report: one line per step on a terminal, silent elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Step = Callable[[str], None]


@contextmanager
def steps(title: str, total: int) -> Iterator[Step]:
    """Call the step with what starts now; a bar on standard error shows it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(title, total=total, completed=-1)

        def step(what: str) -> None:
            progress.update(task, advance=1, description=f"{title}: {what}", refresh=True)

        yield step
        progress.update(task, completed=total)
