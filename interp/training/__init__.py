"""Training of latent models: one loop for every task.

    >>> from interp.training.goal import preset
    >>> preset("experts", "laptop").total_steps
    2200

``goal`` (what a task gives: targets, sizes, presets), ``config`` (the choices of a run, overrides), ``data`` (batches
from seed and step), ``loss`` (the recurrence as one forward), ``machine`` (what it runs on, and the faster precision
there), ``trainer`` (the loop, checkpoints, processes), ``evaluation`` (the numbers that it watches), ``curves`` (runs
side by side), ``card`` (from a run to a model that ships). What a trained model is worth is measured in
``interp.evaluation``. Import from the modules: each needs torch.
"""

__all__ = ["card", "config", "curves", "data", "evaluation", "goal", "loss", "machine", "muon", "trainer"]
