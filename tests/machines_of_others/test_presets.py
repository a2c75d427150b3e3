"""Every kind of learner trains on a task by its registered builder, and its checkpoint loads as it was."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from interp.machines.learners import KINDS

DOCS = Path(__file__).parents[2] / "docs"


def test_every_kind_trains_and_loads_again(tmp_path):
    """In a program of its own: what is registered is registered for the whole process."""
    program = f"""
        import interp, torch
        import interp.machines.presets
        from interp.tasks import experts
        from interp.training.config import Stage, TrainingConfig
        from interp.training.trainer import train
        episodes = experts.sample(4, 5, 4, seed=1)
        for kind in {list(KINDS)}:
            arguments = {{"width": 8, "n_rounds": 20}}
            machine = {{"builder": f"{{kind}}-experts", "arguments": arguments}}
            config = TrainingConfig("experts", (Stage(5, 2),), lr=1e-2, batch_size=8, sizes={{"n_experts": (4, 4)}},
                                    eval_episodes=8, eval_rounds=5, machine=machine)
            learned = interp.load(str(train(config, {str(tmp_path)!r} + "/" + kind, name=kind)))
            blank = interp.load(f"{{kind}}-experts", **arguments).fresh(config.seed)
            moved = [name for name, weight in learned.named_parameters()
                     if not torch.equal(weight, dict(blank.named_parameters())[name])]
            still = [name for name, weight in learned.named_parameters() if name not in moved and weight.requires_grad]
            assert learned.origin["training"]["machine"] == machine and learned.name == kind
            print(kind, len(moved), still)
        records = [record for record in interp.models() if record.name == "lstm-qlearning"]
        assert records[0].task == "qlearning" and interp.load("lstm-qlearning", width=8).layout.task == "qlearning"
        """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=DOCS.parent)
    assert ran.returncode == 0, ran.stderr
    told = {line.split(" ", 1)[0]: line.split("[", 1)[1] for line in ran.stdout.splitlines() if "[" in line}
    # Every weight learns.
    assert told.keys() == KINDS.keys() and set(told.values()) == {"]"}
