"""Interventions with a round axis: change a model at a chosen round, position and component, and read what follows.

``sites`` (where), ``corruptions`` (clean and corrupted pairs), ``metrics`` (what is read), ``patching`` (sweeps),
``interchange``, ``steering``, ``ablation``, ``attribution``. Not here: the causal variables of the handwired circuits
(``circuits``), reading without intervening (``probes``). Import from the modules; nothing is re-exported.
"""
