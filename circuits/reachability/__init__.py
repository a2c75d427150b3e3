r"""Reachability by parallel breadth-first search as a transformer over one round: our construction of a published idea.

    F_t = z_t with r        z_{t+1} = F_t with { t_i : s_i in F_t }        P(c_k) = [c_k in z_t], 1/2 each on ties

Zhu et al. (arXiv 2505.12514) show that a two-layer transformer can hold a whole search frontier in one continuous
thought. Here the latent is ``z_t = sum of u_v over the nodes v reached`` in block id, 0 at the start. Sequence
``w z_t (s_i t_i e_i)_i c_1 c_2 p? | r w?``; ``w`` is the attention sink. Two layers, 6 heads, 4 n + 1 neurons:

* layer 1 binds source and target at each mark e_i (1.1, 1.2), brings z_t and r together at w? (1.3) and marks the
  candidates that are in z_t (1.4); its neurons clip the frontier to 1, as z_t holds r from the second round on;
* layer 2 adds the target of every edge whose source is in F_t (2.1) and shares the answer among the marked candidates
  (2.2); its neurons clip every node to 0 or 1, so that errors of one round do not reach the next.

Variants: ``expand="sum"`` (default: head 2.1 is linear), ``expand="mean"`` (it attends to all active edges evenly),
``eta``, which makes every head softmax and takes "mean", and ``marks=False``: rounds without ``e_i``, as learned models
read them, in which 1.2 binds each source at its edge's target and 2.1 copies the target from there.

Exact means equal to the algorithm for axis-aligned coordinates, in float64 and in float32; a rotated basis rounds. With
softmax heads no set is wrong from some eta on, and the error of the prediction falls with eta (see the tests).
One-hot positions make d_head the number of positions; with ``positions="sinusoidal"`` it is that of nodes or of 2 K + 1
for K lines, sets stay exact, and the prediction rounds (4e-14 at 28 nodes and 54 edges, 1e-5 in float32).

    >>> from circuits.reachability import reachability
    >>> circuit = reachability(n_nodes=5, n_edges=4)
    >>> circuit.n_layers, len(circuit.heads), len(circuit.neurons)
    (2, 6, 21)

``construction`` holds the heads, where each variable lives, and what :func:`circuits.verify` compares; ``edges.csv``
says which part reads what.
"""

from circuits.reachability.construction import reachability

__all__ = ["reachability"]
