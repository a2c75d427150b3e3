"""Targets are what their records say, at the moment that they say."""

import numpy as np
import pytest

from interp.errors import InputError
from interp.tasks import experts, mdp
from probes import targets
from probes.targets import REGISTRY, Target, parse, register
from probes.targets.record import round_inputs, task_of


@pytest.fixture(scope="module")
def advice():
    return experts.sample(n_episodes=6, n_rounds=12, n_experts=3, seed=1)


@pytest.fixture(scope="module")
def walks():
    return mdp.sample(n_episodes=6, n_rounds=25, n_states=4, n_actions=3, seed=1)


def test_states_stand_before_or_after_each_round(advice, walks):
    """What latents[:, t] and latents[:, t + 1] hold: the same sequence, one round apart."""
    for target, episodes in ((targets.log_weights, advice), (targets.q_table, walks), (targets.visits, walks)):
        after, before = target(episodes), target(episodes, when="before")
        np.testing.assert_array_equal(after.values[:, :-1], before.values[:, 1:])
        assert (before.values[:, 0] == 0).all() and (after.values[:, 0] != 0).any()
        assert (after.when, before.when, before.key) == ("after", "before", f"{target.key}:before")


def test_log_weights_count_right_rounds(advice):
    right = (advice.advice == advice.labels[..., None]).cumsum(1)
    np.testing.assert_allclose(targets.log_weights(advice, eta=0.5).values, 0.5 * right)
    np.testing.assert_allclose(targets.counts(advice).values, right)
    centred = targets.log_weights_centred(advice).values
    np.testing.assert_allclose(centred.sum(-1), 0, atol=1e-12)
    np.testing.assert_allclose(np.diff(centred, axis=-1), np.diff(right, axis=-1))


def test_bayes_targets_are_the_predictors_own(advice):
    """The Bayes predictor's log-odds, and Laplace's rule where the prior is flat."""
    from interp.tasks.experts import predictors as algorithms

    prediction = 1 / (1 + np.exp(-targets.bayes_log_odds(advice).values[..., 0]))
    np.testing.assert_allclose(prediction, algorithms.bayes(advice, (0.3, 0.9)).predictions, rtol=1e-9)
    t = np.arange(1, advice.n_rounds + 1)[:, None]
    flat = (targets.counts(advice).values + 1) / (t + 2)
    np.testing.assert_allclose(targets.accuracies(advice, low=0.0, high=1.0).values, flat, rtol=1e-9)


def test_td_components_add_up_to_the_recorded_change(walks):
    """The tables change by alpha times reward plus bootstrapped value less current value, at the visited pair only."""
    r, now, later, error = (
        target(walks).values[..., 0]
        for target in (targets.reward, targets.current_value, targets.bootstrapped_value, targets.td_error)
    )
    np.testing.assert_allclose(error, r + later - now)
    change = targets.q_change(walks).values
    expected = np.eye(walks.n_states)[walks.states] * walks.alpha * error[..., None]
    np.testing.assert_allclose(change, expected, atol=1e-12)


def test_columns_and_visits_are_those_of_the_action_taken(walks):
    column, seen = targets.q_column(walks).values, targets.q_column_visited(walks).mask
    table, visits = targets.q_table(walks).values, targets.visits(walks).values
    e, t = 3, 17
    a = walks.actions[e, t]
    np.testing.assert_array_equal(column[e, t], table[e, t].reshape(4, 3)[:, a])
    np.testing.assert_array_equal(seen[e, t], visits[e, t].reshape(4, 3)[:, a] > 0)
    assert (targets.q_table_visited(walks).values[~targets.q_table_visited(walks).mask] == 0).all()


def test_the_greedy_action_is_scored_where_it_is_unique(walks):
    greedy = targets.greedy_action(walks)
    np.testing.assert_array_equal(greedy.mask[..., 0], ~walks.tied)
    assert greedy.kind == "class" and greedy.indicators().values.shape[-1] == 3


def test_rounds_of_one_type_are_alike(advice, walks):
    _, types = round_inputs(advice)
    kinds = np.concatenate([advice.advice, advice.labels[..., None]], -1).reshape(-1, 4)
    assert len(np.unique(types)) == len(np.unique(kinds, axis=0))
    for kind in np.unique(types):
        assert len(np.unique(kinds[types.reshape(-1) == kind], axis=0)) == 1
    forms, types = round_inputs(walks)
    assert all(form.shape[:2] == types.shape == walks.states.shape for form in forms)


def test_every_record_is_complete_and_computes_what_it_says(advice, walks):
    for key, target in REGISTRY.items():
        assert target.key == key and target.name and target.what and target.units and target.source
        episodes = walks if target.task == "qlearning" else advice
        sizes = {"n_experts": 3, "n_states": 4, "n_actions": 3}
        values = target(episodes)
        assert values.values.shape == (*episodes_shape(episodes), eval(target.shape, {}, sizes)[0]), key
        assert len(values.outputs) == values.values.shape[-1]
        assert values.mask is None or values.mask.shape == values.values.shape
        moments = ("before", "after") if target.of == "state" else ("after",)
        for when in moments:
            assert parse(target(episodes, when).key) == (target, when)


def episodes_shape(episodes):
    return len(episodes), episodes.n_rounds


def test_the_registry_refuses_a_taken_key():
    old = targets.reward
    with pytest.raises(InputError, match="a target 'reward' exists already"):
        register(Target("reward", old.name, old.what, old.task, old.shape, old.units, old.source, old.compute))


def test_what_is_wrong_is_said(advice, walks):
    with pytest.raises(InputError, match="unknown target 'log_weight'; did you mean 'log_weights'"):
        parse("log_weight")
    with pytest.raises(InputError, match="unknown moment 'during'"):
        parse("log_weights:during")
    with pytest.raises(InputError, match="unknown moment 'now'"):
        targets.log_weights(advice, when="now")
    with pytest.raises(
        InputError, match=r"target 'q_table' needs qlearning episodes, got ExpertEpisodes, for: .*votes"
    ):
        targets.q_table(advice)
    with pytest.raises(InputError, match=r"unknown parameter of target 'log_weights': 'gamma'.*eta"):
        targets.log_weights(advice, gamma=2.0)
    with pytest.raises(InputError, match="got list"):
        task_of([1, 2])
