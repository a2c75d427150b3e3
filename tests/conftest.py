"""What all tests share: one thread a process, theirs and those they start, so that no core waits for another."""

import gc
from collections.abc import Iterator

import pytest

from interp.workers import one_thread


@pytest.fixture(autouse=True, scope="session")
def in_one_thread() -> Iterator[None]:
    with one_thread(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


def pytest_collection_finish() -> None:
    """Look for garbage less often, and not among what was imported: it took a tenth of the time of tests."""
    gc.freeze()
    gc.set_threshold(10_000)
