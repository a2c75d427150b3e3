"""Interventions with a round axis: change a model at a chosen round, position and component, and
read what follows.

* ``experiment``: every method is a function of it; ``round_patcher`` says what need not run again;
* ``sites`` (and places: sites with a subspace), ``pairs`` (clean and corrupted runs, and metrics);
* ``patching``: sweeps over sites, and round x round; ``mediation``: by which way;
* against the algorithm: ``interchange``, ``alignment`` (learned subspaces), ``moves`` (one decoded
  variable alone), ``steering``, ``hand_over`` (one machine's memory in another);
* circuits: ``edge_graph``, ``ablation``; what ``interp patch`` writes: ``causal_tables``.

    >>> import interp
    >>> from interp.interventions import interchange, pairs, patching
    >>> model, task = interp.load("wma-handwired", n_experts=3), interp.tasks.get("experts")
    >>> episodes, others = (task.sample_for(model, 8, 6, seed=seed) for seed in (0, 1))
    >>> clean, corrupted = pairs.corruption(model).build(episodes, round=5)
    >>> patching.sweep(model, clean, corrupted, round=5, sites="latent@<z>").fractions().tolist()
    [1.0]
    >>> interchange.interchange(model, episodes, others, task.explains(model), "log_weights", "latent@<z>").iia
    1.0

Import from the modules: several functions have the name of their module. Further:
docs/method/experiments.md.
"""
