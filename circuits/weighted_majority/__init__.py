r"""Weighted Majority as a transformer over one round (paper, section 3), corrected.

    P(y_t = 1) = sum_{i: p_i = 1} w_i / sum_i w_i,     lambda_i <- lambda_i + log(gamma) [p_i = y_t],     w = e^lambda

The one latent is ``z_t = sum_i lambda_i u_{e_i}`` in block id, 0 at the start. Sequence
``w z_t e_1 p_1 ... e_n p_n p? | y_t w?``; ``w`` at position 1 is the attention sink. Two variants:

* "R" (default, 3 layers, 8 heads): head 2.3 carries z_t to w?, the linear head 3.2 adds log(gamma) per match.
* "P" (nearest to the paper, 4 layers, 7 heads): head 3.2 rebuilds every lambda_i and adds in one go.

Both correct the printed construction, which looks one token ahead and mixes z_t into keys and values (the tests in
tests/circuits/test_errata_wma.py measure each error). Votes here fetch the *previous* token. ``eta`` makes every head
softmax: hard heads at inverse temperature eta, the linear head by a heavy sink (R) or a pair of them (P).

Exact means equal to the algorithm up to rounding for axis-aligned coordinates; a rotated basis rounds more (1e-12 after
1,000 rounds). It says nothing about how a learned model works.

The log-weights of "R" are bitwise those of a plain sum in the model's dtype. A dyadic log(gamma), such as 0.5 or
13/32, is summed exactly; any other drifts with rounding. ln 1.5 in float32: by 5e-5, 2e-3, 0.3 and 31 after 1e2, 1e3,
1e4 and 1e5 rounds (log-weights then near 35,000); take float64 or a dyadic log(gamma) for long runs.

    >>> from circuits.weighted_majority import weighted_majority
    >>> circuit = weighted_majority(n_experts=2, log_gamma=0.25)
    >>> circuit.n_layers, len(circuit.heads), circuit.algorithm.parameters["gain"]
    (3, 8, 0.25)

``construction`` holds the heads, where each variable lives, and what :func:`circuits.verify` compares; ``edges.csv``
says which part reads what.
"""

from circuits.weighted_majority.construction import weighted_majority

__all__ = ["weighted_majority"]
