"""A report, how it becomes one HTML file that opens offline, and the list of the reports in a
folder.

Everything the page needs is in it. A content security policy forbids every request and every script
except those of the page, by hash. The same report gives the same bytes.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
import warnings
from collections import Counter, defaultdict
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
from reports.texts import TEXTS


@dataclass(frozen=True)
class _Cards:
    """Pages of a list, by their metadata: ``report`` (a link), ``sentence``, ``picture`` and
    further keys.
    """

    pages: Sequence[Mapping[str, str]]
    kind: ClassVar[str] = "cards"

    @property
    def rows(self) -> list[tuple[Mapping[str, str], str]]:
        """Pairs of a page's metadata and a line of its words, task and run."""
        rows = []
        for page in self.pages:
            known = [page.get(key) for key in ("words", "task", "run")]
            rows.append((page, " · ".join(filter(None, known))))
        return rows


_SMALL = 260  # pixels: how wide the picture of a page is in the list


_BLOCKS = (
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
"""What a section is made of."""


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
        names = ", ".join(kind.__name__ for kind in _BLOCKS)
        for block in self.blocks:
            is_block = isinstance(block, _BLOCKS)
            require(is_block, f"a section is made of blocks ({names}), got {shown(block)}")

    @property
    def slug(self) -> str:
        """The title as it stands in links: small letters, digits and hyphens."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")

    @property
    def takeaway(self) -> str:
        """What stands under the title of a folded section: the first sentence of its first caption, or text."""
        texts = [
            getattr(block, "caption", "") for block in self.blocks if not isinstance(block, Code)
        ]
        for block in self.blocks:
            texts.append(block.text if isinstance(block, Prose) else getattr(block, "why", ""))
        text = next(filter(None, texts), "")
        return re.split(r"(?<=\w\w\.) (?=[A-Z])", text)[0]


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
        """Return the whole page."""
        for slug, n in Counter(section.slug for section in self.sections).items():
            require(n == 1, f"two sections are both called {slug!r}; give each its own title")
        blocks = list(self.hero) + list(self._list_blocks())
        views = [block for block in blocks if isinstance(block, attention.AttentionView)]
        script = (TEMPLATES / "contents.js").read_text("utf-8").strip()
        carried: dict[str, Any] = {"library": "", "notices": []}
        carried |= {"scripts": [script], "policy": policy([script])}
        if views:
            carried = attention.carried(script)
        figures = [block for block in blocks if isinstance(block, Figure)]
        drawn = {}
        for i, figure in enumerate(figures, 1):
            from interp.results.style import inline_svg  # matplotlib is heavy

            drawn[id(figure)] = inline_svg(figure.figure, figure.title, f"f{i}")
        description = dict(self.about)
        if figures and description:
            description["picture"] = _shrink(figures[0].figure)
        template = environment().get_template("page.html.j2")
        text = template.render(
            report=self,
            style=stylesheet(),
            drawn=drawn,
            words=_count_words(blocks),
            ids={id(view): f"attention-{i}" for i, view in enumerate(views, 1)},
            numbers=_number_blocks(blocks),
            tasks=_list_tasks(blocks),
            about=json.dumps(description) if description else "",
            provenance=list(_flatten(self.provenance)),
            **carried,
        )
        return str(text)

    def _list_blocks(self) -> Iterator[Any]:
        """Yield the blocks of all sections, and after measures with words their table."""
        for section in self.sections:
            for block in section.blocks:
                yield block
                if isinstance(block, Measures) and block.judged:
                    yield block.table

    def write(self, path: str | Path) -> Path:
        """Write the page to ``path``, atomically."""
        return files.write_text(path, self.html())


def _count_words(blocks: Sequence[Any]) -> dict[str, list[tuple[str, str]]]:
    """Return the words of each section that measures point to, by its slug: how many, and their look."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for block in blocks:
        if not isinstance(block, Measures):
            continue
        for measure, (slug, _) in zip(block.measures, block.sections, strict=False):
            counts[slug, measure.verdict, colour(measure)] += 1
    words: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for (slug, word, look), n in counts.items():
        words[slug].append((f"{n} {word}" if n > 1 else word, look))
    return words


def _number_blocks(blocks: Sequence[Any]) -> dict[int, tuple[str, int]]:
    """Count the figures and the tables of a page, and return their numbers by the identity of the
    block.
    """
    numbers: dict[int, tuple[str, int]] = {}
    pictures = (Figure, Measures, attention.AttentionView)
    for name, kinds in (("Figure", pictures), ("Table", Table)):
        of_kind = [block for block in blocks if isinstance(block, kinds)]
        numbers |= {id(block): (name, i) for i, block in enumerate(of_kind, 1)}
    return numbers


def _list_tasks(blocks: Sequence[Any]) -> list[str]:
    """List the tasks of the pages in a list of reports."""
    tasks = set()
    for block in blocks:
        if isinstance(block, _Cards):
            tasks |= {page["task"] for page in block.pages if page.get("task")}
    return sorted(tasks)


def _shrink(figure: Any) -> str:
    """Return a small picture of a figure that was drawn for the page, so that names in it are text."""
    buffer = io.BytesIO()
    dpi = _SMALL / figure.get_figwidth()
    with warnings.catch_warnings(action="ignore"):  # of glyphs that a font lacks
        figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    encoded = base64.b64encode(buffer.getvalue())
    return f"{_PNG};base64,{encoded.decode()}"


def _flatten(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the names and values of nested records, a name after that of the record that holds it."""
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, "" if name == "versions" else f"{prefix}{name} ")
        else:
            text = value if isinstance(value, float) else cell(value)
            yield f"{prefix}{name}".replace("_", " "), str(text)


INDEX = "index.html"
COMPARISONS = "comparisons"
"""The folder of comparisons, one each in a folder of its own, beside the reports on models."""
_PAGES, _KINDS = TEXTS["page"]["below"], TEXTS["page"]["kinds"]
_HEAD = 200_000  # characters of a page in which it says what it is
_LEAD = "Every report in this folder. Each page is complete and opens offline."


def write_index(folder: str | Path) -> Path:
    """Write ``folder/index.html`` from the pages that lie there, and from those of other commands below it."""
    pages = list(_find_pages(Path(file_path(folder, "the folder of reports"))))
    titles = Counter(page["title"] for page in pages)
    for page in pages:
        title, where = page["title"], page["where"]
        shown = title if titles[title] == 1 else f"{title} ({where.removesuffix('.html')})"
        page["report"] = link(shown, quote(os.fsencode(where)))
    sections = []
    for kind, title in _KINDS.items():
        of_kind = [page for page in pages if page["kind"] == kind]
        if of_kind:
            sections.append(Section(title, [_Cards(of_kind)], opened=True))
    if not sections:
        sections = [Section("Nothing yet", [Prose("No report was written here.")])]
    return Report("Reports", _LEAD, sections).write(Path(folder) / INDEX)


def write_listed(report: Report, path: Path, listed: Path | None = None) -> Path:
    """Write a page, and again the list of reports that it belongs to.

    Args:
        report: what is written.
        path: of the page.
        listed: the list; when None one in the folder of the page or above it, or next to the folder
            of comparisons or audits.
    """
    above = path.parent.parent
    if above.name in (COMPARISONS, "audits"):
        listed = above.parent / INDEX
    for folder in (path.parent, above):
        if listed is None and (folder / INDEX).is_file():
            listed = folder / INDEX
    if listed is None:
        return report.write(path)
    index = Path(os.path.relpath(listed, path.parent)).as_posix()
    written = replace(report, index=index).write(path)
    write_index(listed.parent)
    return written


def _find_pages(folder: Path) -> Iterator[dict[str, str]]:
    """Yield what every report of a folder says about itself, and where it is; other files are passed over."""
    paths: list[Path] = []
    for pattern in _PAGES:
        paths += folder.glob(pattern)
    for path in sorted(paths):
        if not path.is_file():
            continue  # a folder, a pipe, a link to nothing
        try:
            record = _read_about(path)
        except (OSError, ValueError, RecursionError):
            continue
        if record is not None:
            yield record | {"where": path.relative_to(folder).as_posix()}


def _read_about(path: Path) -> dict[str, str] | None:
    """Read what a page says about itself; None where it is no page of ours."""
    with path.open(encoding="utf-8", errors="replace") as page:
        head = page.read(_HEAD)
    title = re.search(r"<title>(.*?)</title>", head)
    description = re.search(r'<meta name="report" content="(.*?)">', head)
    if title is None or description is None:
        return None
    record = loaded(unescape(description[1]))
    if not isinstance(record, dict):
        return None
    if not all(isinstance(value, str) for value in record.values()):
        return None
    is_drawn = record.get("picture", _PNG).startswith(_PNG)
    if not is_drawn or "report" in record or record.get("kind") not in _KINDS:
        return None
    return record | {"title": unescape(title[1])}


_PNG = "data:image/png"
