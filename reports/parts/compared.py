"""Is it the same machine as another one? The verdicts of saved comparisons, with links to their pages.

Nothing is compared here: ``interp compare`` does that, and writes to ``comparisons`` beside the reports by default.
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from circuits.compare.question import at_most, in_words
from interp.files import read_json
from interp.library import handwired_models
from interp.statistics import Interval
from reports.blocks import Code, Finding, Findings, Prose, Verdict, Word, cell, link
from reports.measured import Measured
from reports.page import COMPARISONS
from reports.part import Context, Part

_SAVED, PAGE = "comparison.json", "comparison.html"
_WORDS: dict[str, Word] = {
    "same": "pass",
    "different": "fail",
    "undecided": "cannot tell",
    "not applicable": "cannot tell",
}
"""How the claim that two models are the same came out, for each word of a verdict."""
_NONE = "No comparison of this model was saved beside this page. This writes one; write the report again after it:"
_IN_PYTHON = """from circuits import compare
from reports import comparison

found = compare.run(model, {reference})  # the model that the report was given, and a reference
found.save("{folder}")
comparison.write(found, "{folder}")"""
"""What makes one of a model that has no name to load it by."""
_TEXT = (
    "These are the saved comparisons in which this model is one of the two. Each answer stands beside the number that "
    "decided it and the threshold that the number was held against."
)


def part() -> Part:
    """The saved comparisons of the model; the command that makes one where there is none."""
    return Part("compared", "Compared with other machines", _saved, _draw, _applies, _findings)


def _applies(context: Context) -> bool:
    """Whether there is an algorithm to be compared with, and a page to link from."""
    return bool(context.algorithms and context.folder is not None)


def _saved(context: Context) -> list[tuple[Path, dict[str, Any]]]:
    """Each saved comparison in which the model takes part, by its own weights: (folder, what was found)."""
    assert context.folder is not None
    digest, saved = context.model.digest(), []
    for path in sorted((context.folder / COMPARISONS).glob(f"*/{_SAVED}")):
        about = read_json(path, "model", "reference", "verdicts", "settings")
        if digest in about["settings"].get("digests", ()):
            saved.append((path.parent, about))
    return saved


def _findings(computed: list[tuple[Path, dict[str, Any]]], context: Context) -> list[Finding]:
    """A finding per answer of every comparison with another model; none is expected to be the same."""
    return [
        _finding(verdict, _other(about, context))
        for _, about in computed
        for verdict in about["verdicts"]
        if about["reference"]
    ]


def _other(about: Mapping[str, Any], context: Context) -> str:
    """What the page's model was compared with."""
    other = about["model"] if about["model"] != context.name else about["reference"]
    return str(other or "algorithms")


def _value(verdict: Mapping[str, Any]) -> Interval | None:
    """The number that decided; None where the question was not applicable."""
    return Interval(*(float(verdict[key]) for key in ("value", "low", "high"))) if verdict["decided by"] else None


def _finding(verdict: Mapping[str, Any], other: str) -> Finding:
    value, untrained, word = _value(verdict), verdict.get("untrained"), _WORDS[verdict["verdict"]]
    claim = f"Same {in_words(verdict['question'])} as {other}"
    said = verdict["verdict"]
    says = (f"is the same as {other} in", f"differs from {other} in", in_words(verdict["question"]))
    if value is None:
        return Finding(claim, word, f"{said}: {verdict['note']}", expected=False, badge=said)
    if word == "cannot tell" and untrained is not None and untrained >= value.low:
        word = "uninformative"
    held = "at most" if at_most(verdict["decided by"]) else "at least"
    return Finding(
        claim + f" ({verdict['note']})" * bool(said == "same" and verdict["note"]),
        word,
        f"{verdict['decided by']} {cell(value)}; same where {held} {verdict['threshold']:.2f}",
        "" if untrained is None else f"best untrained model: {cell(untrained, '.3f')}",
        expected=False,
        measured=measured_by(
            verdict["decided by"], value, verdict["threshold"], math.nan if untrained is None else untrained
        ),
        says=says,
        badge=said,
    )


def badge(word: str) -> Verdict:
    """An answer as a badge: a difference is a finding, no fault."""
    return Verdict(True if word == "same" else None, word)


def measured_by(decided_by: str, value: Interval, threshold: float, untrained: float) -> Measured:
    """What decided a verdict, for an interval plot."""
    above, below = (None, threshold) if at_most(decided_by) else (threshold, None)
    return Measured(value, above, below, {"untrained": untrained})


def _command(context: Context) -> Code:
    if context.source:
        assert context.folder is not None
        elsewhere = [] if context.folder == Path("output") else ["--out", str(context.folder / COMPARISONS)]
        return Code(shlex.join(["interp", "compare", context.source, "--report", *elsewhere]))
    named = next((f'"{name}"' for name in handwired_models(context.task.key)), "None")
    return Code(_IN_PYTHON.format(reference=named, folder=f"{COMPARISONS}/{context.name}"), "In this page's folder")


def _draw(computed: list[tuple[Path, dict[str, Any]]], context: Context) -> list[Any]:
    if not computed:
        return [Prose(_NONE), _command(context)]
    blocks: list[Any] = [Prose(_TEXT)]
    for folder, about in computed:
        name = f"{about['model']} against {about['reference'] or 'algorithms'}"
        blocks.append(Prose(f"**{name}.** {about.get('sentence', '')}"))
        rows = [(_finding(v, _other(about, context)), ("", "")) for v in about["verdicts"]]
        blocks.append(Findings(rows))
        if (page := folder / PAGE).is_file():
            assert context.folder is not None
            target = quote(os.fsencode(Path(os.path.relpath(page, context.folder)).as_posix()))
            blocks.append(Prose(link("The whole comparison", target)))
    return blocks
