"""The page of a comparison: its measures first, then what each rests on, and the rounds at which two models differ.

Every number was computed by :func:`circuits.compare.machines`; nothing is computed here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.patches import FancyBboxPatch

from circuits.compare import Budget, Comparison
from circuits.compare.algorithm import AlgorithmPart
from circuits.compare.effects import WherePart
from circuits.compare.state import StatePart
from interp import tasks
from interp.core.algorithm import in_words
from interp.interventions.experiment import over
from interp.results.measure import Measure, Verdict, numbered
from interp.results.palette import INK, LIGHT, PAPER
from interp.results.style import styled
from interp.stats.intervals import Interval
from interp.support.checks import file_path
from interp.support.files import read_tables
from reports.blocks import TEXTS, Figure, Measures, Prose, Table, counts, curves, joined, plain
from reports.page import Report, Section, write_listed
from reports.parts.compared import PAGE

_RESOLUTION = Path(__file__).with_name("resolution.json")
"""Task -> budget -> what a comparison would have seen; ``lab/resolution.py`` measures it."""
_LEAD, _MEASURES = TEXTS["comparison"]["lead"], TEXTS["comparison"]["predictions"]
_TEXTS = read_tables(
    Path(__file__).with_suffix(".toml")
)  # key of a part -> its title and its text, in page order
_QUANTITIES = {"untrained", "untrained, its best site", "placebo"}
"""Columns of a part's table that are controls of its number."""
_MOST = 12  # numbers of one quantity that are drawn; its table has all


def page(comparison: Comparison) -> Report:
    """The report on a comparison: its measures, then a section for each part that has something to show."""
    said, measures, task = (
        comparison.sentence,
        comparison.measures,
        tasks.get(comparison.algorithm.settings["task"]),
    )
    shown_by = [Section(_titled(one.key)[0], []) for one in measures]
    found: list[Any] = [
        Measures(measures, f"{counts(measures)}.", [(one.slug, one.title) for one in shown_by])
    ]
    found.append(Prose(f"**Which algorithm.** {comparison.algorithm}"))
    less = any(
        comparison.settings[key] < getattr(Budget(), key)
        for key in ("known", "test", "scored", "edits")
    )
    seen = json.loads(_RESOLUTION.read_text("utf-8")).get(task.key, {})
    found += [Prose(seen[budget]) for budget in ["quick" if less else "full"] if budget in seen]
    sections = [Section("What was found", found)]
    apart, shown = _MEASURES[task.kind]
    for key in sorted(comparison.parts, key=lambda key: [*_TEXTS, key].index(key)):
        (title, text), frame = _titled(key), comparison.tables.get(key, pd.DataFrame())
        if lacking := next((one.lacking for one in measures if one.key == key), ""):
            sections.append(Section(title, [Prose(f"Not applicable: {lacking}.")]))
        elif len(frame):
            blocks: list[Any] = [Prose(text.format(apart=apart))] if text else []
            blocks += (
                _PICTURES[key](comparison.parts[key], comparison, shown) if key in _PICTURES else []
            )
            blocks += [
                Prose(one.note) for one in measures if one.key == key == "update" and one.note
            ]
            blocks += _tables(key, frame)
            if key == "behaviour" and (failures := comparison.failures):
                missed = pd.DataFrame(map(vars, failures)).drop(columns="n_scored")
                for column in ("model", "reference"):
                    missed[column] = [" ".join(f"{p:.3f}" for p in of) for of in missed[column]]
                n = failures[0].n_scored
                differ = f"The rounds that differ most; the second episodes of each set of sets_for(..., n_scored={n})"
                blocks.append(Table(missed, differ, collapsed=True))
            sections.append(Section(title, blocks))
    hero = []
    if comparison.reference:
        same_name = " (reference)" if comparison.reference == comparison.model else ""
        picture = machines(comparison.model, comparison.reference + same_name, measures)
        hero = [
            Figure(
                picture,
                said,
                "The two machines, joined by what was found of each part and its number.",
            )
        ]
    of_task = comparison.settings.get("task", "")
    about = {"kind": "comparison", "task": of_task, "words": counts(measures), "sentence": said}
    title = comparison.model + (
        f" against {comparison.reference}" if comparison.reference else " against algorithms"
    )
    return Report(
        title, _LEAD, sections, comparison.settings, about=about, sentence=said, hero=hero
    )


def _titled(key: str) -> tuple[str, str]:
    known = _TEXTS.get(key, {})
    return known.get("title", key.replace("_", " ").capitalize()), known.get("text", "")


def write(comparison: Comparison, out: str | Path) -> Path:
    """Write the page as ``out/comparison.html``, and again the list of reports that it belongs to."""
    return write_listed(page(comparison), Path(file_path(out)) / PAGE)


def _tables(key: str, frame: pd.DataFrame) -> Iterator[Any]:
    """For each quantity of a part its numbers as intervals, the lowest of many, and its table, folded."""
    for name, rows in frame.groupby("name", sort=False) if "name" in frame else [(key, frame)]:
        of = rows.drop(columns="name", errors="ignore").dropna(axis="columns", how="all")
        words = [column for column in of if not pd.api.types.is_numeric_dtype(of[column])]
        of = of.drop(columns=[column for column in words if (of[column].fillna("") == "").all()])
        if {"number", "number_low", "number_high"} <= set(of) and key not in _PICTURES:
            few = f" The lowest {_MOST} of {len(of)}." if len(of) > _MOST else ""
            shown = []
            for row in numbered(of)[1].head(_MOST).to_dict("records"):
                beside = {column: row[column] for column in _QUANTITIES if column in row}
                shown.append(
                    plain(row["name"], Interval(row["estimate"], row["low"], row["high"]), beside)
                )
            yield Measures(shown, f"{str(name).capitalize()}.{few}")
        yield Table(joined(of), f"{str(name).capitalize()}: every number", collapsed=True)


def _algorithm(part: AlgorithmPart, comparison: Comparison, shown: str) -> list[Any]:
    found = {score.name: in_words(score.searched) for score in part.scores.values()}
    caption = TEXTS["comparison"]["closest"].format(name=part.scores[part.closest].name)
    families = pd.DataFrame({"family": list(found), "parameters": list(found.values())})
    return [
        Figure(part.plot(), "Which algorithm explains the predictions", caption),
        Table(families, "The parameters found of every family", collapsed=True),
    ]


def _state(part: StatePart, comparison: Comparison, shown: str) -> list[Any]:
    rows = [
        plain(
            f"Latents of {s.source} in {s.target}"
            + ", the round number also given" * bool(s.supplied),
            s.score,
        )
        for s in part.stitchings
        if not s.control
    ]
    blocks: list[Any] = [Measures(rows, "Scores of stitching, both ways.")]
    for way in part.trajectories:
        drawn = {
            f"{way.target}, by itself": way.own,
            f"on the latents of {way.source}": way.stitched,
            "cut": way.cut,
        }
        rounds = range(way.first + 1, way.first + 1 + len(way.own))
        frame = over({"round": rounds}, {name: values[:, 0] for name, values in drawn.items()})
        frame = frame.assign(name=frame["algorithm"])
        distance, cut = (float(np.abs(of - way.own).mean()) for of in (way.stitched, way.cut))
        about: dict[str, Any] = {"source": way.source, "target": way.target, "first": way.first + 1}
        about |= {"distance": distance, "cut": cut, "shown": shown}
        blocks.append(curves(TEXTS["comparison"]["stitched"], frame, **about))
    return blocks


def _where(part: WherePart, comparison: Comparison, shown: str) -> list[Any]:
    """What each model holds where, then two maps of each cause, one below the other, on one scale."""
    rows = []
    for h in sorted(part.held, key=lambda h: (h.outcome, h.variable)):
        name = f"{h.variable.replace('_', ' ')}, read in the {h.outcome}: {h.model} at {h.where.replace(' + ', ', ')}"
        beside = {
            "an untrained copy": h.untrained,
            "its best site, untrained elsewhere": h.untrained_best,
        }
        rows.append(plain(name, h.score, beside))
    blocks: list[Any] = [Measures(rows, "Every variable, where each model holds it best.")]
    causes = dict.fromkeys(m.cause for _, m in part.maps)
    for model, m in (pair for cause in causes for pair in part.maps if pair[1].cause == cause):
        title = f"{model}: the effect of {', '.join(m.cause)} on the {m.outcome}"
        blocks.append(
            Figure(m.plot(), title, f"**{title}.** {m.sentence} Blank where no effect can pass.")
        )
    return blocks


_PICTURES: dict[str, Callable[[Any, Comparison, str], list[Any]]] = {
    "algorithm": _algorithm,
    "state": _state,
    "where": _where,
}
"""Key of a part -> what draws its pictures, where they are more than its numbers as intervals."""


PARTS = {
    "behaviour": "predictions",
    "circuit": "heads",
    "update": "update",
    "state": "state carried",
}
"""Key of a comparison's measure -> the part of a machine that it is about, from the top."""
LOOKS: dict[Verdict, tuple[str, Any]] = {
    "yes": (LIGHT["green"], "-"),
    "no": (LIGHT["vermilion"], (0, (2.2, 1.6))),
    "undecided": (LIGHT["grey"], (0, (1, 1.6))),
    "not applicable": (LIGHT["grey"], ""),
}
"""Verdict -> colour and dash of its line."""
_WIDTH, _LEFT, _RIGHT, _HALF, _HIGH = 4.5, 0.85, 3.65, 0.54, 0.66
"""Inches: of the picture, narrow enough for a phone; where the machines stand; half of a part, and its height."""


@styled
def machines(model: str, reference: str, measures: Sequence[Measure]) -> Picture:
    """Draw the parts of two machines, joined by the measures whose keys are in :data:`PARTS`.

    >>> from interp.stats.intervals import Interval
    >>> state = Measure("state", "Holds the same state", Interval(1, 1, 1), 0.95, needs_control=False)
    >>> len(machines("a", "b", [state]).axes)
    1
    """
    of = {one.key: one for one in measures}
    drawn = [key for key in PARTS if key in of]
    figure = Picture(figsize=(_WIDTH, 0.5 + 0.62 * len(drawn)))
    axes = figure.subplots()
    top = float(len(drawn))
    text: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9.5}
    for x, name in ((_LEFT, model), (_RIGHT, reference)):
        _box(axes, x, (top - 1) / 2, 2 * _HALF + 0.16, top + 0.15, edge=LIGHT["grey"])
        axes.text(
            x,
            top - 0.22,
            name,
            ha="center",
            va="bottom",
            fontsize=9.5,
            fontweight="bold",
            color=INK,
        )
    axes.text(
        _WIDTH / 2,
        top - 0.22,
        "the same?",
        ha="center",
        va="bottom",
        fontsize=9,
        color=LIGHT["grey"],
    )
    for i, key in enumerate(drawn):
        y, one = top - 1 - i, of[key]
        colour, dash = LOOKS[one.verdict]
        if dash:
            axes.plot(
                [_LEFT + _HALF, _RIGHT - _HALF],
                [y, y],
                color=colour,
                linestyle=dash,
                linewidth=2.4,
                zorder=1,
            )
        number = (
            "" if isnan(one.number.estimate) else f" {one.number.estimate:.3f}".replace(" 0.", " .")
        )
        word = axes.text(
            _WIDTH / 2, y, f"{one.verdict}{number}", color=colour, fontweight="bold", **text
        )
        word.set_bbox({"facecolor": PAPER, "edgecolor": "none", "pad": 2})
        below = one.condition or one.unit * bool(number)
        axes.text(_WIDTH / 2, y - 0.27, below, color=LIGHT["grey"], **{**text, "fontsize": 8.5})
        for x in (_LEFT, _RIGHT):
            _box(axes, x, y, 2 * _HALF, _HIGH, edge=colour)
            axes.text(x, y, PARTS[key], color=INK, **text)
    axes.set(xlim=(0, _WIDTH), ylim=(-0.66, top + 0.08))
    axes.axis("off")
    return figure


def _box(axes: Axes, x: float, y: float, width: float, height: float, edge: str) -> None:
    look: dict[str, Any] = {
        "boxstyle": "round,pad=0,rounding_size=0.08",
        "facecolor": "none",
        "linewidth": 1.1,
    }
    axes.add_patch(
        FancyBboxPatch((x - width / 2, y - height / 2), width, height, edgecolor=edge, **look)
    )
