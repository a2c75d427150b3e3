"""Training of latent models: curriculum, data, trainer, presets. One loop for both tasks."""
