r"""Tabular Q-learning as a transformer over one round (paper, section 4 and appendix C), corrected.

    Q(s_t, a_t) <- Q(s_t, a_t) + alpha (r_t + gamma max_a Q(s_{t+1}, a) - Q(s_t, a_t))

Latent ``c_a`` holds column a: ``id = u_a + u_Update``, ``buf1 = sum_s Q(s, a) u_s``; token r holds its reward in
``buf1[r]``; ``BOS`` is the attention sink. Layer 1 routes states, phases and columns to the tokens that need them,
layer 2 evaluates Q(s_t, a_t) and Q(s', a), layer 3 selects at ``Select`` and inherits at ``Update``, layer 4 adds the
TD terms; the output at ``Update`` is a valid ``c_{a_t}``. Heads carry the paper's numbers. The product in the printed
head 2.2 is no attention under a causal mask; what replaces it makes three variants:

* "mlp" (default): 2 |S| ReLU neurons, gated by state and phase; only head 2.2 differs from the paper;
* "softmlp": the same, and heads 4.1-4.3 fetch while an MLP multiplies: every head can be softmax;
* "lin": attention only. Linear head 2.2 reads a whole row of Q from the columns; no bound or sign condition on Q.

Ties: the choice is ``argmax_a (Q(s', a) - tau a)``, the lowest index, by a slope ``tau`` on the actions in the keys.
The choice and the backup use Q_t (``Select`` precedes ``Update``). "mlp" and "softmlp" need |Q| <= M, a power of two at
least ``max |r| / (1 - gamma)``, and rewards >= 0 unless ``signed``, which doubles their neurons.

Exploration: ``beta`` makes the choice Boltzmann's. Epsilon-greedy needs a draw, which is an input: with ``noise`` the
token ``n`` says ``greedy`` or ``explore_i``; head 1.7 brings it to Select, where 3.1 alone reads it: no update does.

Exact means equal to the algorithm up to rounding (1e-14 in float64 after 1,000 steps) for axis-aligned coordinates.

    >>> from circuits.q_learning import q_learning
    >>> circuit = q_learning(n_states=2, n_actions=2, variant="lin")
    >>> circuit.n_layers, len(circuit.heads), circuit.algorithm.parameters["gamma"]
    (4, 16, 0.9)

``construction`` holds the heads and neurons, and what :func:`circuits.verify` compares.
"""

from circuits.q_learning.construction import q_learning, value_bound

__all__ = ["q_learning", "value_bound"]
