"""The page of a comparison of two models: its measures, the results behind each, and rounds where
the models differ.

All numbers are computed by :func:`circuits.compare.machines`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.patches import FancyBboxPatch

from circuits.compare import Budget, Comparison
from circuits.compare.algorithm import AlgorithmPart
from circuits.compare.state import StatePart
from interp import tasks
from interp.core.algorithm import format_parameters
from interp.results.measure import Measure, Verdict, pick_number_column
from interp.results.palette import INK, LIGHT, PAPER
from interp.results.style import in_house_style
from interp.stats.intervals import Interval
from interp.support.checks import file_path
from reports.blocks import (
    Figure,
    Measures,
    Prose,
    Table,
    counts,
    drop_empty_columns,
    join_intervals,
    make_unjudged,
)
from reports.page import Report, Section, write_with_index
from reports.texts import OF_COMPARISONS, TEXTS

_RESOLUTION = Path(__file__).with_name("resolution.json")
"""File with sentences, by task and budget, on which differences a comparison can detect.

``lab/resolution.py`` measures them.
"""
_LEAD, _DISTANCES = TEXTS["comparison"]["lead"], TEXTS["comparison"]["distances"]
_CONTROL_COLUMNS = {"untrained", "untrained, its best site", "placebo"}
"""Columns of a result's table that hold controls of its number."""
_MOST_DRAWN = 12  # numbers of one quantity that are drawn; its table has all


def page(comparison: Comparison) -> Report:
    """Make the report page of a comparison of two models, or of a model with algorithms.

    The page lists the measures, then has a section for each part of the comparison that has a
    result, such as "state" (:class:`circuits.compare.Comparison`).
    """
    measures = comparison.measures
    sections = [_show_findings(comparison)]
    # In the order of OF_COMPARISONS. A part that is not in it comes after all others.
    for key in sorted(comparison.parts, key=lambda key: [*OF_COMPARISONS, key].index(key)):
        section = _show_part(key, comparison)
        if section is not None:
            sections.append(section)
    model = comparison.model
    title = f"{model} against {comparison.reference or 'algorithms'}"
    sentence = comparison.sentence
    description = {
        "kind": "comparison",
        "task": comparison.settings.get("task", ""),
        "words": counts(measures),
        "sentence": sentence,
    }
    hero = []  # the picture at the top of the page
    if comparison.reference:
        reference_name = comparison.reference
        if reference_name == model:
            reference_name += " (reference)"
        picture = machines(model, reference_name, measures)
        hero = [Figure(picture, sentence, _HERO_CAPTION)]
    return Report(
        title,
        _LEAD,
        sections,
        provenance=comparison.settings,
        about=description,
        sentence=sentence,
        hero=hero,
    )


_HERO_CAPTION = (
    "Each line between the two machines says whether they have a part in common, with the number "
    "that decided."
)


def _show_findings(comparison: Comparison) -> Section:
    """Make the section "What was found": the measures, the algorithm that explains the model, and
    which differences such a comparison can detect.
    """
    measures = comparison.measures
    places = []
    for measure in measures:
        # An empty section, made only to get the slug to which the title is converted.
        section = Section(_get_title(measure.key), [])
        places.append((section.slug, section.title))
    blocks = [
        Measures(measures, f"{counts(measures)}.", places),
        Prose(f"**Which algorithm.** {comparison.algorithm}"),
    ]
    full = Budget()
    sizes = ("known", "test", "scored", "edits")  # a quick budget has fewer of each
    is_quick = any(comparison.settings[size] < getattr(full, size) for size in sizes)
    resolutions = json.loads(_RESOLUTION.read_text("utf-8"))  # by task and budget
    of_task = resolutions.get(_find_task(comparison).key, {})
    resolution = of_task.get("quick" if is_quick else "full")
    if resolution:
        blocks.append(Prose(resolution))
    return Section("What was found", blocks)


def _find_task(comparison: Comparison) -> tasks.Task:
    return tasks.get(comparison.algorithm.settings["task"])


def _get_title(key: str) -> str:
    """Return the title of the section on a part of a comparison, such as "State" for the key
    "state".
    """
    known = OF_COMPARISONS.get(key, {})
    return known.get("title", key.replace("_", " ").capitalize())


def _show_part(key: str, comparison: Comparison) -> Section | None:
    """Make the section on one part of a comparison, with its pictures and tables.

    Args:
        key: key of the part, such as "state" or "behaviour".
        comparison: the comparison.

    Returns:
        The section; if the part does not apply to these models, it says why. None if the part has
        no table or an empty one.
    """
    title = _get_title(key)
    measures = [measure for measure in comparison.measures if measure.key == key]  # one, or none
    for measure in measures:
        if measure.lacking:
            return Section(title, [Prose(f"Not applicable: {measure.lacking}.")])
    frame = comparison.tables.get(key, pd.DataFrame())
    if frame.empty:
        return None
    blocks: list[Any] = []
    if key in OF_COMPARISONS:
        distance = _DISTANCES[_find_task(comparison).kind]
        blocks.append(Prose(OF_COMPARISONS[key]["text"].format(apart=distance)))
    if key in _PICTURES:
        blocks += _PICTURES[key](comparison.parts[key])
    if key == "update":
        blocks += [Prose(measure.note) for measure in measures if measure.note]
    blocks += _show_tables(key, frame)
    if key == "behaviour" and comparison.failures:
        blocks.append(_list_failures(comparison))
    return Section(title, blocks)


def _list_failures(comparison: Comparison) -> Table:
    """Make a table of the rounds in which the predictions of the two models differ most."""
    failures = comparison.failures
    # n_scored is the same in all rows; the title of the table has it.
    frame = pd.DataFrame([vars(failure) for failure in failures]).drop(columns="n_scored")
    for column in ("model", "reference"):  # probabilities of the outcomes
        frame[column] = [" ".join(f"{p:.3f}" for p in row) for row in frame[column]]
    episodes = f"the second episodes of each set of sets_for(..., n_scored={failures[0].n_scored})"
    return Table(frame, f"The rounds that differ most; {episodes}", collapsed=True)


def write(comparison: Comparison, out: str | Path) -> Path:
    """Write the page of a comparison as ``out/comparison.html``, and update the index page that
    lists it.

    Args:
        comparison: the comparison.
        out: the folder.

    Returns:
        The path of the page.
    """
    return write_with_index(page(comparison), Path(file_path(out)) / "comparison.html")


def _show_tables(key: str, frame: pd.DataFrame) -> Iterator[Any]:
    """Yield the blocks of a part's result: for each quantity a folded table, after a drawing of its
    numbers if they have intervals and the part has no picture of its own.

    If there are many numbers, only the lowest are drawn.

    Args:
        key: key of the part, such as "behaviour".
        frame: table of the result; its column "name" names the quantity.
    """
    if "name" not in frame:
        frame = frame.assign(name=key)
    for name, rows in frame.groupby("name", sort=False):
        shown = drop_empty_columns(rows.drop(columns="name"))
        title = str(name).capitalize()
        has_intervals = {"number", "number_low", "number_high"} <= set(shown)
        if has_intervals and key not in _PICTURES:
            _, ascending = pick_number_column(shown)  # the rows, the lowest number first
            lowest = ascending.head(_MOST_DRAWN)
            measures = [_measure_row(row) for row in lowest.to_dict("records")]
            note = f" The lowest {_MOST_DRAWN} of {len(shown)}." if len(shown) > _MOST_DRAWN else ""
            yield Measures(measures, f"{title}.{note}")
        yield Table(join_intervals(shown), f"{title}: every number", collapsed=True)


def _measure_row(row: Mapping[Any, Any]) -> Measure:
    """Return a row of a table of intervals as a measure without a threshold and a verdict. The
    block :class:`Measures` can draw it.

    Args:
        row: a row with name, estimate, low and high, and perhaps columns of controls.
    """
    controls = {column: row[column] for column in _CONTROL_COLUMNS if column in row}
    return make_unjudged(row["name"], Interval(row["estimate"], row["low"], row["high"]), controls)


def _draw_algorithm(part: AlgorithmPart) -> list[Any]:
    """Return a figure of how well each family of algorithms explains the model's predictions, and a
    table of the families' fitted parameters.

    Args:
        part: result of the comparison with algorithms.
    """
    closest = part.scores[part.closest].name
    caption = TEXTS["comparison"]["closest"].format(name=closest)
    rows = [(score.name, format_parameters(score.searched)) for score in part.scores.values()]
    parameters = pd.DataFrame(rows, columns=["family", "parameters"])
    return [
        Figure(part.plot(), "Which algorithm explains the predictions", caption),
        Table(parameters, "Fitted parameters of every family", collapsed=True),
    ]


def _draw_state(part: StatePart) -> list[Any]:
    """Return the block that shows how well each machine continues from latents of the other one
    (stitching).

    Args:
        part: result of the comparison of states.
    """
    measures = []
    for stitching in part.stitchings:
        if stitching.control:
            continue  # controls are only in the table of the section
        name = f"Latents of {stitching.source} in {stitching.target}"
        if stitching.supplied:
            name += ", given the round number"
        measures.append(make_unjudged(name, stitching.score))
    return [Measures(measures, "Scores of stitching, in both directions.")]


_PICTURES: dict[str, Callable[[Any], list[Any]]] = {
    "algorithm": _draw_algorithm,
    "state": _draw_state,
}
"""Key of a part of a comparison -> function that draws its result, if it needs more than intervals."""


PARTS = {
    "behaviour": "predictions",
    "circuit": "heads",
    "update": "update",
    "state": "state carried",
}
"""What part of a machine each measure is about, by the measure's key, from top to bottom."""
LOOKS: dict[Verdict, tuple[str, Any]] = {
    "yes": (LIGHT["green"], "-"),
    "no": (LIGHT["vermilion"], (0, (2.2, 1.6))),
    "undecided": (LIGHT["grey"], (0, (1, 1.6))),
    "not applicable": (LIGHT["grey"], ""),
}
"""Colour and dash pattern of the connecting line, by verdict."""
_WIDTH, _LEFT_CENTRE, _RIGHT_CENTRE, _HALF_WIDTH, _BOX_HEIGHT = 4.5, 0.85, 3.65, 0.54, 0.66
"""Width of the picture in inches (narrow enough for a phone), which is also its width in units of
the x axis. In these units: the centres of the two machines, and half the width of a box. Last, the
height of a box in units of the y axis: the distance of two parts is 1.
"""


@in_house_style
def machines(model: str, reference: str, measures: Sequence[Measure]) -> Picture:
    """Draw two machines as two stacks of boxes, one box for each part of a machine, such as its
    state. A line between two boxes shows the verdict on whether both machines have this part in
    common.

    Args:
        model, reference: names of the two machines.
        measures: measures of their comparison; those with a key in :data:`PARTS` are drawn.

    >>> from interp.stats.intervals import Interval
    >>> state = Measure("state", "Holds the same state", Interval(1, 1, 1), 0.95, needs_control=False)
    >>> len(machines("a", "b", [state]).axes)
    1
    """
    by_key = {measure.key: measure for measure in measures}
    drawn = [key for key in PARTS if key in by_key]  # from top to bottom
    n_parts = len(drawn)
    # The centres of the boxes are at the heights 0 (the lowest part) to n_parts - 1.
    figure = Picture(figsize=(_WIDTH, 0.5 + 0.62 * n_parts))
    axes = figure.subplots()
    above: dict[str, Any] = {"ha": "center", "va": "bottom"}
    name_height = n_parts - 0.22  # above the uppermost box
    for x, name in ((_LEFT_CENTRE, model), (_RIGHT_CENTRE, reference)):
        _draw_box(axes, x, (n_parts - 1) / 2, 2 * _HALF_WIDTH + 0.16, n_parts + 0.15, LIGHT["grey"])
        axes.text(x, name_height, name, fontsize=9.5, fontweight="bold", color=INK, **above)
    axes.text(_WIDTH / 2, name_height, "the same?", fontsize=9, color=LIGHT["grey"], **above)
    for i, key in enumerate(drawn):
        _draw_link(axes, n_parts - 1 - i, PARTS[key], by_key[key])
    axes.set(xlim=(0, _WIDTH), ylim=(-0.66, n_parts + 0.08))
    axes.axis("off")
    return figure


def _draw_link(axes: Axes, y: float, part: str, measure: Measure) -> None:
    """Draw the box of one part in both machines, and the line between the two boxes with verdict
    and number.

    Args:
        axes: axes of the picture.
        y: height of the boxes' centres, with the distance of two parts as the unit.
        part: name of the part, which is written in the boxes.
        measure: the measure that says whether the parts are the same.
    """
    colour, dash = LOOKS[measure.verdict]
    middle: dict[str, Any] = {"ha": "center", "va": "center"}
    if dash:  # without a verdict there is no line
        ends = [_LEFT_CENTRE + _HALF_WIDTH, _RIGHT_CENTRE - _HALF_WIDTH]
        axes.plot(ends, [y, y], color=colour, linestyle=dash, linewidth=2.4, zorder=1)
    on_line: str = measure.verdict
    below_line = measure.condition
    if not isnan(measure.number.estimate):
        number = f"{measure.number.estimate:.3f}".removeprefix("0")
        on_line = f"{on_line} {number}"
        below_line = below_line or measure.unit
    bold: dict[str, Any] = {"color": colour, "fontweight": "bold", "fontsize": 9.5}
    label = axes.text(_WIDTH / 2, y, on_line, **bold, **middle)
    label.set_bbox({"facecolor": PAPER, "edgecolor": "none", "pad": 2})  # hides the line behind it
    axes.text(_WIDTH / 2, y - 0.27, below_line, color=LIGHT["grey"], fontsize=8.5, **middle)
    for x in (_LEFT_CENTRE, _RIGHT_CENTRE):
        _draw_box(axes, x, y, 2 * _HALF_WIDTH, _BOX_HEIGHT, colour)
        axes.text(x, y, part, color=INK, fontsize=9.5, **middle)


def _draw_box(axes: Axes, x: float, y: float, width: float, height: float, edge: str) -> None:
    """Draw a box with rounded corners.

    Args:
        axes: axes of the picture.
        x, y: centre of the box.
        width, height: size of the box.
        edge: colour of its edge.
    """
    corner = (x - width / 2, y - height / 2)
    style = "round,pad=0,rounding_size=0.08"
    box = FancyBboxPatch(
        corner, width, height, boxstyle=style, edgecolor=edge, facecolor="none", linewidth=1.1
    )
    axes.add_patch(box)
