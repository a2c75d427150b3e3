"""The families and the battery of reachability."""

from interp.tasks.reachability import TASK
from interp.tasks.reachability.sampling import REGIMES, battery


def test_the_battery_holds_every_regime():
    known = [key for key in REGIMES if key not in ("stranded", "repeated")]  # on which searches answer alike, or hardly
    assert list(battery(4, 5, n_nodes=16, n_edges=24, seed=0)) == known


def test_only_heuristics_keep_nothing():
    memoryless = {key for key, family in TASK.rivals().items() if family.memoryless}
    assert memoryless == {"fewer_parents", "more_children", "more_ancestors"}
