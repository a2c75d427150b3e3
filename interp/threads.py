"""How many threads the work on these small models takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch and NumPy's linear algebra on one thread: the models are small, and threads that wait cost more than work.

    A context manager, or a decorator: ``@one_thread()``. Libraries that are loaded inside of it are not reached.
    """
    import torch
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)
