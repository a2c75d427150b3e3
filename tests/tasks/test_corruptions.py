"""Corruptions change one thing at one round, and what is learned from it; they show when their record says."""

import numpy as np
import pytest

import interp
from interp.tasks import experts, mdp, qlearning, reachability
from interp.tasks.experts import analysis as of_advice
from interp.tasks.qlearning import analysis as of_steps
from tests.cases import cases
from tests.refusals import refused

MACHINES = cases(__file__, "corruptions MACHINES")
RECORDS = [
    (key, corruption.key)
    for key in MACHINES
    for corruption in interp.tasks.get(key).analysis.corruptions()
]


def advice():
    return experts.sample(n_episodes=6, n_rounds=8, n_experts=3, seed=0)


def steps():
    return mdp.sample(n_episodes=6, n_rounds=8, n_states=3, n_actions=2, seed=0)


@pytest.mark.parametrize(("task", "key"), RECORDS)
def test_a_record_says_when_it_shows_and_whether_it_changes_the_past(task, key):
    """What changes a round shows nowhere before ``round + delay``, and there for some episode."""
    record, (name, sizes), t = interp.tasks.get(task).corruption(key), MACHINES[task], 2
    n = 24 if task == "reachability" else 64
    model = interp.load(name, **sizes)
    runs = [
        interp.rollout(model, side)
        for side in record.build(interp.tasks.get(task).sample_for(model, n, 5, 1), t)
    ]
    differs = (runs[0].predictions - runs[1].predictions).abs().reshape(n, 5, -1).amax(-1)
    smallest = (
        1e-24 if task == "reachability" else 0.0
    )  # e^-60 of a candidate's weight, which a softmax head leaves
    assert record.changes_history or differs[:, : t + record.delay].max() <= smallest
    assert differs[:, t + record.delay].max() > 1e-3
    assert record.changes_history == (not (runs[0].latents[:, t] == runs[1].latents[:, t]).all())


def test_flip_vote_changes_one_vote():
    clean, corrupted = of_advice.flip_vote(advice(), round=3, expert="p_3")
    changed = np.argwhere(clean.advice != corrupted.advice)
    assert {tuple(row[1:]) for row in changed} == {(3, 2)}
    assert len(changed) == len(clean)
    np.testing.assert_array_equal(clean.labels, corrupted.labels)


def test_flip_label_changes_one_label():
    clean, corrupted = of_advice.flip_label(advice(), round=-1)
    np.testing.assert_array_equal(
        np.argwhere(clean.labels != corrupted.labels)[:, 1], [7] * len(clean)
    )
    np.testing.assert_array_equal(clean.advice, corrupted.advice)


def test_swap_histories_swaps_the_past_only():
    clean, corrupted = experts.TASK.corruption("swap-histories").build(advice(), round=4)
    np.testing.assert_array_equal(
        clean.advice[:, :4, [0, 1, 2]], corrupted.advice[:, :4, [1, 0, 2]]
    )
    np.testing.assert_array_equal(clean.advice[:, 4:], corrupted.advice[:, 4:])


def test_exchange_history_gives_the_next_episodes_past():
    clean, corrupted = of_advice.exchange_history(advice(), round=4)
    np.testing.assert_array_equal(corrupted.advice[0, :4], clean.advice[1, :4])
    np.testing.assert_array_equal(corrupted.advice[:, 4:], clean.advice[:, 4:])
    np.testing.assert_array_equal(corrupted.labels[-1, :4], clean.labels[0, :4])
    np.testing.assert_array_equal(corrupted.labels[:, 4:], clean.labels[:, 4:])
    clean, corrupted = of_steps.exchange_history(steps(), round=4)
    np.testing.assert_allclose(corrupted.q_tables[-1, 4], clean.q_tables[0, 4])
    np.testing.assert_array_equal(corrupted.next_states[:, 4:], clean.next_states[:, 4:])


def test_change_reward_changes_one_reward_and_what_is_learned():
    clean, corrupted = qlearning.TASK.corruption("change-reward").build(steps(), round=3)
    assert set(np.argwhere(clean.rewards != corrupted.rewards)[:, 1]) == {3}
    np.testing.assert_allclose(abs(clean.rewards - corrupted.rewards)[:, 3], 0.5)
    assert corrupted.rewards[:, 3].max() < 1
    np.testing.assert_array_equal(clean.q_tables[:, :4], corrupted.q_tables[:, :4])
    assert (clean.q_tables[:, 4] != corrupted.q_tables[:, 4]).any(axis=(1, 2)).all()


@pytest.mark.parametrize("key", [key for task, key in RECORDS if task == "reachability"])
def test_a_corruption_of_a_graph_changes_its_own_rounds_only(key):
    record = reachability.TASK.corruption(key)
    clean, corrupted = record.build(reachability.sample(20, 5, 16, 24, seed=1), 2)
    names = ("edges", "roots", "candidates")
    changed = [
        np.abs(clean.by_round(n) - corrupted.by_round(n)).reshape(20, 5, -1).any((0, 2))
        for n in names
    ]
    assert set(np.flatnonzero(np.any(changed, 0))) == ({0, 1} if record.changes_history else {2})


def test_moving_the_target_makes_the_search_find_the_negative():
    episodes = reachability.sample(60, 3, 16, 24, seed=1, depths=(2,))
    _, target_moved = reachability.TASK.corruption("move-target").build(episodes, 1)
    reached = reachability.algorithms.breadth_first().run(target_moved)["reached"][:, 2]
    rows = np.arange(60)
    assert (reached[rows, episodes.negatives] == 1).all()
    assert (reached[rows, episodes.targets] == 0).all()


def test_the_task_looks_its_corruptions_up_by_key():
    assert experts.TASK.corruption("flip-label").build is of_advice.flip_label
    assert experts.TASK.analysis.default_corruption in {
        record.key for record in of_advice.corruptions()
    }


test_unknown_experts_are_refused = refused(
    (
        lambda: of_advice.flip_vote(advice(), 3, expert="p_4"),
        "expert 'p_4' does not exist: the episodes have experts p_1 to p_3",
    ),
    (
        lambda: experts.TASK.corruption("flip-vote").build(advice(), 3, expert=1),
        "expert 1 is a number; name an expert by the label of its vote, p_1 to p_3",
    ),
)
test_rounds_without_a_history_are_refused = refused(
    (lambda: of_advice.flip_label(advice(), 8), "round 8 is out of range"),
    (
        lambda: experts.TASK.corruption("swap-histories").build(advice(), 0),
        "round 0 has no history",
    ),
)
test_too_few_episodes_and_unknown_names_are_refused = refused(
    (lambda: of_advice.exchange_history(advice().select([0]), 3), "at least 2 episodes"),
    (
        lambda: experts.TASK.corruption("flip-lable"),
        "unknown corruption of experts episodes 'flip-lable'; did you mean 'flip-label'",
    ),
    (lambda: qlearning.TASK.corruption("flip-label"), "unknown corruption of qlearning episodes"),
)
