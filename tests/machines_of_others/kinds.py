"""One small untrained machine of every kind that there is an adapter for, of expert advice and of Q-learning."""

import io
import json
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, HrmTextConfig, HrmTextForCausalLM

from interp import machines
from interp.machines import RoundEncoder
from interp.machines.learners import learner
from interp.tasks import experts, qlearning

LAYOUT = experts.TASK.layout(n_experts=4)
MDP = qlearning.TASK.layout(n_states=4, n_actions=3)
ENCODER, IDS = RoundEncoder(LAYOUT), LAYOUT.token_ids
OUTCOMES, N_ROUNDS, WIDTH = [IDS["q0"], IDS["q1"]], 12, 12
REAL = Path(__file__).parent / "recurrent_ppo.npz"
"""Weights of a RecurrentPPO of sb3-contrib 2.9.2, six observations, and the ``h`` and actions that it gave for them."""


class Mine(nn.Module):
    """A module of a user's, with a core of any name and size."""

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.memory, self.head = core, nn.Linear(WIDTH + ENCODER.n_before, 2)


def cells(core: nn.Module, **options: Any) -> Any:
    """A cell or layers in a module of a user's own."""

    def read(module: Any, h: Tensor, fed: Any) -> Tensor:
        return module.head(torch.cat([h, ENCODER.before(fed)], 1))

    functions = {"encode": lambda module, fed: ENCODER.after(fed), "read": read}
    return machines.cell(drawn(lambda: Mine(core)), LAYOUT, core="memory", **functions, **options)


def coconut(**options: Any) -> Any:
    """A GPT-2 with the task's vocabulary."""
    sizes = {
        "n_positions": 13 * N_ROUNDS,
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 2,
        "initializer_range": 0.5,
    }
    config = GPT2Config(vocab_size=len(LAYOUT.vocabulary), bos_token_id=0, eos_token_id=0, **sizes)
    model = drawn(lambda: GPT2LMHeadModel(config))
    return machines.thoughts(model, LAYOUT, n_rounds=N_ROUNDS, outcomes=OUTCOMES, **options)


def hrm(n_fast: int = 1, **options: Any) -> Any:
    """HRM-Text in small: two slow cycles of ``n_fast`` fast ones."""
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_attention_heads": 2,
        "num_layers_per_stack": 1,
    }
    loops = {"H_cycles": 2, "L_cycles": n_fast, "pad_token_id": 0, "initializer_range": 0.5}
    config = HrmTextConfig(vocab_size=len(LAYOUT.vocabulary), **sizes, **loops)
    return machines.hrm(
        drawn(lambda: HrmTextForCausalLM(config)), LAYOUT, outcomes=OUTCOMES, **options
    )


def observed(actor: Any, fed: Any) -> Tensor:
    """What the environment of the agent showed: its state, the last action and the last reward."""
    state = fed.tokens[:, MDP.position("s'")] - MDP.token_ids["s_1"]
    action = fed.tokens[:, MDP.position("a")] - MDP.token_ids["a_1"]
    state_one_hot = nn.functional.one_hot(state, 4).to(fed.values)
    action_one_hot = nn.functional.one_hot(action, 3).to(fed.values)
    reward = fed.values[:, [MDP.position("r")]]
    return torch.cat([state_one_hot, action_one_hot, reward], 1)


def agent_file(folder: Path, **more: Tensor) -> Path:
    """A file as RecurrentPPO saves it, of the weights in :data:`REAL`."""
    arrays = np.load(REAL)
    weights = {}
    for name in arrays.files:
        if "/" in name:
            weights[name.removeprefix("policy/")] = torch.tensor(arrays[name])
    tensors = io.BytesIO()
    torch.save({**weights, **more}, tensors)
    with zipfile.ZipFile(folder / "agent.zip", "w") as archive:
        archive.writestr("data", json.dumps({"policy_kwargs": {}}))
        archive.writestr("policy.pth", tensors.getvalue())
    return folder / "agent.zip"


def agent(folder: Path) -> Any:
    """The agent in that file."""
    return machines.agent(
        machines.read_agent(agent_file(folder)), MDP, encode=observed, name="agent"
    )


def drawn(build: Callable[[], Any], seed: int = 0) -> Any:
    """What ``build`` makes, with weights that a seed says."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return build()


CELLS = {
    "GRUCell": lambda folder: cells(nn.GRUCell(ENCODER.n_after, WIDTH)),
    "LSTMCell": lambda folder: cells(nn.LSTMCell(ENCODER.n_after, WIDTH)),
}
LAYERS = {
    "GRU of 2 layers": lambda folder: cells(nn.GRU(ENCODER.n_after, WIDTH, num_layers=2)),
    "LSTM of 2 layers": lambda folder: cells(
        nn.LSTM(ENCODER.n_after, WIDTH, num_layers=2, batch_first=True)
    ),
}
LEARNERS = {
    "GRU": lambda folder: learner("gru", LAYOUT, width=WIDTH),
    "LSTM": lambda folder: learner("lstm", LAYOUT, width=WIDTH),
    "loop": lambda folder: learner("loop", LAYOUT, width=WIDTH),
    "HRM": lambda folder: hrm(),
}
SEQUENCES = {
    "Mamba": lambda folder: learner("mamba", LAYOUT, width=6, n_layers=2),
    "thoughts": lambda folder: learner("thoughts", LAYOUT, width=4, n_rounds=N_ROUNDS),
    "Coconut": lambda folder: coconut(),
    "agent": agent,
}
KINDS = {**CELLS, **LAYERS, **LEARNERS, **SEQUENCES}
"""Kind -> the function of a folder to write to that makes one."""


def make(kind: str, folder: Path, seed: int = 0) -> Any:
    """A machine of that kind, whose weights a seed says."""
    return drawn(lambda: KINDS[kind](folder), seed)


@cache
def made(kind: str) -> Any:
    """A machine of a kind, which several tests look at: one of them whether it keeps the contract."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("interp.model.adapted.check_machine", lambda machine, cheap: None)
        return make(kind, Path(folder))


def pair(machine: Any, n_episodes: int = 6, n_rounds: int = 5) -> tuple[Any, Any]:
    """Two batches of episodes that a machine reads."""
    if machine.layout.task == "experts":
        return tuple(experts.sample(n_episodes, n_rounds, 4, seed=seed) for seed in (1, 2))
    return tuple(qlearning.TASK.sample_for(machine, n_episodes, n_rounds, seed) for seed in (1, 2))
