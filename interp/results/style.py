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


_SMALLEST_TEXT = (
    9.2  # pixels: on a narrow screen a picture scrolls in its box before its text gets smaller
)
_MAX_SCALE = 1.3
_PHONE_WIDTH = 3.7  # inches: wider figures scroll on a phone, and are marked for the page as "wide"
_SAVING = {"svg.fonttype": "none", "svg.hashsalt": "report", "savefig.transparent": True}


def inline_svg(figure: Figure, title: str, prefix: str) -> str:
    """Convert a figure to the text of an ``<svg>`` element for the body of a page. The palette's
    colours become CSS variables, so that they follow the page's theme.

    Args:
        figure: the figure.
        title: title of the figure, read by screen readers.
        prefix: text that is put before every id in the SVG, so that ids are unique on the page.
    """
    with house_style(**_SAVING):
        svg = foreign.svg(figure, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = re.sub(
        r"<metadata>.*?</metadata>|<!--.*?-->", "", svg[svg.index("<svg") :], flags=re.DOTALL
    )
    # matplotlib's own rule is `*{...}`, which on a page would reach every element; page.css has it, scoped.
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(
        r'(<(?:image|g)\b[^>]*?) id="[^"]*"', r"\1", svg
    )  # two equal images would share theirs
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r'(url\(|href=")#', rf"\1#{prefix}-", svg)
    svg = svg.replace(INK, "currentColor").replace(PAPER, "var(--page)")
    for name, colour in LIGHT.items():
        svg = re.sub(re.escape(colour), f"var(--{name})", svg, flags=re.IGNORECASE)
    width, height = re.search(r'width="([\d.]+)pt" height="([\d.]+)pt"', svg).groups()  # type: ignore[union-attr]
    head, body = svg.split(">", 1)  # the opening tag, and all the rest
    head = re.sub(r'\s(width|height|version|xmlns(:xlink)?)="[^"]*"', "", head)
    inches = float(width) / 72
    # How far a picture may shrink, as a share of its width, until its smallest text is ``_SMALLEST_TEXT`` high.
    sizes = [float(size) for size in re.findall(r"font(?:-size)?:[^;\"]*?(\d+(?:\.\d+)?)px", body)]
    least_share = min(_SMALLEST_TEXT / (min(sizes) * 96 / 72), _MAX_SCALE) if sizes else 0.0
    style = f"width:{inches:.3f}in;max-width:100%;min-width:{inches * least_share:.3f}in"
    style += f";aspect-ratio:{float(width):.0f}/{float(height):.0f}"
    label = f"{prefix}-title"
    kind = ' class="wide"' * (inches * least_share > _PHONE_WIDTH)
    # Without long decimals, fonts (the page's is taken) and null turns, but never in a label's text: half of the bytes.
    superfluous = r"(?<=\d\.\d\d)\d+|font-family: [^;\"]*;? ?|transform=\"rotate\(-?0 [^)]*\)\""
    body = re.sub(r"<[^>]+>", lambda tag: re.sub(superfluous, "", tag[0]), body)
    body = re.sub(r"<g>\n(<[^>]*/>)\n</g>", r"\1", re.sub(r"\s*\n\s*", "\n", body))
    label_text = escape(foreign.escape_invisible(title))
    opening = (
        f'{head}{kind} role="img" aria-labelledby="{label}" fill="currentColor" style="{style}">'
    )
    return f'{opening}<title id="{label}">{label_text}</title>{body}'
