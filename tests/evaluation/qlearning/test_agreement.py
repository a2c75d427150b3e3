"""Agreement metrics on policies whose score is known, and the reference numbers of the training grid."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from interp.evaluation.qlearning.agreement import QUANTITIES, agreement
from interp.tasks import mdp
from tests.refusals import refuses


@pytest.fixture(scope="module")
def grid():
    """The training grid; three lengths stand for U{10..50}, to have fewer and larger batches."""
    batches = []
    for n_rounds, n_states, n_actions in product((14, 30, 46), range(2, 9), range(2, 5)):
        seed = 1000 * n_rounds + 10 * n_states + n_actions
        batches.append(mdp.sample(36, n_rounds, n_states, n_actions, seed=seed))
    return batches


def perfect(batch):
    """A learner that knows the table and breaks ties at random."""
    greedy = batch.greedy_sets
    return greedy / greedy.sum(-1, keepdims=True)


@pytest.mark.long
def test_the_reference_numbers_of_the_grid(grid):
    """12 % ties, a ceiling of .923 under random ties, .902 for the table that never bootstraps, and a floor of .128.

    Within .01: those numbers came from a few hundred episodes.
    """
    result = agreement([perfect(batch) for batch in grid], grid)
    expected = {
        "share_tied": 0.12,
        "random_ties_ceiling": 0.923,
        "random_ties_gamma0": 0.902,
        "cross_entropy_floor": 0.128,
        "untied": 1.0,
        "disputed": 1.0,
        "disputed_gamma0": 0.0,
    }
    for quantity, value in expected.items():
        assert abs(result.get(quantity, "all").estimate - value) < 0.01, quantity
    cross_entropy = result.get("cross_entropy", "all").estimate
    floor = result.get("cross_entropy_floor", "all").estimate
    assert abs(cross_entropy - floor) < 1e-12


@pytest.mark.parametrize(("n_actions", "ceiling"), [(2, 0.940), (3, 0.919), (4, 0.909)])
def test_the_ceiling_for_each_number_of_actions(grid, n_actions, ceiling):
    batches = [batch for batch in grid if batch.n_actions == n_actions]
    result = agreement([batch.greedy for batch in batches], batches)
    assert abs(result.get("random_ties_ceiling", "all").estimate - ceiling) < 0.01
    assert result.get("random_ties", "all") == result.get("random_ties_ceiling", "all")


def test_the_table_that_never_bootstraps_scores_as_its_own_control():
    """Given as predictions, it gains nothing over itself and never follows the other table on disputed steps."""
    e = mdp.sample(400, 50, 4, 3, seed=0)
    result = agreement(perfect(e.relearn(gamma=0.0)), e)
    assert result.get("disputed", "all").estimate == 0.0
    assert result.get("disputed_gamma0", "all").estimate == 1.0
    assert abs(result.get("untied_gain", "all").estimate) < 0.01


def test_a_uniform_random_choice_scores_one_over_the_actions():
    e = mdp.sample(300, 40, 4, 4, seed=0)
    choices = np.random.default_rng(0).integers(4, size=e.states.shape)
    result = agreement(choices, e)
    for quantity in ("untied", "random_ties"):
        assert abs(result.get(quantity, "all").estimate - 0.25) < 0.02
    of_even = agreement(np.full((300, 40, 4), 0.25), e)
    cross_entropy = of_even.get("cross_entropy", "all").estimate
    assert abs(cross_entropy - np.log(4)) < 1e-12


def test_a_hand_made_episode():
    """One state, two actions paying 0 and 1: the first step of action 0 is a tie, all others favour action 1."""
    mdps = mdp.MDPs(np.ones((1, 1, 2, 1)), np.array([[[0.0, 1.0]]]))
    e = mdp.MDPEpisodes.from_transitions(
        mdps, [[0, 0, 0]], [[0, 1, 0]], [[0.0, 1.0, 0.0]], [[0, 0, 0]]
    )
    assert e.greedy.tolist() == [[0, 1, 1]]
    is_tied = e.greedy_sets.sum(-1) > 1
    assert is_tied.tolist() == [[True, False, False]]
    result = agreement(np.array([[0, 1, 0]]), e)
    assert result.get("untied", "all").estimate == 0.5
    assert result.get("random_ties", "all").estimate == pytest.approx(1.5 / 3)
    assert result.get("random_ties_ceiling", "all").estimate == pytest.approx(2.5 / 3)
    assert [result.get("random_ties", phase).estimate for phase in ("early", "middle", "late")] == [
        0.5,
        1.0,
        0.0,
    ]
    before = agreement(np.array([[0, 1, 1]]), e, table="before")
    assert before.beside["untied", "all"]["n_steps"] == 1
    assert before.get("untied", "all").estimate == 1.0


@pytest.mark.long
def test_selecting_before_the_update_is_scored_by_the_table_before(grid):
    """An exact machine that selects by Q_t: perfect by that table, below the gamma = 0 table by the data's target."""
    choices = [batch.next_values_before.argmax(-1) for batch in grid]
    late, before_update = agreement(choices, grid), agreement(choices, grid, table="before")
    assert before_update.get("untied", "all").estimate == 1.0
    assert before_update.get("disputed", "all").estimate == 1.0
    assert abs(late.get("untied", "all").estimate - 0.960) < 0.01
    assert abs(late.get("random_ties", "all").estimate - 0.886) < 0.01
    assert late.get("untied", "all").high < late.get("untied_gamma0", "all").low


def test_swapping_tied_targets_changes_nothing():
    """No metric depends on which of the tied actions was written down as the target."""
    e = mdp.sample(60, 15, 4, 3, seed=0)
    actions_after_last = e.greedy_sets[..., ::-1].argmax(-1)
    last = e.n_actions - 1 - actions_after_last
    assert (last != e.greedy).any()
    choices = np.random.default_rng(0).integers(3, size=e.states.shape)
    assert agreement(choices, replace(e, greedy=last)).numbers == agreement(choices, e).numbers


def test_the_table_is_tidy_and_names_every_quantity():
    e = mdp.sample(20, 9, 3, 2, seed=0)
    frame = agreement(perfect(e), e).to_frame()
    assert set(frame["quantity"]) == set(QUANTITIES)
    assert len(frame) == 4 * len(QUANTITIES)
    of_choices = agreement(e.greedy, e).to_frame()
    assert "cross_entropy" not in set(of_choices["quantity"])


def test_bad_input_is_refused_with_a_sentence():
    e = mdp.sample(4, 5, 3, 2, seed=0)
    cases = [
        (np.zeros((4, 5, 3)), r"probabilities \[episode, round, action\] = \(4, 5, 2\)"),
        (np.full((4, 5), 2), "choices must be whole numbers from 0 to 1, got 2"),
        (np.full((4, 5, 2), 1.5), "apply a softmax to logits first"),
        (np.full((4, 5, 2), np.nan), "sum to 1 over actions"),
    ]
    for predictions, message in cases:
        refuses(message, agreement, predictions, e)
    refuses("got 1 arrays of predictions for 2 batches", agreement, [e.greedy], [e, e])
    result = agreement(e.greedy, e)
    refuses("unknown result 'untyed/all'; did you mean 'untied/all'", result.get, "untyed", "all")
    nothing = agreement(np.zeros((1, 1), int), mdp.sample(1, 1, 2, 2, seed=0))
    assert np.isnan(nothing.get("disputed", "all").estimate)
    assert nothing.beside["disputed", "all"]["n_steps"] == 0


@pytest.mark.parametrize("phase", ["all", "early", "middle", "late"])
def test_phases_are_thirds_of_each_episode_whatever_it_is_padded_to(phase):
    """Nine rounds have three in each third, also in a batch of fourteen rounds."""
    whole = mdp.sample(8, 14, 3, 2, seed=0)
    short = whole.first(9)
    is_padding = np.zeros((8, 14), bool)
    is_padding[:, 9:] = True
    padded = whole.relearn(transitions={"missing": is_padding})
    expected = agreement(short.greedy, short).get("untied_gamma0", phase)
    assert agreement(padded.greedy, padded).get("untied_gamma0", phase) == expected
