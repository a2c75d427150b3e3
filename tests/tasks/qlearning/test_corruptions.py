"""Corruptions of Q-learning episodes change one thing at one round, and what is learned from it."""

from __future__ import annotations

import numpy as np
import pytest

import interp
from interp.errors import InputError
from interp.tasks import mdp
from interp.tasks.qlearning import TASK
from interp.tasks.qlearning import analysis as corruptions


@pytest.fixture(scope="module")
def episodes() -> mdp.MDPEpisodes:
    return mdp.sample(n_episodes=6, n_rounds=8, n_states=3, n_actions=2, seed=0)


def test_exchange_history_gives_the_next_episodes_past_and_tables(episodes):
    clean, corrupted = corruptions.exchange_history(episodes, round=4)
    np.testing.assert_allclose(corrupted.q_tables[-1, 4], clean.q_tables[0, 4])
    np.testing.assert_array_equal(corrupted.next_states[:, 4:], clean.next_states[:, 4:])


def test_change_reward_changes_one_reward_and_what_is_learned(episodes):
    clean, corrupted = corruptions.change_reward(episodes, round=3)
    assert set(np.argwhere(clean.rewards != corrupted.rewards)[:, 1]) == {3}
    np.testing.assert_allclose(abs(clean.rewards - corrupted.rewards)[:, 3], 0.5)
    assert corrupted.rewards[:, 3].max() < 1
    np.testing.assert_array_equal(clean.q_tables[:, :4], corrupted.q_tables[:, :4])
    assert (clean.q_tables[:, 4] != corrupted.q_tables[:, 4]).any(axis=(1, 2)).all()


@pytest.mark.parametrize("record", corruptions.corruptions(), ids=lambda record: record.key)
def test_a_record_says_when_it_shows_and_whether_it_changes_the_past(record):
    """What shows late leaves its own round's policy alone; at ``round + delay`` some episode's differs."""
    model, clean = interp.load("qlearning-handwired", n_states=2, n_actions=2), mdp.sample(64, 8, 2, 2, seed=0)
    runs = [interp.rollout(model, e) for e in record.build(clean, 5)]
    differs = (runs[0].predictions - runs[1].predictions).abs().amax(-1)
    assert record.delay == 0 or differs[:, 5].max() == 0
    assert differs[:, 5 + record.delay].max() > 1e-3
    assert record.changes_history == (not (runs[0].latents[:, 5] == runs[1].latents[:, 5]).all())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda e: corruptions.change_reward(e, 8), "round 8 is out of range"),
        (lambda e: corruptions.exchange_history(e, 0), "round 0 has no history"),
        (lambda e: corruptions.exchange_history(e.select([0]), 3), "at least 2 episodes"),
        (lambda e: TASK.corruption("flip-label"), "unknown corruption of qlearning episodes"),
    ],
)
def test_bad_input(episodes, call, message):
    with pytest.raises(InputError, match=message):
        call(episodes)
