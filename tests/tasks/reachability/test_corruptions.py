"""Each corruption changes one round, and shows when its record says."""

from __future__ import annotations

import numpy as np
import pytest

from interp.tasks.reachability import TASK, algorithms, sample


@pytest.mark.parametrize("key", [c.key for c in TASK.analysis.corruptions()])
def test_a_corruption_shows_after_its_delay(key: str) -> None:
    episodes, t = sample(60, 5, 16, 24, seed=1), 2
    record = TASK.corruption(key)
    clean, corrupted = (algorithms.breadth_first().run(side)["prediction"] for side in record.build(episodes, t))
    differs = (clean != corrupted).any(-1)
    assert differs[:, t + record.delay].any()
    if not record.changes_history:
        assert not differs[:, : t + record.delay].any()


@pytest.mark.parametrize("key", [c.key for c in TASK.analysis.corruptions()])
def test_a_corruption_changes_its_own_rounds_only(key: str) -> None:
    episodes, t = sample(20, 5, 16, 24, seed=1), 2
    record = TASK.corruption(key)
    clean, corrupted = record.build(episodes, t)
    assert clean is episodes
    changed = [
        np.abs(clean.by_round(n) - corrupted.by_round(n)).reshape(20, 5, -1).any((0, 2))
        for n in ("edges", "roots", "candidates")
    ]
    rounds = set(np.flatnonzero(np.any(changed, 0)))
    assert rounds == ({0, 1} if record.changes_history else {t})


def test_moving_the_target_makes_the_search_find_the_negative() -> None:
    episodes = sample(60, 3, 16, 24, seed=1, depths=(2,))
    _, moved = TASK.corruption("move-target").build(episodes, 1)
    reached = algorithms.breadth_first().run(moved)["reached"][:, 2]
    rows = np.arange(60)
    assert (reached[rows, episodes.negatives] == 1).all() and (reached[rows, episodes.targets] == 0).all()
