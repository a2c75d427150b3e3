"""Known machines: models of which it is known what a comparison with their reference must, and must not, say.

    from lab import known
    known.gallery("experts")                                 # every specimen of a task, by its key
    known.reference("experts")                               # the machine that all of them are held against

A :class:`Specimen` is made by editing a circuit, from an algorithm, or by training. It says which words about it are
right, and why; half of them were not looked at while thresholds were chosen. The table "machines" of ``python -m lab
calibrate`` is of all of them.

In this room: a file of specimens for each task, :mod:`lab.known.by_algorithm` (any algorithm as a machine).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from interp.checks import checked, unique
from interp.errors import require_known
from interp.library import load
from interp.machine import Machine
from lab.known.specimen import Right, Specimen

__all__ = ["TASKS", "Right", "Specimen", "gallery", "reference"]

_REFERENCES: dict[str, tuple[str, dict[str, Any]]] = {
    "experts": ("wma-handwired", {"n_experts": 4}),
    "qlearning": ("qlearning-handwired", {"n_states": 4, "n_actions": 3}),
    "reachability": ("reachability-handwired", {"n_nodes": 28, "n_edges": 24, "marks": False}),
}
TASKS = tuple(_REFERENCES)
"""The tasks that have known machines: each has a file of that name here, with a function ``specimens()``."""


@checked
def gallery(task: str) -> dict[str, Specimen]:
    """Every known machine of a task by its key, those that no threshold was chosen with (``held_out``) among them.

    >>> gallery("experts")["itself"].right["behaviour"]
    'same'
    """
    require_known("task with known machines", task, TASKS)
    return unique(import_module(f"{__name__}.{task}").specimens(), f"specimen of {task!r}")


@checked
def reference(task: str) -> Machine:
    """The machine that the known machines of a task are held against, in double precision.

    >>> reference("experts").name
    'wma-handwired'
    """
    require_known("task with known machines", task, TASKS)
    name, sizes = _REFERENCES[task]
    return load(name, **sizes).to(torch.float64)
