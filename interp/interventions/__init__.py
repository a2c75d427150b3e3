"""Interventions with a round axis: change a model at a chosen round, position and component, and read what follows.

* ``experiment``: what is changed in which rounds of a run, how far it runs on, what is read -> one labelled array, and
  what results share. Every method below is a function of it; ``round_patcher`` says what need not be run again;
* where and what: ``sites`` (and places: sites with a subspace), ``pairs`` (clean and corrupted runs, and metrics);
* patching: ``patching`` (sweeps over sites, and round x round);
* against the algorithm: ``interchange`` (hits, and graded effects), ``alignment`` (learned subspaces), ``moves`` (one
  decoded variable alone; is a decoded state closed under the update), ``steering``;
* by which way: ``mediation``;
* circuits: ``edge_graph`` (edges, cutting them, and which of them and of single reads matter), ``ablation``;
* what ``interp patch`` writes: ``causal_tables``.

A method is called ``method(model, episodes or two that pair up, ..., sites, round(s)=...)``. Rollouts stand in for
episodes that are run already. Options that belong together are records (``Outcome``, ``Split``, ``Doses``, ``Search``).

What corrupts episodes, which variables are looked for and where, and how a model is steered is in the record of its
task, so that a task of your own is patched, interchanged and steered like the others:

    >>> import interp
    >>> from interp.interventions import interchange, pairs, patching
    >>> model, task = interp.load("wma-handwired", n_experts=3), interp.tasks.get("experts")
    >>> episodes, others = (task.sample_for(model, 8, 6, seed=seed) for seed in (0, 1))
    >>> clean, corrupted = pairs.corruption(model).build(episodes, round=5)
    >>> patching.sweep(model, clean, corrupted, round=5, sites="latent@<z>").fractions().tolist()
    [1.0]
    >>> interchange.interchange(model, episodes, others, task.explains(model), "log_weights", "latent@<z>").iia
    1.0

Not here: where the variables of the handwired circuits are (``circuits``), reading without intervening (``probes``).
Import from the modules; nothing is re-exported, because several functions are called like their module.
"""
