"""Edited circuits do what their edit says, by the numbers."""

import numpy as np
import pytest
import torch

import interp
from lab.known import edits
from tests.refusals import refuses

GAIN = 0.5


@pytest.fixture(scope="module")
def wired():
    return interp.load("wma-handwired", n_experts=3)


@pytest.fixture(scope="module")
def episodes(wired):
    return interp.tasks.of(wired).sample_for(wired, 8, 12, seed=1)


def state(model, episodes):
    """The log-weights before every round and after the last one, ``[episode, round + 1, expert]``."""
    return model.read_state(interp.rollout(model, episodes).latents).numpy()


def hits(episodes):
    """What each expert gains in every round, ``[episode, round, expert]``."""
    return GAIN * episodes.correct


def test_what_leaves_the_window_is_gone(wired, episodes):
    gains = hits(episodes)
    windowed = state(edits.window(wired, 4), episodes)
    np.testing.assert_allclose(windowed[:, 9], gains[:, 5:9].sum(1), atol=1e-9)
    np.testing.assert_allclose(windowed[:, 3], gains[:, :3].sum(1), atol=1e-9)


def test_a_leak_weighs_rounds_by_their_age(wired, episodes):
    gains, ages = hits(episodes), np.arange(6, 0, -1)
    wanted = (0.9 ** ages[None, :, None] * gains[:, :6]).sum(1)
    np.testing.assert_allclose(state(edits.leaky(wired, 0.9), episodes)[:, 6], wanted, atol=1e-9)


def test_a_second_copy_is_carried_and_not_read(wired, episodes):
    model = edits.twice(wired)
    run, plain = interp.rollout(model, episodes), interp.rollout(wired, episodes)
    assert torch.equal(run.predictions, plain.predictions)
    np.testing.assert_allclose(run.latents[:, :, 0, -3:], state(wired, episodes), atol=1e-9)


def test_noise_has_its_size_stays_and_is_each_episodes_own(wired):
    """Two seeds of it differ by what an episode went through; one run is as another."""
    episodes = interp.tasks.of(wired).sample_for(wired, 200, 10, seed=2)
    model = edits.noisy(wired, 0.3)
    off = state(model, episodes) - state(wired, episodes)
    steps = np.diff(off, axis=1)
    assert abs(steps.std() - 0.3) < 0.02
    assert abs(steps.mean()) < 0.02
    assert abs(off[:, 10].std() - 0.3 * 10**0.5) < 0.1
    assert np.abs(np.corrcoef(steps[:, 4:6, 0].T)[0, 1]) < 0.2
    np.testing.assert_array_equal(
        state(model, episodes.select([3, 5])), state(model, episodes)[[3, 5]]
    )


def test_a_head_that_is_cut_writes_nothing_and_must_exist(wired, episodes):
    model = edits.without_head(wired, "2.1 fetch z")
    votes = interp.rollout(model, episodes).predictions.numpy()
    np.testing.assert_allclose(votes, episodes.advice.mean(-1), atol=1e-9)
    np.testing.assert_allclose(state(model, episodes), state(wired, episodes), atol=1e-9)
    refuses(r"no head '2.1'; its heads are .*2.1 fetch z", edits.without_head, wired, "2.1")


def test_an_untrained_copy_has_no_edit_and_a_learned_model_takes_none(wired):
    model = edits.leaky(wired, 0.5)
    fresh = model.untrained(0)
    assert not fresh.is_handwired
    assert model.is_handwired
    assert model.name == "leaky 0.5"
    assert (
        interp.rollout(fresh, interp.tasks.of(wired).sample_for(wired, 4, 4, seed=0))
        .latents[:, 2]
        .any()
    )
    refuses(
        "'wma-learned-additive' is a learned model; edit a handwired one",
        edits.leaky,
        interp.load("wma-learned-additive"),
        0.9,
    )
