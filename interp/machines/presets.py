"""Builders of every kind of learner for every task, registered where this module is imported::

    interp --import interp.machines.presets train experts --preset laptop --machine gru-experts --name mine

In Python, after ``import interp.machines.presets``::

    interp.load("mamba-experts", width=32)
"""

from __future__ import annotations

from functools import partial

from interp import catalog
from interp.library import register_machine
from interp.machines.learners import KINDS, learner

for _task in catalog.every():
    for _kind in KINDS:
        register_machine(
            f"{_kind}-{_task.key}",
            partial(learner, _kind, _task.key),
            description=f"untrained: {_kind} between what hears and what reads a round of {_task.name}",
            task=_task.key,
        )
