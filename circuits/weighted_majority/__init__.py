"""Weighted Majority as a transformer over one round (paper, section 3), corrected.

    P(y_t = 1) = sum_{i: p_i = 1} w_i / sum_i w_i,     lambda_i <- lambda_i + log(gamma) [p_i = y_t],     w = e^lambda

    >>> from circuits.weighted_majority import weighted_majority
    >>> circuit = weighted_majority(n_experts=2, log_gamma=0.25)
    >>> circuit.n_layers, len(circuit.heads), circuit.algorithm.parameters["gain"]
    (3, 8, 0.25)

``docs/method/weighted-majority.md`` describes its variants, how it is built, and how rounding
errors accumulate.
"""

from circuits.weighted_majority.construction import weighted_majority

__all__ = ["weighted_majority"]
