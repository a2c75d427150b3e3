"""Colours: one per algorithm, the same in every figure, and told apart by colour-blind readers.

Seven hues after Okabe and Ito's set (jfly.uni-koeln.de/color), each in two strengths so that a line keeps a contrast
of 3:1 or more against a white page and against a dark one; a figure is drawn with the light strength and follows the
page's theme (``reports.svg`` writes the hues as CSS variables). Ink, the page's own text colour, is for references.
"""

from __future__ import annotations

from collections.abc import Iterable

INK = "#000000"
"""Becomes the page's text colour."""
PAPER = "#fefefe"
"""Becomes the page's ground."""
LIGHT_TEXT = "#fdfdfd"
"""Stays light, for text on a strong colour."""

HUES: dict[str, tuple[str, str]] = {
    "blue": ("#0072b2", "#58b2ef"),
    "vermilion": ("#d05a00", "#ff8d4f"),
    "green": ("#008f68", "#35c79b"),
    "purple": ("#b4558c", "#e495c2"),
    "amber": ("#a97000", "#edb740"),
    "grey": ("#6d7480", "#9ba3af"),
    "brown": ("#7d5433", "#c79d70"),
}
"""Hue name -> (colour on a light page, colour on a dark page)."""

LIGHT = {name: light for name, (light, _) in HUES.items()}
CYCLE = tuple(LIGHT.values())

_ASSIGNED = {
    "model": "blue",
    "handwired": "vermilion",
    "learned": "blue",
    "weighted_majority": "vermilion",
    "bayes": "green",
    "bayes_uniform": "green",
    "oracle": "brown",
    "follow_the_leader": "purple",
    "follow_previous_winners": "amber",
    "random": "grey",
    "control": "grey",
    "greedy": "vermilion",
    "exploring-model": "purple",
    "epsilon-greedy": "amber",
    "boltzmann": "purple",
    "random-ties": "brown",
    "no-bootstrap": "brown",
    "optimal": "green",
}


def colours(keys: Iterable[str]) -> dict[str, str]:
    """A colour for each key: known algorithms always get theirs, others the first hues that are still free.

    >>> colours(["model", "random", "something new"])["something new"] == LIGHT["vermilion"]
    True
    """
    keys = list(dict.fromkeys(keys))
    chosen = {key: LIGHT[_ASSIGNED[key]] for key in keys if key in _ASSIGNED}
    free = [colour for colour in CYCLE if colour not in chosen.values()] or list(CYCLE)
    others = [key for key in keys if key not in _ASSIGNED]
    return chosen | {key: free[i % len(free)] for i, key in enumerate(others)}


def css_variables(dark: bool) -> str:
    """The hues as CSS custom properties, for a light or a dark page."""
    return " ".join(f"--{name}: {pair[dark]};" for name, pair in HUES.items())
