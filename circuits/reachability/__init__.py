"""Graph reachability by parallel breadth-first search, as a transformer over one round.

It is our construction of a published idea. z_t is the set of reached nodes, r the root, (s_i, t_i)
the edges, and c_k the candidates of round t::

    F_t = z_t with r        z_{t+1} = F_t with { t_i : s_i in F_t }        P(c_k) = [c_k in z_t], 1/2 each on ties

    >>> from circuits.reachability import reachability
    >>> circuit = reachability(n_nodes=5, n_edges=4)
    >>> circuit.n_layers, len(circuit.heads), len(circuit.neurons)
    (2, 6, 21)

``docs/method/reachability-circuit.md`` describes its variants, how it is built, and how exact it
is.
"""

from circuits.reachability.construction import reachability

__all__ = ["reachability"]
