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
from tests.refusals import refuses

SIZES = {"n_states": st.integers(1, 5), "n_actions": st.integers(1, 4)}
RATES = {
    "alpha": st.floats(0.01, 1.0),
    "gamma": st.floats(0.0, 0.99),
    "seed": st.integers(0, 10_000),
}


def permutations(n_episodes: int, size: int, seed: int) -> np.ndarray:
    """Draw a permutation of 0 to ``size - 1`` for each episode."""
    in_order = np.tile(np.arange(size), (n_episodes, 1))
    return np.random.default_rng(seed).permuted(in_order, axis=1)


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
            td_error = r + 0.8 * max(table[following]) - table[s, a]
            table[s, a] += 0.3 * td_error
            table_after = e.q_tables[b, t + 1]
            np.testing.assert_allclose(table_after, table, atol=1e-12)
            assert e.greedy[b, t] == int(np.argmax(table_after[following]))


def test_episodes_are_trajectories_of_their_mdps():
    """States follow each other, rewards are those of the MDP, and next states occur with the MDP's probabilities."""
    e = mdp.sample(400, 50, 3, 2, seed=2, epsilon=1.0)
    states_from_round_1 = e.states[:, 1:]
    assert (e.next_states[:, :-1] == states_from_round_1).all()
    rows = np.arange(400)[:, None]
    rewards_of_steps = e.mdps.rewards[rows, e.states, e.actions]
    assert (e.rewards == rewards_of_steps).all()
    expected = e.mdps.transitions[rows, e.states, e.actions]
    chances_of_next_states = expected[rows, np.arange(50), e.next_states]
    assert (chances_of_next_states > 0).all()
    seen = np.eye(3)[e.next_states]
    np.testing.assert_allclose((seen - expected).mean((0, 1)), 0, atol=0.015)
    chance_of_seen = (seen * expected).sum(-1).mean()
    expected_chance = (expected**2).sum(-1).mean()
    np.testing.assert_allclose(chance_of_seen, expected_chance, atol=0.015)


def test_bernoulli_draws_pay_one_with_the_stated_probability():
    e = mdp.sample(500, 40, 2, 2, seed=0, regime="bernoulli-draws")
    rows = np.arange(500)[:, None]
    chances = e.mdps.rewards[rows, e.states, e.actions]
    assert set(np.unique(e.rewards)) == {0.0, 1.0}
    assert abs((e.rewards - chances).mean()) < 0.015


@pytest.mark.parametrize("regime", sorted(REGIMES))
def test_every_regime_samples_valid_episodes(regime):
    e = mdp.sample(36, 5, 4, 3, seed=0, regime=regime)
    assert e.regime == regime
    assert len(e) == 36
    assert (e.n_states, e.n_actions) == (4, 3)
    total_chances = e.mdps.transitions.sum(-1)
    np.testing.assert_allclose(total_chances, 1)


def list_cells(mdps: MDPs) -> list[tuple[str, float]]:
    """Return the reward family and the concentration of each MDP."""
    return list(zip(mdps.families, mdps.concentrations.tolist(), strict=True))


@pytest.mark.long
def test_the_grid_shares_its_cells_equally():
    """6 reward families by 3 concentrations, in equal shares; over many small batches no cell is favoured."""
    e = mdp.sample(180, 2, 3, 2, seed=0)
    cells = list_cells(e.mdps)
    assert {cells.count(cell) for cell in cells} == {10}
    assert len(set(cells)) == 18
    drawn = []
    for seed in range(720):
        drawn += list_cells(mdp.sample_mdps(5, 1, 1, seed=seed))
    for cell in set(cells):
        assert abs(drawn.count(cell) - 200) < 60


def test_deterministic_regime_is_nearly_deterministic():
    e = mdp.sample(60, 1, 6, 3, seed=0, regime="deterministic")
    largest_chance = e.mdps.transitions.max(-1)
    assert (largest_chance > 0.9).mean() > 0.97


def test_chain_has_action_zero_optimal_and_ladder_rewards_height_squared():
    chain = mdp.chain(4, 2)
    likeliest = chain.transitions[0].argmax(-1)
    assert likeliest[:, 0].tolist() == [1, 2, 3, 3]
    assert likeliest[:, 1].tolist() == [0, 0, 1, 2]
    rewarded = np.argwhere(chain.rewards)
    assert rewarded.tolist() == [[0, 3, 0]]

    ladder = mdp.ladder()
    likeliest = ladder.transitions[0].argmax(-1)
    assert likeliest[:, 2].tolist() == [0, 0, 0, 1, 2, 3, 4, 5]
    heights = np.array([4, 1, 1]) / 7
    np.testing.assert_allclose(ladder.rewards[0, 3], heights**2)


def test_same_seed_same_bytes_and_streams_do_not_mix():
    """The same seed repeats everything; changing one setting leaves the draws of the other stages alone."""
    first = mdp.sample(30, 10, 4, 3, seed=5)
    second = mdp.sample(30, 10, 4, 3, seed=5)
    assert first.q_tables.tobytes() == second.q_tables.tobytes()
    assert first.rewards.tobytes() == second.rewards.tobytes()
    redrawn = mdp.sample(30, 10, 4, 3, seed=5, epsilon=0.5, alpha=0.7)
    transitions = first.mdps.transitions
    assert redrawn.mdps.transitions.tobytes() == transitions.tobytes()
    assert (redrawn.states[:, 0] == first.states[:, 0]).all()
    assert (mdp.sample(30, 10, 4, 3, seed=6).states != first.states).any()


def test_labels_are_shuffled():
    """Where behaviour breaks ties to the lowest index, no label is preferred."""
    e = mdp.sample(3000, 1, 2, 4, seed=0, epsilon=0.0)
    shares = np.bincount(e.actions[:, 0], minlength=4) / 3000
    assert abs(shares - 0.25).max() < 0.03


@settings(max_examples=25)
@given(**SIZES, **RATES)
def test_permuting_states_and_actions_permutes_the_table(n_states, n_actions, alpha, gamma, seed):
    """Q-learning knows labels only as labels."""
    e = mdp.sample(3, 8, n_states, n_actions, seed=seed, alpha=alpha, gamma=gamma)
    states = permutations(3, n_states, seed)
    actions = permutations(3, n_actions, seed + 1)
    p = e.permute(states, actions)
    transitions = (p.states, p.actions, p.rewards, p.next_states)
    start = np.zeros((3, n_states, n_actions))
    learned = bellman.replay_tables(*transitions, start, alpha, gamma)
    assert (learned == p.q_tables).all()
    for b in range(3):
        q_tables = p.q_tables[b][:, states[b]]
        assert (q_tables[:, :, actions[b]] == e.q_tables[b]).all()
        from_states = p.mdps.transitions[b][states[b]]
        from_states_and_actions = from_states[:, actions[b]]
        to_states = from_states_and_actions[..., states[b]]
        assert (to_states == e.mdps.transitions[b]).all()


def test_ties_are_found_with_a_tolerance_and_go_to_the_lowest_index():
    values = np.array([[0.1 + 0.2, 0.3, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    greedy = bellman.greedy_sets(values)
    assert greedy[0].tolist() == [True, True, False]
    assert greedy[1].tolist() == [True, True, True]
    assert greedy[2].tolist() == [False, True, True]
    assert len(greedy) == 3
    assert greedy.argmax(-1).tolist() == [0, 0, 1]


def play_action_2(mdps: MDPs, epsilon: float) -> MDPEpisodes:
    """Choose action 2 in three rounds of 2000 MDPs, and explore with this probability."""
    play = mdp.Interaction(mdps, 3, seed=1, epsilon=epsilon)
    while not play.done:
        play.step(np.full(2000, 2))
    return play.episodes()


def test_interaction_follows_given_choices_and_explores_with_epsilon():
    mdps = mdp.sample_mdps(2000, 3, 4, seed=0)
    never = play_action_2(mdps, epsilon=0.0)
    always = play_action_2(mdps, epsilon=1.0)
    assert (never.actions == 2).all()
    shares = np.bincount(always.actions.ravel(), minlength=4) / 6000
    assert abs(shares - 0.25).max() < 0.03
    assert (never.states[:, 0] == always.states[:, 0]).all()


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
    flat = e.relearn(gamma=0.0)
    assert (flat.actions == e.actions).all()
    assert flat.gamma == 0.0
    assert (e.relearn().q_tables == e.q_tables).all()


def episodes() -> MDPEpisodes:
    return mdp.sample(3, 4, 3, 2, seed=0)


def rows(fill: float) -> np.ndarray:
    return np.full((1, 2, 2, 2), fill)


ZERO_REWARDS = np.zeros((1, 2, 2))


def test_transitions_that_are_none_are_refused():
    refuses(r"sums to 0.8, not 1; normalise", MDPs, rows(0.4), ZERO_REWARDS)
    terminal = "write a terminal state as one that moves to its"
    refuses(terminal, MDPs, rows(0.0), ZERO_REWARDS)


def test_transitions_below_0_are_refused():
    below_0 = np.broadcast_to([-0.5, 1.5], (1, 2, 2, 2))
    message = r"transitions must be finite numbers >= 0, got -0.5 at \[0, 0, 0, 0\]"
    refuses(message, MDPs, below_0, ZERO_REWARDS)


def test_rewards_that_are_none_are_refused():
    no_actions = np.zeros((1, 2, 0, 2))
    message = "at least 1 state and 1 action, got 2 and 0"
    refuses(message, MDPs, no_actions, np.zeros((1, 2, 0)))
    message = "rewards must be finite numbers, got nan"
    refuses(message, MDPs, rows(0.5), np.full((1, 2, 2), np.nan))
    message = r"must have shape .* = \(1, 3, 2, 3\)"
    refuses(message, MDPs, rows(0.5), np.zeros((1, 3, 2)))


def test_bernoulli_rewards_beyond_1_are_refused():
    rewards = np.full((1, 2, 2), 2.0)
    refuses(r"must lie in \[0, 1\]", MDPs, rows(0.5), rewards, bernoulli=np.array([True]))


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        pytest.param("alpha", 0.0, r"alpha must lie in \(0, 1\], got 0.0", id="alpha of 0"),
        pytest.param("gamma", 1.0, r"gamma must lie in \[0, 1\), got 1.0", id="gamma of 1"),
        pytest.param(
            "gamma", float("nan"), "gamma must be a finite number, got nan", id="gamma of nan"
        ),
        pytest.param("epsilon", 1.5, r"epsilon must lie in \[0, 1\], got 1.5", id="epsilon of 1.5"),
    ],
)
def test_rates_outside_their_range_are_refused(option, value, message):
    refuses(message, mdp.sample, 1, 1, 2, 2, **{option: value})


def test_sizes_outside_their_range_are_refused():
    refuses("n_states must be an integer >= 1, got 0", mdp.sample, 1, 1, 0, 2)
    message = "MDPs of 10000 states and 2 actions would take at least 20 seconds"
    refuses(message, mdp.sample, 1, 2, 10**4, 2)


def test_transitions_of_huge_sizes_are_refused():
    message = "1 episodes of 1 rounds in 1000000 states with 1000000 actions would take about .* GB"
    transitions = (None, [[0]], [[0]], [[0.0]], [[0]])
    make = mdp.MDPEpisodes.from_transitions
    refuses(message, make, *transitions, n_states=10**6, n_actions=10**6)


def test_arguments_of_a_sample_outside_their_range_are_refused():
    refuses("n_rounds must be an integer >= 1, got 0", mdp.sample, 1, 0, 2, 2)
    refuses("seed must be an integer >= 0, got -1", mdp.sample, 1, 1, 2, 2, seed=-1)
    refuses("did you mean 'ladder'", mdp.sample, 1, 1, 2, 2, regime="lader")
    refuses("a chain needs at least 2 states", mdp.sample, 1, 1, 1, 2, regime="chain")


def test_episodes_of_other_actions_and_states_are_refused():
    message = "actions must be whole numbers from 0 to 1, got 2"
    refuses(message, replace, episodes(), actions=np.full((3, 4), 2))
    message = "next_states must be .* 0 to 2, got 5"
    refuses(message, replace, episodes(), next_states=np.full((3, 4), 5))


def test_actions_of_other_worlds_are_refused():
    play = mdp.Interaction(mdp.chain(), 2, seed=0)
    refuses("choices must be whole numbers from 0 to 1, got", play.step, np.array([2]))


def test_records_that_do_not_fit_are_refused():
    message = "q_tables differ from Q-learning .* with MDPEpisodes.from_transitions"
    refuses(message, replace, episodes(), rewards=np.ones((3, 4)))
    many_episodes = mdp.sample(50, 20, 3, 2, seed=0)
    message = "greedy holds an action that is not greedy"
    refuses(message, replace, many_episodes, greedy=np.zeros((50, 20), int))


def test_worlds_and_names_of_other_episodes_are_refused():
    first_mdp = episodes().mdps.select([0])
    refuses("3 rows but there are 1 MDPs", replace, episodes(), mdps=first_mdp)
    message = "states must hold a permutation of 0 to 2 for each of the 3 episodes"
    actions = np.tile([0, 1], (3, 1))
    refuses(message, episodes().permute, np.zeros((3, 3), int), actions)


def test_negative_rewards_are_allowed():
    """Rewards need only be finite: variants of the circuit that bound them say so themselves."""
    mdps = MDPs(rows(0.5), np.full((1, 2, 2), -1.0))
    play = mdp.Interaction(mdps, 3, seed=0)
    while not play.done:
        play.advance()
    assert play.episodes().q_tables.min() < 0
