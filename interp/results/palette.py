"""Colours and dashes: one pair per name, the same in every figure, and distinct for colour-blind
readers.

Seven hues after Okabe and Ito's set (jfly.uni-koeln.de/color), each in two strengths so that a line
keeps a contrast of 3:1 or more against a white page and against a dark one; a figure is drawn with
the light strength and follows the page's theme (``interp.results.style`` writes the hues as CSS
variables). Ink, the text colour of the page, is for references.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import cycle, product
from pathlib import Path
from typing import Any, NamedTuple

from interp.support.files import read_tables

INK = "#000000"
"""Becomes the page's text colour."""
PAPER = "#fefefe"
"""Becomes the page's ground."""
LIGHT_TEXT = "#fdfdfd"
"""Stays light, for text on a strong colour."""

_TABLES = read_tables(Path(__file__).with_suffix(".toml"))
HUES: dict[str, tuple[str, str]] = {name: tuple(pair) for name, pair in _TABLES["hues"].items()}
"""Hue name -> (colour on a light page, colour on a dark page)."""

LIGHT = {name: light for name, (light, _) in HUES.items()}
CYCLE = tuple(LIGHT.values())
STYLE: dict[str, Any] = {
    key: {**LIGHT, "ink": INK}.get(value, value) for key, value in _TABLES["style"].items()
}
"""Settings of matplotlib for every figure."""

_DASHES: dict[str, Any] = {
    name: (0, tuple(lengths)) if lengths else "-" for name, lengths in _TABLES["dashes"].items()
}
"""Dash name -> what matplotlib calls it."""


class Look(NamedTuple):
    """How a name is drawn: the ``colour`` (on a light page) and the ``dash`` of its line."""

    colour: str
    dash: Any


_EVERYWHERE: dict[str, str] = _TABLES["everywhere"]
"""Name -> hue and dash, of names that no task owns; a task's record says the looks of its own (``Task.report``).

Two names share a look only where they are one thing, or never stand on one page.
"""


def looks(keys: Iterable[str]) -> dict[str, Look]:
    """Return a colour and a dash for each key: a known name always gets the same pair, a new name
    the first free one.

    Hues are used up first, with a dash that no line of that hue has; then the pairs repeat.

    >>> looks(["model", "random", "something new"])["random"] == looks(["random"])["random"]
    True
    >>> new = looks(["model", "something new", "something else"])
    >>> len({look.colour for look in new.values()})
    3
    """
    from interp import tasks

    keys = list(dict.fromkeys(keys))
    assigned: dict[str, str] = {}
    for task in tasks.every():
        assigned.update(task.report.looks)
    assigned.update(_EVERYWHERE)
    pairs: dict[str, tuple[str, str]] = {}
    for key in keys:
        if key in assigned:
            hue, dash = assigned[key].split()
            pairs[key] = (hue, dash)
    free = cycle(_free_pairs(list(pairs.values())))
    for key in keys:
        if key not in assigned:
            pairs[key] = next(free)
    chosen = {}
    for key in keys:
        hue, dash = pairs[key]
        chosen[key] = Look(LIGHT[hue], _DASHES[dash])
    return chosen


def _free_pairs(taken: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the pairs of hue and dash that are not taken: hues without a line first, then dash by dash."""
    used_hues = {hue for hue, _ in taken}
    hues = sorted(LIGHT, key=lambda hue: hue in used_hues)
    pairs = [(hue, dash) for dash, hue in product(_DASHES, hues)]
    return [pair for pair in pairs if pair not in taken]


def css_variables(dark: bool) -> str:
    """Return the hues as CSS custom properties, for a light or a dark page."""
    properties = []
    for name, (on_light, on_dark) in HUES.items():
        properties.append(f"--{name}: {on_dark if dark else on_light};")
    return " ".join(properties)
