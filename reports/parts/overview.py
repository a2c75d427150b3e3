"""What a report opens with: what the model is, what was run, and the facts and verdicts of every part."""

from __future__ import annotations

from typing import Any

from interp.model.transformer import HookedLatentTransformer
from reports.blocks import Summary, Verdict, number
from reports.page import Section
from reports.part import Context, Heading, Part


def part(*, handwired: Heading | None = None, learned: str = "") -> Part:
    """The summary.

    Args:
        handwired: title and lead of the page on a handwired model.
        learned: lead of the page on a learned model.
    """

    def heading(context: Context) -> Heading:
        task = context.task
        what = f"A model of {task.name}: {task.what}."
        if context.handwired:
            return handwired or Heading(f"{context.name}: {task.name}, wired by hand", what)
        return Heading(f"{context.name}: a learned model of {task.name}", learned or what)

    return Part("summary", "Summary", lambda context: None, draw, summary=facts, heading=heading)


def facts(computed: None, context: Context) -> dict[str, Any]:
    """What the model is, and what it was run on."""
    episodes = context.episodes
    sizes = [f"{context.sizes[size.name]} {size.option}" for size in context.task.sizes]
    sampled = [f"{len(episodes)} episodes of {episodes.n_rounds} rounds", *sizes, f"{episodes.regime} regime"]
    return {"Model": _describe(context.model), "Episodes": ", ".join([*sampled, f"seed {episodes.seed}"])}


def draw(computed: None, context: Context) -> Section:
    """The facts of all parts, and which parts are missing."""
    missing = [part.title for part in context.parts if part.key in context.failures]
    failed = {"Not computed": Verdict(False, ", ".join(missing))} if missing else {}
    return Section("Summary", [Summary(context.facts | failed)])


def _describe(model: HookedLatentTransformer) -> str:
    """A model in a line: layers, heads, sizes, precision."""
    config = model.config
    heads = sum(name != "-" for names in config.head_names for name in names) or config.n_layers * config.n_heads
    weights = sum(int((p != 0).sum()) for p in model.parameters())
    precision = str(model.cfg.dtype).removeprefix("torch.")
    sizes = f"{config.n_layers} layers, {heads} heads, d_model {config.d_model}"
    return f"{sizes}, {number(weights)} non-zero weights, {precision}"
