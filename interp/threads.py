"""How many threads the work on these small models takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch on one thread: the models are small, and on a busy machine waiting threads cost several times the work.

    A context manager, or a decorator: ``@one_thread()``.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
