"""What a report ends with: where it has the paper's figures, and how to get its numbers again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from interp.files import read_rows
from reports.blocks import TEXTS, Code, Prose, Table
from reports.page import Section
from reports.part import Context, Part
from reports.parts import probing

PAPER = "The paper's figures"
_ROWS = read_rows(Path(__file__).with_name("paper.csv"))
PRINTED = {row["figure"]: (row["shows"], row["report"]) for row in _ROWS}
"""Number of a figure or table of the paper -> what it shows, and the report that has it."""
_TEXT = TEXTS["closing"]["paper"]


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
        for number, (shows, report) in PRINTED.items():
            where = f"the page of `{report}`" if report.startswith("interp ") else f"the report on {report}"
            key, differs = here.get(number, ("", ""))
            if key in context.failures or key in context.missing:
                where, differs = "nowhere", context.missing.get(key) or f"not computed here: {context.reason(key)}"
            elif key in titles:
                where = f"here: {titles[key]}"
            else:
                where, differs = f"the full report on {report}" if key and context.quick else where, ""
            rows.append({"figure": number, "what it shows": shows, "where": where, "what differs": differs})
        return [Prose(_TEXT), Table(pd.DataFrame(rows), "Where each figure of the paper is reproduced")]

    return Part("paper", PAPER, lambda context: None, draw)


_REPRODUCE = "How to reproduce"


def _draw_commands(computed: None, context: Context) -> Section:
    n_episodes, n_rounds, seed = context.n_episodes, context.n_rounds, context.seed
    sizes, arguments = context.asked
    words = [f"interp report {context.source}", *(f"--{option} {value}" for option, value in sizes.items())]
    if arguments:
        words.append("--set " + " ".join(f"{name}={str(value).replace(' ', '')}" for name, value in arguments.items()))
    words += [f"--regime {context.regime}"] * bool(context.regime) + ["--quick"] * context.quick
    words.append(f"--episodes {n_episodes} --rounds {n_rounds} --seed {seed}")
    if context.folder not in (None, Path("output")):
        words.append(f"--out {shlex.quote(str(context.folder))}")
    axes = "[episode, round, outcome]" if context.model.layout.prediction_axes else "[episode, round]"
    built = "".join(f", {name}={value!r}" for name, value in context.arguments.items())
    loaded = f"interp.load({context.source!r}{built})"
    model = loaded if context.source else "...  # the model that the report was given"
    drawn = {"regime": context.regime, "sizes": dict(context.given)}
    drawn_text = "".join(f", {name}={value!r}" for name, value in drawn.items() if value)
    given = {"model": model, "n_episodes": n_episodes, "n_rounds": n_rounds, "seed": seed, "axes": axes}
    python = TEXTS["closing"]["python"].format(**given, drawn=drawn_text)
    if probing.KEY in context.keys and probing.KEY not in context.failures:
        decoded = [result.target.key for result in context.result(probing.KEY)]
        python = python.replace("\n", "\nimport probes\n", 1)
        python += f"\nprobes.probe(model, episodes, {decoded}, seed={seed})"
    return commands(" ".join(words) if context.source else "", python)


REPRODUCE = Part("reproduce", _REPRODUCE, lambda context: None, _draw_commands)
"""The shell command and the Python that give these numbers again, as a part."""


def commands(shell: str, python: str) -> Section:
    """The section, from a shell command (empty where there is none) and lines of Python."""
    text = "The same command with the same versions gives the same numbers. Seeds, versions and digests are below."
    blocks = [Code(shell, "From a shell, in a checkout")] if shell else []
    return Section(_REPRODUCE, [Prose(text), *blocks, Code(python, "From Python")])
