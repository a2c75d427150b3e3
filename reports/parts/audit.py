"""The critics' battery on a page: a measure for each claim, then what each rests on."""

from __future__ import annotations

import pandas as pd

from interp import figures
from interp.audit import FULL, QUICK, THRESHOLDS, AuditResult, audit
from reports.blocks import Figure, Measures, Prose, Table
from reports.part import Context, Heading, Part

_TEXT = (
    "Each row is a claim that critics of latent reasoning doubt, judged by its whole 95 % interval over episodes and "
    "by its controls. NOT evidence that the state means what a decoder reads from it: a state can be used, decodable, "
    "and something else."
)
_TABLES = {
    "without": "Share of the loss that the own state takes away, by what is read in every round instead",
    "presence": "The loss of the last round by content and presence of a state",
    "groups": "Effect of another state where the model is right, wrong, and where heuristics answer alike",
    "shortcuts": "Heuristics: their loss, and whose side the model takes where each is wrong",
    "directions": "Share of the effect that the first principal directions carry, beside random ones",
    "doses": "Effect by the part of the way to another episode's state",
    "repeated": "A write once beside a write in every round: the effect some rounds on",
    "cycles": "The loss where a round is left after so many of its inner cycles",
    "turning": "Overlap of the first directions of two rounds, beside two halves of one round and shuffled rounds",
    "rest": "What predictions move after the algorithm has come to rest, by regime",
    "ends": "Where states of all episodes end with the inputs of one held",
    "stretch": "Largest singular values of a round and Lyapunov exponents, nats a round",
    "used": "Effect and cost of every change, by channel and by rounds later",
}
"""Name of a table -> its caption."""


def part(found: AuditResult | None = None) -> Part:
    """The battery; computed for the page where no result is given."""
    return Part(
        "audit",
        "What critics ask",
        lambda context: audit(context.model, effort=QUICK if context.quick else FULL) if found is None else found,
        _draw,
        summary=lambda result, context: result.measures,
        heading=lambda context: Heading(f"Audit of {context.name}", "Is what it carries used, and for what?"),
        slow=found is None,
    )


def _draw(found: AuditResult, context: Context) -> list[object]:
    blocks: list[object] = [Prose(_TEXT), Measures(found.measures, found.sentence)]
    if len(timing := found.tables["timing"]):
        caption = "The loss of the last question falls as later states are asked; the band is a 95 % interval"
        named = timing.rename(columns={"of": "algorithm", "loss": "mean", "loss_low": "low", "loss_high": "high"})
        picture = figures.curves(named, x="state_of_round", ylabel="loss of the last question")
        blocks.append(Figure(picture, "Loss by state", caption, timing))
    for name, caption in _TABLES.items():
        if len(found.tables[name]):
            blocks.append(Table(found.tables[name], caption, collapsed=True))
    why = pd.DataFrame([{"threshold": name, "value": of.value, "why": of.why} for name, of in THRESHOLDS.items()])
    return [*blocks, Table(why, "Thresholds, and why", collapsed=True)]
