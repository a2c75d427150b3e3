"""Progress of a run of calls, with what they cost so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from interp.llm.runner import Progress
from interp.progress import display


@contextmanager
def showing(calls: int) -> Iterator[Callable[[Progress], None]]:
    """Give the function that shows the counts of a run of about ``calls`` calls."""
    with display("calls", calls) as update:

        def show(state: Progress) -> None:
            tokens = f"{(state.prompt_tokens + state.completion_tokens) / 1e6:.2f} M tokens"
            text = f"{state.finished}/{state.episodes} episodes, {state.malformed} malformed, {tokens}"
            update(completed=state.calls + state.resumed_calls, text=text)

        yield show
