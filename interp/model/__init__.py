"""The models: configuration, round layouts, the hooked transformer, rollouts over rounds,
checkpoints.

- what a round is: ``layout``, ``config``;
- transformers: ``components``, ``plain`` (blocks without hooks), ``transformer``, ``lens`` (what
  TransformerLens' tools ask), ``bound`` (rounds as tokens);
- foreign modules: ``adapted``, ``taps`` (where to look), ``opened`` (gates of fused cells),
  ``carried`` (channels), ``outside`` (weights that no copy would have);
- every machine: ``hooked``, ``drawing`` (untrained copies), ``locks``, ``checks`` and
  ``task_checks`` (contracts);
- runs: ``rollout``, ``run``, ``saved``; models by name and on disk: ``library``, ``checkpoints``.

Not here: a task's layout (``interp.tasks``), handwired weights (``circuits``), training
(``interp.training``), interventions (``interp.interventions``). Import from the modules; the
package itself exports no names, so that ``interp.model.layout`` is light.
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
