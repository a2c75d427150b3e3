"""Interventions with a round axis: change a model at a chosen round, position and component, and read what follows.

* where and what: ``sites``, ``corruptions`` (clean and corrupted episodes), ``pairs``, ``metrics``;
* patching: ``patching`` (sweeps), ``rounds`` (round x round), ``resume`` (how sweeps are fast), ``heatmaps``;
* against the algorithm: ``causal`` (the algorithms as causal models), ``interchange``, ``carriers`` (many claims of
  what lives where, with controls), ``alignment`` (learned subspaces with theirs), ``steering``;
* circuits: ``graph`` (edges, and cutting them), ``attribution`` (EAP-IG), ``ablation`` (faithfulness, completeness,
  minimality, CPR, CMD), ``pruning`` (greedy, ACDC);
* ``command`` and ``tables``: what ``interp patch`` writes.

Not here: the causal variables of the handwired circuits (``circuits``), reading without intervening (``probes``).
Import from the modules; nothing is re-exported.
"""
