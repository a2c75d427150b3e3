"""The lemma on the handwired circuit's choosers: what margins ask for, and what attention is really missing."""

from __future__ import annotations

import pandas as pd

from circuits.chooser import chooser_table
from reports.blocks import Prose, Table
from reports.page import Section
from reports.part import Context, Part

TITLE = "The chooser's margins"
_LEAKS = (1e-4, 1e-8, 1e-12)
_TEXT = (
    "The chooser (paper, lemma C.1) must give its target, or the sink where there is none, at least 1 − ε of its "
    "attention. How sharp that makes it depends on the margin Δ of the position code: 1 less the largest overlap of "
    "two positions' codes. The printed lemma asks for η = ln(N/ε)/Δ and a sink ξ = 3d/Δ₀; the corrected head keys the "
    "sink by content, needs no ξ, and asks for η = (2/Δ) ln((N − 1)/ε). The last column is the softmax attention "
    "really missing, at that η, at every position of the round, firing and silent. It is a statement about this head "
    "alone, and no evidence about the error of the whole circuit, which is measured above."
)


def part() -> Part:
    """The lemma over the positions of the model's round."""
    return Part("lemma", TITLE, compute, draw, lambda context: context.handwired)


def compute(context: Context) -> pd.DataFrame:
    """What the lemma requires for rounds of this length, by position code and error, and what is measured."""
    n_positions = context.model.layout.n_positions
    lines = tuple(sorted({max(1, n_positions // 4), n_positions // 2, n_positions}))
    tables = [chooser_table(n_positions, leak, lines).assign(leak=leak) for leak in _LEAKS]
    frame = pd.concat(tables, ignore_index=True)
    return frame.sort_values(["code", "leak"], ascending=[True, False], kind="stable")


def draw(frame: pd.DataFrame, context: Context) -> Section:
    """The table."""
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
    caption = f"Lemma C.1 over the {context.model.layout.n_positions} positions of a round"
    return Section(TITLE, [Prose(_TEXT), Table(table, caption)])
