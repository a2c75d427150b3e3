"""What pages and notebooks' frames are made with: templates and their filters, the style sheet, the security policy."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interp import palette
from interp.foreign import plain
from reports.blocks import LINK, cell, colour, csv_of

if TYPE_CHECKING:
    import pandas as pd

TEMPLATES = Path(__file__).parent / "templates"


def policy(scripts: Sequence[str]) -> str:
    """No request of any kind. Styles are inline because SVG needs them; scripts only by their hash."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    rest = "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src {allowed}; {rest}"


def stylesheet() -> str:
    """The style of every page, in light and dark."""
    css = "\n".join((TEMPLATES / name).read_text("utf-8") for name in ("page.css", "attention.css"))
    light, dark = palette.css_variables(dark=False), palette.css_variables(dark=True)
    return f":root {{ {light} }}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n{css}"


@cache
def environment() -> Any:
    """The templates, with the filters that they use."""
    import jinja2
    from markupsafe import Markup, escape

    def prose(text: str) -> Markup:
        parts = re.split(f"({LINK}[^\ue001]*\ue001[^\ue002]*\ue002)", text)
        return Markup("").join(linked(part) if i % 2 else worded(part) for i, part in enumerate(parts))

    def worded(text: str) -> Markup:
        marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(plain(text))))
        return Markup(re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", marked))

    def linked(text: str) -> Markup:
        words, target = text.removeprefix(LINK)[:-1].split("\ue001")
        within = re.fullmatch(r"#[\w-]+|(?:[\w.%~-]+/)*[\w.%~-]+\.html(?:#[\w-]+)?", target)
        return Markup('<a href="{}">{}</a>').format(target, worded(words)) if within else worded(words)

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda shown: plain(shown) if isinstance(shown, str) and not isinstance(shown, Markup) else shown,
    )
    environment.filters["prose"] = prose
    environment.filters["paragraphs"] = lambda text: [prose(part) for part in re.split(r"\n\s*\n", text.strip())]
    environment.filters["cell"] = cell
    environment.filters["colour"] = colour
    environment.filters["short"] = lambda value: cell(value, ".3f")
    environment.filters["download"] = _download
    environment.globals["identity"] = id
    return environment


def _download(frame: pd.DataFrame) -> str:
    """A frame as the address of a CSV file that the page itself holds."""
    return "data:text/csv;charset=utf-8;base64," + base64.b64encode(csv_of(frame).encode()).decode()
