"""The known machines of Q-learning are what their sentences say, by their predictions and their tables."""

from __future__ import annotations

import numpy as np
import pytest

import interp
from circuits import known
from interp import tasks
from interp.tasks.qlearning.algorithms import q_learning

TASK = "qlearning"
GALLERY = known.gallery(TASK)
FEW = ("itself", "two copies", "by algorithm", "optimistic start", "one round late", "written and never read")


@pytest.fixture(scope="module")
def episodes():
    reference = known.reference(TASK)
    return tasks.of(reference).sample_for(reference, 12, 14, seed=3)


@pytest.fixture(scope="module")
def answers(episodes):
    return says(known.reference(TASK), episodes)


def says(machine, episodes):
    return interp.rollout(machine, episodes).predictions.numpy(force=True)


def tables(key, episodes):
    machine = GALLERY[key].make()
    return machine.read_state(interp.rollout(machine, episodes).latents).numpy(force=True)


@pytest.fixture(scope="module")
def truth(episodes):
    values = q_learning().run(episodes)
    return np.concatenate([values["table"], values["next_table"][:, -1:]], 1)


def test_every_specimen_says_what_is_right_and_half_are_held_out():
    assert len(GALLERY) >= 14 and all(one.task == "qlearning" and len(one.why) > 10 for one in GALLERY.values())
    assert 0.4 <= np.mean([one.held_out for one in GALLERY.values()]) <= 0.6
    families = tasks.get("qlearning").rivals()
    assert {one.algorithm for one in GALLERY.values()} <= {None, "", *families}


@pytest.mark.parametrize("key", FEW)
def test_a_few_keep_the_contract(key):
    interp.check_machine(GALLERY[key].make())


@pytest.mark.slow(reason="one to three CPU seconds a machine, thirty and more machines")
@pytest.mark.parametrize("key", GALLERY)
def test_all_keep_the_contract(key):
    interp.check_machine(GALLERY[key].make())


@pytest.mark.parametrize("key", FEW)
def test_a_few_behave_as_they_should(key, episodes, answers):
    gap = np.abs(says(GALLERY[key].make(), episodes) - answers)
    assert (gap.max() < 1e-6) == (GALLERY[key].right["behaviour"] == "same")


@pytest.mark.slow(reason="one to three CPU seconds a machine, thirty and more machines")
@pytest.mark.parametrize("key", [k for k, one in GALLERY.items() if one.right["behaviour"] != "either"])
def test_all_behave_as_they_should(key):
    """On the episodes that tell algorithms apart."""
    reference, machine = known.reference(TASK), GALLERY[key].make()
    task = tasks.of(reference)
    sets = task.sets_for(reference.layout, 8, task.at_most(20), seed=5).values()
    gaps = [np.abs(says(machine, scored) - says(reference, scored)).max() for _, scored in sets]
    assert (max(gaps) < 1e-6) == (GALLERY[key].right["behaviour"] == "same")


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
