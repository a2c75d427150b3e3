"""The robustness checks of an audit on a page: a measure for each claim, then what each rests on."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from interp.audit import FULL, QUICK, THRESHOLDS, AuditResult, audit
from interp.support.files import read_rows
from reports.blocks import TEXTS, Figure, Measures, Prose, Table, curves
from reports.part import Context, Part

_TABLES = {row["table"]: row["caption"] for row in read_rows(Path(__file__).with_suffix(".csv"))}
_SAYS = TEXTS["audit"]
_CURVE = {"of": "algorithm", "loss": "mean", "loss_low": "low", "loss_high": "high"}
"""Columns of the table of how the loss falls with what is carried, as a curve has them."""


def part(found: AuditResult | None = None) -> Part:
    """The battery; computed for the page where no result is given."""
    return Part(
        "audit",
        "Robustness checks",
        lambda context: (
            audit(context.model, effort=QUICK if context.quick else FULL)
            if found is None
            else found
        ),
        _draw,
        summary=lambda result, context: result.measures,
        hero=lambda result, context: [
            curves(_SAYS["timing"], of.rename(columns=_CURVE), data=of)
            for of in [result.tables["timing"]]
            if len(of)
        ],
        heading=lambda context: (
            f"Audit of {context.model.name}",
            "Is what it carries used, and for what?",
        ),
        slow=found is None,
    )


def _draw(found: AuditResult, context: Context) -> list[object]:
    blocks: list[object] = [Prose(_SAYS["text"]), Measures(found.measures, found.sentence)]
    for name, caption in _TABLES.items():
        if len(found.tables[name]):
            blocks.append(Table(found.tables[name], caption, collapsed=True))
        if name == "points" and found.points is not None:
            blocks.append(
                Figure(found.points.plot(), "Fixed and slow points", found.points.sentence)
            )
    why = pd.DataFrame(
        [{"threshold": name, "value": of.value, "why": of.why} for name, of in THRESHOLDS.items()]
    )
    return [*blocks, Table(why, "Thresholds, and why", collapsed=True)]
