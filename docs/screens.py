"""The first screens of pages as pictures: ``python -m docs.screens OUT PAGE...`` at 1440 and 390 px, in both themes.

A page is an HTML file, a folder of them, or Markdown, such as the README. All that the toolkit shows first::

    interp report wma-learned-additive --quick; interp compare wma-learned-additive --quick --report
    interp benchmark --quick; make docs
    python -m docs.screens output/screens output output/comparisons/*/comparison.html output/docs/index.html README.md

In a checkout of an older commit the same command shows how they were. Chromium must be on the machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path

from interp.support.files import write_text
from tests.reports.browser import chromium, executable

SIZES = {1440: 900, 390: 844}
"""Width of a window -> its height, in pixels: a desk and a phone."""
_MARKDOWN = """<!doctype html><html lang="en"><meta name="color-scheme" content="light dark"><title>{name}</title>
<base href="{base}/"><style>body {{ font: 16px/1.5 sans-serif; max-width: 900px; margin: auto; padding: 1rem; }}
img {{ max-width: 100%; }} pre {{ overflow-x: auto; }}</style>{body}</html>"""


def pages(given: Iterable[Path]) -> Iterator[Path]:
    """The files that are meant: a folder stands for its pages."""
    for path in given:
        yield from sorted(path.glob("*.html")) if path.is_dir() else [path]


def shoot(given: Iterable[Path], out: Path) -> Iterator[Path]:
    """Take the first screen of every page, and give the path of each picture."""
    out.mkdir(parents=True, exist_ok=True)
    with chromium(executable() or "chromium") as browser:
        for page in pages(given):
            opened = _rendered(page, out) if page.suffix == ".md" else page
            name = (
                page.stem
                if page.stem not in ("index", "comparison")
                else f"{page.parent.name}-{page.stem}"
            )
            for width, height in SIZES.items():
                for theme in ("light", "dark"):
                    browser.open(opened, width=width, height=height, dark=theme == "dark")
                    picture = out / f"{name}-{width}-{theme}.png"
                    browser.page.screenshot(path=picture)
                    yield picture


def _rendered(page: Path, out: Path) -> Path:
    """Markdown as a page of its own, whose pictures lie where they lay."""
    from markdown_it import MarkdownIt

    body = MarkdownIt("commonmark").enable("table").render(page.read_text(encoding="utf-8"))
    text = _MARKDOWN.format(name=page.stem, base=page.resolve().parent.as_uri(), body=body)
    return write_text(out / f"{page.stem}.html", text)


def main() -> None:
    """Take the pictures of the pages that are given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder for the pictures")
    parser.add_argument("pages", type=Path, nargs="+", help="pages, or folders of pages")
    asked = parser.parse_args()
    for picture in shoot(asked.pages, asked.out):
        print(picture)


if __name__ == "__main__":
    main()
