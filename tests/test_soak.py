"""One process, for long: rounds, loads, reads and refusals leave memory flat."""

import gc
from pathlib import Path

import pytest

import interp


def resident():
    """Megabytes of memory that this process holds now."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def soak(n_loads, rounds_each):
    """Memory after each tenth of the work."""
    names = ("wma-learned-additive", "wma-handwired", "qlearning-learned")
    seen, n_rounds = [], 0
    for i in range(n_loads):
        model = interp.load(names[i % 3])
        episodes = interp.tasks.of(model).sample_for(model, 1, rounds_each, i)
        n_rounds += interp.rollout(model, episodes).n_rounds
        with pytest.raises(interp.InputError):
            interp.load("nothing")
        if (i + 1) % max(n_loads // 10, 1) == 0:
            seen.append(resident())
    return n_rounds, seen


@pytest.mark.slow(reason="20,000 rounds and 1,000 loads: 3 CPU minutes")
def test_twenty_thousand_rounds_and_a_thousand_loads_leave_memory_flat():
    """The second half of the work takes at most 20 MB more: a model of 0.2 MB kept each time would take 100."""
    n_rounds, seen = soak(1000, 20)
    assert n_rounds == 20_000, seen
    assert seen[-1] - seen[4] < 20, seen
