"""The list of the reports in a folder: what each is on, how its claims came out, and where it is.

A page says about itself what the list needs (``Report.about``), so that the list is always what the folder holds. It is
written again, atomically, whenever a report or a comparison is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from html import unescape
from pathlib import Path

import pandas as pd

from interp.checks import checked
from reports.blocks import Prose, Table
from reports.page import Report, Section

INDEX = "index.html"
COMPARISONS = "comparisons"
"""The folder of comparisons, one each in a folder of its own, beside the reports on models."""
_HEAD = 20_000
"""Characters of a page in which it says what it is."""
_KINDS = {
    "handwired": "Wired by hand",
    "learned": "Learned",
    "comparison": "Compared",
}
"""Titles of the list's sections, by what a page says that it is."""
_LEAD = "Every report in this folder. Each page stands by itself and opens offline."


@checked
def write_index(folder: str | Path) -> Path:
    """Write ``folder/index.html`` from the pages that lie there, and from those of comparisons below it.

    Raises:
        InputError: the folder cannot be written.
    """
    pages = list(_pages(Path(folder)))
    sections = []
    for kind, title in _KINDS.items():
        rows = [about for about in pages if about["kind"] == kind]
        if rows:
            frame = pd.DataFrame(rows).drop(columns="kind").fillna("")
            caption = f"{len(rows)} in this folder, with how their claims came out"
            sections.append(Section(title, [Table(frame.loc[:, (frame != "").any()], caption)]))
    return Report("Reports", _LEAD, sections or [Section("Nothing yet", [Prose("No report was written here.")])]).write(
        Path(folder) / INDEX
    )


def index_of(page: Path) -> Path | None:
    """The list that a comparison's page belongs to, beside the folder ``comparisons``; None where it lies elsewhere."""
    above = page.parent.parent
    return above.parent / INDEX if above.name == COMPARISONS else None


def _pages(folder: Path) -> Iterator[Mapping[str, str]]:
    """What every page of a folder says about itself, with a link."""
    for path in sorted([*folder.glob("*.html"), *folder.glob(f"{COMPARISONS}/*/comparison.html")]):
        with path.open(encoding="utf-8", errors="replace") as page:
            head = page.read(_HEAD)
        title, about = (
            re.search(r"<title>(.*?)</title>", head),
            re.search(r'<meta name="report" content="(.*?)">', head),
        )
        if title and about:
            link = f"[{unescape(title[1])}]({path.relative_to(folder).as_posix()})"
            yield {"report": link, **json.loads(unescape(about[1]))}
