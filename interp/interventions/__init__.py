"""Interventions with a round axis: change a model's activations in a chosen round, at a chosen
component and position, and measure what follows.

* ``experiment``: runs every intervention; the other methods are built on it;
* ``round_patcher``: runs many patches of one round, and computes only what each can change;
* ``sites``: names of activations ("sites"), and sites with a subspace ("places");
* ``pairs``: clean and corrupted runs, and metrics;
* ``patching``: activation patching, over sites and over pairs of rounds;
* ``mediation``: through which components an effect passes;
* ``interchange``, ``alignment``: does a site, or a learned subspace of it, carry a variable of the
  algorithm?
* ``moves``: change one decoded variable of the carried state, without the others;
* ``steering``: add multiples of a direction to the carried state;
* ``hand_over``: write the memory of one model into another;
* ``edge_graph``, ``ablation``: circuits of edges between heads and MLPs;
* ``causal_tables``: the tables that ``interp patch`` writes.

    >>> import interp
    >>> from interp.interventions import interchange, pairs, patching
    >>> model, task = interp.load("wma-handwired", n_experts=3), interp.tasks.get("experts")
    >>> episodes, sources = (task.sample_for(model, 8, 6, seed=seed) for seed in (0, 1))
    >>> clean, corrupted = pairs.corruption(model).build(episodes, round=5)
    >>> patching.sweep(model, clean, corrupted, round=5, sites="latent@<z>").fractions().tolist()
    [1.0]
    >>> interchange.interchange(model, episodes, sources, task.explains(model), "log_weights", "latent@<z>").iia
    1.0

Import from the modules, because several functions have the name of their module. More in
docs/method/experiments.md.
"""
