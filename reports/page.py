"""A report as one HTML file that opens offline, and the index page that lists a folder's reports.

A page contains everything that it needs. Its content security policy forbids all requests, and
allows only the scripts that the page contains (by hash). The same report always gives the same
bytes.
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
from interp.support.checks import checked_fields, file_path, format_value
from interp.support.errors import require
from interp.support.foreign import parse_json
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
    """A block of an index page: one entry (card) for each report that it lists.

    Attributes:
        pages: metadata of each report: ``report`` (a link), ``sentence``, ``picture`` and more.
    """

    pages: Sequence[Mapping[str, str]]
    kind: ClassVar[str] = "cards"

    @property
    def rows(self) -> list[tuple[Mapping[str, str], str]]:
        """Pairs of a report's metadata and a line of text with its verdicts, task and episodes."""
        rows = []
        for page in self.pages:
            texts = [page.get(key) for key in ("words", "task", "run")]
            rows.append((page, " · ".join(filter(None, texts))))
        return rows


_PICTURE_WIDTH = 260
"""Width of the picture of a page in the list, in pixels."""

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
"""The types of blocks that a section may contain."""


@dataclass(frozen=True)
@checked_fields
class Section:
    """A titled section of a report, with an entry in the table of contents.

    Attributes:
        title: the title.
        blocks: its texts, tables, figures and other blocks, in order.
        opened: True if the section is unfolded from the start, on a page with folded sections.
    """

    title: str
    blocks: Sequence[Any]
    opened: bool = False

    def __post_init__(self) -> None:
        """Refuse blocks of an unknown type."""
        names = ", ".join(kind.__name__ for kind in _BLOCKS)
        for block in self.blocks:
            is_block = isinstance(block, _BLOCKS)
            require(is_block, f"a section is made of blocks ({names}), got {format_value(block)}")

    @property
    def slug(self) -> str:
        """The title in the form that links use: lower-case letters, digits and hyphens."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")

    @property
    def takeaway(self) -> str:
        """Text under the title of a folded section: the first sentence of the section's first
        caption. For a section without captions it is the first sentence of the section's text.
        """
        texts = [
            getattr(block, "caption", "") for block in self.blocks if not isinstance(block, Code)
        ]
        for block in self.blocks:  # `why` is the text of a block in place of a missing result
            texts.append(block.text if isinstance(block, Prose) else getattr(block, "why", ""))
        text = next(filter(None, texts), "")  # the first that is not empty
        # A sentence ends with a full stop after a word of two letters or more, so that the initial
        # in "J. Doe" ends none.
        sentences = re.split(r"(?<=\w\w\.) (?=[A-Z])", text)
        return sentences[0]


@dataclass(frozen=True)
@checked_fields
class Report:
    """A page of results.

    Attributes:
        title: the title.
        lead: an introduction, after the sentence and the figures.
        sections: the sections.
        provenance: seeds, versions, digests and settings, listed at the end.
        index: path of the index page, relative to this page; "" for none.
        about: what the index page shows of this page, as texts with the keys kind, task, run (what
            was computed), words (counts of verdicts) and sentence. Empty if it is not listed.
        sentence: the main result, under the title.
        hero: figures that show the main result, side by side under the sentence.
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
        """Return the whole page as HTML."""
        for slug, n in Counter(section.slug for section in self.sections).items():
            require(n == 1, f"two sections are both called {slug!r}; give each its own title")
        blocks = [*self.hero, *self._list_blocks()]
        views = [block for block in blocks if isinstance(block, attention.AttentionView)]
        script = (TEMPLATES / "contents.js").read_text("utf-8").strip()
        if views:
            script_variables = attention.get_template_variables(script)
        else:
            script_variables = {"library": "", "notices": []}
            script_variables |= {"scripts": [script], "policy": policy([script])}
        figures = [block for block in blocks if isinstance(block, Figure)]
        pictures = {}  # blocks are found by id: most cannot be hashed
        for i, figure in enumerate(figures, 1):
            from interp.results.style import inline_svg  # matplotlib is heavy

            pictures[id(figure)] = inline_svg(figure.figure, figure.title, f"f{i}")
        description = dict(self.about)
        if figures and description:
            description["picture"] = _shrink(figures[0].figure)
        template = environment().get_template("page.html.j2")
        text = template.render(
            report=self,
            style=stylesheet(),
            drawn=pictures,
            words=_count_verdicts(blocks),
            ids={id(view): f"attention-{i}" for i, view in enumerate(views, 1)},
            numbers=_number_blocks(blocks),
            tasks=_list_tasks(blocks),
            about=json.dumps(description) if description else "",
            provenance=list(_flatten(self.provenance)),
            **script_variables,
        )
        return str(text)

    def _list_blocks(self) -> Iterator[Any]:
        """Yield the blocks of all sections. Measures with verdicts are followed by a table of their
        numbers.
        """
        for section in self.sections:
            for block in section.blocks:
                yield block
                if isinstance(block, Measures) and block.has_verdicts:
                    yield block.table

    def write(self, path: str | Path) -> Path:
        """Write the page to ``path`` atomically, and return the path."""
        return files.write_text(path, self.html())


def _count_verdicts(blocks: Sequence[Any]) -> dict[str, list[tuple[str, str]]]:
    """Count the verdicts of the measures that each section explains.

    Args:
        blocks: blocks of the page. Measures in an overview name the section that explains them.

    Returns:
        By section (its slug), pairs of a text such as "2 yes" and the style in which it is shown.
    """
    counts: Counter[tuple[str, str, str]] = Counter()
    for block in blocks:
        if not isinstance(block, Measures):
            continue
        # Only measures in an overview name sections. For others, `sections` is empty, and zip yields
        # no pair.
        for measure, (slug, _) in zip(block.measures, block.sections, strict=False):
            counts[slug, measure.verdict, colour(measure)] += 1
    words: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for (slug, word, look), n in counts.items():
        words[slug].append((f"{n} {word}" if n > 1 else word, look))
    return words


def _number_blocks(blocks: Sequence[Any]) -> dict[int, tuple[str, int]]:
    """Number the figures and the tables of a page.

    Returns:
        ("Figure" or "Table", number) by the ``id()`` of the block.
    """
    numbers: dict[int, tuple[str, int]] = {}
    pictures = (Figure, Measures, attention.AttentionView)
    for name, kinds in (("Figure", pictures), ("Table", Table)):
        of_kind = [block for block in blocks if isinstance(block, kinds)]
        numbers |= {id(block): (name, i) for i, block in enumerate(of_kind, 1)}
    return numbers


def _list_tasks(blocks: Sequence[Any]) -> list[str]:
    """Return the sorted names of the tasks of all reports that an index page lists."""
    tasks = set()
    for block in blocks:
        if isinstance(block, _Cards):
            tasks |= {page["task"] for page in block.pages if page.get("task")}
    return sorted(tasks)


def _shrink(figure: Any) -> str:
    """Return a small PNG picture of a figure, as a data URL."""
    buffer = io.BytesIO()
    dpi = _PICTURE_WIDTH / figure.get_figwidth()  # pixels by inches
    with warnings.catch_warnings(action="ignore"):  # of glyphs that a font lacks
        figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    encoded = base64.b64encode(buffer.getvalue())
    return f"{_PNG};base64,{encoded.decode()}"


def _flatten(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the (name, value) pairs of nested mappings as text; a name in an inner mapping is
    prefixed with the outer name.

    Args:
        record: the mapping.
        prefix: what is put before each name.
    """
    for name, value in record.items():
        if isinstance(value, Mapping):
            # A library's version is listed under the library's name alone.
            yield from _flatten(value, prefix="" if name == "versions" else f"{prefix}{name} ")
        else:
            # Floats unrounded: they reproduce the page.
            text = value if isinstance(value, float) else cell(value)
            yield f"{prefix}{name}".replace("_", " "), str(text)


INDEX = "index.html"
COMPARISONS = "comparisons"
"""Name of the folder beside the reports that has one folder for each comparison."""
_PAGE_PATTERNS, _KIND_TITLES = TEXTS["page"]["below"], TEXTS["page"]["kinds"]
_HEAD_LENGTH = 200_000
"""Number of characters of a page that are searched for its metadata."""
_LEAD = "Every report in this folder. Each page is complete and opens offline."


def write_index(folder: str | Path) -> Path:
    """Write ``folder/index.html``, which lists the reports in the folder, and return its path.

    It also lists the reports that commands write into subfolders, such as ``comparisons/NAME`` and
    ``audits/NAME``.
    """
    pages = list(_find_pages(Path(file_path(folder, "the folder of reports"))))
    titles = Counter(page["title"] for page in pages)
    for page in pages:
        title, where = page["title"], page["where"]
        # Pages with the same title are distinguished by their paths.
        shown = title if titles[title] == 1 else f"{title} ({where.removesuffix('.html')})"
        page["report"] = link(shown, quote(os.fsencode(where)))
    sections = []
    for kind, title in _KIND_TITLES.items():
        of_kind = [page for page in pages if page["kind"] == kind]
        if of_kind:
            sections.append(Section(title, [_Cards(of_kind)], opened=True))
    if not sections:
        sections = [Section("Nothing yet", [Prose("No report was written here.")])]
    return Report("Reports", _LEAD, sections).write(Path(folder) / INDEX)


def write_with_index(report: Report, path: Path, listed: Path | None = None) -> Path:
    """Write a page, and update the index page that lists it.

    Args:
        report: the report.
        path: path of the page.
        listed: path of the index page. When None, an index page is updated only if one exists in
            the page's folder or the folder above. A page in ``comparisons/NAME`` or ``audits/NAME``
            is always listed in the index page next to ``comparisons`` or ``audits``.

    Returns:
        The path of the page.
    """
    folder_of_page = path.parent
    above = folder_of_page.parent
    if above.name in (COMPARISONS, "audits"):
        listed = above.parent / INDEX
    for folder in (folder_of_page, above):
        if listed is None and (folder / INDEX).is_file():
            listed = folder / INDEX
    if listed is None:
        return report.write(path)
    index = Path(os.path.relpath(listed, folder_of_page)).as_posix()
    written = replace(report, index=index).write(path)
    write_index(listed.parent)
    return written


def _find_pages(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the metadata of every report in a folder, or in one of the subfolders into which
    commands write, with the report's path below the folder under the key "where". Skip other files.
    """
    paths: list[Path] = []
    for pattern in _PAGE_PATTERNS:
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
    """Return the metadata that a page contains; None if the file is not a report of this package."""
    with path.open(encoding="utf-8", errors="replace") as page:
        head = page.read(_HEAD_LENGTH)
    title = re.search(r"<title>(.*?)</title>", head)
    description = re.search(r'<meta name="report" content="(.*?)">', head)
    if title is None or description is None:
        return None
    record = parse_json(unescape(description[1]))
    if not isinstance(record, dict):
        return None
    if not all(isinstance(value, str) for value in record.values()):
        return None
    # A page may be from elsewhere: a picture must be a PNG, and "report", which is shown as a link,
    # is set by write_index only.
    has_other_picture = not record.get("picture", _PNG).startswith(_PNG)
    if has_other_picture or "report" in record or record.get("kind") not in _KIND_TITLES:
        return None
    return record | {"title": unescape(title[1])}


_PNG = "data:image/png"
