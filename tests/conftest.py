"""What all tests share: one thread a process, so that results and times do not depend on the machine's cores."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)
