"""Softmax only: how fast the error of a handwired model vanishes as its heads turn from soft to hard, and Lemma C.1."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from circuits.chooser import chooser_table
from circuits.verification import VerificationResult
from reports import figures
from reports.blocks import Figure, Prose, Table
from reports.page import Section

ETAS = (10, 20, 30, 40, 60, 80)
"""Inverse temperatures: the leak of a head is about exp(-eta / 2), so float64 is exhausted near 80."""

ROUNDS = 40
"""Rounds that the softened models run for at most."""
_SMALLEST = 1e-17
_OUTPUTS = ("output", "latents")
"""Where a check is of what the model gives, not of an intermediate variable."""
_TEXT = (
    "The exact circuit uses hard attention, and linear heads where it sums. Here every head is softmax, at inverse "
    "temperature η: a silent or choosing head leaks about exp(−η/2) of attention to wrong tokens, and the error of the "
    "whole model falls with it until rounding takes over."
)


def softmax_only(results: Mapping[int, VerificationResult], outputs: Mapping[str, str]) -> Section:
    """Error against inverse temperature, in both precisions.

    Args:
        results: inverse temperature -> verification of the softmax-only model.
        outputs: variable -> what to call it; the first is drawn.
    """
    errors = pd.DataFrame(
        [
            {"eta": eta, "dtype": check.dtype, "variable": check.variable, "error": check.error}
            for eta, result in results.items()
            for check in result.checks
            if check.variable in outputs and check.where in _OUTPUTS
        ]
    )
    first, called = next(iter(outputs.items()))
    drawn = errors[errors["variable"] == first].rename(columns={"error": "mean", "dtype": "algorithm"})
    drawn["mean"] = drawn["mean"].clip(lower=_SMALLEST)
    picture = figures.curves(
        drawn, x="eta", xlabel="inverse temperature η", ylabel=f"largest error of {called}", log_y=True
    )
    rows = errors.assign(what=errors["variable"].map(outputs) + ", " + errors["dtype"])
    table = rows.pivot(index="what", columns="eta", values="error").rename(columns=lambda eta: f"η = {eta}")
    settings = next(iter(results.values())).settings
    ran = f"{settings['episodes']} episodes of {settings['rounds']} rounds"
    return Section(
        "Softmax only",
        [
            Prose(_TEXT),
            Figure(
                picture, "Error against inverse temperature", f"Largest error over {ran}, against the exact algorithm."
            ),
            Table(table.reset_index().rename(columns={"what": "largest error"}), "The same numbers"),
        ],
    )


LEAKS = (1e-4, 1e-8, 1e-12)
_LEMMA = (
    "The chooser (paper, lemma C.1) must give its target, or the sink where there is none, at least 1 − ε of its "
    "attention. How sharp that makes it depends on the margin Δ of the position code: 1 less the largest overlap of "
    "two positions' codes. The printed lemma asks for η = ln(N/ε)/Δ and a sink ξ = 3d/Δ₀; the corrected head keys the "
    "sink by content, needs no ξ, and asks for η = (2/Δ) ln((N − 1)/ε). The last column is the softmax attention "
    "really missing, at that η, at every position of the round, firing and silent. It is a statement about this head "
    "alone, and no evidence about the error of the whole circuit, which is measured above."
)


def lemma(n_positions: int) -> Section:
    """What the chooser's lemma requires for rounds of this length, by code and error, and what is measured."""
    lines = tuple(sorted({max(1, n_positions // 4), n_positions // 2, n_positions}))
    tables = [chooser_table(n_positions, leak, lines).assign(leak=leak) for leak in LEAKS]
    frame = pd.concat(tables, ignore_index=True).sort_values(["code", "leak"], ascending=[True, False], kind="stable")
    columns = {
        "code": "position code",
        "d_code": "coordinates",
        "margin": "margin Δ",
        "leak": "ε",
        "eta_lemma": "η, lemma",
        "xi_lemma": "ξ, lemma",
        "eta": "η, corrected",
    }
    table = frame[list(columns)].rename(columns=columns).assign(**{"attention missing": 1 - frame["attention"]})
    return Section(
        "The chooser's margins", [Prose(_LEMMA), Table(table, f"Lemma C.1 over the {n_positions} positions of a round")]
    )
