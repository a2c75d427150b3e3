"""The models: configuration, round layouts, the hooked transformer, rollouts over rounds, checkpoints.

    >>> from interp.model.config import LatentTransformerConfig
    >>> from interp.model.rollout import rollout
    >>> from interp.model.transformer import HookedLatentTransformer
    >>> from interp.tasks import experts
    >>> from interp.tasks.experts.layout import ExpertRound
    >>> config = LatentTransformerConfig(ExpertRound(2), d_model=8, n_layers=1, n_heads=2, d_head=4)
    >>> run = rollout(HookedLatentTransformer(config), experts.sample(n_episodes=3, n_rounds=5, n_experts=2))
    >>> run.predictions.shape, run.latents.shape                     # [episode, round], [episode, round + 1, ...]
    (torch.Size([3, 5]), torch.Size([3, 6, 1, 8]))

``layout`` (what every round layout says), ``config``, ``components``, ``hooked`` and ``transformer`` (the model and its
untrained control), ``rollout`` (running episodes, running rounds again), ``run`` and ``saved`` (what
they give), ``bound`` (rounds as tokens, for token-based tools), ``checkpoints``. Not here: a task's layout
(``interp.tasks``), handwired weights (``circuits``), training (``interp.training``), interventions
(``interp.interventions``). Import from the modules: nothing is re-exported, so that ``interp.model.layout`` is light.
"""

__all__ = ["bound", "checkpoints", "components", "config", "hooked", "layout", "rollout", "saved", "transformer"]
