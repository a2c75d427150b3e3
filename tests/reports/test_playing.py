"""Free rollouts: worlds in which a thoughtless agent earns little, and the same luck for every agent."""

from __future__ import annotations

import numpy as np
import pytest

from interp.evaluation.qlearning import returns
from interp.tasks.mdp import Interaction
from interp.tasks.qlearning import tabular
from reports.tasks import qlearning


@pytest.mark.parametrize("world", ["the chain", "the ladder"])
def test_no_single_action_is_good_in_every_copy(world: str) -> None:
    """Were the best action the first one everywhere, agents that break ties to it would win without learning."""
    mdps = qlearning._worlds(40, 4, 3, seed=0)[world]
    for action in range(3):
        interaction = Interaction(mdps, n_rounds=30, seed=0)
        while not interaction.done:
            interaction.advance(np.full(40, action))
        assert returns.normalised_score(interaction.episodes()).get("score").estimate < 0.5
    best = tabular.run(tabular.AGENTS["optimal"], mdps, 30, seed=0)
    assert returns.normalised_score(best).get("score").estimate > 0.9


def test_one_state_or_action_has_no_control_to_show() -> None:
    """A chain of one state, or with one action, does not exist; the report then plays random MDPs alone."""
    assert list(qlearning._worlds(3, 1, 3, seed=0)) == list(qlearning._worlds(3, 3, 1, seed=0)) == ["random MDPs"]
