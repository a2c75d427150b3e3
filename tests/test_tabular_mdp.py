"""The Gymnasium environment is a valid one, and it is the same MDP that the batched sampler plays."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from tabular_mdp import ENV_ID, TabularMDPEnv

from interp.tasks import mdp
from tests.refusals import refused, refuses


@pytest.mark.parametrize("regime", ["grid", "bernoulli-draws", "chain", "ladder"])
def test_gymnasium_accepts_it(regime):
    env = gymnasium.make(ENV_ID, n_states=5, n_actions=3, regime=regime, seed=3)
    check_env(env.unwrapped, skip_render_check=True)


def test_it_is_the_same_mdp():
    """Rewards are the table's, and next states occur with the table's probabilities."""
    mdps = mdp.sample_mdps(1, 3, 2, seed=4)
    env = gymnasium.make(ENV_ID, mdps=mdps, n_rounds=4000)
    state, _ = env.reset(seed=0)
    counts = np.zeros((3, 2, 3))
    rng, truncated = np.random.default_rng(0), False
    while not truncated:
        action = int(rng.integers(2))
        following, reward, terminated, truncated, info = env.step(action)
        assert reward == mdps.rewards[0, state, action] and not terminated
        counts[state, action, following] += 1
        state = following
    assert info["round"] == 4000 and info["family"] == mdps.families[0]
    visited = counts.sum(-1, keepdims=True)
    seen = counts / np.maximum(visited, 1)
    assert (np.abs(seen - mdps.transitions[0]) <= 4 * np.sqrt(0.25 / np.maximum(visited, 1))).all()


def test_same_seed_same_episode_and_a_fixed_start_stays():
    env = gymnasium.make(ENV_ID, n_states=6, start=2)
    runs = []
    for _ in range(2):
        first, _ = env.reset(seed=7)
        assert first == 2
        runs.append([env.step(i % 2)[:2] for i in range(20)])
    assert runs[0] == runs[1]


test_bad_input_is_refused_with_a_sentence = refused(
    (lambda: TabularMDPEnv(mdp.sample_mdps(2, 3, 2)), "holds 1 MDP, got 2"),
    (lambda: TabularMDPEnv(n_rounds=0), "n_rounds must be at least 1, got 0"),
    (lambda: TabularMDPEnv(n_states=3, start=3), "start must be a state 0 to 2 of this MDP, got 3"),
    (lambda: TabularMDPEnv().step(np.int64(0)), r"call reset\(\) before"),
    (lambda: TabularMDPEnv(regime="grids"), "did you mean 'grid'"),
)


def test_an_action_of_another_mdp_is_refused():
    env = TabularMDPEnv(n_actions=2)
    env.reset(seed=0)
    refuses("action must be 0 to 1 of this MDP, got", env.step, np.int64(2))
