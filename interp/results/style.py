"""The house style of figures, and the conversion of a figure to inline SVG for a page.

The matplotlib settings apply only while a figure is drawn or saved. In the SVG, text stays text
(``svg.fonttype: none``) in the page's font. Black becomes ``currentColor`` and the palette's hues
become CSS variables, so that one figure serves light and dark pages. Ids have a prefix, so that two
figures on a page share no clip path. The same figure always gives the same bytes: no date is
written, and the salt of ids is fixed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from html import escape
from typing import Any, TypeVar

import matplotlib
from matplotlib.figure import Figure

from interp.core.display import add_png
from interp.results.palette import INK, LIGHT, PAPER, STYLE
from interp.support import foreign
from interp.support.checks import checked

WIDTH = 9.6
"""Width of a page's column, in inches."""

_Draw = TypeVar("_Draw", bound=Callable[..., Figure])


def house_style(**more: Any) -> Any:
    """Return a context manager: inside, matplotlib draws in the house style, whatever the caller's
    settings are. On exit, the caller's settings are restored.

    Args:
        **more: further rcParams, which override those of the house style.
    """
    return matplotlib.rc_context({**matplotlib.rcParamsDefault, "backend": "agg", **STYLE, **more})


def in_house_style(draw: _Draw) -> _Draw:
    """Decorate ``draw``, a function that returns a figure, so that it draws in the house style. The
    decorated function checks its arguments by their annotations
    (:func:`~interp.support.checks.checked`), and notebooks display the figure that it returns.
    """

    @wraps(draw)
    def inner(*args: Any, **kwargs: Any) -> Figure:
        with house_style():
            return add_png(draw(*args, **kwargs))

    return checked(inner)  # type: ignore[return-value]


_SMALLEST_TEXT = 9.2
"""Pixels: on a narrow screen, a picture scrolls in its box before its text gets smaller."""
_MAX_SCALE = 1.3
"""Largest minimum width of a picture, as a multiple of its own width."""
_PHONE_WIDTH = 3.7
"""Inches: wider figures scroll on a phone, and are marked for the page as "wide"."""
_SAVING = {"svg.fonttype": "none", "svg.hashsalt": "report", "savefig.transparent": True}
"""matplotlib settings (rcParams) with which a figure becomes SVG."""


def inline_svg(figure: Figure, title: str, prefix: str) -> str:
    """Convert a figure to the text of an ``<svg>`` element for the body of a page. The palette's
    colours become CSS variables, so that they follow the page's theme.

    Args:
        figure: the figure.
        title: title of the figure, read by screen readers.
        prefix: text that is put before every id in the SVG, so that ids are unique on the page.
    """
    with house_style(**_SAVING):
        svg = foreign.svg(figure)
    svg = _add_prefix_to_ids(_remove_superfluous(svg), prefix)
    svg = svg.replace(INK, "currentColor").replace(PAPER, "var(--page)")
    for name, colour in LIGHT.items():
        svg = re.sub(re.escape(colour), f"var(--{name})", svg, flags=re.IGNORECASE)
    sizes = re.search(r'width="([\d.]+)pt" height="([\d.]+)pt"', svg).groups()  # type: ignore[union-attr]
    width, height = map(float, sizes)  # in points
    opening, body = svg.split(">", 1)  # the opening tag, and all the rest
    opening = re.sub(r'\s(width|height|version|xmlns(:xlink)?)="[^"]*"', "", opening)
    inches = width / 72
    # On a narrow page the picture shrinks, but only until its smallest text is still legible.
    least_inches = inches * _find_least_share(body)
    style = f"width:{inches:.3f}in;max-width:100%;min-width:{least_inches:.3f}in"
    style += f";aspect-ratio:{width:.0f}/{height:.0f}"
    if least_inches > _PHONE_WIDTH:  # the page's style sheet has rules for pictures that scroll
        opening += ' class="wide"'
    label = f"{prefix}-title"  # id of the title
    opening += f' role="img" aria-labelledby="{label}" fill="currentColor" style="{style}"'
    label_text = escape(foreign.escape_invisible(title))
    return f'{opening}><title id="{label}">{label_text}</title>{_shorten_tags(body)}'


def _remove_superfluous(svg: str) -> str:
    """Remove the XML declaration, metadata, comments and the style sheet from an SVG."""
    svg = svg[svg.index("<svg") :]  # without the XML declaration
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    # matplotlib's style sheet has the selector `*`, which would apply to every element of the page.
    # page.css has the same rules for figures alone.
    return re.sub(r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", svg, count=1, flags=re.DOTALL)


def _add_prefix_to_ids(svg: str, prefix: str) -> str:
    """Put a prefix before every id in an SVG, so that ids are unique on the page. Images and groups
    lose their ids, which two equal images would share; nothing refers to them.
    """
    svg = re.sub(r'(<(?:image|g)\b[^>]*?) id="[^"]*"', r"\1", svg)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    return re.sub(r'(url\(|href=")#', rf"\1#{prefix}-", svg)


def _find_least_share(body: str) -> float:
    """Return the smallest scale of a picture, compared with its size as drawn, at which its
    smallest text is 9.2 pixels high. It is above 1 if the text is drawn smaller than this, and at
    most 1.3. A picture without text has 0.

    Args:
        body: the picture as SVG. The numbers of its font sizes are points (72 to an inch), although
            the SVG writes "px"; a pixel is 1/96 inch.
    """
    sizes = [float(size) for size in re.findall(r"font(?:-size)?:[^;\"]*?(\d+(?:\.\d+)?)px", body)]
    if not sizes:
        return 0.0
    return min(_SMALLEST_TEXT / (min(sizes) * 96 / 72), _MAX_SCALE)


def _shorten_tags(body: str) -> str:
    """Remove half of the bytes of an SVG: long decimals, fonts (a page has its own), rotations by 0
    and groups of one element. Text in the picture stays as it is.
    """
    # Digits after the second decimal, fonts, or rotations by 0; removed inside of tags only.
    superfluous = r"(?<=\d\.\d\d)\d+|font-family: [^;\"]*;? ?|transform=\"rotate\(-?0 [^)]*\)\""
    body = re.sub(r"<[^>]+>", lambda tag: re.sub(superfluous, "", tag[0]), body)
    body = re.sub(r"\s*\n\s*", "\n", body)  # no indentation, no empty lines
    return re.sub(r"<g>\n(<[^>]*/>)\n</g>", r"\1", body)
