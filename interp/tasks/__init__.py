"""The tasks: what a model is given to learn online, as validated frozen episodes.

``experts`` (prediction with expert advice; ``expert_regimes``), ``mdp`` (Q-learning trajectories; ``mdps``,
``mdp_types``, ``mdp_regimes``, ``bellman``), ``datasets`` (one file, same bytes for the same seed), ``environment``
(Gymnasium). No algorithm beyond the pure Q-learning update that makes the trajectories, and no model, lives here.
"""
