"""What all tests share: one thread a process, so that results and times do not depend on the machine's cores."""

import gc

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    """Look for garbage less often, and not among what was imported: it took a tenth of the time of tests."""
    gc.freeze()
    gc.set_threshold(10_000)
