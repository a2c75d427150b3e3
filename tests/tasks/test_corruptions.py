"""Corruptions change one thing at one round, and what is learned from it; they show when their record says."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import interp
from interp.tasks import experts, mdp, qlearning, reachability
from interp.tasks.experts import analysis as of_advice
from interp.tasks.qlearning import analysis as of_steps
from tests.cases import cases
from tests.refusals import refuses

MACHINES = cases(__file__, "corruptions MACHINES")


def list_records():
    """Return (task, corruption) for every corruption of the tasks of ``MACHINES``."""
    records = []
    for key in MACHINES:
        corruptions = interp.tasks.get(key).analysis.corruptions()
        records += [(key, corruption.key) for corruption in corruptions]
    return records


RECORDS = list_records()


def advice():
    return experts.sample(n_episodes=6, n_rounds=8, n_experts=3, seed=0)


def steps():
    return mdp.sample(n_episodes=6, n_rounds=8, n_states=3, n_actions=2, seed=0)


@pytest.mark.parametrize(("task", "key"), RECORDS)
def test_a_record_says_when_it_shows_and_whether_it_changes_the_past(task, key):
    """What changes a round shows nowhere before ``round + delay``, and there for some episode."""
    t = 2
    record = interp.tasks.get(task).corruption(key)
    name, sizes = MACHINES[task]
    model = interp.load(name, **sizes)
    n = 24 if task == "reachability" else 64
    episodes = interp.tasks.get(task).sample_for(model, n, 5, 1)
    clean, corrupted = [interp.rollout(model, side) for side in record.build(episodes, t)]
    differences = (clean.predictions - corrupted.predictions).abs()
    largest = differences.reshape(n, 5, -1).amax(-1)
    # A softmax head leaves e^-60 of a candidate's weight.
    tolerance = 1e-24 if task == "reachability" else 0.0
    shows_from = t + record.delay
    assert record.changes_history or largest[:, :shows_from].max() <= tolerance
    assert largest[:, shows_from].max() > 1e-3
    latents_are_equal = (clean.latents[:, t] == corrupted.latents[:, t]).all()
    assert record.changes_history == (not latents_are_equal)


def test_flip_vote_changes_one_vote():
    clean, corrupted = of_advice.flip_vote(advice(), round=3, expert="p_3")
    changed = np.argwhere(clean.advice != corrupted.advice)
    assert {tuple(row[1:]) for row in changed} == {(3, 2)}
    assert len(changed) == len(clean)
    assert_array_equal(clean.labels, corrupted.labels)


def test_flip_label_changes_one_label():
    clean, corrupted = of_advice.flip_label(advice(), round=-1)
    changed = np.argwhere(clean.labels != corrupted.labels)
    assert_array_equal(changed[:, 1], [7] * len(clean))
    assert_array_equal(clean.advice, corrupted.advice)


def test_swap_histories_swaps_the_past_only():
    clean, corrupted = experts.TASK.corruption("swap-histories").build(advice(), round=4)
    swapped_back = corrupted.advice[..., [1, 0, 2]]
    assert_array_equal(clean.advice[:, :4], swapped_back[:, :4])
    assert_array_equal(clean.advice[:, 4:], corrupted.advice[:, 4:])


def test_exchange_history_gives_the_next_episodes_past():
    clean, corrupted = of_advice.exchange_history(advice(), round=4)
    assert_array_equal(corrupted.advice[0, :4], clean.advice[1, :4])
    assert_array_equal(corrupted.advice[:, 4:], clean.advice[:, 4:])
    past_of_first = clean.labels[0, :4]
    assert_array_equal(corrupted.labels[-1, :4], past_of_first)
    assert_array_equal(corrupted.labels[:, 4:], clean.labels[:, 4:])
    clean, corrupted = of_steps.exchange_history(steps(), round=4)
    q_table_of_first = clean.q_tables[0, 4]
    assert_allclose(corrupted.q_tables[-1, 4], q_table_of_first)
    assert_array_equal(corrupted.next_states[:, 4:], clean.next_states[:, 4:])


def test_change_reward_changes_one_reward_and_what_is_learned():
    clean, corrupted = qlearning.TASK.corruption("change-reward").build(steps(), round=3)
    difference = abs(clean.rewards - corrupted.rewards)
    changed = np.argwhere(difference != 0)
    assert set(changed[:, 1]) == {3}
    assert_allclose(difference[:, 3], 0.5)
    assert corrupted.rewards[:, 3].max() < 1
    assert_array_equal(clean.q_tables[:, :4], corrupted.q_tables[:, :4])
    entry_differs = clean.q_tables[:, 4] != corrupted.q_tables[:, 4]
    assert entry_differs.any(axis=(1, 2)).all()


@pytest.mark.parametrize("key", [key for task, key in RECORDS if task == "reachability"])
def test_a_corruption_of_a_graph_changes_its_own_rounds_only(key):
    record = reachability.TASK.corruption(key)
    episodes = reachability.sample(20, 5, 16, 24, seed=1)
    clean, corrupted = record.build(episodes, 2)
    changed_rounds = set()
    for name in ("edges", "roots", "candidates"):
        is_changed = clean.by_round(name) != corrupted.by_round(name)
        by_round = is_changed.reshape(20, 5, -1).any((0, 2))
        changed_rounds |= set(np.flatnonzero(by_round))
    assert changed_rounds == ({0, 1} if record.changes_history else {2})


def test_moving_the_target_makes_the_search_find_the_negative():
    episodes = reachability.sample(60, 3, 16, 24, seed=1, depths=(2,))
    _, target_moved = reachability.TASK.corruption("move-target").build(episodes, 1)
    reached = reachability.algorithms.breadth_first().run(target_moved)["reached"][:, 2]
    rows = np.arange(60)
    assert (reached[rows, episodes.negatives] == 1).all()
    assert (reached[rows, episodes.targets] == 0).all()


def test_the_task_looks_its_corruptions_up_by_key():
    assert experts.TASK.corruption("flip-label").build is of_advice.flip_label
    keys = {record.key for record in of_advice.corruptions()}
    assert experts.TASK.analysis.default_corruption in keys


def test_unknown_experts_are_refused():
    message = "expert 'p_4' does not exist: the episodes have experts p_1 to p_3"
    refuses(message, of_advice.flip_vote, advice(), 3, expert="p_4")
    build = experts.TASK.corruption("flip-vote").build
    message = "expert 1 is a number; name an expert by the label of its vote, p_1 to p_3"
    refuses(message, build, advice(), 3, expert=1)


def test_rounds_without_a_history_are_refused():
    refuses("round 8 is out of range", of_advice.flip_label, advice(), 8)
    build = experts.TASK.corruption("swap-histories").build
    refuses("round 0 has no history", build, advice(), 0)


def test_too_few_episodes_and_unknown_names_are_refused():
    one_episode = advice().select([0])
    refuses("at least 2 episodes", of_advice.exchange_history, one_episode, 3)
    message = "unknown corruption of experts episodes 'flip-lable'; did you mean 'flip-label'"
    refuses(message, experts.TASK.corruption, "flip-lable")
    message = "unknown corruption of qlearning episodes"
    refuses(message, qlearning.TASK.corruption, "flip-label")
