"""Run latent-context transformers, look inside them round by round, and intervene.

The facade: :func:`load` a model, :func:`rollout` it over episodes, :func:`play` it in MDPs. Everything else is in the
rooms: ``interp.tasks`` (episodes), ``interp.algorithms`` (references and baselines), ``interp.model``,
``interp.training``, ``interp.interventions``, ``interp.llm``; handwired circuits are in ``circuits``, probes in
``probes``, reports in ``reports``. Importing this package imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from interp.errors import InputError

if TYPE_CHECKING:
    from interp.library import load, models
    from interp.model.rollout import Rollout, play, replay, rollout

__all__ = ["InputError", "Rollout", "load", "models", "play", "replay", "rollout"]

_HOMES = {
    "load": "interp.library",
    "models": "interp.library",
    "Rollout": "interp.model.rollout",
    "play": "interp.model.rollout",
    "replay": "interp.model.rollout",
    "rollout": "interp.model.rollout",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'interp' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
