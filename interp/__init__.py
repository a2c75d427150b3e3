"""Run latent-context transformers, look inside them round by round, and intervene.

    >>> import interp
    >>> from interp.tasks import experts
    >>> model = interp.load("wma-handwired", n_experts=4)
    >>> interp.rollout(model, experts.sample(n_episodes=2, n_rounds=5, n_experts=4)).predictions.shape
    torch.Size([2, 5])

:func:`load` a model, or :func:`adapt` a module of your own; :func:`rollout` it over episodes, :func:`play` it where it
can act; what is particular to a task is in ``interp.tasks``. Importing this package imports no torch. What goes on is
logged to the logger "interp"; ``logging.basicConfig(level="INFO")`` shows it.
"""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING

from interp.errors import InputError
from interp.lazy import enter, facade, strangers

if TYPE_CHECKING:
    from interp.library import load, models, register_machine
    from interp.machine import Channel
    from interp.model.adapted import Point, adapt
    from interp.model.checks import MACHINE_CHECKS, check_machine, check_task
    from interp.model.replay import replay
    from interp.model.rollout import play, rollout
    from interp.model.run import Rollout
    from reports.explore.server import explore

__version__ = "0.2.0"

__all__ = [
    "MACHINE_CHECKS",
    "Channel",
    "InputError",
    "Point",
    "Rollout",
    "__version__",
    "adapt",
    "check_machine",
    "check_task",
    "explore",
    "load",
    "models",
    "play",
    "register_machine",
    "replay",
    "rollout",
]

logging.getLogger("interp").addHandler(logging.NullHandler())
for sentence in strangers():
    warnings.warn(sentence, stacklevel=2)

enter(tasks="interp.tasks", circuits="circuits.registry", learners="interp.machines.learners")
enter(evaluation="interp.evaluation", goals="interp.training.goals")
enter(**{"task checks": "interp.model.checks"})

__getattr__, __dir__ = facade(
    __name__,
    {
        "interp.library": "load models register_machine",
        "interp.machine": "Channel",
        "interp.model.adapted": "Point adapt",
        "interp.model.checks": "MACHINE_CHECKS check_machine check_task",
        "interp.model.replay": "replay",
        "interp.model.rollout": "play rollout",
        "interp.model.run": "Rollout",
        "reports.explore.server": "explore",
    },
)
