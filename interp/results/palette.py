"""The colour and dash of each algorithm: the same in every figure, and distinct for colour-blind
readers.

There are seven hues, after Okabe and Ito's set (jfly.uni-koeln.de/color). Each hue has one colour
for light pages and one for dark pages, both with a contrast of at least 3:1 against the page.
Figures are drawn in the colours for light pages; ``interp.results.style`` replaces these by CSS
variables, so that a figure follows the page's theme. The page's text colour is for reference lines.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import cycle, product
from pathlib import Path
from typing import Any, NamedTuple

from interp.support.files import read_tables

INK = "#000000"
"""Colour that is replaced by the page's text colour."""
PAPER = "#fefefe"
"""Colour that is replaced by the page's background."""
LIGHT_TEXT = "#fdfdfd"
"""Colour of text on a dark cell; it is light in both themes."""

_TABLES = read_tables(Path(__file__).with_suffix(".toml"))
HUES: dict[str, tuple[str, str]] = {name: tuple(pair) for name, pair in _TABLES["hues"].items()}
"""Hue name -> (colour on a light page, colour on a dark page)."""

LIGHT = {name: light for name, (light, _) in HUES.items()}
CYCLE = tuple(LIGHT.values())
STYLE: dict[str, Any] = {
    key: {**LIGHT, "ink": INK}.get(value, value) for key, value in _TABLES["style"].items()
}
"""matplotlib settings (rcParams) of every figure."""

_DASHES: dict[str, Any] = {
    name: (0, tuple(lengths)) if lengths else "-" for name, lengths in _TABLES["dashes"].items()
}
"""Dash name -> matplotlib's line style."""


class Look(NamedTuple):
    """Colour and line style of a curve.

    Attributes:
        colour: colour on a light page, such as "#0072b2".
        dash: matplotlib's line style.
    """

    colour: str
    dash: Any


_EVERYWHERE: dict[str, str] = _TABLES["everywhere"]
"""Name -> hue and dash of each name that belongs to no task; ``Task.report`` defines the others.

Two names share a pair only if they mean the same thing, or never appear on the same page.
"""


def choose_line_styles(keys: Iterable[str]) -> dict[str, Look]:
    """Choose a colour and a dash for the curve of each algorithm. A known algorithm has the same
    pair of colour and dash in every figure. An unknown one gets the first pair that is free.

    Unknown algorithms first get colours that no other key has, then used colours with another dash.
    When all pairs are used, pairs repeat.

    Args:
        keys: keys of algorithms or baselines, in the order of the figure.

    Returns:
        A mapping: key -> :class:`Look`.

    >>> alone, among = choose_line_styles(["random"]), choose_line_styles(["model", "random", "new"])
    >>> alone["random"] == among["random"]
    True
    >>> new = choose_line_styles(["model", "something new", "something else"])
    >>> len({look.colour for look in new.values()})
    3
    """
    from interp import tasks

    keys = list(keys)
    assigned: dict[str, str] = {}  # key -> hue and dash, such as "blue solid"
    for task in tasks.list_tasks():
        assigned.update(task.report.looks)
    assigned.update(_EVERYWHERE)  # names that belong to no task, such as "model"
    free = cycle(_list_free_pairs({assigned[key] for key in keys if key in assigned}))
    looks = {}
    for key in dict.fromkeys(keys):
        pair = assigned[key] if key in assigned else next(free)
        hue, dash = pair.split()
        looks[key] = Look(LIGHT[hue], _DASHES[dash])
    return looks


def _list_free_pairs(taken: Collection[str]) -> list[str]:
    """List the pairs of hue and dash, such as "blue solid", that are not in ``taken``. They are
    ordered by dash; of one dash, pairs with a hue that no pair in ``taken`` has come first.
    """
    used_hues = {pair.split()[0] for pair in taken}
    hues = sorted(LIGHT, key=lambda hue: hue in used_hues)  # a stable sort: unused hues first
    pairs = [f"{hue} {dash}" for dash, hue in product(_DASHES, hues)]
    return [pair for pair in pairs if pair not in taken]


def css_variables(dark: bool) -> str:
    """Return CSS that defines each colour of the palette as a custom property, such as
    ``--blue: #0072b2;``.

    Args:
        dark: True for the colours of a dark page, False for those of a light page.
    """
    properties = []
    for name, (on_light, on_dark) in HUES.items():
        properties.append(f"--{name}: {on_dark if dark else on_light};")
    return " ".join(properties)
