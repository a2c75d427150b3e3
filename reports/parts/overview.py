"""What a report opens and ends with: what was found; the paper's figures, and how to get the numbers again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from interp.core.algorithm import with_parameters
from interp.core.display import lacks
from interp.model.library import SHIPPED
from interp.results.measure import Measure
from interp.support.files import read_rows
from reports.attention import heads_of
from reports.blocks import TEXTS, Code, Measures, Prose, Summary, Table, counts, number
from reports.page import Section
from reports.part import Context, Part
from reports.parts import probing

_BY_HAND = "These weights were designed, so passing says nothing about training."
_ONE_RUN = "It is one training run: what holds of it need not hold of another."


def part(*, title: str = "", handwired: str = "", learned: str = "") -> Part:
    """The measures of all parts; title and lead of a page on a ``handwired`` model, and lead on a ``learned`` one."""

    def heading(context: Context) -> tuple[str, str]:
        task = context.task
        what = f"A model of {task.name}: {task.what}."
        if context.model.is_handwired:
            by_hand = f"{context.model.name}: {task.name}, wired by hand", what
            return (title, handwired) if title and context.compiled else by_hand
        said = "" if lacks(context.model, "pattern") else learned  # it speaks of a transformer
        return f"{context.model.name}: a learned model of {task.name}", said or what

    return Part("summary", "What was found", lambda context: None, _draw, heading=heading)


def _draw(computed: None, context: Context) -> list[object]:
    facts = {**_describe(context.model), "Episodes": sampled(context)}
    if context.quick:
        facts["Quick report"] = "less of everything"
        if context.left_out:
            titles = ", ".join(f"“{title}”" for title in context.left_out)
            facts["Quick report"] += f", and without {titles}"
    table = measures_of(context)
    blocks: list[object] = [table] if table.measures else []
    return [*blocks, Prose(_find_limits(context)), Summary(facts)]


def _find_limits(context: Context) -> str:
    """Say what the page is not evidence of: in the words of the model's card, where there is one."""
    if context.model.is_handwired:
        return _BY_HAND
    if not context.source:
        return _ONE_RUN
    for folder in (SHIPPED / context.source, Path(context.source)):
        card = folder / "README.md"
        if card.is_file():
            limits = re.search(
                r"^## Limits\n+(.*?)(?=^## |\Z)", card.read_text("utf-8"), re.M | re.S
            )
            return " ".join(re.findall(r"^- (.*)$", limits[1], re.M)) if limits else _ONE_RUN
    return _ONE_RUN


def measures_of(context: Context) -> Measures:
    """Return the measures of all parts, and an undecided one for each part that could not be computed."""
    measures: list[Measure] = []
    places: list[tuple[str, str]] = []
    for part in context.parts:
        section = context.sections.get(part.key)
        own = list(context.measures.get(part.key, ()))
        if part.key in context.failures:
            why = f"not computed, because {context.reason(part.key)}"
            own.append(Measure(part.key, part.title, unless={"undecided": why}))
        measures += own
        places += [(section.slug, section.title) if section else ("", "")] * len(own)
    return Measures(tuple(measures), f"{counts(measures)}.", tuple(places))


def sampled(context: Context) -> str:
    """Say in a line what the model was run on."""
    episodes = context.episodes
    words = [f"{len(episodes)} episodes of {episodes.n_rounds} rounds"]
    words += [f"{context.sizes[size.name]} {size.option}" for size in context.task.sizes]
    recorded = context.task.recorded
    if "episodes" in recorded:
        rounds = f"{recorded['rounds']:,} rounds of {recorded['episodes']} episodes"
        players = f"{recorded['participants']} participants played"
        words.append(f"all of which count, from {rounds} that {players}")
    else:
        words.append(f"{episodes.regime} regime")
    if recorded:
        words.append(f"held against {with_parameters(context.algorithm)}")
    if episodes.seed is not None:
        words.append(f"seed {episodes.seed}")
    if context.quick:
        words.append("a quick report")
    return ", ".join(words)


def _describe(model: Any) -> dict[str, str]:
    """Describe a model in a line; one without heads by what it carries and its points."""
    n_weights = sum(int((p != 0).sum()) for p in model.parameters())
    weights = f"{number(n_weights)} non-zero weights"
    precision = str(model.dtype).removeprefix("torch.")
    if not lacks(model, "pattern"):
        layers = heads_of(model)
        n_heads = sum(len(layer) for layer in layers)
        width = model.channels[0].shape[-1]
        sizes = f"{len(layers)} layers, {n_heads} heads, d_model {width}"
        return {"Model": f"{sizes}, {weights}, {precision}"}
    carried = []
    for channel in model.channels:
        sizes = ", ".join(str(size) for size in channel.shape)
        growth = f", grows by {channel.grows} a round" if channel.grows else ""
        carried.append(f"{channel.name} [{sizes}]{growth}")
    points = []
    for kind in model.points.values():
        times = f" ({kind.n_layers} times a round)" if kind.has_layer else ""
        points.append(f"{kind.key}{times}")
    return {
        "Model": f"{weights}, {precision}, on {model.device}",
        "Carried from round to round": "; ".join(carried),
        "Points to look into": ", ".join(points),
    }


PAPER = "The paper's figures"
_ROWS = read_rows(Path(__file__).with_name("paper.csv"))
PRINTED = {row["figure"]: (row["shows"], row["report"]) for row in _ROWS}
"""Number of a figure or table of the paper -> what it shows, and the report that has it."""
_TEXT = TEXTS["overview"]["paper"]


def shown_on(page: str) -> dict[str, tuple[str, str]]:
    """Number of a figure that a page shows -> the part or section that shows it, and what differs there.

    >>> shown_on("llm")["3"]
    ('Prompts', 'the prompts as they were sent, as text')
    """
    return {row["figure"]: (row["part"], row["differs"]) for row in _ROWS if row["page"] == page}


def paper(here: Mapping[str, tuple[str, str]]) -> Part:
    """The list, at the end of a page; ``here`` is number -> key of the part that shows it, and what differs there."""

    def draw(computed: None, context: Context) -> list[object]:
        titles, rows = {part.key: part.title for part in context.parts}, []
        for figure, (shows, report) in PRINTED.items():
            where = (
                f"the page of `{report}`"
                if report.startswith("interp ")
                else f"the report on {report}"
            )
            key, differs = here.get(figure, ("", ""))
            if key in context.failures or key in context.missing:
                where, differs = (
                    "nowhere",
                    context.missing.get(key) or f"not computed here: {context.reason(key)}",
                )
            elif key in titles:
                where = f"here: {titles[key]}"
            else:
                where, differs = (
                    f"the full report on {report}" if key and context.quick else where,
                    "",
                )
            rows.append(
                {"figure": figure, "what it shows": shows, "where": where, "what differs": differs}
            )
        return [
            Prose(_TEXT),
            Table(pd.DataFrame(rows), "Where each figure of the paper is reproduced"),
        ]

    return Part("paper", PAPER, lambda context: None, draw)


_REPRODUCE = "How to reproduce"


def _draw_commands(computed: None, context: Context) -> Section:
    n_episodes, n_rounds, seed = context.n_episodes, context.n_rounds, context.seed
    sizes, arguments = context.asked
    words = [
        f"interp report {context.source}",
        *(f"--{option} {value}" for option, value in sizes.items()),
    ]
    if arguments:
        words.append(
            "--set "
            + " ".join(f"{name}={str(value).replace(' ', '')}" for name, value in arguments.items())
        )
    words += [f"--regime {context.regime}"] * bool(context.regime) + ["--quick"] * context.quick
    words.append(f"--episodes {n_episodes} --rounds {n_rounds} --seed {seed}")
    used, task = context.task.recorded, "tasks.of(model)"
    if "episodes" in used:
        words.append("--recorded FILE")
        task += ".of_recorded(people)"
    if "algorithm" in used:
        values = "".join(
            f" {name}={value:.4g}" for name, value in context.algorithm.parameters.items()
        )
        words.append(f"--hypothesis {context.algorithm.key}{values}")
        task += ".held_against(algorithm)"
    if context.folder not in (None, Path("output")):
        words.append(f"--out {shlex.quote(str(context.folder))}")
    axes = (
        "[episode, round, outcome]" if context.model.layout.prediction_axes else "[episode, round]"
    )
    built = "".join(f", {name}={value!r}" for name, value in context.arguments.items())
    loaded = f"interp.load({context.source!r}{built})"
    model = loaded if context.source else "...  # the model that the report was given"
    drawn = {"regime": context.regime, "sizes": dict(context.given)}
    drawn_text = "".join(f", {name}={value!r}" for name, value in drawn.items() if value)
    given = {
        "model": model,
        "n_episodes": n_episodes,
        "n_rounds": n_rounds,
        "seed": seed,
        "axes": axes,
        "task": task,
    }
    python = TEXTS["overview"]["python"].format(**given, drawn=drawn_text)
    if (
        probing.KEY in context.keys
        and probing.KEY not in context.failures
        and (found := context.result(probing.KEY))
    ):
        decoded, place = (
            [one.target.key for one in found],
            f", sites={found[0].site!r}" * (found[0].site != "latents"),
        )
        python = python.replace("\n", "\nimport probes\n", 1)
        python += f"\nprobes.probe(model, episodes, {decoded}, seed={seed}{place})"
    return commands(" ".join(words) if context.source else "", python)


REPRODUCE = Part("reproduce", _REPRODUCE, lambda context: None, _draw_commands)
"""The shell command and the Python that give these numbers again, as a part."""


def commands(shell: str, python: str) -> Section:
    """The section, from a shell command (empty where there is none) and lines of Python."""
    text = "The same command with the same versions gives the same numbers. Seeds, versions and digests are below."
    blocks = [Code(shell, "From a shell, in a checkout")] if shell else []
    return Section(_REPRODUCE, [Prose(text), *blocks, Code(python, "From Python")])
