"""Responses to single inputs, on predictors whose answer is known: late, deaf to one input, louder, stopped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import interp
from circuits import compare
from circuits.compare import driver
from circuits.compare.response import NOTICED, Edits, cells, responses
from circuits.known import by_algorithm
from interp.tasks import experts
from interp.tasks.experts.algorithms import weighted_majority
from interp.tasks.reachability import TASK as REACHABILITY
from interp.tasks.reachability.algorithms import breadth_first

T = 12


def said(log_weights, votes):
    weights = np.exp(log_weights - log_weights.max(-1, keepdims=True))
    one = (weights * votes).sum(-1) / weights.sum(-1)
    return np.stack([1 - one, one], -1)


def majority(gain=0.5, lag=0, deaf=None, stop=None):
    """Weighted Majority by hand: log-weights are sums over rounds, ``lag`` late, without one expert or some rounds."""

    def predict(episodes):
        match = (episodes.advice == episodes.labels[..., None]).astype(float)
        if deaf is not None:
            match[..., deaf] = 0.5
        if stop is not None:
            match[:, stop:] = 0.0
        before = np.concatenate([np.zeros_like(match[:, :1]), np.cumsum(match, 1)[:, :-1]], 1)
        late = np.concatenate([np.zeros_like(before[:, :lag]), before[:, : before.shape[1] - lag]], 1)
        return said(gain * late, episodes.advice)

    return predict


@pytest.fixture(scope="module")
def edits():
    return Edits.of(experts.TASK, experts.sample(24, T, 3, seed=0), 24 * 44)


def found(edits, one, other):
    return {(cell.what, cell.when): cell for cell in cells(edits, responses(one, edits), responses(other, edits))}


def test_every_input_of_every_round_is_changed_alone(edits):
    kinds = ("flip one expert's vote p_1", "flip one expert's vote p_2", "flip one expert's vote p_3", "flip the label")
    assert edits.kinds == kinds
    assert {(kind, t) for kind, t, _ in edits.of_each.tolist()} == {(k, t) for k in range(4) for t in range(T - 1)}
    for kind, t, rows, changed in edits.parts:
        advice, labels = (changed.advice != edits.episodes.advice), (changed.labels != edits.episodes.labels)
        assert advice.sum() + labels.sum() == len(edits.episodes) and len(rows) == 24
        assert labels[:, t].all() if kind == 3 else advice[:, t, kind].all()


def test_a_machine_responds_as_its_algorithm_does(edits):
    """Run on from its own latents, against whole runs of the changed episodes."""
    model = interp.load("wma-handwired", n_experts=3).double()
    ours, theirs = responses(model, edits), responses(weighted_majority(0.5), edits)
    assert np.abs(theirs).max() > 0.3
    assert np.allclose(ours, theirs, atol=1e-9)
    assert np.allclose(responses(majority(), edits), theirs, atol=1e-12)


def test_nothing_changes_before_the_edit_and_a_label_only_afterwards(edits):
    change = np.abs(responses(weighted_majority(0.5), edits)).max(-1)
    told = edits.of_each
    lag = np.arange(T) - told[:, 1:2]
    assert change[lag < 0].max() == 0
    assert change[(told[:, :1] == 3) & (lag == 0)].max() == 0 and change[(told[:, :1] == 3) & (lag == 1)].max() > 0.05


@pytest.mark.parametrize(
    ("other", "where", "alike"),
    [
        (majority(lag=1), ("flip the label", "one round later"), (0.0, 0.2)),
        (majority(lag=2), ("flip the label", "2 rounds later"), (0.0, 0.2)),
        (majority(deaf=1), ("flip one expert's vote p_2", "2 rounds later"), (0.0, 0.3)),
        (majority(stop=6), ("any input", "changed in round 7"), (0.9, 0.999)),  # votes of the same round are heard
        (majority(stop=6), ("flip the label", "one round later"), (0.3, 0.9)),
        (majority(gain=0.45), ("flip the label", "one round later"), (0.98, 0.9999)),
        (majority(gain=1.0), ("flip the label", "9 to 11 rounds later"), (0.5, 0.9)),
    ],
)
def test_what_is_heard_late_or_never_is_seen_where_it_is_missing(edits, other, where, alike):
    cell = found(edits, majority(), other)[where]
    assert alike[0] <= cell.alike.low <= cell.alike.estimate <= alike[1]
    same = found(edits, majority(), majority())
    assert all(cell.alike.low == cell.alike.high == 1 for cell in same.values())


def test_the_least_alike_cell_stands_first_and_an_inverted_round_is_one(edits):
    def inverted(episodes):
        p = majority()(episodes)
        p[:, 9] = p[:, 9, ::-1]
        return p

    ranked = cells(edits, responses(majority(), edits), responses(inverted, edits))
    assert [cell.alike.low for cell in ranked] == sorted(cell.alike.low for cell in ranked)
    assert ranked[0].alike.high < 0.9
    by = {(cell.what, cell.when): cell.alike.estimate for cell in ranked}
    assert min(by, key=by.__getitem__) == ("any input", "changed in round 9")


def test_alike_is_symmetric_and_has_the_values_that_it_says(edits):
    ours, theirs = (responses(predict, edits) for predict in (majority(), majority(lag=1)))
    there, back = (cells(edits, *pair) for pair in ((ours, theirs), (theirs, ours)))
    assert [c.alike for c in there] == [c.alike for c in back]
    assert [(c.size, c.reference_size) for c in there] == [(c.reference_size, c.size) for c in back]
    big = 100 * ours  # beside which NOTICED is nothing
    for factor, value in ((3.0, 0.6), (0.0, 0.0), (-1.0, -1.0)):
        assert all(c.alike.estimate == pytest.approx(value, abs=0.01) for c in cells(edits, big, factor * big))
    few = NOTICED / 100 / np.abs(ours).max()
    assert cells(edits, few * ours, -few * ours) == ()  # nobody responds: nothing is said


def test_rounds_that_are_not_known_are_left_out(edits):
    ours = responses(majority(), edits)
    masked = np.where((np.arange(T) - edits.of_each[:, 1:2] == 1)[..., None], ours, np.nan)
    assert {cell.when for cell in cells(edits, ours, masked) if cell.what != "any input"} == {"one round later"}


def test_a_task_whose_inputs_cannot_change_in_one_round_has_no_responses():
    """The edges of a graph are the same in all rounds of an episode."""
    none = Edits.of(REACHABILITY, REACHABILITY.sample(8, 5, seed=0, n_nodes=8, n_edges=12), 100)
    model = interp.load("reachability-handwired", n_nodes=8, n_edges=12)
    assert none.parts == () and cells(none, responses(model, none), responses(model, none)) == ()


def only(monkeypatch, *keys):
    monkeypatch.setattr(driver, "QUESTIONS", tuple(q for q in driver.QUESTIONS if q.key in keys))


SMALL = compare.Effort(known=8, test=12, rounds=14, starts=2, horizon=3, battery=4, scored=12, edits=200, untrained=1)


def test_behaviour_is_symmetric(monkeypatch):
    """Weighted Majority of gain .5 against .35 was the same, and .35 against .5 was not."""
    only(monkeypatch, "algorithm", "behaviour")
    louder, quieter = (interp.load("wma-handwired", n_experts=4, log_gamma=gain) for gain in (0.5, 0.35))
    there, back = (compare.run(*pair, effort=SMALL) for pair in ((louder, quieter), (quieter, louder)))
    one, other = there.verdicts["behaviour"], back.verdicts["behaviour"]
    assert 0.8 < one.bound.estimate < 0.99
    assert (one.word, one.decided_by, one.threshold) == (other.word, other.decided_by, other.threshold)
    assert [one.bound.estimate, one.bound.low, one.bound.high] == pytest.approx(
        [other.bound.estimate, other.bound.low, other.bound.high], abs=1e-9
    )


def test_a_read_out_is_fitted_whichever_of_the_two_says_its_algorithm(monkeypatch):
    """A search that spreads .6 of its answer over what it reached is the same search, once that is fitted."""
    only(monkeypatch, "algorithm", "behaviour")
    handwired = interp.load("reachability-handwired", n_nodes=16, n_edges=24)
    spread = by_algorithm.machine(breadth_first(0.6), handwired.layout)
    for pair in ((spread, handwired), (handwired, spread)):
        verdict = compare.run(*pair, effort=replace(SMALL, rounds=5, starts=1, horizon=1)).verdicts["behaviour"]
        assert verdict.word == "same" and verdict.note.startswith("once its read-out is fitted: spread 0.")
