"""A report and how it becomes one HTML file that opens offline.

Everything the page needs is in it: style, pictures (inline SVG) and, where there are attention views, circuitsvis'
script, once. A content security policy forbids every request and every script but the page's own, by hash. The same
report gives the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interp import files
from interp.errors import require
from reports import attention, palette
from reports.blocks import Figure, Group, Table, cell, csv_of

if TYPE_CHECKING:
    import pandas as pd

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Section:
    """A titled part of a report; its title makes the entry in the table of contents."""

    title: str
    blocks: Sequence[Any]

    @property
    def slug(self) -> str:
        """The title as it stands in links: small letters, digits and hyphens."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


@dataclass(frozen=True)
class Report:
    """A page: a title, a sentence that says what it shows, sections, and where the numbers come from.

    ``index`` is where the list of reports is, relative to the page, where there is one; ``about`` is what that list
    says of the page (:mod:`reports.index`).

    >>> page = Report("A model", "What it does.", [Section("Summary", [Prose("It *works*.")])])  # doctest: +SKIP
    >>> page.write("output/page.html")                                                           # doctest: +SKIP
    """

    title: str
    lead: str
    sections: Sequence[Section]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    index: str = ""
    about: Mapping[str, str] = field(default_factory=dict)

    def html(self) -> str:
        """The whole page.

        Raises:
            InputError: two sections of the same name.
        """
        slugs = [section.slug for section in self.sections]
        twice = next((slug for slug in slugs if slugs.count(slug) > 1), None)
        require(twice is None, f"two sections are both called {twice!r}; give each its own title")
        blocks = list(self._blocks())
        views = [block for block in blocks if isinstance(block, attention.AttentionView)]
        scripts = attention.scripts() if views else []
        return (
            environment()
            .get_template("page.html.j2")
            .render(
                report=self,
                style=_stylesheet(),
                scripts=scripts,
                policy=_policy(scripts),
                notices=attention.notices() if views else [],
                provenance=list(_flat(self.provenance)),
                drawn=_drawn(blocks),
                numbers=_numbers(blocks),
                ids={id(view): f"attention-{i}" for i, view in enumerate(views, start=1)},
                about=json.dumps(dict(self.about)),
            )
        )

    def write(self, path: str | Path) -> Path:
        """Write the page to ``path``, atomically.

        Raises:
            InputError: the folder cannot be written.
        """
        return files.write_text(path, self.html())

    def _blocks(self) -> Iterator[Any]:
        def unfold(blocks: Sequence[Any]) -> Iterator[Any]:
            for block in blocks:
                yield block
                if isinstance(block, Group):
                    yield from unfold(block.blocks)

        for section in self.sections:
            yield from unfold(section.blocks)


def frame(view: attention.AttentionView) -> str:
    """A page with nothing but an attention view, for a frame in a notebook."""
    scripts = attention.scripts()
    settings = {"scripts": scripts, "style": _stylesheet(), "policy": _policy(scripts)}
    return environment().get_template("frame.html.j2").render(view=view, **settings)


def _policy(scripts: Sequence[str]) -> str:
    """No request of any kind. Styles are inline because SVG needs them; scripts only by their hash."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    rest = "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src {allowed}; {rest}"


def _drawn(blocks: Sequence[Any]) -> dict[int, str]:
    """Every figure as SVG, by the identity of its block."""
    figures = [block for block in blocks if isinstance(block, Figure)]
    if not figures:
        return {}
    from reports.svg import inline_svg

    return {id(block): inline_svg(block.figure, block.title, f"f{i}") for i, block in enumerate(figures, start=1)}


def _numbers(blocks: Sequence[Any]) -> dict[int, tuple[str, int]]:
    """What a reader calls each figure and table, such as ("Figure", 3), by the identity of its block."""
    found: dict[int, tuple[str, int]] = {}
    for kind, name in ((Figure, "Figure"), (Table, "Table")):
        of_kind = [block for block in blocks if isinstance(block, kind)]
        found |= {id(block): (name, i) for i, block in enumerate(of_kind, start=1)}
    return found


def _download(frame: pd.DataFrame) -> str:
    """A frame as the address of a CSV file that the page itself holds."""
    return "data:text/csv;charset=utf-8;base64," + base64.b64encode(csv_of(frame).encode()).decode()


def _flat(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _flat(value, "" if name == "versions" else f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}".replace("_", " "), str(cell(value) if not isinstance(value, float) else value)


def _stylesheet() -> str:
    css = "\n".join((_TEMPLATES / name).read_text("utf-8") for name in ("page.css", "attention.css"))
    light, dark = palette.css_variables(dark=False), palette.css_variables(dark=True)
    return f":root {{ {light} }}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n{css}"


@cache
def environment() -> Any:
    """The templates, with the filters that they use."""
    import jinja2
    from markupsafe import Markup, escape

    def prose(text: str) -> Markup:
        marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
        marked = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", marked)
        target = r"#[\w-]+|(?:[\w.-]+/)*[\w.-]+\.html(?:#[\w-]+)?"
        return Markup(re.sub(rf"\[([^\]]+)\]\(({target})\)", r'<a href="\2">\1</a>', marked))

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["prose"] = prose
    environment.filters["paragraphs"] = lambda text: [prose(part) for part in re.split(r"\n\s*\n", text.strip())]
    environment.filters["cell"] = cell
    environment.filters["download"] = _download
    environment.globals["identity"] = id
    return environment
