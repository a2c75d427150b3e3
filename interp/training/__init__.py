"""Training of latent models: one loop for every task.

    >>> from interp.training.goal import preset
    >>> preset("experts", "laptop").total_steps
    2200

``goal`` (what a task gives: targets, sizes, presets), ``config`` (the choices of a run, overrides),
``batches`` (from seed and step, with their loss), ``trainer`` (the loop, checkpoints, processes),
``hardware`` (precision), ``muon`` (the optimizer of matrices), ``runs`` (folders of runs, learning
curves). ``interp.evaluation`` measures how well a trained model performs. Import from the modules:
each needs torch.
"""

__all__ = ["batches", "config", "goal", "hardware", "muon", "runs", "trainer"]
