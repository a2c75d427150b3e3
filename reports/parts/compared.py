"""Is it the same machine as another one? The verdicts of saved comparisons, with links to their pages."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from interp.model.library import handwired_models
from interp.results.measure import Measure
from interp.support.files import read_json
from reports.blocks import TEXTS, Code, Measures, Prose, link
from reports.page import COMPARISONS
from reports.part import Context, Part

_SAVED, PAGE = "comparison.json", "comparison.html"
_NONE = "No comparison of this model was saved beside this page. This writes one; write the report again after it:"
_TEXT = "These are the saved comparisons in which this model is one of the two."
_Saved = tuple[Path, str, str, Sequence[Measure]]
"""A saved comparison: its folder, what was compared, what was found, and its measures."""


def _saved(context: Context) -> list[_Saved]:
    """Each saved comparison in which the model takes part, by its own weights."""
    assert context.folder is not None
    digest, saved = context.model.digest(), list[_Saved]()
    for path in sorted((context.folder / COMPARISONS).glob(f"*/{_SAVED}")):
        about = read_json(path, "model", "reference", "measures", "algorithm", "settings")
        if digest in about["settings"].get("digests", ()):
            model, reference = about["model"], about["reference"]
            measures = [Measure.from_dict(record) for record in about["measures"]]
            other = reference or about["algorithm"]["name"]
            measures = [
                replace(
                    one,
                    yes=f"{one.yes.removesuffix(' likewise')} as {other}",
                    no=f"{one.no} than {other}",
                )
                for one in measures
            ]
            if (
                model != context.model.name
            ):  # the page is about the reference, and its sentence about itself
                measures = [
                    replace(one, claim=one.claim.replace(reference, model), yes="", no="")
                    for one in measures
                ]
            name = f"{model} against {reference or 'algorithms'}"
            saved.append((path.parent, name, about.get("sentence", ""), measures))
    return saved


def _draw(computed: Sequence[_Saved], context: Context) -> list[Any]:
    assert context.folder is not None
    if not computed and context.source:
        elsewhere = (
            [] if context.folder == Path("output") else ["--out", str(context.folder / COMPARISONS)]
        )
        return [
            Prose(_NONE),
            Code(shlex.join(["interp", "compare", context.source, "--report", *elsewhere])),
        ]
    if not computed:
        named = next((f'"{name}"' for name in handwired_models(context.task.key)), "None")
        text = TEXTS["compared"]["python"].format(
            reference=named, folder=f"{COMPARISONS}/{context.model.name}"
        )
        return [Prose(_NONE), Code(text, "In this page's folder")]
    blocks: list[Any] = [Prose(_TEXT)]
    for folder, name, sentence, measures in computed:
        blocks += [Prose(f"**{name}.**"), Measures(measures, sentence)]
        if (page := folder / PAGE).is_file():
            target = quote(os.fsencode(Path(os.path.relpath(page, context.folder)).as_posix()))
            blocks.append(Prose(link("The whole comparison", target)))
    return blocks


COMPARED = Part(
    "compared",
    "Compared with other machines",
    _saved,
    _draw,
    applies=lambda context: bool(context.algorithms and context.folder is not None),
    summary=lambda computed, context: [one for *_, measures in computed for one in measures],
)
"""The saved comparisons of the model; the command that makes one where there is none."""
