"""Free rollouts: worlds in which a thoughtless agent earns little, and the same luck for every agent."""

import numpy as np
import pytest

import interp
from interp.evaluation.qlearning import returns
from interp.tasks.mdp import Interaction, sample_mdps
from interp.tasks.qlearning import tabular
from reports.part import Context
from reports.tasks import qlearning


@pytest.mark.parametrize("regime", ["chain", "ladder"])
def test_no_single_action_is_good_in_every_copy(regime: str) -> None:
    """Were the best action the first one everywhere, agents that break ties to it would win without learning."""
    mdps = sample_mdps(40, 4, 3, seed=0, regime=regime)
    for action in range(3):
        interaction = Interaction(mdps, n_rounds=30, seed=0)
        while not interaction.done:
            interaction.advance(np.full(40, action))
        assert returns.normalised_score(interaction.episodes()).get("score").estimate < 0.5
    best = tabular.run(tabular.AGENTS["optimal"], mdps, 30, seed=0)
    assert returns.normalised_score(best).get("score").estimate > 0.9


def test_one_state_or_action_has_no_control_to_show() -> None:
    """A chain of one state, or with one action, does not exist; the report then plays random MDPs alone."""
    for n_states, n_actions in ((1, 3), (3, 1)):
        model = interp.load("qlearning-handwired", n_states=n_states, n_actions=n_actions)
        assert [one.world for one in qlearning._let_play(Context(model, "", 3, 5, 0))] == [
            "random MDPs"
        ]
