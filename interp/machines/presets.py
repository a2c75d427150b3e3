"""Adds, when imported, an untrained learner of every kind for every task to the list of models.

    interp --import interp.machines.presets models

In Python, after ``import interp.machines.presets``::

    interp.load("mamba-experts", width=32)

Training a learner, and loading a trained one, does not need this import::

    interp train experts --preset laptop --machine gru-experts --set lr=3e-3 --name my-gru
"""

from __future__ import annotations

from interp.core import catalog
from interp.machines.learners import KINDS
from interp.model.checkpoints import BUILDERS
from interp.model.library import register_machine

for _task in catalog.list_tasks():
    for _kind in KINDS:
        register_machine(
            f"{_kind}-{_task.key}",
            BUILDERS[f"{_kind}-{_task.key}"],
            description=f"untrained: {_kind} with an input and an output network, for {_task.name}",
            task=_task.key,
        )
