"""Training of models that carry a latent state: one training loop for every task.

    >>> from interp.training.goal import preset
    >>> preset("experts", "laptop").total_steps
    2200

* ``goal``: what a task defines for training: targets, sizes, presets;
* ``config``: the settings of a run, and overrides of them;
* ``batches``: training batches, their loss, and the numbers of an evaluation;
* ``trainer``: the training loop with checkpoints, on one or several processes;
* ``hardware``: the choice of a precision;
* ``muon``: the optimizer for weight matrices;
* ``runs``: the files of a run, and learning curves.

``interp.evaluation`` measures how well a trained model performs. Import from the modules, because
each needs torch.
"""

__all__ = ["batches", "config", "goal", "hardware", "muon", "runs", "trainer"]
