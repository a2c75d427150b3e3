"""Q-learning with a lapse is what it says: itself where the lapse is none, and else its own table of another round."""

import numpy as np
import pytest

from interp.errors import InputError
from interp.tasks import mdp
from interp.tasks.qlearning import families as lapses
from interp.tasks.qlearning.algorithms import q_learning


@pytest.fixture(scope="module")
def episodes():
    return mdp.sample(5, 12, 3, 2, seed=1, epsilon=1.0)


@pytest.mark.parametrize("lapsed", [lapses.late_q(0.3, 0.8, lag=0), lapses.stopped_q(0.3, 0.8, last=12)])
def test_a_lapse_that_is_none_is_q_learning(episodes, lapsed):
    made, plain = lapsed.run(episodes), q_learning(0.3, 0.8).run(episodes)
    for key in ("table", "next_table", "visits", "choice", "policy", "td_error"):
        assert np.array_equal(made[key], plain[key]), key


def test_a_late_table_is_the_table_of_two_rounds_before(episodes):
    made, plain = lapses.late_q(0.3, 0.8, lag=2).run(episodes), q_learning(0.3, 0.8).run(episodes)
    assert not made["table"][:, :3].any()
    assert made["table"][:, 2:] == pytest.approx(plain["table"][:, :-2])
    assert made["table"][:, 2:].any() and (made["policy"][:, 2:] != plain["policy"][:, 2:]).any()


def test_a_late_table_chooses_at_the_state_of_now(episodes):
    values = lapses.late_q(0.3, 0.8, lag=1).run(episodes)
    rows = np.take_along_axis(values["table"], values["next_state"][..., None, None], -2)[..., 0, :]
    assert np.array_equal(values["choice"], rows.argmax(-1))


def test_a_stopped_table_stays_as_it_is_and_is_still_chosen_by(episodes):
    made, plain = lapses.stopped_q(0.3, 0.8, last=5).run(episodes), q_learning(0.3, 0.8).run(episodes)
    assert np.array_equal(made["table"][:, :6], plain["table"][:, :6])
    assert np.array_equal(made["table"][:, 6:], np.repeat(plain["table"][:, 5:6], 6, 1))
    assert (made["table"][:, 6:] != plain["table"][:, 6:]).any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lapses.late_q(lag=-1), "lag must be an integer >= 0, got -1"),
        (lambda: lapses.stopped_q(last=0), "last must be a number of rounds >= 1, got 0"),
        (lambda: lapses.late_q(gamma=1.0), "gamma"),
    ],
)
def test_lapses_that_cannot_be_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()
