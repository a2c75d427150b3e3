"""The known machines of reachability are what their sentences say, by their predictions and their sets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import interp
from interp import tasks
from interp.tasks.reachability.algorithms import breadth_first
from lab import known

TASK = "reachability"
GALLERY = known.gallery(TASK)


@pytest.fixture(scope="module")
def episodes():
    reference = known.reference(TASK)
    return tasks.of(reference).sample_for(reference, 24, 5, seed=3)


@pytest.fixture(scope="module")
def many():
    """Enough graphs for what is rare, for algorithms."""
    reference = known.reference(TASK)
    return tasks.of(reference).sample_for(reference, 300, 5, seed=4)


def found(episodes):
    """What breadth-first search holds, after the last round, too."""
    values = breadth_first().run(episodes)
    return np.concatenate([values["reached"], values["next_reached"][:, -1:]], 1)


@pytest.fixture(scope="module")
def truth(episodes):
    return found(episodes)


def sets(key, episodes):
    machine = GALLERY[key].make()
    return machine.read_state(interp.rollout(machine, episodes).latents).numpy(force=True)


def values(key, episodes):
    return GALLERY[key].make().module.algorithm.run(episodes)


def test_what_is_kept_is_the_set(episodes, truth):
    for key in ("written and never read", "two copies", "expands by the mean"):
        assert np.rint(sets(key, episodes)) == pytest.approx(truth, abs=1e-9), key
    shaken = sets("noise that is cleaned away", episodes)
    assert (np.rint(shaken) == truth).all() and np.abs(shaken - truth)[:, 1:].max() > 0.03


def test_edits_are_what_they_say(episodes, truth):
    assert not sets("ignores the root", episodes).any()
    assert np.array_equal(sets("one hop", episodes)[:, 1:], np.repeat(truth[:, 1:2], 5, 1))
    assert np.array_equal(sets("one round late", episodes)[:, 1:], truth[:, :-1])
    assert not sets("never holds one node", episodes)[..., 5].any() and truth[..., 5].any()
    newest = sets("holds only what is new", episodes)
    assert (newest[:, 2] <= truth[:, 2] - truth[:, 1]).all() and newest[:, 2].any()


def test_searches_from_both_ends_meet_half_way(many):
    """A candidate is found from round t on if it lies within 2 t steps of the root."""
    met = values("bidirectional", many)
    truth = found(many)
    assert np.array_equal(met["reached"], truth[:, :-1])
    for t in (1, 2):
        reach = np.take_along_axis(truth[:, 2 * t], many.candidates, -1)
        assert np.array_equal(met["member"][:, t], reach) and reach.any()


def test_one_node_a_round_is_one_node_a_round(episodes, truth):
    held = values("one node a round", episodes)["next_reached"]
    sizes = held.sum(-1)
    assert (sizes[:, 0] <= 2).all() and (np.diff(sizes) <= 1).all() and (np.diff(sizes) >= 0).all()
    assert (held <= truth[:, -1:]).all() and sizes[:, -1].max() >= 5


def test_the_last_edge_alone_is_ignored(many):
    held, truth = values("ignores the last edge", many)["next_reached"], found(many)[:, 1:]
    assert (held <= truth).all() and (held != truth).any()
    others = breadth_first().run(replace(many, edges=many.edges[:, :-1]))["next_reached"]
    assert np.array_equal(held, others)


def test_one_first_candidate_in_28_is_answered_wrongly(many):
    made, plain = values("opposite for one candidate", many)["prediction"], breadth_first().run(many)["prediction"]
    wrong = (made != plain).any((1, 2))
    assert set(many.candidates[wrong, 0]) == {3} and 0.01 < wrong.mean() < 0.08
    assert np.array_equal(values("answers the opposite", many)["prediction"][wrong], made[wrong])
