"""Models: configurations, round layouts, the hooked transformer, rollouts over rounds, checkpoints.

- the tokens and sizes of a round: ``layout``, ``config``;
- transformers: ``components``, ``plain`` (blocks without hooks), ``transformer``, ``lens`` (the
  attributes that TransformerLens' tools read), ``bound`` (rounds as tokens, for these tools);
- other PyTorch modules: ``adapted``, ``taps`` (hook points), ``opened`` (gates of fused cells),
  ``carried`` (channels), ``outside`` (weights that an untrained copy would miss);
- all machines: ``hooked``, ``drawing`` (untrained copies), ``locks``, ``checks`` and
  ``task_checks`` (is an interface kept?);
- runs: ``rollout``, ``run``, ``saved``; models by name and on disk: ``library``, ``checkpoints``.

Elsewhere: a task's layout (``interp.tasks``), handwired weights (``circuits``), training
(``interp.training``), interventions (``interp.interventions``). Import from the modules; the
package itself exports no names, so that ``interp.model.layout`` is quick to import.
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
