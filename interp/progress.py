"""Progress of long work on standard error: a bar where that is a terminal, a line every half minute elsewhere."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from interp.foreign import one_line, rich_text

_SILENT: ContextVar[bool] = ContextVar("silent", default=False)
_EVERY = 30.0
"""Seconds between two lines where standard error is no terminal."""


class _Redraw(Protocol):
    """Changes what a bar shows; what is left out stays."""

    def __call__(self, *, advance: int | None = None, completed: int | None = None, text: str | None = None) -> None:
        """Go ``advance`` steps further, or to step ``completed``; ``text`` stands before the bar."""


@contextmanager
def display(text: str, total: int, completed: int = 0, shown: bool = True) -> Iterator[_Redraw]:
    """A bar from ``completed`` to ``total`` steps; call what it gives as the work goes on.

    Of several processes, all but the first give ``shown=False``.
    """
    from rich import progress as rich
    from rich.console import Console

    console = Console(stderr=True)
    columns = (rich.TextColumn("{task.description}", markup=False), rich.BarColumn(), rich.MofNCompleteColumn())
    times = (rich.TimeElapsedColumn(), rich.TimeRemainingColumn())
    told = shown and not _SILENT.get()
    hidden, last = not (told and console.is_terminal), time.monotonic()
    with rich.Progress(*columns, *times, console=console, disable=hidden, transient=True) as bars:
        task = bars.add_task(one_line(text), total=total, completed=completed)

        def update(*, advance: int | None = None, completed: int | None = None, text: str | None = None) -> None:
            nonlocal last
            said = None if text is None else one_line(text)
            bars.update(task, advance=advance, completed=completed, description=said)
            if told and hidden and time.monotonic() - last >= _EVERY:
                last, now = time.monotonic(), bars.tasks[0]
                sys.stderr.write(f"{now.description}: {now.completed:.0f} of {total}\n")

        yield update


@contextmanager
def bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Call what it gives with how many of ``total`` steps were just done."""
    with display(title, total) as update:
        yield lambda steps: update(advance=steps)


@contextmanager
def working(text: str) -> Iterator[None]:
    """A moving sign beside ``text`` while work goes on whose steps cannot be counted; no bar may begin within it."""
    from rich.console import Console

    console = Console(stderr=True)
    if _SILENT.get() or not console.is_terminal:
        yield
        return
    with console.status(rich_text(text)):
        yield


@contextmanager
def silenced(silent: bool = True) -> Iterator[None]:
    """No bar and no sign is shown within it, on a terminal either; with False, they are shown as before."""
    token = _SILENT.set(silent or _SILENT.get())
    try:
        yield
    finally:
        _SILENT.reset(token)


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed, so that work ends where it can be saved; a second Ctrl-C stops it at once."""
    pressed = threading.Event()

    def press(number: int, frame: Any) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()

    if threading.current_thread() is not threading.main_thread():  # no other one may handle signals
        yield pressed.is_set
        return
    before = signal.signal(signal.SIGINT, press)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)
