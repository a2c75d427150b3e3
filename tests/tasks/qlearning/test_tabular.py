"""Tabular agents act by their tables, which can be learned again; optimal policies are those of quantecon."""

import numpy as np
import pytest
from quantecon.markov import DiscreteDP, backward_induction

from interp.tasks import mdp
from interp.tasks.qlearning import bellman
from interp.tasks.qlearning.algorithms import q_learning
from interp.tasks.qlearning.bellman import finite_horizon, random_values
from interp.tasks.qlearning.episodes import MDPs
from interp.tasks.qlearning.tabular import AGENTS, OptimalAgent, QLearner, run
from tests.refusals import refuses

CHAIN = mdp.chain().select(np.zeros(500, int))


def greedy_actions(episodes):
    """Return argmax Q_t(s_t, .) of every round t, the lowest index on ties."""
    tables = episodes.q_tables[:, :-1]
    values = bellman.take_rows(tables, episodes.states)
    return values.argmax(-1)


def test_greedy_acts_by_its_own_table():
    """The action of round t is argmax Q_t(s_t, .), the lowest index on ties."""
    e = run(QLearner(alpha=0.5), mdp.sample_mdps(50, 4, 3, seed=0), 20, seed=1)
    assert (e.actions == greedy_actions(e)).all()
    assert (e.actions[:, 0] == 0).all()
    assert e.alpha == 0.5


def test_epsilon_greedy_explores_as_often_as_it_says():
    """A uniform action with probability epsilon: with 3 actions, 2/3 of those are not the greedy one."""
    e = run(QLearner(epsilon=0.3), mdp.sample_mdps(400, 4, 3, seed=0), 40, seed=1)
    explores = e.actions != greedy_actions(e)
    assert abs(explores.mean() - 0.2) < 0.01
    assert (e.epsilon == 0.3).all()


def test_ties_are_broken_by_index_or_at_random():
    """Without rewards every action is tied for ever: by index the first is taken, at random each equally often."""
    mdps = mdp.MDPs(np.full((200, 4, 3, 4), 0.25), np.zeros((200, 4, 3)))
    assert (run(QLearner(), mdps, 20, seed=1).actions == 0).all()
    actions = run(QLearner(random_ties=True), mdps, 20, seed=1).actions
    shares = np.bincount(actions.ravel(), minlength=3) / actions.size
    np.testing.assert_allclose(shares, 1 / 3, atol=0.03)


def test_the_table_without_bootstrapping_averages_rewards():
    """With gamma = 0 and fixed rewards, Q(s, a) = (1 - (1 - alpha)^n) r(s, a) after n visits."""
    e = mdp.sample(30, 40, 3, 2, seed=0)
    visits = np.zeros((30, 3, 2))
    rows = np.arange(30)[:, None]
    np.add.at(visits, (rows, e.states, e.actions), 1)
    learned = e.relearn(gamma=0.0).q_tables[:, -1]
    expected = (1 - 0.9**visits) * e.mdps.rewards
    np.testing.assert_allclose(learned, expected, atol=1e-12)


def test_agents_of_one_seed_meet_the_same_luck():
    """Starts agree, and so does everything else for agents that act alike."""
    mdps = mdp.sample_mdps(50, 3, 2, seed=0)
    first = run(QLearner(), mdps, 30, seed=3)
    again = run(QLearner(), mdps, 30, seed=3)
    assert (first.rewards == again.rewards).all()
    random = run(QLearner(epsilon=1.0), mdps, 30, seed=3)
    assert (random.states[:, 0] == first.states[:, 0]).all()
    other_seed = run(QLearner(), mdps, 30, seed=4)
    assert (other_seed.states != first.states).any()


def test_random_is_uniform_and_optimal_climbs_the_chain():
    random = run(QLearner(epsilon=1.0), CHAIN, 20, seed=0)
    assert abs(random.actions.mean() - 0.5) < 0.02
    best = run(OptimalAgent(), CHAIN, 20, seed=0)
    # In the last rounds of a finite horizon nothing can be reached any more: every action is optimal there.
    assert (best.actions[:, :17] == 0).all()
    steps_to_the_end = 3 - best.states[:, 0]
    assert (best.rewards.sum(1) == 20 - steps_to_the_end).all()


@pytest.mark.parametrize("key", AGENTS)
def test_every_registered_algorithm_runs(key):
    e = run(AGENTS[key], mdp.sample_mdps(5, 3, 2, seed=0), 6, seed=0)
    assert e.n_rounds == 6
    assert len(e) == 5


def test_parameters_outside_their_range_are_refused():
    refuses(r"alpha must lie in \(0, 1\], got 1.01", QLearner, alpha=1.01)
    refuses(r"gamma must lie in \[0, 1\), got -0.1", QLearner, gamma=-0.1)
    refuses(r"epsilon must lie in \[0, 1\], got -0.1", QLearner, epsilon=-0.1)
    message = "beta must be a finite number >= 0, or None, got -1.0"
    refuses(message, q_learning, beta=-1.0)


def test_runs_that_are_none_are_refused():
    refuses("n_rounds must be an integer >= 1, got 0", run, QLearner(), CHAIN, 0, seed=0)
    episodes = mdp.sample(1, 2, 2, 2)
    refuses("alpha must lie in", lambda: episodes.relearn(alpha=2.0).q_tables)


@pytest.mark.parametrize("regime", ["grid", "chain", "ladder"])
def test_backward_induction_equals_quantecon(regime):
    mdps = mdp.sample_mdps(4, 5, 3, seed=1, regime=regime)
    plan = finite_horizon(mdps, 12)
    for i in range(4):
        with pytest.warns(
            UserWarning
        ):  # quantecon says that beta = 1 leaves some of its methods out
            problem = DiscreteDP(mdps.rewards[i], mdps.transitions[i], 1.0)
        values, _ = backward_induction(problem, 12)
        np.testing.assert_allclose(plan.values[i], values, atol=1e-9)


def test_ties_go_to_the_lowest_index():
    """Where every action is as good, every policy names action 0."""
    uniform = MDPs(np.full((1, 3, 2, 3), 1 / 3), np.ones((1, 3, 2)))
    plan = finite_horizon(uniform, 5)
    assert (plan.policy == 0).all()


def test_agents_earn_what_the_plans_promise():
    """Mean returns of the optimal and the random agent lie within sampling error of the exact expectations."""
    mdps = mdp.sample_mdps(3000, 4, 3, seed=2, regime="bernoulli-draws")
    optimal_values = finite_horizon(mdps, 20).values
    assert_earns(OptimalAgent(), mdps, optimal_values)
    assert_earns(QLearner(epsilon=1.0), mdps, random_values(mdps, 20))


def assert_earns(agent, mdps, values):
    """The mean return of 20 rounds is within four standard errors of the values of the starts."""
    e = run(agent, mdps, 20, seed=0)
    rows = np.arange(len(e))
    starts = e.states[:, 0]
    gap = e.rewards.sum(1) - values[rows, 0, starts]
    error = gap.std() / np.sqrt(len(e))
    assert abs(gap.mean()) < 4 * error


def test_plans_of_no_round_are_refused():
    for plan in (finite_horizon, random_values):
        refuses("n_rounds must be at least 1, got 0", plan, mdp.chain(), 0)
