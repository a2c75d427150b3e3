"""MDP episodes obey their definition, regimes are what they are called, and bad input is refused in one sentence."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.tasks import mdp
from interp.tasks.qlearning import bellman
from interp.tasks.qlearning.episodes import MDPEpisodes, MDPs
from interp.tasks.qlearning.mdps import REGIMES
from tests.refusals import refused

SIZES = {"n_states": st.integers(1, 5), "n_actions": st.integers(1, 4)}
RATES = {
    "alpha": st.floats(0.01, 1.0),
    "gamma": st.floats(0.0, 0.99),
    "seed": st.integers(0, 10_000),
}


def permutations(n_episodes: int, size: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permuted(np.tile(np.arange(size), (n_episodes, 1)), axis=1)


def test_episodes_follow_the_update_rule():
    """Every table is the previous one changed at (s_t, a_t) by alpha times the TD error, and nowhere else."""
    e = mdp.sample(20, 12, 4, 3, seed=1, alpha=0.3, gamma=0.8)
    for b in range(20):
        table = np.zeros((4, 3))
        for t in range(12):
            s = e.states[b, t]
            a = e.actions[b, t]
            r = e.rewards[b, t]
            following = e.next_states[b, t]
            table[s, a] = table[s, a] + 0.3 * (r + 0.8 * max(table[following]) - table[s, a])
            np.testing.assert_allclose(e.q_tables[b, t + 1], table, atol=1e-12)
            assert e.greedy[b, t] == int(np.argmax(e.q_tables[b, t + 1, following]))


def test_episodes_are_trajectories_of_their_mdps():
    """States follow each other, rewards are those of the MDP, and next states occur with the MDP's probabilities."""
    e = mdp.sample(400, 50, 3, 2, seed=2, epsilon=1.0)
    assert (e.next_states[:, :-1] == e.states[:, 1:]).all()
    rows = np.arange(400)[:, None]
    assert (e.rewards == e.mdps.rewards[rows, e.states, e.actions]).all()
    expected = e.mdps.transitions[rows, e.states, e.actions]
    assert (expected[np.arange(400)[:, None], np.arange(50), e.next_states] > 0).all()
    seen = np.eye(3)[e.next_states]
    np.testing.assert_allclose((seen - expected).mean((0, 1)), 0, atol=0.015)
    np.testing.assert_allclose(
        (seen * expected).sum(-1).mean(), (expected**2).sum(-1).mean(), atol=0.015
    )


def test_bernoulli_draws_pay_one_with_the_stated_probability():
    e = mdp.sample(500, 40, 2, 2, seed=0, regime="bernoulli-draws")
    chances = e.mdps.rewards[np.arange(500)[:, None], e.states, e.actions]
    assert set(np.unique(e.rewards)) == {0.0, 1.0}
    assert abs((e.rewards - chances).mean()) < 0.015


@pytest.mark.parametrize("regime", sorted(REGIMES))
def test_every_regime_samples_valid_episodes(regime):
    e = mdp.sample(36, 5, 4, 3, seed=0, regime=regime)
    assert e.regime == regime
    assert len(e) == 36
    assert (e.n_states, e.n_actions) == (4, 3)
    np.testing.assert_allclose(e.mdps.transitions.sum(-1), 1)


def test_the_grid_shares_its_cells_equally():
    """6 reward families by 3 concentrations, in equal shares; over many small batches no cell is favoured."""
    e = mdp.sample(180, 2, 3, 2, seed=0)
    cells = list(zip(e.mdps.families, e.mdps.concentrations.tolist(), strict=True))
    assert {cells.count(cell) for cell in cells} == {10}
    assert len(set(cells)) == 18
    few = [mdp.sample_mdps(5, 1, 1, seed=i) for i in range(720)]
    drawn = [
        cell
        for n_cells in few
        for cell in zip(n_cells.families, n_cells.concentrations.tolist(), strict=True)
    ]
    assert max(abs(drawn.count(cell) - 200) for cell in set(cells)) < 60


def test_deterministic_regime_is_nearly_deterministic():
    e = mdp.sample(60, 1, 6, 3, seed=0, regime="deterministic")
    assert (e.mdps.transitions.max(-1) > 0.9).mean() > 0.97


def test_chain_has_action_zero_optimal_and_ladder_rewards_height_squared():
    chain, ladder = mdp.chain(4, 2), mdp.ladder()
    assert chain.transitions[0, :, 0].argmax(-1).tolist() == [1, 2, 3, 3]
    assert chain.transitions[0, :, 1].argmax(-1).tolist() == [0, 0, 1, 2]
    assert np.argwhere(chain.rewards).tolist() == [[0, 3, 0]]
    assert ladder.transitions[0, :, 2].argmax(-1).tolist() == [0, 0, 0, 1, 2, 3, 4, 5]
    np.testing.assert_allclose(ladder.rewards[0, 3], [(4 / 7) ** 2, (1 / 7) ** 2, (1 / 7) ** 2])


def test_same_seed_same_bytes_and_streams_do_not_mix():
    """The same seed repeats everything; changing one setting leaves the draws of the other stages alone."""
    first, two = (mdp.sample(30, 10, 4, 3, seed=5) for _ in range(2))
    assert first.q_tables.tobytes() == two.q_tables.tobytes()
    assert first.rewards.tobytes() == two.rewards.tobytes()
    redrawn = mdp.sample(30, 10, 4, 3, seed=5, epsilon=0.5, alpha=0.7)
    assert redrawn.mdps.transitions.tobytes() == first.mdps.transitions.tobytes()
    assert (redrawn.states[:, 0] == first.states[:, 0]).all()
    assert (mdp.sample(30, 10, 4, 3, seed=6).states != first.states).any()


def test_labels_are_shuffled():
    """Where behaviour breaks ties to the lowest index, no label is preferred."""
    e = mdp.sample(3000, 1, 2, 4, seed=0, epsilon=0.0)
    assert abs(np.bincount(e.actions[:, 0], minlength=4) / 3000 - 0.25).max() < 0.03


@settings(max_examples=25, deadline=None)
@given(**SIZES, **RATES)
def test_permuting_states_and_actions_permutes_the_table(n_states, n_actions, alpha, gamma, seed):
    """Q-learning knows labels only as labels."""
    e = mdp.sample(3, 8, n_states, n_actions, seed=seed, alpha=alpha, gamma=gamma)
    states, actions = permutations(3, n_states, seed), permutations(3, n_actions, seed + 1)
    p = e.permuted(states, actions)
    learned = bellman.replay_tables(
        p.states,
        p.actions,
        p.rewards,
        p.next_states,
        np.zeros((3, n_states, n_actions)),
        alpha,
        gamma,
    )
    assert (learned == p.q_tables).all()
    for b in range(3):
        assert (p.q_tables[b][:, states[b]][:, :, actions[b]] == e.q_tables[b]).all()
        assert (
            p.mdps.transitions[b][states[b]][:, actions[b]][..., states[b]] == e.mdps.transitions[b]
        ).all()


def test_ties_are_found_with_a_tolerance_and_go_to_the_lowest_index():
    values = np.array([[0.1 + 0.2, 0.3, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    assert bellman.greedy_sets(values).tolist() == [
        [True, True, False],
        [True] * 3,
        [False, True, True],
    ]
    assert bellman.greedy_sets(values).argmax(-1).tolist() == [0, 0, 1]


def test_interaction_follows_given_choices_and_explores_with_epsilon():
    mdps = mdp.sample_mdps(2000, 3, 4, seed=0)
    never, always = (mdp.Interaction(mdps, 3, seed=1, epsilon=epsilon) for epsilon in (0.0, 1.0))
    for play in (never, always):
        while not play.done:
            play.step(np.full(2000, 2))
    assert (never.episodes().actions == 2).all()
    assert (
        abs(np.bincount(always.episodes().actions.ravel(), minlength=4) / 6000 - 0.25).max() < 0.03
    )
    assert (never.episodes().states[:, 0] == always.episodes().states[:, 0]).all()


def test_steps_of_an_interaction_join_to_its_episodes():
    play = mdp.Interaction(mdp.sample_mdps(5, 3, 2, seed=0), 6, seed=0, epsilon=0.5)
    steps = [play.step() for _ in range(6)]
    whole = play.episodes()
    for t, step in enumerate(steps):
        assert (step.actions[:, 0] == whole.actions[:, t]).all()
        assert (step.greedy[:, 0] == whole.greedy[:, t]).all()
        assert (step.q_tables == whole.q_tables[:, t : t + 2]).all()


def test_select_and_relearned_keep_the_rest():
    e = mdp.sample(10, 6, 3, 2, seed=0)
    part = e.select([3, 3, 7])
    assert (part.states == e.states[[3, 3, 7]]).all()
    assert part.mdps.families[2] == e.mdps.families[7]
    flat = e.relearned(gamma=0.0)
    assert (flat.actions == e.actions).all()
    assert flat.gamma == 0.0
    assert (e.relearned().q_tables == e.q_tables).all()


def episodes() -> MDPEpisodes:
    return mdp.sample(3, 4, 3, 2, seed=0)


def rows(fill: float) -> np.ndarray:
    return np.full((1, 2, 2, 2), fill)


test_transitions_that_are_none_are_refused = refused(
    (lambda: MDPs(rows(0.4), np.zeros((1, 2, 2))), r"sums to 0.8, not 1; normalise"),
    (
        lambda: MDPs(rows(0.0), np.zeros((1, 2, 2))),
        "write a terminal state as one that moves to its",
    ),
)
test_transitions_below_0_are_refused = refused(
    (
        lambda: MDPs(np.array([[[[-0.5, 1.5]] * 2] * 2]), np.zeros((1, 2, 2))),
        r"transitions must be finite numbers >= 0, got -0.5 at \[0, 0, 0, 0\]",
    ),
)
test_rewards_that_are_none_are_refused = refused(
    (
        lambda: MDPs(np.zeros((1, 2, 0, 2)), np.zeros((1, 2, 0))),
        "at least 1 state and 1 action, got 2 and 0",
    ),
    (
        lambda: MDPs(rows(0.5), np.full((1, 2, 2), np.nan)),
        "rewards must be finite numbers, got nan",
    ),
    (lambda: MDPs(rows(0.5), np.zeros((1, 3, 2))), r"must have shape .* = \(1, 3, 2, 3\)"),
)
test_bernoulli_rewards_beyond_1_are_refused = refused(
    (
        lambda: MDPs(rows(0.5), np.full((1, 2, 2), 2.0), bernoulli=np.array([True])),
        r"must lie in \[0, 1\]",
    ),
)
test_rates_outside_their_range_are_refused = refused(
    (lambda: mdp.sample(1, 1, 2, 2, alpha=0.0), r"alpha must lie in \(0, 1\], got 0.0"),
    (lambda: mdp.sample(1, 1, 2, 2, gamma=1.0), r"gamma must lie in \[0, 1\), got 1.0"),
    (lambda: mdp.sample(1, 1, 2, 2, gamma=float("nan")), "gamma must be a finite number, got nan"),
    (lambda: mdp.sample(1, 1, 2, 2, epsilon=1.5), r"epsilon must lie in \[0, 1\], got 1.5"),
)
test_sizes_outside_their_range_are_refused = refused(
    (lambda: mdp.sample(1, 1, 0, 2), "n_states must be an integer >= 1, got 0"),
    (
        lambda: mdp.sample(1, 2, 10**4, 2),
        "MDPs of 10000 states and 2 actions would take at least 20 seconds",
    ),
)
test_transitions_of_huge_sizes_are_refused = refused(
    (
        lambda: mdp.MDPEpisodes.from_transitions(
            None, [[0]], [[0]], [[0.0]], [[0]], n_states=10**6, n_actions=10**6
        ),
        "1 episodes of 1 rounds in 1000000 states with 1000000 actions would take about .* GB",
    ),
)
test_arguments_of_a_sample_outside_their_range_are_refused = refused(
    (lambda: mdp.sample(1, 0, 2, 2), "n_rounds must be an integer >= 1, got 0"),
    (lambda: mdp.sample(1, 1, 2, 2, seed=-1), "seed must be an integer >= 0, got -1"),
    (lambda: mdp.sample(1, 1, 2, 2, regime="lader"), "did you mean 'ladder'"),
    (lambda: mdp.sample(1, 1, 1, 2, regime="chain"), "a chain needs at least 2 states"),
)
test_episodes_of_other_actions_and_states_are_refused = refused(
    (
        lambda: replace(episodes(), actions=np.full((3, 4), 2)),
        "actions must be whole numbers from 0 to 1, got 2",
    ),
    (
        lambda: replace(episodes(), next_states=np.full((3, 4), 5)),
        "next_states must be .* 0 to 2, got 5",
    ),
)
test_actions_of_other_worlds_are_refused = refused(
    (
        lambda: mdp.Interaction(mdp.chain(), 2, seed=0).step(np.array([2])),
        "choices must be whole numbers from 0 to 1, got",
    ),
)
test_records_that_do_not_fit_are_refused = refused(
    (
        lambda: replace(episodes(), rewards=np.ones((3, 4))),
        "q_tables differ from Q-learning .* with MDPEpisodes.from_transitions",
    ),
    (
        lambda: replace(mdp.sample(50, 20, 3, 2, seed=0), greedy=np.zeros((50, 20), int)),
        "greedy holds an action that is not greedy",
    ),
)
test_worlds_and_names_of_other_episodes_are_refused = refused(
    (lambda: replace(episodes(), mdps=episodes().mdps.select([0])), "3 rows but there are 1 MDPs"),
    (
        lambda: episodes().permuted(np.zeros((3, 3), int), np.tile([0, 1], (3, 1))),
        "states must hold a permutation of 0 to 2 for each of the 3 episodes",
    ),
)


def test_negative_rewards_are_allowed():
    """Rewards need only be finite: variants of the circuit that bound them say so themselves."""
    mdps = MDPs(rows(0.5), np.full((1, 2, 2), -1.0))
    play = mdp.Interaction(mdps, 3, seed=0)
    while not play.done:
        play.advance()
    assert play.episodes().q_tables.min() < 0
