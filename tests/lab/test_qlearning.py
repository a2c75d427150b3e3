"""The known machines of Q-learning are what their sentences say, by their predictions and their tables."""

from __future__ import annotations

import numpy as np
import pytest

import interp
from interp import tasks
from interp.tasks.qlearning.algorithms import q_learning
from lab import known

TASK = "qlearning"
GALLERY = known.gallery(TASK)


@pytest.fixture(scope="module")
def episodes():
    reference = known.reference(TASK)
    return tasks.of(reference).sample_for(reference, 12, 14, seed=3)


def tables(key, episodes):
    machine = GALLERY[key].make()
    return machine.read_state(interp.rollout(machine, episodes).latents).numpy(force=True)


@pytest.fixture(scope="module")
def truth(episodes):
    values = q_learning().run(episodes)
    return np.concatenate([values["table"], values["next_table"][:, -1:]], 1)


def test_what_is_kept_is_the_table(episodes, truth):
    """Machines whose choice alone differs, and the one that holds -4 times its table and reads it so."""
    for key in ("written and never read", "Boltzmann", "negated table", "two copies"):
        assert tables(key, episodes) == pytest.approx(truth, abs=1e-12), key


def test_edits_are_what_they_say(episodes, truth):
    assert not tables("rewards ignored", episodes).any()
    assert tables("stops at round 5", episodes)[:, 5:] == pytest.approx(np.repeat(truth[:, 5:6], 10, 1))
    assert (tables("one action ignored", episodes)[..., 0] == 0).all() and truth[..., 0].any()
    assert (tables("optimistic start", episodes)[:, 0] == 1).all()
    fading = tables("leaky 0.9", episodes)
    moved = (np.abs(np.diff(truth, axis=1)) > 0)[:, 0]
    assert fading[:, 1][moved] == pytest.approx(0.9 * truth[:, 1][moved])


def test_double_q_learning_writes_one_table_a_round_in_turns(episodes):
    machine = GALLERY["double Q-learning"].make()
    values = machine.module.algorithm.run(episodes)
    moved = [(values[f"next_{key}"] != values[key]).any((0, -1, -2)) for key in ("first", "second")]
    assert not moved[0][1::2].any() and not moved[1][::2].any() and moved[0].any() and moved[1].any()
    assert values["table"] == pytest.approx((values["first"] + values["second"]) / 2)


def test_a_table_in_the_opposite_order_is_the_table(episodes, truth):
    values = GALLERY["actions in another order"].make().module.algorithm.run(episodes)
    assert values["table"][..., ::-1] == pytest.approx(truth[:, :-1])


def test_what_is_swapped_is_one_way_only(episodes, truth):
    for key in ("swapped in what is read", "swapped in what is written"):
        table = GALLERY[key].make().module.algorithm.run(episodes)["table"]
        assert table[..., 2] == pytest.approx(truth[:, :-1, :, 2], abs=0.1) and (table != truth[:, :-1]).any()


def test_a_late_table_goes_on_from_any_state(episodes):
    """A map from another model's state gives it transitions that are none: the nearest ones stand for them."""
    machine = GALLERY["one round late"].make()
    run = interp.rollout(machine, episodes)
    moved = machine.step(run.latents[:, 3] * 1.4 + 0.7, run.fed.at(3))
    assert moved.carried.isfinite().all() and moved.prediction.isfinite().all()
