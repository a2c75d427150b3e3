"""The table says of every known machine what is right and why; machines are what its sentences say of them."""

from collections import Counter
from functools import cache

import numpy as np
import pytest

import interp
from circuits.compare.question import shared_sizes
from interp.tasks.qlearning.algorithms import q_learning
from interp.tasks.reachability.algorithms import breadth_first
from lab import known
from lab.known import makers
from lab.known.records import RECORDS
from tests.cases import cases
from tests.refusals import refuses

FEW = cases(__file__, "gallery FEW")
"""Machines of each task that the default tests run."""
EVERY = {f"{task}: {key}": (task, key) for task in known.TASKS for key in known.gallery(task)}
SOME = [f"{task}: {key}" for task, keys in FEW.items() for key in keys]
SLOW = pytest.mark.slow(reason="one to three CPU seconds a machine, 50 machines")
CASES = [*SOME, *(pytest.param(name, marks=SLOW) for name in EVERY if name not in SOME)]


@pytest.mark.parametrize("task", known.TASKS)
def test_every_specimen_says_what_is_right_and_why(task):
    """Two fifths of each task's are not used to choose thresholds, and machines differ in every question."""
    machines = known.gallery(task)
    assert len(machines) >= 16 and makers.MAKERS[task].keys() == {
        record.key for record in RECORDS if record.task == task
    }
    assert len(machines) == len(makers.MAKERS[task]), "no key comes twice"
    for one in machines.values():
        assert (
            {*one.right.values()} <= {"yes", "no", "either"}
            and len(one.why) > 10
            and "{" not in one.why
        )
    assert {one.algorithm for one in machines.values()} <= {
        None,
        "",
        *interp.tasks.get(task).rivals(),
    }
    assert 0.35 <= np.mean([one.held_out for one in machines.values()]) <= 0.6
    for question in known.QUESTIONS:
        words = Counter(one.right.get(question) for one in machines.values())
        assert min(words["yes"], words["no"]) >= 2, question


@pytest.mark.parametrize("task", known.TASKS)
def test_draws_have_other_sizes_within_the_row_and_its_words_and_are_held_out(task):
    plain, drawn = known.gallery(task), known.gallery(task, draws=5)
    more = [one for key, one in drawn.items() if key not in plain]
    rows = {r.key: r for r in RECORDS if r.task == task and r.sizes}
    assert (
        list(drawn)[: len(plain)] == list(plain)
        and len(more) >= 4 * len(rows) - 8
        and list(drawn) == list(known.gallery(task, draws=5))
    )
    for one in more:
        (row,) = [row for key, row in rows.items() if one.key.startswith(key.partition("{")[0])]
        low, high = sorted(row.sizes)
        (size,) = one.make.args
        assert low <= size <= high and f"{size:g}" in one.key and one.held_out
        assert one.right == plain[row.key.format(row.sizes[0])].right


@cache
def answers(task):
    """What the reference predicts on the episodes that tell algorithms apart."""
    record, reference = interp.tasks.get(task), known.reference(task)
    sets = record.sets_for(8, record.at_most(12), seed=5, **shared_sizes([reference])).values()
    return [(scored, interp.rollout(reference, scored).predictions) for _, scored in sets]


@pytest.mark.parametrize("name", CASES)
def test_machines_keep_the_contract_and_behave_as_they_should(name):
    """On the episodes that tell algorithms apart; another read-out of the same answer is fitted by comparisons."""
    task, key = EVERY[name]
    machine, behaves = known.gallery(task)[key].make(), known.gallery(task)[key].right["behaviour"]
    interp.check_machine(machine)
    apart = max(
        (interp.rollout(machine, some).predictions - told).abs().max().item()
        for some, told in answers(task)
    )
    fitted = behaves == "either" or key in ("ties shared", "answer spread")
    assert fitted or (apart < (1e-4 if key == "handmade GRU" else 1e-6)) == (behaves == "yes")


@pytest.mark.parametrize(
    ("key", "behaves"), [("inverted once in 240", True), ("unlearns once in 240", False)]
)
def test_a_rare_lapse_is_rare_and_happens(key, behaves):
    """By the rounds in which it says, or holds, another thing than the reference while both were alike before."""
    reference, machine = known.reference("experts"), known.gallery("experts")[key].make()
    episodes = interp.tasks.of(reference).sample_for(reference, 240, 24, seed=7)
    plain, lapsed = (interp.rollout(model, episodes) for model in (reference, machine))
    if behaves:
        differs = (plain.predictions - lapsed.predictions).abs().numpy() > 0.01
        rate, expected = differs.mean(), 1 / 240
    else:
        apart = (
            (reference.read_state(plain.latents) - machine.read_state(lapsed.latents))
            .abs()
            .numpy()
            .max(-1)
        )
        rate, expected = (apart[:, -1] > 1e-6).mean(), 1 - (1 - 1 / 240) ** 24
    assert 0.6 * expected < rate < 1.4 * expected
    assert np.argmax(differs.any(0) if behaves else (apart > 1e-6).any(0)) <= 6


def held(task, key, episodes):
    """The state that a machine carries, before every round and after the last one."""
    machine = known.gallery(task)[key].make()
    return machine.read_state(interp.rollout(machine, episodes).latents).numpy(force=True)


def test_edits_of_a_table_are_what_they_say():
    reference = known.reference("qlearning")
    episodes = interp.tasks.of(reference).sample_for(reference, 12, 14, seed=3)
    values = q_learning().run(episodes)
    truth = np.concatenate([values["table"], values["next_table"][:, -1:]], 1)
    assert held("qlearning", "two copies", episodes) == pytest.approx(truth, abs=1e-12)
    ignoring = held("qlearning", "one action ignored", episodes)
    assert (ignoring[..., 0] == 0).all() and truth[..., 0].any() and ignoring[..., 1:].any()
    moved = (np.abs(np.diff(truth, axis=1)) > 0)[:, 0]
    assert held("qlearning", "leaky 0.9", episodes)[:, 1][moved] == pytest.approx(
        0.9 * truth[:, 1][moved]
    )


def test_a_late_table_goes_on_from_any_state():
    """A map from another model's state gives it transitions that are none: the nearest ones stand for them."""
    machine = known.gallery("qlearning")["one round late"].make()
    run = interp.rollout(machine, interp.tasks.of(machine).sample_for(machine, 12, 14, seed=3))
    moved = machine.step(run.latents[:, 3] * 1.4 + 0.7, run.fed.at(3))
    assert moved.carried.isfinite().all() and moved.prediction.isfinite().all()


def test_edits_of_a_set_are_what_they_say():
    reference = known.reference("reachability")
    episodes = interp.tasks.of(reference).sample_for(reference, 12, 5, seed=3)
    values = breadth_first().run(episodes)
    truth = np.concatenate([values["reached"], values["next_reached"][:, -1:]], 1)
    shaken = held("reachability", "noise that is cleaned away", episodes)
    assert (np.rint(shaken) == truth).all() and np.abs(shaken - truth)[:, 1:].max() > 0.03
    assert not held("reachability", "ignores the root", episodes).any()
    assert (
        not held("reachability", "never holds node 5", episodes)[..., 5].any()
        and truth[..., 5].any()
    )
    newest = held("reachability", "holds only what is new", episodes)
    assert (newest[:, 2] <= truth[:, 2] - truth[:, 1]).all() and newest[:, 2].any()


def test_searches_from_both_ends_meet_half_way():
    """A candidate is found from round t on if it lies within 2 t steps of the root."""
    reference = known.reference("reachability")
    episodes = interp.tasks.of(reference).sample_for(reference, 100, 5, seed=4)
    met = known.gallery("reachability")["bidirectional"].make().module.algorithm.run(episodes)
    truth = breadth_first().run(episodes)["reached"]
    assert np.array_equal(met["reached"], truth)
    for t in (1, 2):
        reach = np.take_along_axis(truth[:, 2 * t], episodes.candidates, -1)
        assert np.array_equal(met["member"][:, t], reach) and reach.any()


def test_an_unknown_task_is_refused_with_those_known():
    refuses("experts", known.gallery, "expert")
    refuses("experts", known.reference, "chess")
