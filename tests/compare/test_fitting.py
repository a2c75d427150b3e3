"""How families are fitted: the divergence, what counts as a distribution, where a search looks, and what it keeps."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence

from interp import tasks
from interp.choices.fitting import (
    Distributions,
    checked_distributions,
    distributions,
    divergence,
    divergence_by_round,
    fit,
    make_distributions,
    predictor,
    read_out,
    search,
    select_scored_rounds,
    task_of,
)
from interp.core.algorithm import Algorithm, Searched
from interp.tasks import bandit, experts, mdp
from interp.tasks.experts.algorithms import majority_vote, weighted_majority
from interp.tasks.experts.families import sigmoid_vote
from tests.refusals import refuses

CERTAIN, EVEN = [1.0, 0.0], [0.5, 0.5]
APART = 0.21576155433883565
"""Divergence of a certain prediction from an even one, nats."""


def test_a_divergence_is_a_mean_over_rounds_and_nothing_where_only_rounding_differs():
    p = np.array([[CERTAIN, EVEN, EVEN, EVEN], [CERTAIN, CERTAIN, EVEN, EVEN]])
    q = np.full_like(p, 0.5)
    assert divergence(p, q) == pytest.approx([APART / 4, APART / 2])
    nearly = q + np.array([1e-8, -1e-8])
    assert divergence(nearly, q).tolist() == [0.0, 0.0]


def test_normals_are_apart_by_the_mean_of_both_kullback_leibler_divergences_and_means_by_their_square():
    drawn = np.random.default_rng(0).normal(size=(2, 3, 4, 2))
    first, second = drawn
    p, q = normal_of(first), normal_of(second)
    both_ways = (kl_divergence(p, q) + kl_divergence(q, p)) / 2
    expected = both_ways.mean(1).numpy()
    assert divergence(first, second, "normal") == pytest.approx(expected)
    assert divergence(second, first, "normal") == pytest.approx(expected)
    assert divergence(first, first, "normal").tolist() == [0.0, 0.0, 0.0]
    means, other_means = first[..., :1], second[..., :1]
    squares = np.square(means - other_means).mean((1, 2))
    assert divergence(means, other_means, "mean") == pytest.approx(squares)


def normal_of(values):
    """Normal distributions from means and logs of variances."""
    mean, log_variance = torch.from_numpy(values).unbind(-1)
    return Normal(mean, (log_variance / 2).exp())


def test_the_divergence_of_every_round_is_that_of_the_round_alone_and_of_means_in_units_of_their_variance():
    p, q = np.random.default_rng(0).dirichlet((1, 1), (2, 4, 3))
    for kind, unit in (("classes", 1), ("normal", 1), ("mean", q.var())):
        by_round_of_kind = divergence_by_round(p, q, kind)
        assert by_round_of_kind.shape == (4, 3)
        for t in range(3):
            alone = divergence(p[:, t : t + 1], q[:, t : t + 1], kind)
            assert by_round_of_kind[:, t] == pytest.approx(alone / unit)


# What counts as predictions.


def test_what_an_untrained_copy_predicts_is_made_probable_and_real_numbers_stay_within_a_hundred():
    some_positive, none_positive = make_distributions(
        [[2.0, 0.5, np.nan, -1.0], [0.0, -np.inf, -1.0, np.nan]]
    )
    assert (some_positive >= 0).all()
    assert some_positive == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert none_positive == pytest.approx([0.25, 0.25, 0.25, 0.25])
    means = make_distributions([300.0, -np.inf, 99.0, np.nan], "mean")
    assert means.tolist() == [100.0, -100.0, 99.0, 0.0]


@pytest.mark.parametrize(
    ("kind", "precision", "total"),
    [("classes", torch.half, 1.25), ("classes", torch.float, 1), ("mean", torch.half, 1)],
    ids=["probabilities in half", "probabilities in single", "means in half"],
)
def test_only_probabilities_in_half_precision_are_made_to_sum_to_one(kind, precision, total):
    values = torch.tensor([[0.5, 0.25, 0.5], [0.25, 0.25, 0.75]])
    layout = SimpleNamespace(kind=kind, distribution=lambda p: p)
    predictions = distributions(layout, values.to(precision))
    assert np.array_equal(predictions, values.double().numpy() / total)


@pytest.fixture(scope="module")
def episodes():
    return experts.sample(2, 3, 2, seed=0)


def _with_first(episodes, *pair):
    values = np.full((len(episodes), episodes.n_rounds, 2), 0.5)
    values[0, 0] = pair
    return values


@pytest.mark.parametrize("pair", [(0.4, 0.6008), (0.4, 0.5992), (-5e-7, 1.0), (-1e-6, 1.0)])
def test_predictions_that_nearly_sum_to_one_are_made_to(episodes, pair):
    checked = checked_distributions(_with_first(episodes, *pair), episodes)
    assert (checked >= 0).all()
    assert checked.shape == (2, 3, 2)
    expected = np.clip(pair, 0, None) / sum(pair)
    assert checked[0, 0] == pytest.approx(expected)
    assert (checked[1] == 0.5).all()


@pytest.mark.parametrize(
    "pair", [(0.4, 0.60105), (0.4, 0.59895), (-2e-6, 1.0), (np.nan, 0.5), (np.inf, 0.5)]
)
def test_predictions_that_are_no_probabilities_are_refused(episodes, pair):
    refuses(
        r"must be probabilities that sum to 1, got one of .* and a sum of ",
        checked_distributions,
        _with_first(episodes, *pair),
        episodes,
    )


def test_a_refusal_says_the_sum_that_is_farthest_from_one(episodes):
    start = _with_first(episodes, 0.4, 0.5)
    refuses("a sum of 0.9", checked_distributions, start, episodes)
    for far, sum_text in ((0.75, "1.25"), (0.55, "0.9"), (0.25, "0.75")):
        start[1, 2] = 0.5, far
        refuses(f"a sum of {sum_text}", checked_distributions, start, episodes)


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(("kind", "numbers"), [("normal", 2), ("mean", 1)])
def test_real_numbers_are_as_many_as_their_kind_has_and_finite(kind, numbers):
    def draw_zeros(n, rounds, seed):
        return np.zeros((n, rounds, 3)), np.zeros((n, rounds))

    level = tasks.series(kind, draw_zeros, inputs=3, outcomes=kind)
    tasks.register(level)
    batch, values = level.sample(2, 3, seed=0), np.zeros((2, 3, numbers))
    assert np.array_equal(checked_distributions(values, batch), values)
    message = f"of the kind '{kind}' must be {numbers} finite"
    for wrong in (np.zeros((2, 3, 3 - numbers)), np.full_like(values, np.nan)):
        refuses(message, checked_distributions, wrong, batch)


@pytest.mark.parametrize("shape", [(2, 3), (3, 2, 2), (2, 4, 2), (1, 3, 2), (2, 3, 2, 1)])
def test_predictions_of_other_shapes_are_refused(episodes, shape):
    refuses(
        r"must be \[episode, round, outcome\] with \(2, 3\) first",
        checked_distributions,
        np.full(shape, 0.5),
        episodes,
    )


def test_only_asked_rounds_are_kept():
    """Reachability asks from its second round on."""
    task = tasks.get("reachability")
    (batch, _), *_ = task.sets_for(4, 2, seed=0, n_nodes=16, n_edges=24).values()
    values = np.arange(16.0).reshape(4, 2, 2)
    assert np.array_equal(select_scored_rounds(values, batch), values[:, 1:])
    (batch, _), *_ = task.sets_for(4, 1, seed=0, n_nodes=16, n_edges=24).values()
    refuses(
        "no prediction before round 2, and these episodes have 1",
        select_scored_rounds,
        values[:, :1],
        batch,
    )


def test_of_a_read_out_only_what_enters_the_prediction_alone_is_free(family):
    """Q-learning keeps its rates and is fitted in how it acts; Weighted Majority's gain enters its weights."""
    fixed = {"alpha": 0.1, "gamma": 0.5}
    update = tasks.get("qlearning").update_families()["q_learning"].make()
    free = read_out(family, replace(update, parameters=fixed))
    assert [s.name for s in free.searched] == ["after", "shared_ties", "temperature"]
    settings = {"after": False, "shared_ties": False, "temperature": 0.5}
    assert free.make(**settings).parameters == {**fixed, **settings}
    rivals = tasks.get("experts").rivals()
    assert read_out(rivals["weighted_majority"], rivals["weighted_majority"].make(gain=0.1)) is None
    assert read_out(family, rivals["weighted_majority"].make(gain=0.1)) is None
    vote = read_out(rivals["sigmoid_vote"], rivals["sigmoid_vote"].make(gain=0.1))
    assert [s.name for s in vote.searched] == ["gain"]


def test_what_predicts_is_an_algorithm_or_a_function(episodes):
    algorithm = weighted_majority(0.5)
    predictions = algorithm.distribution(algorithm.run(episodes))
    assert np.array_equal(predictor(algorithm)(episodes), predictions)
    assert predictor(len) is len


def test_sets_are_of_one_task(episodes):
    mdp_episodes = mdp.sample(2, 3, 2, 2, seed=0)
    assert task_of({"a": (episodes, episodes), "b": (episodes, episodes)}) == "experts"
    refuses(
        "of one task, got experts, qlearning",
        task_of,
        {"a": (episodes, episodes), "b": (episodes, mdp_episodes)},
    )


# What is computed again.


@pytest.fixture
def runs(monkeypatch):
    """Counts the runs of an algorithm's state."""
    counted, unrolled = [], Algorithm.unroll

    def counting(self, *given, **options):
        counted.append(self.key)
        return unrolled(self, *given, **options)

    monkeypatch.setattr(Algorithm, "unroll", counting)
    return counted


@pytest.fixture(scope="module")
def family():
    return tasks.get("qlearning").rivals()["q_learning"]


def test_only_parameters_of_the_state_run_the_state_again(family, runs):
    trajectories = mdp.sample(2, 5, 2, 2, seed=0)
    predict = Distributions(family, [trajectories])
    first = {p.name: p.grid[0] for p in family.searched}
    for change, expected in [
        ({}, 1),
        ({}, 1),
        ({"temperature": 0.05}, 1),
        ({"after": 1.0}, 1),
        ({"alpha": 0.3}, 2),
    ]:
        parameters = {**first, **change}
        predict(family.make(**parameters), parameters)
        assert len(runs) == expected, change
        first = parameters


def test_a_parameter_that_enters_what_the_next_state_is_made_of_runs_it_again(family, runs):
    """Whatever its family says that it enters: the state depends on it."""
    searched = [
        replace(p, used_by=("td_error",)) if p.name == "alpha" else p for p in family.searched
    ]
    predict = Distributions(
        replace(family, searched=tuple(searched)), [mdp.sample(2, 5, 2, 2, seed=0)]
    )
    first = {p.name: p.grid[0] for p in family.searched}
    for parameters in (first, {**first, "alpha": 0.3}):
        predict(family.make(**parameters), parameters)
    assert len(runs) == 2


def test_a_fit_is_the_mean_over_batches_that_count_alike_whatever_their_sizes():
    family = tasks.get("experts").rivals()["sigmoid_vote"]
    batches = [
        experts.sample(n, rounds, 2, seed=rounds) for n, rounds in ((2, 6), (6, 5), (3, 6))
    ]  # 2 are run as one
    subject = [sigmoid_vote(gain) for gain in (0.2, 1.0, 0.5)]
    predictions = [predictor(a)(batch) for a, batch in zip(subject, batches, strict=True)]
    nats, parameters = fit(family, batches, predictions)
    predict = predictor(family.make(**parameters))
    divergences = []
    for batch, target in zip(batches, predictions, strict=True):
        divergences.append(divergence(predict(batch), target).mean())
    assert nats == pytest.approx(np.mean(divergences))
    assert 0.2 < parameters["gain"] < 1.0
    majority_nats, nothing = fit(
        replace(family, searched=(), make=majority_vote), batches, predictions
    )
    assert nothing == {}
    assert majority_nats > nats


def test_a_round_that_is_missing_leaves_the_state_as_it_is_in_a_fit_too():
    plain = bandit.sample(3, 8, 2, seed=0)
    family = tasks.get("bandit").rivals()["rescorla_wagner"]
    is_missing = np.arange(8) % 3 == 1
    batches = [plain, replace(plain, missing=np.tile(is_missing, (3, 1)))]
    parameters = {s.name: s.grid[1] for s in family.searched}
    member = family.make(**parameters)
    expected = np.concatenate([predictor(member)(batch) for batch in batches])
    assert np.allclose(Distributions(family, batches)(member, parameters), expected)
    assert not np.allclose(*np.split(expected, 2))


def test_a_fit_changes_the_parameters_of_the_state_slowest(family, runs):
    narrow = [replace(p, grid=p.grid[:2], kind="choice") for p in family.searched]
    slow_last = replace(family, searched=tuple(sorted(narrow, key=lambda p: not p.used_by)))
    trajectories = mdp.sample(2, 5, 2, 2, seed=0)
    first = {p.name: p.grid[0] for p in family.searched}
    target = predictor(family.make(**first))(trajectories)
    runs.clear()
    fit(slow_last, [trajectories], [target])
    of_state = [p for p in slow_last.searched if not p.used_by]
    assert len(runs) == np.prod([len(p.grid) for p in of_state])


# Where a search looks.

X, Y = Searched("x", (0.0, 1.0, 2.0, 4.0)), Searched("y", (0.0, 10.0))
KIND = Searched("kind", (0.0, 1.0, 2.0), kind="choice")


def searched(parameters, loss):
    """The lowest loss, where it is, and every point that was tried; ``loss`` takes parameters by name."""
    tried = []

    def recorded(parameters):
        tried.append(tuple(parameters.values()))
        return loss(**parameters)

    return *search(parameters, recorded), tried


def test_the_grid_is_tried_first_and_nothing_more_where_a_point_fits_exactly():
    lowest, best, tried = searched((X, KIND), lambda x, kind: abs(x - 2) + abs(kind - 1))
    assert (lowest, best) == (0.0, {"x": 2.0, "kind": 1.0})
    assert tried == [(x, k) for x in X.grid for k in KIND.grid]


def test_a_choice_is_taken_from_the_grid_and_a_real_parameter_between_its_points():

    def loss(x, kind):
        return 1 + (x - 2.9) ** 2 + (kind - 1.2) ** 2

    lowest, best, tried = searched((X, KIND), loss)
    assert best["kind"] == 1.0
    assert best["x"] == pytest.approx(2.9, abs=0.01)
    assert lowest == pytest.approx(1.04, abs=1e-4)
    assert {kind for _, kind in tried} == {0.0, 1.0, 2.0}
    lowest, best, _ = searched((KIND,), lambda kind: abs(kind - 1.2))
    assert lowest == pytest.approx(0.2)
    assert best == {"kind": 1.0}


def test_the_best_points_of_the_two_best_choices_are_refined_and_then_the_others_from_what_was_found():
    """The choice that is second on the grid wins between its points; the third starts where that one ended."""
    bottom = {0.0: 0.3, 1.0: 0.1, 2.0: 0.0}
    offsets = {0.0: 1.0, 1.0: 1.45, 2.0: 3.0}

    def loss(x, kind):
        return bottom[kind] + abs(x - offsets[kind]) * 2

    lowest, best, tried = searched((X, KIND), loss)
    assert best["kind"] == 2.0
    assert best["x"] == pytest.approx(3.0, abs=0.02)
    assert lowest == pytest.approx(0.0, abs=0.02)
    kinds = [kind for _, kind in tried[12:]]
    first = kinds.index(2.0)
    assert set(kinds[:first]) == {0.0, 1.0}
    assert set(kinds[first:]) == {2.0}
    assert tried[12 + first][0] == pytest.approx(1.45, abs=0.01)


def test_a_choice_that_looks_bad_between_the_points_of_a_coarse_grid_is_found():
    """A sharp minimum of one of five choices, off the grid of the real parameter; the others have broad ones."""
    five = Searched("kind", (0.0, 1.0, 2.0, 3.0, 4.0), kind="choice")
    broad = {0.0: 0.5, 1.0: 0.2, 2.0: 0.25, 4.0: 0.6}

    def loss(x, kind):
        if kind == 3.0:
            return 3 * abs(x - 1.4)
        return broad[kind] + 0.1 * abs(x - 1.5)

    lowest, best, tried = searched((X, five), loss)
    assert tried[20][1] == 1.0  # on the grid others lead
    assert best["kind"] == 3.0
    assert best["x"] == pytest.approx(1.4, abs=0.01)
    assert lowest == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize(
    ("goal", "starts"),
    [
        ((1.0, 0.0), ((1.0, 0.0), (1.5, 0.0), (1.0, 5.0))),
        ((4.0, 10.0), ((4.0, 10.0), (3.0, 10.0), (4.0, 5.0))),
        ((2.0, 10.0), ((2.0, 10.0), (3.0, 10.0), (2.0, 5.0))),
    ],
)
def test_a_simplex_starts_half_a_step_wide_towards_the_inside(goal, starts):
    """In units of grid steps, from the best grid point."""
    goal_x, goal_y = goal

    def loss(x, y):
        return 1.0 + abs(x - goal_x) + abs(y - goal_y) / 10

    lowest, best, tried = searched((X, Y), loss)
    assert tried[8:11] == [*starts]
    assert (lowest, best) == (1.0, {"x": goal_x, "y": goal_y})


def test_a_smooth_loss_is_ended_from_where_the_simplex_is_a_tenth_of_a_step_wide():
    """From the grid point 1 a minimum at 1.37 is found to a millionth, in half the tries of two runs."""
    _, best, tried = searched((X,), lambda x: 1 + (x - 1.37) ** 2)
    assert best["x"] == pytest.approx(1.37, abs=1e-6)
    assert len(tried) < 4 + 30
    assert (1.375,) in tried
    assert (1.34375,) not in tried  # a sixteenth of a step, and a thirty-second


def test_a_kink_is_found_between_two_grid_points():
    _, best, _ = searched((X,), lambda x: 1 + max(3.8 - x, 20 * (x - 3.8)))
    assert best["x"] == pytest.approx(3.8, abs=1e-4)


def test_a_valley_that_bends_is_followed():
    def rosenbrock(x, y):
        beside_the_valley = y / 10 - x**2 / 4
        return 1 + 100 * beside_the_valley**2 + (1 - x) ** 2

    _, best, _ = searched((X, Y), rosenbrock)
    assert best == pytest.approx({"x": 1.0, "y": 2.5}, abs=1e-4)


@pytest.mark.parametrize(
    ("parameters", "n_on_grid", "limit"),
    [((X,), 4, 30), ((X, Y), 8, 60), ((Searched("z", (3.0,)), X), 4, 30)],
    ids=["one", "two", "one and a constant"],
)
def test_a_search_ends_after_thirty_tries_a_parameter(parameters, n_on_grid, limit):
    """A loss that keeps falling is not followed further, but for the simplex and the line that is then searched."""
    falling = iter(range(10**6, 0, -1))
    _, _, tried = searched(parameters, lambda **point: float(next(falling)))
    n_off_grid = len(tried) - n_on_grid
    assert limit < n_off_grid < 2 * limit


def test_a_parameter_with_one_value_is_left_alone():
    fixed = Searched("z", (3.0,))
    lowest, best, tried = searched((fixed, X), lambda z, x: 1 + abs(x - 1.5))
    assert best["z"] == 3.0
    assert lowest == pytest.approx(1.0, abs=0.01)
    assert {z for z, _ in tried} == {3.0}
    assert searched((), lambda: 2.0) == (2.0, {}, [(), ()])
