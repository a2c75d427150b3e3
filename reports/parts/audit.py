"""The report part on robustness checks of an audit: a measure for each check, then its tables."""

from __future__ import annotations

import pandas as pd

from interp.audit import THRESHOLDS, AuditResult
from interp.audit.trial import ALL
from interp.audit.used import CHANNEL_CHANGES
from reports.blocks import Figure, Measures, Prose, Table, curves
from reports.part import Context, Part
from reports.texts import TEXTS

_CAPTIONS = {
    "without": (
        "Reduction of the loss by the model's own state, and change of predictions, if every "
        "round reads a replacement of the state"
    ),
    "presence": "Loss of the last round, with the model's own state and with the mean state",
    "shortcuts": (
        "For each heuristic: its loss, and whether the model predicts like the algorithm on "
        "episodes on which the heuristic is wrong"
    ),
    "directions": (
        "Share of the state's effect that remains with only its first principal directions, or "
        "with only random directions"
    ),
    "doses": (
        "Change of predictions if the state is moved a part of the way to another episode's state"
    ),
    "used": (
        "Change of predictions, and loss, for every replacement of the state, by channel and by "
        "number of rounds later"
    ),
}
_TEXTS = TEXTS["audit"]


def part(result: AuditResult) -> Part:
    """Make the report part on the robustness checks of a model (an audit).

    Args:
        result: results of the checks.
    """

    def write_heading(context: Context) -> tuple[str, str]:
        return f"Audit of {context.model.name}", "Is the state used, and for what?"

    return Part(
        "audit",
        "Robustness checks",
        lambda context: result,
        _draw,
        summary=lambda computed, context: computed.measures,
        hero=lambda computed, context: _draw_decay(computed),
        heading=write_heading,
    )


def _draw(result: AuditResult, context: Context) -> list[object]:
    """Return the blocks of the section: the measures of all checks; folded tables with the numbers
    of each check; and a folded table of the thresholds, with the reason for each.

    Args:
        result: results of the checks.
        context: the report's model, episodes and settings; not used.
    """
    blocks: list[object] = [Prose(_TEXTS["text"]), Measures(result.measures, result.sentence)]
    for name, caption in _CAPTIONS.items():
        if len(result.tables[name]):
            blocks.append(Table(result.tables[name], caption, collapsed=True))
    reasons = pd.DataFrame.from_dict(THRESHOLDS, orient="index", columns=["value", "why"])
    reasons = reasons.rename_axis("threshold").reset_index()
    blocks.append(Table(reasons, "Thresholds of the checks, with reasons", collapsed=True))
    return blocks


def _draw_decay(result: AuditResult) -> list[Figure]:
    """Draw the effect of replacing the whole state in one round on later predictions, by the number
    of rounds since then.
    """
    table = result.tables["used"]
    drawn = table[(table["channel"] == ALL) & table["change"].isin(CHANNEL_CHANGES)]
    if drawn["rounds_on"].nunique() < 2:
        return []  # one round is no curve
    columns = {"change": "algorithm", "effect": "mean", "effect_low": "low", "effect_high": "high"}
    return [curves(_TEXTS["later"], drawn.rename(columns=columns), data=drawn)]
