"""Handwired models: circuits as data, compiled to transformers, with their ground truth.

    >>> import circuits
    >>> circuit = circuits.build("wma-handwired", n_experts=2)
    >>> circuit.algorithm.key, [location.name for location in circuit.locations("log_weights")]
    ('weighted_majority', ['latent', 'p?', 'w?'])
    >>> circuits.compile_circuit(circuit).config.n_layers
    3
    >>> circuits.verify("wma-handwired", sizes=[2], n_rounds=5, n_episodes=2).passed
    True

* :mod:`circuits.basis`, :mod:`circuits.heads`, :mod:`circuits.circuit`: labelled residual basis, heads, circuits, and
  edges, where the variables of their algorithms live, and what carries them; Lemma C.1 as a table;
* :mod:`circuits.weighted_majority`, :mod:`circuits.q_learning`, :mod:`circuits.reachability`: the machines, a folder
  each, which says how the machine is built and what is true of it;
* :func:`compile_circuit` makes the model, :func:`load` does all of it by name, :func:`build` gives the circuit alone,
  :func:`from_origin` the circuit of a compiled model, :func:`differentiable` its softmax-only variant;
* :func:`register` adds a machine of your own (a :class:`CircuitRecord`) to those that all of this knows by name;
* :func:`verify` checks a model against its algorithm, every intermediate variable included; :func:`verify_machine` one
  that is no circuit, by its predictions and its state;
* :mod:`circuits.compare`: is a model the same machine as another: behaviour, state, update, circuit;
* :mod:`circuits.benchmark`: methods of interpretability, graded on machines whose edges and places are known.

Not here: what a machine computes (the algorithms of ``interp.tasks``), learned models (``interp.training``), probes
(``probes``). Importing this package imports no torch.
"""

from interp.lazy import facade

__getattr__, __dir__, __all__ = facade(__name__)
