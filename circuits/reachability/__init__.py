"""Reachability by parallel breadth-first search as a transformer over one round: our construction of a published idea.

    F_t = z_t with r        z_{t+1} = F_t with { t_i : s_i in F_t }        P(c_k) = [c_k in z_t], 1/2 each on ties

    >>> from circuits.reachability import reachability
    >>> circuit = reachability(n_nodes=5, n_edges=4)
    >>> circuit.n_layers, len(circuit.heads), len(circuit.neurons)
    (2, 6, 21)

Its variants, how it is built, and how exact it is: ``docs/method/reachability-circuit.md``.
"""

from circuits.reachability.construction import reachability

__all__ = ["reachability"]
