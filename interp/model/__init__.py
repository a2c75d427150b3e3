"""The models: configuration, round layouts, the hooked transformer, rollouts over rounds, checkpoints.

Not here: handwired weights (``circuits``), training (``interp.training``), interventions (``interp.interventions``).
Import from the modules; nothing is re-exported, so that ``interp.model.layout`` stays light.
"""
