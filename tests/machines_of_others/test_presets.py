"""Every kind of learner trains on a task by its registered builder, and its checkpoint loads as it was."""

import sys
from importlib import import_module
from unittest.mock import patch

import pytest
import torch

import interp
from interp.machines.learners import KINDS
from interp.model import checkpoints, library
from interp.training.config import Stage, TrainingConfig
from interp.training.trainer import train


@pytest.mark.long
def test_every_kind_trains_and_loads_again(tmp_path, monkeypatch):
    """Every weight learns. What the module registers when it is imported is known for this test."""
    monkeypatch.delitem(sys.modules, "interp.machines.presets", raising=False)
    with patch.dict(library.BUILT, clear=True), patch.dict(checkpoints.BUILDERS):
        import_module("interp.machines.presets")
        for kind in KINDS:
            arguments = {"width": 8, "n_rounds": 20}
            machine = {"builder": f"{kind}-experts", "arguments": arguments}
            config = TrainingConfig(
                "experts", (Stage(5, 2),), lr=1e-2, batch_size=8, sizes={"n_experts": (4, 4)}, eval_episodes=8,
                eval_rounds=5, machine=machine,
            )  # fmt: skip
            learned = interp.load(str(train(config, tmp_path / kind, name=kind)))
            blank = dict(
                interp.load(f"{kind}-experts", **arguments)
                .untrained(config.seed)
                .named_parameters()
            )
            weights = [
                (name, weight)
                for name, weight in learned.named_parameters()
                if weight.requires_grad
            ]
            assert weights
            assert [name for name, weight in weights if torch.equal(weight, blank[name])] == []
            assert learned.origin["training"]["machine"] == machine
            assert learned.name == kind
        records = [record for record in interp.models() if record.name == "lstm-qlearning"]
        assert records[0].task == "qlearning"
        assert interp.load("lstm-qlearning", width=8).layout.task == "qlearning"
