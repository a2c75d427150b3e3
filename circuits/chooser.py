r"""Lemma C.1 (paper, appendix C) as code: margins, the inverse temperature they require, and the attention measured.

The fixed-offset chooser must give its target, or the sink where there is none, at least ``1 - eps`` of the attention.
For unit-norm codes with margin ``Delta = 1 - max over lags of <p_i, p_{i+lag}>``, over N visible positions:

* the lemma: ``eta = ln(N / eps) / Delta`` and ``xi = 3 d / Delta_bos`` on codes of squared norm d / 2;
* corrected (sink keyed by content, ``theta = 1 - Delta / 2``): ``eta = (2 / Delta) ln((N - 1) / eps)``, no xi.

What is measured is the softmax attention of the corrected head on every position of a round, firing and silent.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from circuits.basis import Basis, PositionCode
from circuits.heads import fixed_offset, numbered
from interp.checks import checked
from interp.errors import require

if TYPE_CHECKING:
    import pandas as pd


@checked
def required_eta(margin: float, n_positions: int, eps: float) -> float:
    """Inverse temperature at which the corrected chooser leaks at most ``eps``.

    >>> round(required_eta(1.0, 34, 1e-8), 1)
    43.8
    """
    require(0 < eps < 1, f"eps must lie in (0, 1), got {eps!r}")
    require(n_positions >= 2, f"n_positions must be at least 2, got {n_positions!r}")
    return 2 / margin * math.log((n_positions - 1) / eps)


@checked
def lemma(code: PositionCode, eps: float) -> tuple[float, float]:
    """eta and xi as printed, for codes of squared norm d / 2 (1 for one-hot codes)."""
    n, d = len(code.labels), len(code.axes) - 1
    norm = d / 2 if code.lines else 1.0
    from_first = 1.0 - max(code.overlap(0, j) for j in range(1, n))
    return math.log(n / eps) / (norm * code.margin), 3 * d / (norm * from_first)


@checked
def measured_attention(code: PositionCode, offset: int, eta: float) -> float:
    """Least softmax attention on the right key, over firing and silent queries at every position."""
    basis = Basis.of(("id",), ("sink", "fires"), code)
    ids = basis["id"]
    head = fixed_offset("chooser", 0, offset, (), basis.one - ids["fires"], ids["sink"])
    n = len(code.labels)
    here = np.stack([(basis.code(i) + basis.one).vector() for i in range(n)])
    keys = here.copy()
    keys[0] += ids["sink"].vector()
    least = 1.0
    for fires in (True, False):
        queries = here + ids["fires"].vector() if fires else here
        scores = sum(np.outer(queries @ q.vector(), keys @ k.vector()) for q, k in head.scores)
        scores = np.where(np.tril(np.ones((n, n), bool)), eta * scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        # A target at the first position is the sink itself, whose positional score is taken away.
        right = [i - offset if fires and i > offset else 0 for i in range(n)]
        least = min(least, float(weights[np.arange(n), right].min()))
    return least


@checked
def chooser_table(
    n_positions: int = 34, eps: float = 1e-8, n_lines: tuple[int, ...] = (8, 16, 32), offset: int = 1, seed: int = 0
) -> pd.DataFrame:
    """The lemma's numbers and ours, one row per position code.

    Columns: the code, the round's length, the code's coordinates and margin Delta; eta and xi as the printed lemma asks
    for; eta as the corrected head needs it, the least attention measured there on a target or the sink, and 1 - eps.
    """
    import pandas as pd

    labels = numbered("t", n_positions)
    codes = {"one-hot": PositionCode.one_hot(labels)}
    codes |= {f"sinusoidal, {k} lines": PositionCode.sinusoidal(labels, k, seed) for k in n_lines}
    rows = []
    for name, code in codes.items():
        eta = required_eta(code.margin, n_positions, eps)
        attention = measured_attention(code, offset, eta)
        rows.append((name, n_positions, len(code.axes) - 1, code.margin, *lemma(code, eps), eta, attention, 1 - eps))
    columns = "code n_positions d_code margin eta_lemma xi_lemma eta attention promised"
    return pd.DataFrame(rows, columns=columns.split())
