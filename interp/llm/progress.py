"""Progress of a run: a bar on a terminal, silent elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from interp.llm.runner import Progress


@contextmanager
def showing(calls: int) -> Iterator[Callable[[Progress], None]]:
    """Give the function that shows the counts of a run of about ``calls`` calls."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("calls", total=calls)

        def show(state: Progress) -> None:
            tokens = f"{(state.prompt_tokens + state.completion_tokens) / 1e6:.2f} M tokens"
            text = f"{state.finished}/{state.episodes} episodes, {state.malformed} malformed, {tokens}"
            bar.update(task, completed=state.calls + state.resumed_calls, description=text)

        yield show
