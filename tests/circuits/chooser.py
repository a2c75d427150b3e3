"""Lemma C.1 of the paper: the attention that a chooser by position promises, printed and corrected."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from scipy.special import softmax

from circuits.basis import Basis, PositionCode
from circuits.heads import Head, fixed_offset
from interp.tasks.sized_round import number_names


def required_eta(margin: float, n_positions: int, eps: float) -> float:
    """Compute the inverse temperature at which the corrected chooser leaks at most ``eps``
    (:func:`chooser_table`).

    Args:
        margin: of the position code.
        n_positions: the round's length, at least 2.
        eps: the attention that may leak, in (0, 1).

    >>> round(required_eta(1.0, 34, 1e-8), 1)
    43.8
    """
    return 2 / margin * math.log((n_positions - 1) / eps)


def lemma(code: PositionCode, eps: float) -> tuple[float, float]:
    """Compute eta and xi as printed, for codes of squared norm d / 2 (1 for one-hot codes)."""
    n, d = len(code.labels), len(code.axes) - 1
    norm = d / 2 if code.lines else 1.0
    # As far as the first code is from its nearest, for all overlaps are of lags.
    separation = norm * code.margin
    return math.log(n / eps) / separation, 3 * d / separation


def score_visible(head: Head, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Return a head's scores ``[query, key]``; -inf for positions after the query's."""
    n = len(queries)
    scores = np.zeros((n, n))
    for query, key in head.scores:
        scores += np.outer(queries @ query.vector(), keys @ key.vector())
    is_visible = np.tril(np.ones((n, n), bool))
    return np.where(is_visible, scores, -np.inf)


def measure_attention(code: PositionCode, offset: int, eta: float) -> float:
    """Measure the least softmax attention on the right key, over firing and silent queries at every
    position.

    Args:
        code: the code of positions.
        offset: how many positions back the head attends.
        eta: inverse temperature.
    """
    basis = Basis.of(("id",), ("sink", "fires"), code)
    ids = basis["id"]
    head = fixed_offset("chooser", 0, offset, (), gate=basis.one - ids["fires"], sink=ids["sink"])
    n = len(code.labels)
    stream = np.stack([(basis.code(i) + basis.one).vector() for i in range(n)])
    keys = stream.copy()
    keys[0] += ids["sink"].vector()
    smallest = 1.0
    for fires in (True, False):
        queries = stream + ids["fires"].vector() if fires else stream
        weights = softmax(eta * score_visible(head, queries, keys), axis=-1)
        # A target at the first position is the sink itself, whose positional score is taken away.
        right = [i - offset if fires and i > offset else 0 for i in range(n)]
        smallest = min(smallest, float(weights[np.arange(n), right].min()))
    return smallest


def chooser_table(
    n_positions: int = 34,
    eps: float = 1e-8,
    offset: int = 1,
) -> pd.DataFrame:
    """Make a table of the lemma's numbers and of ours, one row per position code.

    Args:
        n_positions: the round's length.
        eps: the attention that may leak.
        n_lines: numbers of lines of the sinusoidal codes.
        offset: how many positions back the head attends.

    Returns:
        The code, the round's length, the code's coordinates and margin Delta; eta and xi as the
        printed lemma requires; eta as the corrected head needs it, the least attention measured
        there on a target or the sink, and 1 - eps.
    """
    labels = number_names("t", n_positions)
    codes = {"one-hot": PositionCode(labels)}
    for k in (8, 16, 32):
        codes[f"sinusoidal, {k} lines"] = PositionCode.sinusoidal(labels, k, seed=0)
    rows = []
    for name, code in codes.items():
        eta_lemma, xi_lemma = lemma(code, eps)
        eta = required_eta(code.margin, n_positions, eps)
        row = {
            "code": name,
            "n_positions": n_positions,
            "d_code": len(code.axes) - 1,
            "margin": code.margin,
            "eta_lemma": eta_lemma,
            "xi_lemma": xi_lemma,
            "eta": eta,
            "attention": measure_attention(code, offset, eta),
            "promised": 1 - eps,
        }
        rows.append(row)
    return pd.DataFrame(rows)
