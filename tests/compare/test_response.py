"""Responses to single inputs, on predictors whose answer is known: late, deaf to one input, louder, stopped."""

from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

import interp
from circuits.compare import response
from circuits.compare.question import Budget, Compared, Participant, Samples
from circuits.compare.response import (
    RESPONSE,
    Edits,
    compare_responses,
    measure_responses,
)
from interp import tasks
from interp.core.algorithm import Variable
from interp.stats.intervals import resample_weights
from interp.tasks import experts
from interp.tasks.experts.algorithms import weighted_majority
from interp.tasks.reachability import TASK as REACHABILITY
from interp.tasks.reachability.algorithms import breadth_first
from lab import known
from lab.known import makers

T = 12


def said(log_weights, votes):
    weights = np.exp(log_weights - log_weights.max(-1, keepdims=True))
    weight_of_ones = (weights * votes).sum(-1)
    p_one = weight_of_ones / weights.sum(-1)
    return np.stack([1 - p_one, p_one], -1)


def majority(gain=0.5, lag=0, deaf=None, stop=None):
    """Weighted Majority by hand: log-weights are sums over rounds, ``lag`` late, without one expert or some rounds."""

    def predict(episodes):
        match = (episodes.advice == episodes.labels[..., None]).astype(float)
        if deaf is not None:
            match[..., deaf] = 0.5
        if stop is not None:
            match[:, stop:] = 0.0
        late = np.zeros_like(match)
        n_seen = match.shape[1] - 1 - lag
        late[:, 1 + lag :] = np.cumsum(match, 1)[:, :n_seen]
        return said(gain * late, episodes.advice)

    return predict


@pytest.fixture(scope="module")
def edits():
    return Edits.of(experts.TASK, experts.sample(24, T, 3, seed=0), 24 * 44)


def found(edits, one, other):
    return {
        (cell.what, cell.when): cell
        for cell in compare_responses(
            edits, measure_responses(one, edits), measure_responses(other, edits)
        )
    }


def test_every_input_of_every_round_is_changed_alone(edits):
    kinds = (
        "flip one expert's vote p_1",
        "flip one expert's vote p_2",
        "flip one expert's vote p_3",
        "flip the label",
    )
    assert edits.kinds == kinds
    changed_inputs = set(zip(edits.kind.tolist(), edits.round.tolist(), strict=True))
    assert changed_inputs == set(product(range(4), range(T - 1)))
    for kind, t, rows, changed in edits.parts:
        advice = changed.advice != edits.episodes.advice
        labels = changed.labels != edits.episodes.labels
        n_changes = advice.sum() + labels.sum()
        assert n_changes == len(edits.episodes)
        assert len(rows) == 24
        changed_input = labels[:, t] if kind == 3 else advice[:, t, kind]
        assert changed_input.all()


def test_a_machine_responds_as_its_algorithm_does(edits):
    """Run on from its own latents, against whole runs of the changed episodes."""
    model = interp.load("wma-handwired", n_experts=3).double()
    ours, theirs = measure_responses(model, edits), measure_responses(weighted_majority(0.5), edits)
    assert np.abs(theirs).max() > 0.3
    assert np.allclose(ours, theirs, atol=1e-9)
    assert np.allclose(measure_responses(majority(), edits), theirs, atol=1e-12)


def test_nothing_changes_before_the_edit_and_a_label_only_afterwards(edits):
    change = np.abs(measure_responses(weighted_majority(0.5), edits)).max(-1)
    lag = np.arange(T) - edits.round[:, None]
    is_label = edits.kind[:, None] == 3
    assert change[lag < 0].max() == 0
    assert change[is_label & (lag == 0)].max() == 0
    assert change[is_label & (lag == 1)].max() > 0.05


@pytest.mark.parametrize(
    ("other", "where", "bounds"),
    [
        (majority(lag=1), ("flip the label", "one round later"), (0.0, 0.2)),
        (majority(lag=2), ("flip the label", "2 rounds later"), (0.0, 0.2)),
        (majority(deaf=1), ("flip one expert's vote p_2", "2 rounds later"), (0.0, 0.3)),
        (
            majority(stop=6),
            ("any input", "changed in round 7"),
            (0.9, 0.999),
        ),  # votes of the same round are heard
        (majority(stop=6), ("flip the label", "one round later"), (0.3, 0.9)),
        (majority(gain=0.45), ("flip the label", "one round later"), (0.98, 0.9999)),
        (majority(gain=1.0), ("flip the label", "9 to 11 rounds later"), (0.5, 0.9)),
    ],
)
def test_what_is_heard_late_or_never_is_seen_where_it_is_missing(edits, other, where, bounds):
    cell = found(edits, majority(), other)[where]
    lowest, highest = bounds
    assert lowest <= cell.alike.low <= cell.alike.estimate <= highest


def test_a_predictor_is_alike_to_itself_in_every_cell(edits):
    cells_of_itself = found(edits, majority(), majority()).values()
    assert all(cell.alike.low == cell.alike.high == 1 for cell in cells_of_itself)


def test_the_least_alike_cell_stands_first_and_an_inverted_round_is_one(edits):
    def inverted(episodes):
        p = majority()(episodes)
        p[:, 9] = p[:, 9, ::-1]
        return p

    ranked = compare_responses(
        edits, measure_responses(majority(), edits), measure_responses(inverted, edits)
    )
    lows = [cell.alike.low for cell in ranked]
    assert lows == sorted(lows)
    assert ranked[0].alike.high < 0.9
    by_cell = {(cell.what, cell.when): cell.alike.estimate for cell in ranked}
    assert min(by_cell, key=by_cell.__getitem__) == ("any input", "changed in round 9")


def test_alike_is_symmetric_and_has_the_values_that_it_says(edits):
    ours = measure_responses(majority(), edits)
    theirs = measure_responses(majority(lag=1), edits)
    there, back = compare_responses(edits, ours, theirs), compare_responses(edits, theirs, ours)
    assert [c.alike for c in there] == [c.alike for c in back]
    assert [c.size for c in there] == [c.reference_size for c in back]
    assert [c.reference_size for c in there] == [c.size for c in back]
    big = 100 * ours  # beside which .03, the smallest response, is nothing
    for factor, value in ((3.0, 0.6), (0.0, 0.0), (-1.0, -1.0)):
        estimates = [c.alike.estimate for c in compare_responses(edits, big, factor * big)]
        assert estimates == pytest.approx([value] * len(estimates), abs=0.01)
    unnoticed = ours * (0.03 / 100) / np.abs(ours).max()
    assert compare_responses(edits, unnoticed, -unnoticed) == ()  # nobody responds: nothing is said


def test_rounds_that_are_not_known_are_left_out(edits):
    ours = measure_responses(majority(), edits)
    lag = np.arange(T) - edits.round[:, None]
    masked = ours.copy()
    masked[lag != 1] = np.nan
    cells_of_kinds = [
        cell for cell in compare_responses(edits, ours, masked) if cell.what != "any input"
    ]
    assert {cell.when for cell in cells_of_kinds} == {"one round later"}


def test_a_task_whose_inputs_cannot_change_in_one_round_has_no_responses():
    """The edges of a graph are the same in all rounds of an episode."""
    none = Edits.of(REACHABILITY, REACHABILITY.sample(8, 5, seed=0, n_nodes=8, n_edges=12), 100)
    model = interp.load("reachability-handwired", n_nodes=8, n_edges=12)
    assert none.parts == ()
    assert (
        compare_responses(none, measure_responses(model, none), measure_responses(model, none))
        == ()
    )


def by_hand(edits, ours, theirs, mask, unit=1.0):
    """Estimate, interval and sizes of one cell, from the formula of the module."""
    n_episodes = len(edits.episodes)
    masks = [mask & (edits.episode[:, None] == episode) for episode in range(n_episodes)]

    def episode_sums(values):
        return np.array([(values * mask).sum() for mask in masks])

    n = episode_sums(np.ones(mask.shape))
    products = episode_sums((ours * theirs).sum(-1))
    our_squares = episode_sums((ours**2).sum(-1))
    their_squares = episode_sums((theirs**2).sum(-1))
    floor = n * 0.03**2 * unit
    in_common = 2 * products + floor
    in_total = our_squares + their_squares + floor
    weights = resample_weights(n_episodes, 1000, seed=0)
    samples = (weights @ in_common) / (weights @ in_total)
    low, high = np.quantile(samples, [0.005, 0.995])
    likeness = in_common.sum() / in_total.sum()
    size = np.sqrt(our_squares.sum() / n.sum())
    reference_size = np.sqrt(their_squares.sum() / n.sum())
    return [likeness, low, high, size, reference_size]


@pytest.mark.parametrize(("kind", "first_asked"), [("classes", 0), ("mean", 2)])
def test_every_cell_has_the_numbers_of_the_formula(edits, monkeypatch, kind, first_asked):
    task = SimpleNamespace(kind=kind, data=SimpleNamespace(first_asked=first_asked))
    monkeypatch.setattr(response.tasks, "of", lambda episodes: task)
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(0, 0.05, (2, len(edits.kind), T, 2))
    theirs = 0.6 * ours + theirs
    lag = np.arange(T) - edits.round[:, None]
    is_counted = np.arange(T)[None] >= first_asked
    unit = 1.0
    if kind == "mean":
        every = (lag >= 0) & is_counted
        squares = (ours**2 + theirs**2).sum(-1)
        unit = squares[every].mean() / 2
    bands = {"in the same round": (0, 1), "one round later": (1, 2), "2 rounds later": (2, 3)}
    bands |= {
        "3 to 4 rounds later": (3, 5),
        "5 to 8 rounds later": (5, 9),
        "9 to 11 rounds later": (9, 12),
    }
    masks = {}
    for i, name in enumerate(edits.kinds):
        is_of_kind = edits.kind[:, None] == i
        for when, (low, high) in bands.items():
            in_band = (low <= lag) & (lag < high)
            masks[name, when] = in_band & is_of_kind & is_counted
    for t in range(T - 1):
        is_of_round = edits.round[:, None] == t
        masks["any input", f"changed in round {t}"] = (lag >= 0) & is_of_round & is_counted
    cells_found = {(c.what, c.when): c for c in compare_responses(edits, ours, theirs)}
    assert cells_found.keys() == masks.keys()
    for key, mask in masks.items():
        cell = cells_found[key]
        interval = cell.alike
        numbers = [interval.estimate, interval.low, interval.high, cell.size, cell.reference_size]
        assert numbers == pytest.approx(by_hand(edits, ours, theirs, mask, unit)), key


@pytest.mark.parametrize(
    ("n", "has_cell"), [(7, False), (8, True)], ids=["seven episodes", "eight episodes"]
)
def test_a_cell_needs_eight_episodes_that_respond_and_either_may(edits, n, has_cell):
    lag = np.arange(T) - edits.round[:, None]
    is_label = edits.kind[:, None] == 3
    is_of_first_episodes = edits.episode[:, None] < n
    some = np.zeros((*lag.shape, 2))
    some[(lag >= 0) & is_label & is_of_first_episodes] = 10.0
    for ours, theirs in ((some, 0 * some), (0 * some, some)):
        places = {(c.what, c.when) for c in compare_responses(edits, ours, theirs)}
        assert (("flip the label", "one round later") in places) is has_cell


def _from_the_set_before():
    """A search that carries the set that it had a round before, too, and answers from this one."""
    base = breadth_first()
    plain = base.variable("member")
    old = Variable("old", "old", "the set a round before", "indicator", "state")
    next_old = replace(
        old, key="next_old", role="round", parents=("reached",), equation=lambda v: v["reached"]
    )

    def from_old(values):
        return plain.equation({**values, "reached": values["old"]})

    def initial(episodes):
        nothing = np.zeros((len(episodes), episodes.n_nodes))
        return {**base.initial(episodes), "old": nothing}

    member = (("old", *plain.parents), from_old)
    varied = base.make_variant(
        "before", "before", {}, {"member": member}, variables=(old, *base.variables, next_old)
    )
    return makers.computed(replace(varied, initial=initial))


def later(machine, samples, budget):
    """How a machine's predictions follow the state of a plain search after the next round."""
    with tasks.using(algorithm=breadth_first()):
        compared = Compared(Participant(machine, samples), None, [], budget, sets={})
        return RESPONSE.compute(compared).later


@pytest.mark.parametrize(
    ("key", "low", "high"),
    [
        ("by algorithm", 1, 1),
        ("answers the opposite", 1, 1),
        ("answer spread", 0.5, 0.9),
        ("two hops", 0, 0),
        ("bidirectional", 0, 0.1),
        ("from the set before", 0, 0),
    ],
)
def test_a_search_answers_from_the_state_that_it_updates_where_the_next_state_changes_its_answer_alike(
    key, low, high
):
    """A correlation, whatever the read-out; in the worst rounds: two hops are a search in the first of them."""
    gallery = known.gallery("reachability")
    machine = gallery[key].make() if key in gallery else _from_the_set_before()
    budget = Budget(known=48, test=24, rounds=6, starts=1, horizon=2)
    samples = Samples.draw(machine, budget, {"n_nodes": 28, "n_edges": 24})
    correlation = later(machine, samples, budget)
    assert low <= round(correlation.low, 9) <= round(correlation.high, 9) <= high


def test_two_rounds_have_no_later_state_to_answer_from_where_the_first_is_not_asked():
    machine = interp.load("reachability-handwired", n_nodes=4, n_edges=3)
    budget = Budget(known=8, test=8, rounds=2, starts=1, horizon=1)
    samples = Samples.draw(machine, budget, {"n_nodes": 4, "n_edges": 3})
    correlation = later(machine, samples, budget)
    assert np.isnan(correlation.estimate)
