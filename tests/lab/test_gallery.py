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
from tests.refusals import refuses

FEW = {
    "experts": [
        "itself",
        "handmade GRU",
        "one round late, by algorithm",
        "last 5 rounds",
        "label stuck",
    ],
    "qlearning": ["two copies", "by algorithm", "one round late", "counts of visits"],
    "reachability": ["by algorithm", "holds only what is new", "bidirectional"],
}
"""Machines of each task that the default tests run."""
SLOW = pytest.mark.slow(reason="one to three CPU seconds a machine, 50 machines")


def list_machines():
    """Every known machine as a case, slow but for few of each task."""
    machines = []
    for task in known.TASKS:
        for key in known.gallery(task):
            marks = () if key in FEW[task] else (SLOW,)
            machines.append(pytest.param(task, key, marks=marks, id=f"{task}: {key}"))
    return machines


@pytest.mark.parametrize("task", known.TASKS)
def test_every_specimen_says_what_is_right_and_why(task):
    """Two fifths of each task's are not used to choose thresholds, and machines differ in every question."""
    machines = known.gallery(task)
    keys = [record.key for record in RECORDS if record.task == task]
    assert len(keys) >= 16
    assert len(machines) == len(keys), "no key comes twice"
    makers_of_keys = [*makers.ALGORITHMS[task], *makers.EDITS[task], *makers.OTHERS[task]]
    assert sorted(makers_of_keys) == sorted(keys)
    families = {None, "", *interp.tasks.get(task).rivals()}
    for specimen in machines.values():
        assert set(specimen.right.values()) <= {"yes", "no", "either"}
        assert len(specimen.why) > 10
        assert "{" not in specimen.why
        assert specimen.algorithm in families
    held_out = [specimen.held_out for specimen in machines.values()]
    assert 0.35 <= np.mean(held_out) <= 0.6
    for question in known.QUESTIONS:
        words = Counter(specimen.right.get(question) for specimen in machines.values())
        assert min(words["yes"], words["no"]) >= 2, question


@pytest.mark.parametrize("task", known.TASKS)
def test_draws_have_other_sizes_within_the_row_and_its_words_and_are_held_out(task):
    listed = known.gallery(task)
    drawn = known.gallery(task, draws=5)
    assert list(drawn)[: len(listed)] == list(listed)
    assert list(drawn) == list(known.gallery(task, draws=5))
    records = {}
    for record in RECORDS:
        if record.task == task and record.sizes:
            name, _, _ = record.key.partition("{")
            records[name] = record
    added = [specimen for key, specimen in drawn.items() if key not in listed]
    assert len(added) >= 4 * len(records) - 8
    for specimen in added:
        (record,) = [known for name, known in records.items() if specimen.key.startswith(name)]
        size = specimen.make.args[-1]
        assert min(record.sizes) <= size <= max(record.sizes)
        assert f"{size:g}" in specimen.key
        assert specimen.held_out
        assert specimen.right == listed[record.key.format(record.sizes[0])].right


@cache
def answers(task):
    """What the reference predicts on the episodes that tell algorithms apart."""
    record = interp.tasks.get(task)
    reference = known.reference(task)
    sizes = shared_sizes([reference])
    sets = record.sets_for(8, record.cap_rounds(12), seed=5, **sizes)
    return [(scored, interp.rollout(reference, scored).predictions) for _, scored in sets.values()]


READ_OUT_ELSE = ("ties shared", "answer spread")
"""The same answer by another read-out, which comparisons fit."""

RARELY_WRONG = "unlearns once in 240"
"""Its lapses need not occur in these few episodes; ``test_a_rare_lapse_of_the_state_is_rare_and_happens``
counts them in 240 others."""


@pytest.mark.long
@pytest.mark.parametrize(("task", "key"), list_machines())
def test_machines_keep_the_contract_and_behave_as_they_should(task, key):
    """On the episodes that tell algorithms apart."""
    specimen = known.gallery(task)[key]
    machine = specimen.make()
    interp.check_machine(machine)
    gaps = []
    for episodes, expected in answers(task):
        gap = (interp.rollout(machine, episodes).predictions - expected).abs().max()
        gaps.append(gap.item())
    behaves = specimen.right["behaviour"]
    if behaves == "either" or key in (*READ_OUT_ELSE, RARELY_WRONG):
        return
    tolerance = 1e-4 if key == "handmade GRU" else 1e-6
    assert (max(gaps) < tolerance) == (behaves == "yes")


def run_beside_reference(key):
    """The reference and a machine of expert advice, with their runs of 240 episodes of 24 rounds."""
    reference = known.reference("experts")
    machine = known.gallery("experts")[key].make()
    episodes = interp.tasks.of(reference).sample_for(reference, 240, 24, seed=7)
    return (
        reference,
        machine,
        interp.rollout(reference, episodes),
        interp.rollout(machine, episodes),
    )


def test_a_rare_lapse_of_predictions_is_rare_and_happens():
    """In about one round of 240, the first of them early."""
    _, _, plain, lapsed = run_beside_reference("inverted once in 240")
    differs = (plain.predictions - lapsed.predictions).abs().numpy() > 0.01
    assert differs.mean() == pytest.approx(1 / 240, rel=0.4)
    assert differs.any(0).argmax() <= 6


@pytest.mark.long
def test_a_rare_lapse_of_the_state_is_rare_and_happens():
    """An episode ends with another state if any of its 24 rounds lapsed."""
    reference, machine, plain, lapsed = run_beside_reference(RARELY_WRONG)
    gap = reference.read_state(plain.latents) - machine.read_state(lapsed.latents)
    differs = gap.abs().numpy().max(-1) > 1e-6
    assert differs[:, -1].mean() == pytest.approx(1 - (1 - 1 / 240) ** 24, rel=0.4)
    assert differs.any(0).argmax() <= 6


def read_states(task, key, episodes):
    """The state that a machine carries, before every round and after the last one."""
    machine = known.gallery(task)[key].make()
    return machine.read_state(interp.rollout(machine, episodes).latents).numpy(force=True)


def sample_for_reference(task, n_episodes, n_rounds, seed):
    reference = known.reference(task)
    return interp.tasks.of(reference).sample_for(reference, n_episodes, n_rounds, seed=seed)


def test_edits_of_a_table_are_what_they_say():
    episodes = sample_for_reference("qlearning", 12, 14, seed=3)
    values = q_learning().run(episodes)
    tables = np.concatenate([values["table"], values["next_table"][:, -1:]], 1)
    copies = read_states("qlearning", "two copies", episodes)
    assert copies == pytest.approx(tables, abs=1e-12)

    ignoring = read_states("qlearning", "one action ignored", episodes)
    assert (ignoring[..., 0] == 0).all()
    assert tables[..., 0].any()
    assert ignoring[..., 1:].any()

    leaky = read_states("qlearning", "leaky 0.9", episodes)
    changed = tables[:, 1] != tables[:, 0]
    assert leaky[:, 1][changed] == pytest.approx(0.9 * tables[:, 1][changed])


def test_a_late_table_goes_on_from_any_state():
    """A map from another model's state gives it transitions that are none: the nearest ones stand for them."""
    machine = known.gallery("qlearning")["one round late"].make()
    run = interp.rollout(machine, sample_for_reference("qlearning", 12, 14, seed=3))
    step = machine.step(run.latents[:, 3] * 1.4 + 0.7, run.fed.take_round(3))
    assert step.carried.isfinite().all()
    assert step.prediction.isfinite().all()


def test_edits_of_a_set_are_what_they_say():
    episodes = sample_for_reference("reachability", 12, 5, seed=3)
    values = breadth_first().run(episodes)
    sets = np.concatenate([values["reached"], values["next_reached"][:, -1:]], 1)

    noisy = read_states("reachability", "noise that is cleaned away", episodes)
    assert (np.rint(noisy) == sets).all()
    assert np.abs(noisy - sets)[:, 1:].max() > 0.03
    assert not read_states("reachability", "ignores the root", episodes).any()

    missing = read_states("reachability", "never holds node 6", episodes)  # n_6, the sixth
    assert not missing[..., 5].any()
    assert sets[..., 5].any()

    newest = read_states("reachability", "holds only what is new", episodes)
    assert (newest[:, 2] <= sets[:, 2] - sets[:, 1]).all()
    assert newest[:, 2].any()


def test_searches_from_both_ends_meet_half_way():
    """A candidate is found from round t on if it lies within 2 t steps of the root."""
    episodes = sample_for_reference("reachability", 100, 5, seed=4)
    machine = known.gallery("reachability")["bidirectional"].make()
    both_ways = machine.module.algorithm.run(episodes)
    reached = breadth_first().run(episodes)["reached"]
    assert np.array_equal(both_ways["reached"], reached)
    for t in (1, 2):
        is_near = np.take_along_axis(reached[:, 2 * t], episodes.candidates, -1)
        assert np.array_equal(both_ways["member"][:, t], is_near)
        assert is_near.any()


def test_an_unknown_task_is_refused_with_those_known():
    refuses("experts", known.gallery, "expert")
    refuses("experts", known.reference, "chess")
