"""Training of latent models, one loop for both tasks.

``config`` (presets, overrides), ``data`` (batches from seed and step), ``loss`` (the recurrence as one forward),
``trainer`` (the loop, checkpoints, processes), ``evaluation`` (the numbers it watches). What a trained model is worth
is measured in ``interp.evaluation``.
"""
