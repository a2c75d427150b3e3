"""Tabular Q-learning as a transformer over one round (paper, section 4 and appendix C), corrected.

    Q(s_t, a_t) <- Q(s_t, a_t) + alpha (r_t + gamma max_a Q(s_{t+1}, a) - Q(s_t, a_t))

    >>> from circuits.q_learning import q_learning
    >>> circuit = q_learning(n_states=2, n_actions=2, variant="lin")
    >>> circuit.n_layers, len(circuit.heads), circuit.algorithm.parameters["gamma"]
    (4, 16, 0.9)

``docs/method/q-learning.md`` describes its variants, how it breaks ties, and how exact it is.
"""

from circuits.q_learning.construction import q_learning, value_bound

__all__ = ["q_learning", "value_bound"]
