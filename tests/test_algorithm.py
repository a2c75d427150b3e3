"""Algorithms as causal models: they run as their closed forms say, and interventions cut what they must and no more."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import special

from interp import tasks
from interp.core.algorithm import NEXT, Algorithm, Variable
from interp.tasks import experts, mdp
from interp.tasks.experts.predictors import log_weights
from tests.refusals import refuses

EXPERTS = ("weighted_majority", "bayes", "follow_the_leader", "majority_vote")
seeds = st.integers(0, 10_000)
few = settings(max_examples=8)


def test_an_algorithm_is_printed_in_a_line_with_its_parameters():
    algorithm = tasks.get("experts").algorithm("weighted_majority", gain=0.5)
    assert repr(algorithm) == "Weighted Majority (gain 0.5), an algorithm of experts"


def advice(seed):
    return experts.sample(3, 6, 3, regime="uniform", seed=seed)


def steps(seed, n_rounds=6):
    return mdp.sample(3, n_rounds, 3, 2, regime="grid", seed=seed, epsilon=0.5)


def cases(seed):
    """Every algorithm of both tasks, with episodes that it runs on."""
    yield from ((tasks.get("experts").algorithm(key), advice(seed)) for key in EXPERTS)
    for key in ("q_learning", "no_bootstrap"):
        yield tasks.get("qlearning").algorithm(key), steps(seed)


@few
@given(seeds, st.floats(0.01, 5))
def test_weighted_majority_is_its_closed_form_bitwise(seed, gain):
    episodes = advice(seed)
    values = tasks.get("experts").algorithm("weighted_majority", gain=gain).run(episodes)
    expected = log_weights(episodes, gain)
    assert_array_equal(values["log_weights"], expected[:, :-1])
    assert_array_equal(values["next_log_weights"], expected[:, 1:])
    weights = special.softmax(expected[:, :-1], axis=-1)
    assert_array_equal(values["weights"], weights)
    weighted_vote = (weights * episodes.advice).sum(-1)
    assert_allclose(values["prediction"], weighted_vote, atol=1e-12)


@few
@given(seeds)
def test_counting_algorithms_keep_the_counts_bitwise(seed):
    episodes = advice(seed)
    for key in ("bayes", "follow_the_leader"):
        values = tasks.get("experts").algorithm(key).run(episodes)
        counted = episodes.correct.cumsum(1)
        assert_array_equal(values["counts"], counted - episodes.correct)
        assert_array_equal(values["next_counts"], counted)


@few
@given(seeds, st.floats(0.05, 1), st.floats(0, 0.99))
def test_q_learning_is_the_recorded_table_bitwise(seed, alpha, gamma):
    episodes = steps(seed).relearn(alpha=alpha, gamma=gamma)
    values = tasks.get("qlearning").algorithm("q_learning", alpha=alpha, gamma=gamma).run(episodes)
    assert_array_equal(values["table"], episodes.q_tables[:, :-1])
    assert_array_equal(values["next_table"], episodes.q_tables[:, 1:])
    assert_array_equal(values["greedy_action"], episodes.greedy)
    best_actions = episodes.next_values_before.argmax(-1)
    assert_array_equal(values["choice"], best_actions)


@few
@given(seeds)
def test_what_the_state_says_after_a_round_is_what_it_says_before_the_next(seed):
    """``next_<key>`` of every variable that the carried state determines, and those of the state itself."""
    for algorithm, episodes in cases(seed):
        values = algorithm.run(episodes)
        assert set(values) == set(algorithm.keys)
        for key in algorithm.of_the_state:
            variable = algorithm.variable(key)
            is_determined = set(variable.parents) <= set(algorithm.state)
            if variable.role == "state" or is_determined:
                after = values[NEXT + key][:, :-1]
                before_next = values[key][:, 1:]
                assert_array_equal(after, before_next, err_msg=key)


@few
@given(seeds)
def test_distributions_sum_to_one(seed):
    for algorithm, episodes in cases(seed):
        distribution = algorithm.distribution(algorithm.run(episodes))
        assert distribution.shape[:2] == (3, 6)
        assert (distribution >= 0).all()
        assert_allclose(distribution.sum(-1), 1)


def assert_same_values(values, expected, case):
    """Every variable of ``expected`` has the same values."""
    for key in expected:
        assert np.array_equal(values[key], expected[key]), case


@pytest.mark.long
@few
@given(seeds)
def test_setting_a_variable_to_its_own_values_changes_nothing(seed):
    for algorithm, episodes in cases(seed):
        values = algorithm.run(episodes)
        for variable in algorithm.variables:
            again = algorithm.run(episodes, do={variable.key: values[variable.key]})
            assert_same_values(again, values, f"{algorithm.key}, {variable.key}")


@few
@given(seeds)
def test_interchanging_a_variable_with_itself_changes_nothing(seed):
    for algorithm, episodes in cases(seed):
        values = algorithm.run(episodes)
        state, inputs = algorithm.select_step_arguments(values, slice(2, 5))
        base = algorithm.step(state, inputs)[1]
        for variable in algorithm.variables:
            again = algorithm.interchange(base, base, variable.key)
            assert_same_values(again, base, f"{algorithm.key}, {variable.key}")


@few
@given(seeds)
def test_do_cuts_a_variable_from_its_parents_and_moves_only_what_follows(seed):
    """Whatever a variable is set to, what does not descend from it within the round stays as it was."""
    rng = np.random.default_rng(seed)
    for algorithm, episodes in cases(seed):
        values = algorithm.run(episodes)
        state, inputs = algorithm.select_step_arguments(values, slice(0, 6))
        plain = algorithm.step(state, inputs)[1]
        for variable in algorithm.variables:
            if variable.kind == "class" or variable.role != "round":
                continue
            plain_values = plain[variable.key]
            set_values = plain_values + rng.random(plain_values.shape)
            if plain_values.dtype == np.int64:
                # No expert is right more often than there were rounds.
                is_elapsed = "elapsed" in variable.key
                set_values = plain_values + 5 if is_elapsed else 0 * plain_values
            set_to = algorithm.step(state, inputs, {variable.key: set_values})[1]
            assert_array_equal(set_to[variable.key], set_values)
            descends = {variable.key}
            for variable_after in algorithm.variables:
                if descends & set(variable_after.parents):
                    descends.add(variable_after.key)
            elsewhere = {v.key for v in algorithm.variables} - descends
            for key in elsewhere:
                assert_array_equal(set_to[key], plain[key], err_msg=key)


def test_what_is_set_runs_on_into_later_rounds():
    episodes = advice(0)
    algorithm = tasks.get("experts").algorithm("weighted_majority", gain=0.5)
    nobody = algorithm.run(episodes, do={"match": np.zeros(episodes.advice.shape)})
    assert not nobody["next_log_weights"].any()
    mean_vote = episodes.advice.mean(-1)
    assert_allclose(nobody["prediction"], mean_vote)
    values = algorithm.run(episodes, do={"log_weights": np.ones(episodes.advice.shape)})
    assert_array_equal(values["next_log_weights"], 1 + 0.5 * episodes.correct)


@few
@given(seeds, st.permutations(range(3)))
def test_permuting_experts_permutes_everything(seed, order):
    """Variables with one entry per expert move with the experts; everything else stays, to rounding."""
    episodes = advice(seed)
    permuted = replace(
        episodes, advice=episodes.advice[..., order], accuracies=episodes.accuracies[..., order]
    )
    for key in EXPERTS:
        algorithm = tasks.get("experts").algorithm(key)
        values, others = algorithm.run(episodes), algorithm.run(permuted)
        for name, value in values.items():
            expected = value[..., order] if value.ndim == 3 else value
            assert_allclose(others[name], expected, atol=1e-12, err_msg=f"{key}.{name}")


def test_one_element_is_interchanged_and_the_others_stay():
    algorithm = tasks.get("experts").algorithm("weighted_majority")
    base, source = (algorithm.run(advice(seed)) for seed in (0, 1))
    changed = algorithm.interchange(base, source, "log_weights", element=1)
    expected = base["log_weights"].copy()
    expected[..., 1] = source["log_weights"][..., 1]
    assert_array_equal(changed["log_weights"], expected)
    assert not np.array_equal(changed["prediction"], base["prediction"])


@pytest.mark.parametrize(
    ("element", "message"),
    [
        (0, "'table' has 1 more axes than the element 0"),
        ((0, 0, 0), "'table' of shape .* has no element .*too many indices"),
        ((3, 0), "'table' of shape .* has no element"),
    ],
)
def test_an_index_that_names_no_single_element_is_refused(element, message):
    """With two axes of elements, one index would set a column; three would set one round."""
    algorithm = tasks.get("qlearning").algorithm("q_learning")
    values = algorithm.run(mdp.sample(2, 4, 3, 2, seed=0))
    refuses(message, algorithm.interchange, values, values, "table", element)


# Definitions.


def labels_as_x(episodes):
    return {"x": episodes.labels}


def toy(*variables, **changes):
    return Algorithm(
        key="toy",
        name="toy",
        task="experts",
        parameters={},
        variables=variables,
        inputs=labels_as_x,
        initial=lambda episodes: {},
        distribution=lambda values: values["x"],
        **changes,
    )


X = Variable("x", "x", "", "", "input")
Y = Variable("y", "y", "", "", parents=("x",), equation=lambda v: v["x"] + 1)


def test_bad_algorithms_are_refused():
    message = "toy.y reads 'x', which does not come before it; known so far: none"
    refuses(message, toy, Y, X)
    refuses("'toy' has two variables called 'x'", toy, X, X)
    state = Variable("s", "s", "", "", "state")
    refuses("state variable 's' of 'toy' needs a round variable 'next_s'", toy, X, state)
    refuses("unknown variable of 'toy' 'z'", toy, X, Y, memory="z")
    refuses("unknown variable of 'toy' 'next_y'. Valid: x, y", toy, X, Y, written="next_y")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"role": "round"}, "variable 'z': round variables need an equation"),
        (
            {"role": "input", "equation": lambda v: v["x"]},
            "inputs and state variables take none",
        ),
        ({"role": "input", "parents": ("x",)}, "inputs and state variables take none"),
        ({"role": "input", "kind": "class"}, "a class variable, and no other, says how many"),
    ],
    ids=["no equation", "input with an equation", "input with parents", "class of no size"],
)
def test_bad_variables_are_refused(fields, message):
    refuses(message, Variable, "z", "z", "", "", **fields)


def test_bad_interventions_are_refused():
    algorithm = toy(X, Y)
    refuses("toy runs on experts episodes, got MDPEpisodes", algorithm.run, steps(0))
    unknown = {"z": np.zeros((3, 6))}
    refuses("unknown variable of 'toy' 'z'", algorithm.run, advice(0), do=unknown)


def test_bad_values_and_interchanges_are_refused():
    algorithm = toy(X, Y)
    one_round = {"x": np.zeros((3, 1))}
    message = r"do\['x'\] must be \[episode, round, ...\] = \(3, 6\)"
    refuses(message, algorithm.run, advice(0), do=one_round)
    refuses("unknown variable of 'toy' 'z'", algorithm.interchange, {}, {}, "z")


def test_a_variant_exchanges_equations_and_refuses_what_is_not_there():
    base = tasks.get("experts").algorithm("weighted_majority", gain=0.5)
    doubled = ("log_weights", "match"), lambda v: v["log_weights"] + 2 * v["match"]
    varied = base.make_variant(
        "doubled", "twice the gain", {"gain": 2}, {"next_log_weights": doubled}, memory=""
    )
    episodes = experts.sample(3, 6, 4, seed=0)
    assert varied.key == "doubled"
    assert varied.name == "twice the gain"
    assert varied.parameters == {"gain": 2}
    assert varied.memory == ""
    expected = 2 * varied.run(episodes)["match"].cumsum(1)
    assert np.array_equal(varied.run(episodes)["next_log_weights"], expected)
    assert base.run(episodes)["next_log_weights"] == pytest.approx(expected / 4)
    refuses("next_weights", base.make_variant, "other", "another", {}, {"next_weights": doubled})


def test_a_table_of_variables_says_what_depends_on_what():
    algorithm = tasks.get("experts").algorithm("bayes")
    assert algorithm.state == ("counts", "elapsed")
    assert algorithm.of_the_state == ("counts", "elapsed", "accuracies", "log_odds")
    assert algorithm.of_the_inputs == ("votes", "label", "match")
    assert algorithm.variable("next_log_odds") is algorithm.variable("log_odds")
    labels = algorithm.variable("counts").labels(np.zeros((1, 1, 2)))
    assert labels == ("e_1", "e_2")
    assert algorithm.variable("elapsed").labels(np.zeros((1, 1))) == ("t",)
