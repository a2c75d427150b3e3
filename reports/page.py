"""A report, how it becomes one HTML file that opens offline, and the list of the reports in a folder.

Everything the page needs is in it. A content security policy forbids every request and every script but the page's own,
by hash. The same report gives the same bytes.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import unescape
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

from interp.support import files
from interp.support.checks import checked_fields, file_path, shown
from interp.support.errors import require
from interp.support.foreign import loaded
from reports import attention
from reports.blocks import (
    TEMPLATES,
    TEXTS,
    Code,
    Figure,
    Measures,
    NotComputed,
    Prose,
    Summary,
    Table,
    cell,
    colour,
    environment,
    link,
    policy,
    stylesheet,
)


@dataclass(frozen=True)
class _Cards:
    """Pages of a list by what each says of itself: ``report`` (a link), ``sentence``, ``picture`` and others."""

    pages: Sequence[Mapping[str, str]]
    kind: ClassVar[str] = "cards"

    @property
    def rows(self) -> list[tuple[Mapping[str, str], str]]:
        """(what a page says, what else is known of it)."""
        return [
            (page, " · ".join(filter(None, map(page.get, ("words", "task", "run")))))
            for page in self.pages
        ]


_SMALL = 260  # pixels: how wide the picture of a page is in the list


@dataclass(frozen=True)
@checked_fields
class Section:
    """A titled part of a report; its title makes the entry in the table of contents.

    ``opened`` says whether a page that folds its sections shows this one.
    """

    title: str
    blocks: Sequence[Any]
    opened: bool = False

    def __post_init__(self) -> None:
        kinds = (
            Prose,
            Summary,
            Code,
            Figure,
            Table,
            NotComputed,
            Measures,
            _Cards,
            attention.AttentionView,
        )
        for block in self.blocks:
            require(
                isinstance(block, kinds) and any(block.kind is kind.kind for kind in kinds),
                f"a section is made of blocks ({', '.join(kind.__name__ for kind in kinds)}), got {shown(block)}",
            )

    @property
    def slug(self) -> str:
        """The title as it stands in links: small letters, digits and hyphens."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")

    @property
    def takeaway(self) -> str:
        """What stands under the title of a folded section: the first sentence of its first caption, or text."""
        said = [
            getattr(block, "caption", "") for block in self.blocks if not isinstance(block, Code)
        ]
        said += [
            block.text if isinstance(block, Prose) else getattr(block, "why", "")
            for block in self.blocks
        ]
        return re.split(r"(?<=\w\w\.) (?=[A-Z])", next(filter(None, said), ""))[0]


@dataclass(frozen=True)
@checked_fields
class Report:
    """A page: a title, a sentence that says what it shows, sections, and where the numbers come from.

    ``sentence`` is the message of the page, which its measures support; it stands under the title, and under it the
    figures ``hero``, side by side, that show it. The lead comes after them.
    ``index`` is the list of reports, relative to the page; ``about`` is what the list says of it (:func:`write_index`).
    """

    title: str
    lead: str
    sections: Sequence[Section]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    index: str = ""
    about: Mapping[str, str] = field(default_factory=dict)
    sentence: str = ""
    hero: Sequence[Figure] = ()

    def html(self) -> str:
        """The whole page."""
        slugs = [section.slug for section in self.sections]
        twice = next((slug for slug in slugs if slugs.count(slug) > 1), None)
        require(twice is None, f"two sections are both called {twice!r}; give each its own title")
        blocks = list[Any](self.hero)
        for block in (block for section in self.sections for block in section.blocks):
            blocks += (
                [block, block.table] if isinstance(block, Measures) and block.judged else [block]
            )
        views = [block for block in blocks if isinstance(block, attention.AttentionView)]
        own = (TEMPLATES / "contents.js").read_text("utf-8").strip()
        shown: dict[str, Any] = {"style": stylesheet(), "scripts": [own], "policy": policy([own])}
        shown |= {"library": "", "notices": [], "drawn": {}, "words": {}, "numbers": {}}
        shown |= attention.carried(own) if views else {}
        told = [
            zip(one.measures, one.sections, strict=False)
            for one in blocks
            if isinstance(one, Measures)
        ]
        seen = Counter(
            (slug, one.verdict, colour(one)) for pairs in told for one, (slug, _) in pairs if slug
        )
        for (of, word, hue), n in seen.items():  # the words of each section, alike ones counted
            shown["words"].setdefault(of, []).append((f"{n} {word}" if n > 1 else word, hue))
        if figures := [block for block in blocks if isinstance(block, Figure)]:
            from interp.results.style import inline_svg  # matplotlib is heavy

            shown["drawn"] = {
                id(of): inline_svg(of.figure, of.title, f"f{i}") for i, of in enumerate(figures, 1)
            }
        shown |= {"ids": {id(view): f"attention-{i}" for i, view in enumerate(views, start=1)}}
        for name, kinds in (
            ("Figure", (Figure, Measures, attention.AttentionView)),
            ("Table", (Table,)),
        ):
            of_kind = [block for block in blocks if isinstance(block, kinds)]
            shown["numbers"] |= {id(block): (name, i) for i, block in enumerate(of_kind, start=1)}
        shown["tasks"] = sorted(
            filter(None, {p.get("task") for b in blocks if isinstance(b, _Cards) for p in b.pages})
        )
        about = dict(self.about)
        if (
            figures and about
        ):  # the first was drawn for the page, so that the names in its small picture are text
            buffer, of = io.BytesIO(), figures[0].figure
            with warnings.catch_warnings(action="ignore"):  # of glyphs that a font lacks
                of.savefig(
                    buffer,
                    format="png",
                    dpi=_SMALL / of.get_figwidth(),
                    metadata={"Software": None},
                )
            about["picture"] = (
                "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
            )
        shown |= {
            "about": json.dumps(about) if about else "",
            "provenance": list(_flat(self.provenance)),
        }
        return str(environment().get_template("page.html.j2").render(report=self, **shown))

    def write(self, path: str | Path) -> Path:
        """Write the page to ``path``, atomically."""
        return files.write_text(path, self.html())


def _flat(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _flat(value, "" if name == "versions" else f"{prefix}{name} ")
        else:
            yield (
                f"{prefix}{name}".replace("_", " "),
                str(cell(value) if not isinstance(value, float) else value),
            )


INDEX = "index.html"
COMPARISONS = "comparisons"
"""The folder of comparisons, one each in a folder of its own, beside the reports on models."""
_PAGES, _KINDS = TEXTS["page"]["below"], TEXTS["page"]["kinds"]
_HEAD = 200_000  # characters of a page in which it says what it is
_LEAD = "Every report in this folder. Each page stands by itself and opens offline."


def write_index(folder: str | Path) -> Path:
    """Write ``folder/index.html`` from the pages that lie there, and from those of other commands below it."""
    pages = list(_pages(Path(file_path(folder, "the folder of reports"))))
    titles = [about["title"] for about in pages]
    for about in pages:  # two entries of one title are told apart by where they lie
        where = (
            f" ({about['where'].removesuffix('.html')})" if titles.count(about["title"]) > 1 else ""
        )
        about["report"] = link(about["title"] + where, quote(os.fsencode(about["where"])))
    groups = {
        title: [about for about in pages if about["kind"] == kind] for kind, title in _KINDS.items()
    }
    sections = [
        Section(title, [_Cards(rows)], opened=True) for title, rows in groups.items() if rows
    ]
    nothing = Section("Nothing yet", [Prose("No report was written here.")])
    return Report("Reports", _LEAD, sections or [nothing]).write(Path(folder) / INDEX)


def write_listed(report: Report, path: Path, listed: Path | None = None) -> Path:
    """Write a page, and again the list of reports that it belongs to: ``listed``, or one beside or above it, if any."""
    above = path.parent.parent
    if above.name in (
        COMPARISONS,
        "audits",
    ):  # the list is beside the folder of comparisons or audits
        listed = above.parent / INDEX
    listed = listed or next(
        (up / INDEX for up in (path.parent, above) if (up / INDEX).is_file()), None
    )
    if listed is None:
        return report.write(path)
    written = replace(report, index=Path(os.path.relpath(listed, path.parent)).as_posix()).write(
        path
    )
    write_index(listed.parent)
    return written


def _pages(folder: Path) -> Iterator[dict[str, str]]:
    """What every report of a folder says about itself, with where it is; what is no page of ours is passed over."""
    for path in sorted(path for pattern in _PAGES for path in folder.glob(pattern)):
        if not path.is_file():
            continue  # a folder, a pipe, a link to nothing
        try:
            with path.open(encoding="utf-8", errors="replace") as page:
                head = page.read(_HEAD)
            title = re.search(r"<title>(.*?)</title>", head)
            about = re.search(r'<meta name="report" content="(.*?)">', head)
            said: Any = loaded(unescape(about[1])) if about else None
        except (OSError, ValueError, RecursionError):
            continue
        texts = isinstance(said, dict) and all(isinstance(value, str) for value in said.values())
        drawn = texts and said.get("picture", "data:image/png").startswith("data:image/png")
        if title and drawn and said.get("kind") in _KINDS and "report" not in said:
            yield {
                **said,
                "title": unescape(title[1]),
                "where": path.relative_to(folder).as_posix(),
            }
