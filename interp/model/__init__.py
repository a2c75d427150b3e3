"""The models: configuration, round layouts, the hooked transformer, rollouts over rounds, checkpoints.

``layout`` (what every round layout says), ``config``, ``components``, ``hooked`` and ``transformer`` (the model and its
untrained control), ``rollout`` (running episodes, running rounds again), ``run`` and ``saved`` (what they give),
``bound`` (rounds as tokens, for token-based tools), ``checkpoints``. Not here: a task's layout (``interp.tasks``),
handwired weights (``circuits``), training (``interp.training``), interventions (``interp.interventions``). Import from
the modules: nothing is re-exported, so that ``interp.model.layout`` is light.
"""

__all__ = [
    "bound",
    "checkpoints",
    "components",
    "config",
    "hooked",
    "layout",
    "rollout",
    "saved",
    "transformer",
]
