"""Corruptions change one thing at one round, and only that."""

from __future__ import annotations

import numpy as np
import pytest

from interp.errors import InputError
from interp.interventions import corruptions


def test_flip_vote_changes_one_vote(expert_episodes):
    clean, corrupted = corruptions.flip_vote(expert_episodes, round=3, expert=2)
    changed = np.argwhere(clean.advice != corrupted.advice)
    assert {tuple(row[1:]) for row in changed} == {(3, 2)} and len(changed) == len(clean)
    np.testing.assert_array_equal(clean.labels, corrupted.labels)


def test_flip_label_changes_one_label(expert_episodes):
    clean, corrupted = corruptions.flip_label(expert_episodes, round=-1)
    np.testing.assert_array_equal(np.argwhere(clean.labels != corrupted.labels)[:, 1], [7] * len(clean))
    np.testing.assert_array_equal(clean.advice, corrupted.advice)


def test_swap_histories_swaps_the_past_only(expert_episodes):
    clean, corrupted = corruptions.swap_histories(expert_episodes, round=4, experts=(0, 2))
    np.testing.assert_array_equal(clean.advice[:, :4, 0], corrupted.advice[:, :4, 2])
    np.testing.assert_array_equal(clean.advice[:, 4:], corrupted.advice[:, 4:])


def test_swap_latents_gives_the_next_episodes_past(expert_episodes, mdp_episodes):
    clean, corrupted = corruptions.swap_latents(expert_episodes, round=4)
    np.testing.assert_array_equal(corrupted.advice[0, :4], clean.advice[1, :4])
    np.testing.assert_array_equal(corrupted.labels[:, 4:], clean.labels[:, 4:])
    clean, corrupted = corruptions.swap_latents(mdp_episodes, round=4)
    np.testing.assert_allclose(corrupted.q_tables[-1, 4], clean.q_tables[0, 4])
    np.testing.assert_array_equal(corrupted.next_states[:, 4:], clean.next_states[:, 4:])


def test_change_reward_changes_one_reward_and_what_is_learned(mdp_episodes):
    clean, corrupted = corruptions.change_reward(mdp_episodes, round=3)
    assert set(np.argwhere(clean.rewards != corrupted.rewards)[:, 1]) == {3}
    np.testing.assert_allclose(abs(clean.rewards - corrupted.rewards)[:, 3], 0.5)
    assert corrupted.rewards[:, 3].max() < 1
    np.testing.assert_array_equal(clean.q_tables[:, :4], corrupted.q_tables[:, :4])
    assert (clean.q_tables[:, 4] != corrupted.q_tables[:, 4]).any(axis=(1, 2)).all()


@pytest.mark.parametrize("key", list(corruptions.CORRUPTIONS))
def test_delay_is_the_first_round_that_can_show_it(wma, key):
    """What shows late leaves its own round's prediction alone; at ``round + delay`` some episode's differs."""
    import circuits
    import interp
    from interp.tasks import experts, mdp

    record = corruptions.CORRUPTIONS[key]
    if "experts" in record.tasks:
        model, episodes = wma[1], experts.sample(12, 8, 3, seed=0)
    else:
        model = circuits.compile(circuits.build("qlearning-handwired", n_states=2, n_actions=2))
        episodes = mdp.sample(64, 8, 2, 2, seed=0)
    clean, corrupted = (interp.rollout(model, e).predictions for e in record.build(episodes, 5))
    differs = (clean - corrupted).abs().flatten(2).amax(-1) if clean.ndim == 3 else (clean - corrupted).abs()
    if record.delay:
        assert differs[:, 5].max() == 0
    assert differs[:, 5 + record.delay].max() > 1e-3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda e, m: corruptions.flip_vote(e, 3, expert=3),
            "expert 3 does not exist: the episodes have experts 0 to 2",
        ),
        (lambda e, m: corruptions.flip_label(e, 8), "round 8 is out of range"),
        (lambda e, m: corruptions.swap_histories(e, 0), "round 0 has no history"),
        (lambda e, m: corruptions.swap_histories(e, 3, experts=(1, 1)), "two different experts"),
        (lambda e, m: corruptions.swap_latents(e.select([0]), 3), "at least 2 episodes"),
        (lambda e, m: corruptions.corruption("flip-lable", "experts"), "did you mean 'flip-label'"),
        (lambda e, m: corruptions.corruption("flip-label", "qlearning"), "unknown corruption of qlearning episodes"),
    ],
)
def test_bad_input(expert_episodes, mdp_episodes, call, message):
    with pytest.raises(InputError, match=message):
        call(expert_episodes, mdp_episodes)
