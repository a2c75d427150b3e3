"""The families and the battery of reachability."""

import numpy as np

from interp.tasks.reachability import TASK
from interp.tasks.reachability.algorithms import depth_first
from interp.tasks.reachability.sampling import REGIMES, battery


def test_the_battery_holds_every_regime():
    known = [key for key in REGIMES if key not in ("stranded", "repeated")]  # on which searches answer alike, or hardly
    assert list(battery(4, 5, n_nodes=16, n_edges=24, seed=0)) == known


def test_a_search_along_one_path_can_spread_its_answer_too():
    episodes = battery(4, 5, n_nodes=16, n_edges=24, seed=0)["matched"]
    made = TASK.rivals()["depth_first"].make(spread=0.5).run(episodes)
    plain = depth_first().run(episodes)
    held = (plain["reached"] > 0) / np.maximum(plain["reached"].sum(-1, keepdims=True), 1)
    known = plain["reached"].sum(-1) > 0
    assert np.allclose(made["prediction"][known], (0.5 * plain["prediction"] + 0.5 * held)[known])


def test_only_heuristics_keep_nothing():
    memoryless = {key for key, family in TASK.rivals().items() if family.memoryless}
    assert memoryless == {"fewer_parents", "more_children", "more_ancestors"}
