"""Optimal policies equal those of quantecon's DiscreteDP, and earn what they promise."""

import numpy as np
import pytest
from quantecon.markov import DiscreteDP, backward_induction

from interp.tasks import mdp
from interp.tasks.qlearning.bellman import finite_horizon, random_values
from interp.tasks.qlearning.episodes import MDPs
from interp.tasks.qlearning.tabular import OptimalAgent, QLearner, run
from tests.refusals import refuses


@pytest.mark.parametrize("regime", ["grid", "chain", "ladder"])
def test_backward_induction_equals_quantecon(regime):
    mdps = mdp.sample_mdps(4, 5, 3, seed=1, regime=regime)
    plan = finite_horizon(mdps, 12)
    for i in range(4):
        with pytest.warns(UserWarning):  # quantecon says that beta = 1 leaves some of its methods out
            problem = DiscreteDP(mdps.rewards[i], mdps.transitions[i], 1.0)
        values, _ = backward_induction(problem, 12)
        np.testing.assert_allclose(plan.values[i], values, atol=1e-9)


def test_ties_go_to_the_lowest_index():
    """Where every action is as good, every policy names action 0."""
    flat = MDPs(np.full((1, 3, 2, 3), 1 / 3), np.ones((1, 3, 2)))
    assert (finite_horizon(flat, 5).policy == 0).all()


def test_agents_earn_what_the_plans_promise():
    """Mean returns of the optimal and the random agent lie within sampling error of the exact expectations."""
    mdps = mdp.sample_mdps(3000, 4, 3, seed=2, regime="bernoulli-draws")
    for actor, expected in (
        (OptimalAgent(), finite_horizon(mdps, 20).values),
        (QLearner(epsilon=1.0), random_values(mdps, 20)),
    ):
        e = run(actor, mdps, 20, seed=0)
        gap = e.rewards.sum(1) - expected[np.arange(3000), 0, e.states[:, 0]]
        assert abs(gap.mean()) < 4 * gap.std() / np.sqrt(3000)


def test_bad_input_is_refused_with_a_sentence():
    for plan in (finite_horizon, random_values):
        refuses("n_rounds must be at least 1, got 0", plan, mdp.chain(), 0)
