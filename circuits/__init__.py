"""Handwired models: circuits as data, compiled to transformers, with the places of their variables.

    >>> import circuits
    >>> circuit = circuits.build("wma-handwired", n_experts=2)
    >>> circuit.algorithm.key, [location.name for location in circuit.locations("log_weights")]
    ('weighted_majority', ['latent', 'p?', 'w?'])
    >>> circuits.compile_circuit(circuit).config.n_layers
    3
    >>> circuits.verify("wma-handwired", sizes=[2], n_rounds=5, n_episodes=2).passed
    True

:mod:`circuits.compare` compares a model with algorithms and with other models, and
:mod:`circuits.benchmark` grades methods of interpretability. ``docs/method/ground-truth.md`` says
what is known of a circuit, and how it is checked. Importing this package does not import torch.
"""

from interp.support.lazy import facade

__getattr__, __dir__, __all__ = facade(__name__)
