"""The agent of ``examples/agent.py``: its saved file is read as a machine, and asked which algorithm it is."""

import io
import zipfile

import agent as example
import numpy as np
import pytest
import torch
from torch.testing import assert_close

import interp
from interp.machines.recurrent import Actor

MODULES_IN_FILE = {
    "core": "lstm_actor",
    "policy": "mlp_extractor.policy_net",
    "action": "action_net",
}
"""Our names of an actor's modules, and those in a file of ``sb3-contrib``."""


def save_as_sb3_does(actor, path):
    """Write the weights of an actor as ``RecurrentPPO.save`` writes them."""
    weights = {}
    for name, weight in actor.state_dict().items():
        module, _, rest = name.partition(".")
        weights[f"{MODULES_IN_FILE[module]}.{rest}"] = weight
    tensors = io.BytesIO()
    torch.save(weights, tensors)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("policy.pth", tensors.getvalue())


def test_the_agent_hears_each_round_as_its_worlds_say_it(tmp_path):
    """The machine of a saved file gives what its LSTM gives for the observations of the same episodes."""
    actor = Actor(n_inputs=example.N_SEEN, width=6, policy=(5,), n_actions=example.N_ACTIONS)
    save_as_sb3_does(actor, tmp_path / "agent.zip")
    machine = example.read_machine(tmp_path / "agent.zip")
    interp.check_machine(machine)

    episodes = example.sample_episodes(3, 5)
    states = np.eye(4)[episodes.states]
    actions = np.eye(2)[episodes.actions]
    next_states = np.eye(4)[episodes.next_states]
    rewards = episodes.rewards[..., None]
    observations = torch.tensor(np.concatenate([states, actions, next_states, rewards], -1))
    before_the_first = torch.zeros(3, 1, example.N_SEEN)
    inputs = torch.cat([before_the_first, observations.float()], 1)
    with torch.no_grad():
        hidden, _ = actor.core(inputs.transpose(0, 1))
        scores = actor.scores(hidden[1:].transpose(0, 1))
    predictions = interp.rollout(machine, episodes).predictions.float()
    assert_close(predictions, scores.softmax(-1), rtol=1e-4, atol=1e-5)


@pytest.mark.slow(reason="a search over all families of Q-learning's rivals: a minute of one core")
def test_the_agents_questions_find_a_known_rate_and_discount():
    learner = example.acting(example.q_learning(**example.KNOWN), temperature=0.1)
    row = example.explain_choices("known", learner, 16)
    assert row["answer"] == "q_learning"
    assert row["q_alpha"] == pytest.approx(example.KNOWN["alpha"], abs=0.05)
    assert row["q_gamma"] == pytest.approx(example.KNOWN["gamma"], abs=0.1)
