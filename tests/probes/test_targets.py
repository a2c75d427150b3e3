"""Targets are the variables of the tasks' algorithms, at the moment that they say."""

from dataclasses import replace

import numpy as np
import pytest

import interp.tasks
import probes
from interp.tasks import experts, mdp
from interp.tasks.experts.layout import ExpertRound
from probes import targets
from probes.targets import compute, every, get, parse, round_inputs
from tests.machines import transformer
from tests.refusals import refuses

pytestmark = pytest.mark.usefixtures("one_session")


def list_targets():
    pairs = []
    for task in interp.tasks.list_tasks():
        pairs += [(task.key, target.key) for target in every(task)]
    return pairs


EVERY = list_targets()


@pytest.fixture(scope="module")
def advice():
    return experts.sample(n_episodes=6, n_rounds=12, n_experts=3, seed=1)


@pytest.fixture(scope="module")
def walks():
    return mdp.sample(n_episodes=6, n_rounds=25, n_states=4, n_actions=3, seed=1)


@pytest.fixture(scope="module")
def sampled():
    """Episodes of every registered task, of its default sizes."""
    by_task = {}
    for task in interp.tasks.list_tasks():
        sizes = task.default_sizes
        by_task[task.key] = task.sample(5, 15, seed=2, **sizes)
    return by_task


def of_the_carried_state_alone(algorithm, key):
    """A table is; its column of the round's action is not, though it has a value before and after the round."""
    variable = algorithm.variable(key)
    computed = bool(variable.parents) and all(
        of_the_carried_state_alone(algorithm, k) for k in variable.parents
    )
    return variable.role == "state" or computed


@pytest.mark.parametrize(("task", "key"), EVERY)
def test_every_variable_of_every_task_can_be_decoded(task, key, sampled):
    """Finite numbers with a label each; before round t + 1 is after round t, for what the state alone determines."""
    target, n = get(key, task), (5, 15)
    values = {moment: target(sampled[task], moment) for moment in target.moments}
    for moment, value in values.items():
        assert value.values.shape == (*n, len(value.outputs))
        assert len(set(value.outputs)) == len(value.outputs)
        assert np.isfinite(value.values).all()
        if value.mask is not None:
            assert value.mask.shape == value.values.shape
            assert value.mask.dtype == bool
        assert (value.when, value.kind) == (moment, target.variable.kind)
        assert parse(value.key, task) == (target, moment)
        assert value.kind == "real" or (value.values >= 0).all()
    assert target.variable.meaning
    assert target.variable.symbol
    assert target.variable.units
    if target.record and of_the_carried_state_alone(target.record.make(), target.variable.key):
        assert target.moments == ("after", "before")
        after, before = values["after"], values["before"]
        np.testing.assert_array_equal(after.values[:, :-1], before.values[:, 1:])
        if after.mask is not None:
            np.testing.assert_array_equal(after.mask[:, :-1], before.mask[:, 1:])


def test_what_a_task_probes_by_default_are_targets():
    """``interp probe`` of a model of reachability asked for a target that does not exist."""
    for task in interp.tasks.list_tasks():
        assert all(get(key, task).key == key for key in task.analysis.probed)


@pytest.mark.long
def test_every_variable_of_every_algorithm_is_a_target(sampled):
    """Under its own key or ``algorithm.key``, both of which are understood."""
    for task in interp.tasks.list_tasks():
        for record in task.algorithms.records():
            algorithm = record.for_episodes(sampled[task.key])
            run = algorithm.run(sampled[task.key])
            for key in algorithm.keys:
                base = key.removeprefix("next_")
                after = key != base and base in algorithm.of_the_state
                name, when = (
                    (base, "after")
                    if after
                    else (key, "before" if key in algorithm.of_the_state else "round")
                )
                target = get(f"{record.key}.{name}", task)
                values = target(sampled[task.key], when=when).values
                np.testing.assert_array_equal(values, run[key].reshape(values.shape))


def test_a_shared_key_means_the_first_algorithms(advice):
    first, bayes_target = get("prediction"), get("bayes.prediction")
    assert (first.record.key, bayes_target.record.key) == ("weighted_majority", "bayes")
    assert get("weighted_majority.prediction") == first
    assert get("bayes.evidence") == get("evidence")
    assert get("bayes.votes") == get("votes")
    difference = first(advice).values - bayes_target(advice).values
    assert np.abs(difference).max() > 0.01
    keys = [target.key for target in every("experts")]
    assert len(set(keys)) == len(keys)
    assert "bayes.votes" not in keys
    assert "next_log_weights" not in keys


def test_one_run_serves_all_targets_of_an_algorithm(advice, monkeypatch):
    from interp.core.algorithm import Algorithm

    runs_made, carried = [], Algorithm.compute_states_and_inputs

    def counting(self, episodes, do=None):
        runs_made.append(self.key)
        return carried(self, episodes, do)

    monkeypatch.setattr(Algorithm, "compute_states_and_inputs", counting)
    compute(
        ["log_weights", "log_weights:before", "prediction", "counts", "evidence", "round_index"],
        replace(advice),
    )
    assert runs_made == ["weighted_majority", "bayes"]


def test_targets_are_attributes_of_their_module():
    assert targets.log_weights == get("log_weights")
    assert {"log_weights", "td_error", "get", "every"} <= set(dir(targets))
    assert "bayes.prediction" not in dir(targets)
    with pytest.raises(
        AttributeError, match=r"unknown target 'log_weight'; did you mean 'log_weights'"
    ):
        _ = targets.log_weight
    assert not hasattr(targets, "__path_to_nowhere__")


def test_log_weights_count_right_rounds(advice):
    right = (advice.advice == advice.labels[..., None]).cumsum(1)
    np.testing.assert_allclose(targets.log_weights(advice, gain=0.5).values, 0.5 * right)
    np.testing.assert_allclose(targets.counts(advice).values, right)
    centred = targets.log_weights_centred(advice).values
    np.testing.assert_allclose(centred.sum(-1), 0, atol=1e-12)
    between_experts = np.diff(right, axis=-1)
    np.testing.assert_allclose(np.diff(centred, axis=-1), between_experts)


def test_bayes_targets_are_the_predictors_own(advice):
    """The Bayes predictor's log-odds, and Laplace's rule where the prior is flat."""
    from interp.tasks.experts import predictors

    log_odds = targets.evidence(advice).values[..., 0]
    prediction = 1 / (1 + np.exp(-log_odds))
    expected = predictors.bayes(advice, (0.3, 0.9)).predictions
    np.testing.assert_allclose(prediction, expected, rtol=1e-9)
    t = np.arange(1, advice.n_rounds + 1)[:, None]
    flat = (targets.counts(advice).values + 1) / (t + 2)
    np.testing.assert_allclose(
        targets.accuracies(advice, low=0.0, high=1.0).values, flat, rtol=1e-9
    )


def test_tables_are_the_recorded_ones_unless_told_otherwise(walks):
    """The episodes' own learning rate and discount are the defaults."""
    recorded = walks.q_tables[:, 1:].reshape(6, 25, -1)
    np.testing.assert_array_equal(targets.table(walks).values, recorded)
    relearned = walks.relearn(alpha=0.5).q_tables[:, 1:].reshape(6, 25, -1)
    np.testing.assert_allclose(targets.table(walks, alpha=0.5).values, relearned, atol=1e-12)
    table_of_rewards = get("no_bootstrap.table")(walks).values
    assert table_of_rewards.max() <= walks.rewards.max()


def test_td_components_add_up_to_the_recorded_change(walks):
    """The tables change by alpha times reward plus bootstrapped value less current value, at the visited pair only."""
    r = targets.reward(walks).values[..., 0]
    now = targets.current_value(walks).values[..., 0]
    later = targets.bootstrapped_value(walks).values[..., 0]
    error = targets.td_error(walks).values[..., 0]
    np.testing.assert_allclose(error, r + later - now)
    change = targets.change(walks).values
    visited = np.eye(walks.n_states)[walks.states]
    step = walks.alpha * error
    np.testing.assert_allclose(change, visited * step[..., None], atol=1e-12)
    recorded = np.diff(walks.q_tables, axis=1)
    actions = walks.actions[..., None, None]
    recorded_column = np.take_along_axis(recorded, actions, axis=-1)[..., 0]
    np.testing.assert_allclose(change, recorded_column, atol=1e-12)


def test_columns_and_visits_are_those_of_the_action_taken(walks):
    """The column that a round rewrites: after the round with its new value, scored where the pair was ever visited."""
    e, t = 3, 17
    a = walks.actions[e, t]
    for when in ("after", "before"):
        column = targets.column(walks, when).values
        seen = targets.column_visited(walks, when).mask
        table = targets.table(walks, when).values[e, t].reshape(4, 3)
        visits = targets.visits(walks, when).values[e, t].reshape(4, 3)
        np.testing.assert_array_equal(column[e, t], table[:, a])
        np.testing.assert_array_equal(seen[e, t], visits[:, a] > 0)
    after, before = targets.table_visited(walks), targets.table_visited(walks, "before")
    assert (after.values[~after.mask] == 0).all()
    assert after.mask.sum() > before.mask.sum()


def test_the_greedy_action_is_scored_where_it_is_unique(walks):
    greedy = targets.greedy_action(walks)
    is_unique = walks.greedy_sets.sum(-1) == 1
    np.testing.assert_array_equal(greedy.mask[..., 0], is_unique)
    assert greedy.kind == "class"
    assert greedy.indicators().values.shape[-1] == 3


def test_rounds_of_one_type_are_alike(advice, walks):
    _, types = round_inputs(advice)
    kinds = np.concatenate([advice.advice, advice.labels[..., None]], -1)
    assert len(np.unique(types)) == len(np.unique(kinds.reshape(-1, 4), axis=0))
    for kind in np.unique(types):
        of_kind = kinds[types == kind]
        assert len(np.unique(of_kind, axis=0)) == 1
    forms, types = round_inputs(walks)
    assert types.shape == walks.states.shape
    for form in forms:
        assert form.shape[:2] == types.shape


def test_controls_that_hold_a_target_by_construction(advice, walks):
    """The round's inputs hold what they alone determine; the round index holds what is alike in every episode."""
    for target in (targets.votes, targets.label, targets.match, get("majority_vote.prediction")):
        assert target(advice).implied_by == ("inputs",)
    assert all(
        getattr(targets, key)(walks).implied_by == ("inputs",)
        for key in ("state", "reward", "next_state")
    )
    by_round = ("round", "shuffled")
    assert targets.round_index(walks).implied_by == by_round
    assert targets.elapsed(advice).implied_by == by_round
    assert targets.prediction(advice).implied_by == ()
    assert targets.table(walks).implied_by == ()


def test_a_task_that_says_nothing_of_its_rounds_has_no_inputs_control(changed_task):
    """The result says so: two controls are listed as not run, in a probe and in a sweep."""
    changed_task("experts", analysis=replace(experts.TASK.analysis, round_inputs=None))
    episodes = experts.sample(n_episodes=10, n_rounds=8, n_experts=2, seed=0)
    model = transformer(ExpertRound(2))
    (result,) = probes.probe(model, episodes, ["log_weights"])
    assert result.missing == ("inputs", "control_task")
    assert "not run: a probe of the round's inputs" in str(result)
    row = probes.sweep(model, episodes, ["log_weights"], sites="resid_post@w?", n_jobs=1).to_frame()
    assert row["inputs"].isna().all()
    assert row["round"].notna().all()


def test_a_task_without_algorithms_has_the_round_index_alone(changed_task, advice):
    changed_task("experts", algorithms=interp.tasks.Algorithms())
    assert [value.key for value in compute(None, advice)] == ["round_index"]
    refuses(
        r"task 'experts' registers none; give its record algorithms=",
        compute,
        ["log_weights"],
        advice,
    )


def test_what_is_wrong_is_said(advice):
    refuses("unknown moment of target 'log_weights': 'during'", parse, "log_weights:during")
    refuses(
        r"unknown moment of target 'votes': 'before'\. Valid: round",
        targets.votes,
        advice,
        when="before",
    )
    refuses(r"unknown target of 'experts' 'table'.*votes", targets.table, advice)
    refuses(
        r"unknown parameter of target 'log_weights': 'gamma'.*gain",
        targets.log_weights,
        advice,
        gamma=2.0,
    )


@pytest.mark.parametrize("key", ["log_weights[e_1]", "log_weights[0]"])
def test_an_element_of_a_target_is_refused_with_where_to_read_it(key):
    """Doses and interchange take elements; a probe decodes the whole variable."""
    refuses(
        r"a target is a whole variable.* probe 'log_weights', and read by_output", targets.get, key
    )
    refuses("unknown target", targets.get, "no_such_variable[0]")
