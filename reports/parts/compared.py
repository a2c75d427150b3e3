"""Is it the same machine as another one? The verdicts of saved comparisons, with links to their pages."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from interp.model.library import handwired_models
from interp.results.measure import Measure
from interp.support.files import read_json
from reports.blocks import Code, Measures, Prose, link
from reports.page import COMPARISONS
from reports.part import Context, Part
from reports.texts import TEXTS

_SAVED, PAGE = "comparison.json", "comparison.html"
_NONE = "No comparison of this model was saved beside this page. This writes one; write the report again after it:"
_TEXT = "These are the saved comparisons in which this model is one of the two."
_Saved = tuple[Path, str, str, Sequence[Measure]]
"""A saved comparison: its folder, what was compared, what was found, and its measures."""


def _find_saved(context: Context) -> list[_Saved]:
    """Find each saved comparison in which the model takes part, by the digest of its weights."""
    assert context.folder is not None
    digest = context.model.digest()
    saved = []
    for path in sorted((context.folder / COMPARISONS).glob(f"*/{_SAVED}")):
        record = read_json(path, "model", "reference", "measures", "algorithm", "settings")
        if digest in record["settings"].get("digests", ()):
            saved.append(_read_saved(record, path.parent, context.model.name))
    return saved


def _read_saved(record: Mapping[str, Any], folder: Path, name: str) -> _Saved:
    """Read a saved comparison for the page of the model of that name, which may be the reference.

    Args:
        record: what the file holds.
        folder: that it lies in.
        name: of the model that the page is about.
    """
    model, reference = record["model"], record["reference"]
    rival = reference or record["algorithm"]["name"]
    measures = []
    for values in record["measures"]:
        measure = Measure.from_dict(values)
        if model == name:
            yes = f"{measure.yes.removesuffix(' likewise')} as {rival}"
            measure = replace(measure, yes=yes, no=f"{measure.no} than {rival}")
        else:  # the page is about the reference, and its sentence about itself
            claim = measure.claim.replace(reference, model)
            measure = replace(measure, claim=claim, yes="", no="")
        measures.append(measure)
    title = f"{model} against {reference or 'algorithms'}"
    return folder, title, record.get("sentence", ""), measures


def _draw(computed: Sequence[_Saved], context: Context) -> list[Any]:
    """Show the measures of every saved comparison; where there is none, how to make one."""
    assert context.folder is not None
    if not computed:
        return [Prose(_NONE), _write_command(context, context.folder)]
    blocks: list[Any] = [Prose(_TEXT)]
    for folder, title, sentence, measures in computed:
        blocks += [Prose(f"**{title}.**"), Measures(measures, sentence)]
        page = folder / PAGE
        if page.is_file():
            path = Path(os.path.relpath(page, context.folder)).as_posix()
            target = quote(os.fsencode(path))
            blocks.append(Prose(link("The whole comparison", target)))
    return blocks


def _write_command(context: Context, folder: Path) -> Code:
    """Write the command, or the Python, that saves a comparison next to the page."""
    if context.source:
        words = ["interp", "compare", context.source, "--report"]
        if folder != Path("output"):
            words += ["--out", str(folder / COMPARISONS)]
        return Code(shlex.join(words))
    references = [f'"{name}"' for name in handwired_models(context.task.key)]
    text = TEXTS["compared"]["python"].format(
        reference=references[0] if references else "None",
        folder=f"{COMPARISONS}/{context.model.name}",
    )
    return Code(text, "In this page's folder")


def _list_measures(computed: Sequence[_Saved], context: Context) -> list[Measure]:
    """List the measures of all saved comparisons."""
    measures: list[Measure] = []
    for saved in computed:
        measures += saved[-1]
    return measures


COMPARED = Part(
    "compared",
    "Compared with other machines",
    _find_saved,
    _draw,
    applies=lambda context: bool(context.algorithms and context.folder is not None),
    summary=_list_measures,
)
"""The saved comparisons of the model; the command that makes one where there is none."""
