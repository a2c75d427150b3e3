"""Corruptions of expert advice change one thing at one round, and only that."""

from __future__ import annotations

import numpy as np
import pytest

import interp
from interp.errors import InputError
from interp.tasks import experts
from interp.tasks.experts import analysis as corruptions


@pytest.fixture(scope="module")
def episodes() -> experts.ExpertEpisodes:
    return experts.sample(n_episodes=6, n_rounds=8, n_experts=3, seed=0)


def test_flip_vote_changes_one_vote(episodes):
    clean, corrupted = corruptions.flip_vote(episodes, round=3, expert=2)
    changed = np.argwhere(clean.advice != corrupted.advice)
    assert {tuple(row[1:]) for row in changed} == {(3, 2)} and len(changed) == len(clean)
    np.testing.assert_array_equal(clean.labels, corrupted.labels)


def test_flip_label_changes_one_label(episodes):
    clean, corrupted = corruptions.flip_label(episodes, round=-1)
    np.testing.assert_array_equal(np.argwhere(clean.labels != corrupted.labels)[:, 1], [7] * len(clean))
    np.testing.assert_array_equal(clean.advice, corrupted.advice)


def test_swap_histories_swaps_the_past_only(episodes):
    clean, corrupted = corruptions.swap_histories(episodes, round=4, experts=(0, 2))
    np.testing.assert_array_equal(clean.advice[:, :4, 0], corrupted.advice[:, :4, 2])
    np.testing.assert_array_equal(clean.advice[:, 4:], corrupted.advice[:, 4:])


def test_exchange_history_gives_the_next_episodes_past(episodes):
    clean, corrupted = corruptions.exchange_history(episodes, round=4)
    np.testing.assert_array_equal(corrupted.advice[0, :4], clean.advice[1, :4])
    np.testing.assert_array_equal(corrupted.advice[:, 4:], clean.advice[:, 4:])
    np.testing.assert_array_equal(corrupted.labels[-1, :4], clean.labels[0, :4])
    np.testing.assert_array_equal(corrupted.labels[:, 4:], clean.labels[:, 4:])


@pytest.mark.parametrize("record", corruptions.corruptions(), ids=lambda record: record.key)
def test_a_record_says_when_it_shows_and_whether_it_changes_the_past(record):
    """What shows late leaves its own round's prediction alone; at ``round + delay`` some episode's differs."""
    model, clean = interp.load("wma-handwired", n_experts=3), experts.sample(12, 8, 3, seed=0)
    runs = [interp.rollout(model, e) for e in record.build(clean, 5)]
    differs = (runs[0].predictions - runs[1].predictions).abs()
    assert record.delay == 0 or differs[:, 5].max() == 0
    assert differs[:, 5 + record.delay].max() > 1e-3
    assert record.changes_history == (not (runs[0].latents[:, 5] == runs[1].latents[:, 5]).all())


def test_the_task_looks_its_corruptions_up_by_key():
    assert experts.TASK.corruption("flip-label").build is corruptions.flip_label
    assert experts.TASK.analysis.default_corruption in {record.key for record in corruptions.corruptions()}
    with pytest.raises(InputError, match="did you mean 'flip-label'"):
        experts.TASK.corruption("flip-lable")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda e: corruptions.flip_vote(e, 3, expert=3),
            "expert 3 does not exist: the episodes have experts 0 to 2, or p_1 to p_3",
        ),
        (lambda e: corruptions.flip_label(e, 8), "round 8 is out of range"),
        (lambda e: corruptions.swap_histories(e, 0), "round 0 has no history"),
        (lambda e: corruptions.swap_histories(e, 3, experts=(1, 1)), "two different experts"),
        (lambda e: corruptions.exchange_history(e.select([0]), 3), "at least 2 episodes"),
    ],
)
def test_bad_input(episodes, call, message):
    with pytest.raises(InputError, match=message):
        call(episodes)
