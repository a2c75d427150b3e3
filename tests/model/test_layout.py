"""Round layouts: the paper's token orders, positions by label, and refusals that name the nearest."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from interp.model.layout import layout_from_dict
from interp.tasks import experts, mdp
from interp.tasks.experts.layout import ExpertRound
from interp.tasks.qlearning.layout import QLearningRound
from tests.refusals import refuses


def test_the_expert_round_is_the_papers():
    layout = ExpertRound(2)
    assert layout.labels == ("<w>", "<z>", "e_1", "p_1", "e_2", "p_2", "p?", "y", "w?")
    assert (layout.latent_positions, layout.predict_position, layout.update_position) == (
        (1,),
        6,
        8,
    )
    assert len(layout.vocabulary) == 2 + 5
    assert layout.choice_position is None


def test_the_q_learning_round_is_the_papers():
    layout = QLearningRound(3, 2)
    assert layout.labels == (
        *("<BOS>", "c_1", "c_2", "Qcurr", "s", "a", "r", "Qnext", "s'"),
        *("s'_1", "a_1", "s'_2", "a_2", "Select", "a*", "Update"),
    )
    assert layout.n_positions == 3 * 2 + 10
    assert len(layout.vocabulary) == 3 + 2 + 6
    assert layout.labels[layout.predict_position] == "Select"
    assert layout.labels[layout.update_position] == "Update"
    assert layout.choice_position == layout.position("a*")


def test_expert_episodes_become_the_tokens_they_name():
    episodes = experts.sample(n_episodes=3, n_rounds=4, n_experts=2, seed=0)
    layout = ExpertRound(2)
    rounds = layout.encode(episodes)
    words = np.array(layout.vocabulary)[rounds.tokens.numpy()]
    assert (words[..., layout.position("e_2")] == "e_2").all()
    votes_of_second = words[..., layout.position("p_2")]
    assert_array_equal(votes_of_second == "q1", episodes.advice[..., 1] == 1)
    labels = words[..., layout.position("y")]
    assert_array_equal(labels == "q1", episodes.labels == 1)
    assert (words[..., layout.position("w?")] == "w?").all()
    assert not rounds.slots.any()


def test_mdp_episodes_become_the_tokens_they_name():
    episodes = mdp.sample(n_episodes=3, n_rounds=5, n_states=4, n_actions=2, seed=0)
    layout = QLearningRound(4, 2)
    rounds = layout.encode(episodes)
    tokens = rounds.tokens.numpy()
    first_state, first_action = layout.token_ids["s_1"], layout.token_ids["a_1"]
    expected_tokens = {
        "s": first_state + episodes.states,
        "s'_2": first_state + episodes.next_states,
        "a": first_action + episodes.actions,
        "a*": first_action + episodes.greedy,
    }
    for label, expected in expected_tokens.items():
        tokens_at_label = tokens[..., layout.position(label)]
        assert_array_equal(tokens_at_label, expected, err_msg=label)
    assert (tokens[..., layout.position("a_2")] == first_action + 1).all()
    rewards = rounds.values[..., layout.position("r")]
    assert_array_equal(rewards, episodes.rewards)
    assert rounds.values.count_nonzero() == np.count_nonzero(episodes.rewards)
    assert_array_equal(rounds.slots, episodes.actions)


def test_one_vocabulary_serves_a_range_of_sizes():
    layout = ExpertRound(3, (2, 5))
    fitted = layout.fit(experts.sample(1, 2, 5, seed=0))
    assert fitted.n_experts == 5
    assert fitted.vocabulary == layout.vocabulary
    refuses(
        "episodes have 6 experts but this model's layout serves 2 to 5",
        layout.fit,
        experts.sample(1, 2, 6, seed=0),
    )


def test_state_arranges_the_q_table_by_state_and_action():
    columns = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(QLearningRound(3, 2).state(columns), columns.T)
    assert ExpertRound(3).state(torch.ones(4, 1, 3)).shape == (4, 3)


@pytest.mark.parametrize("layout", [ExpertRound(3, (2, 5)), QLearningRound(4, 2, (2, 8), (2, 4))])
def test_layouts_survive_json(layout):
    assert layout_from_dict(layout.to_dict()) == layout


def test_refusals_name_the_value_and_the_nearest():
    layout = QLearningRound(2, 2)
    refuses("unknown position label 'Selct'; did you mean 'Select'", layout.position, "Selct")
    refuses("n_experts must be an integer >= 1, got 0", ExpertRound, 0)
    refuses(r"n_experts 9 is outside n_experts_range \(2, 8\)", ExpertRound, 9, (2, 8))
    sentence = "this is a model of the task 'bandits', which is not registered"
    refuses(sentence, layout_from_dict, {"task": "bandits"})
    transitions = mdp.sample(1, 2, 2, 2, seed=0)
    refuses("this model reads expert episodes, got MDPEpisodes", ExpertRound(4).fit, transitions)
