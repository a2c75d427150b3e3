"""What a report opens with: what the model is and is not, and how the claims of the other parts came out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from interp.display import lacks
from interp.library import SHIPPED
from interp.measure import Measure
from reports.attention import heads_of
from reports.blocks import Measures, Prose, Summary, counts, number
from reports.part import Context, Heading, Part

_BY_HAND = "These weights were designed, so passing says nothing about training."
_ONE_RUN = "It is one training run: what holds of it need not hold of another."


def part(*, title: str = "", handwired: str = "", learned: str = "") -> Part:
    """The measures of all parts; title and lead of a page on a ``handwired`` model, and lead on a ``learned`` one."""

    def heading(context: Context) -> Heading:
        task = context.task
        what = f"A model of {task.name}: {task.what}."
        if context.handwired:
            known = title and context.compiled
            return Heading(*(title, handwired) if known else (f"{context.name}: {task.name}, wired by hand", what))
        said = "" if lacks(context.model, "pattern") else learned  # it speaks of a transformer
        return Heading(f"{context.name}: a learned model of {task.name}", said or what)

    return Part("summary", "What was found", lambda context: None, _draw, heading=heading)


def _draw(computed: None, context: Context) -> list[object]:
    facts, table = {**_describe(context.model), "Episodes": sampled(context)}, measures_of(context)
    if context.quick:
        left_out = ", ".join(f"“{title}”" for title in context.left_out)
        facts["Quick report"] = "less of everything" + (f", and without {left_out}" if left_out else "")
    # What the page is not evidence of: a learned model's card says it, where there is one.
    is_not = _BY_HAND if context.handwired else _ONE_RUN
    cards = [place / "README.md" for place in (SHIPPED / context.source, Path(context.source))]
    card = next((card for card in cards if context.source and not context.handwired and card.is_file()), None)
    text = card.read_text("utf-8") if card else ""
    if limits := re.search(r"^## Limits\n+(.*?)(?=^## |\Z)", text, re.M | re.S):
        is_not = " ".join(re.findall(r"^- (.*)$", limits[1], re.M))
    return [*([table] if table.measures else []), Prose(is_not), Summary(facts)]


def measures_of(context: Context) -> Measures:
    """The measures of all parts, and an undecided one for each part that could not be computed."""
    rows = []
    for part in context.parts:
        section = context.sections.get(part.key)
        where = (section.slug, section.title) if section else ("", "")
        rows += [(measure, where) for measure in context.measures.get(part.key, ())]
        if part.key in context.failures:
            why = f"not computed, because {context.reason(part.key)}"
            rows.append((Measure(part.key, part.title, unless={"undecided": why}), where))
    measures, sections = zip(*rows, strict=True) if rows else ((), ())
    return Measures(measures, f"{counts(measures)}.", sections)


def sampled(context: Context) -> str:
    """What the model was run on, in a line."""
    episodes = context.episodes
    sizes = [f"{context.sizes[size.name]} {size.option}" for size in context.task.sizes]
    sampled = [f"{len(episodes)} episodes of {episodes.n_rounds} rounds", *sizes, f"{episodes.regime} regime"]
    return ", ".join([*sampled, f"seed {episodes.seed}", *(["a quick report"] if context.quick else [])])


def _describe(model: Any) -> dict[str, str]:
    """A model in a line: layers, heads, sizes, precision; one without heads by what it carries and its points."""
    weights = f"{number(sum(int((p != 0).sum()) for p in model.parameters()))} non-zero weights"
    precision = str(model.dtype).removeprefix("torch.")
    if not lacks(model, "pattern"):
        layers = heads_of(model)
        sizes = f"{len(layers)} layers, {sum(map(len, layers))} heads, d_model {model.channels[0].shape[-1]}"
        return {"Model": f"{sizes}, {weights}, {precision}"}
    shapes = [
        f"{of.name} [{', '.join(map(str, of.shape))}]" + f", grows by {of.grows} a round" * bool(of.grows)
        for of in model.channels
    ]
    points = [kind.key + f" ({kind.n_layers} times a round)" * kind.has_layer for kind in model.points.values()]
    return {
        "Model": f"{weights}, {precision}, on {model.device}",
        "Carried from round to round": "; ".join(shapes),
        "Points to look into": ", ".join(points),
    }
