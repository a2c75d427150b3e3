"""Handwired models: circuits as data, compiled to transformers, with their ground truth.

    >>> import circuits
    >>> circuit = circuits.build("wma-handwired", n_experts=2)
    >>> circuit.algorithm.key, [location.name for location in circuit.locations("log_weights")]
    ('weighted_majority', ['latent', 'p?', 'w?'])
    >>> circuits.compile_circuit(circuit).config.n_layers
    3
    >>> circuits.verify("wma-handwired", sizes=[2], n_rounds=5, n_episodes=2).passed
    True

:func:`build` gives the circuit of a machine by its name, :func:`compile_circuit` makes the model, :func:`load` does
both. :func:`from_origin` gives the circuit of a compiled model, :func:`differentiable` its softmax-only variant.
:func:`register` adds a machine of your own (a :class:`CircuitRecord`) to those that all of this knows by name.
:func:`verify` checks a model against its algorithm, :func:`verify_machine` one that is no circuit. Whether a model is
the same machine as another is asked in :mod:`circuits.compare`; :mod:`circuits.benchmark` grades methods of
interpretability. The machines are :mod:`circuits.weighted_majority`, :mod:`circuits.q_learning` and
:mod:`circuits.reachability`. Importing this package imports no torch. What is known of a circuit:
``docs/method/ground-truth.md``.
"""

from interp.lazy import facade

__getattr__, __dir__, __all__ = facade(__name__)
