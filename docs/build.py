"""``make docs``: generate the pages that the code dictates, build all, check that they open offline.

The sources in this folder are copied to a scratch folder, the tutorials as notebooks with the outputs that the
repository holds: ``python -m docs.notebooks`` runs them anew. The reference (a page a module), the registries and the
commands' help are added; Sphinx then builds with warnings as errors.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from docs import generated, notebooks
from interp.support.files import write_text

HERE = Path(__file__).parent
OUT = HERE.parent / "output" / "docs"
LOADS = re.compile(
    r"""<(?:script|img|iframe|source|link)\b[^>]*?\b(?:src|href)=["']([^"']*)["']""", re.IGNORECASE
)
LINKS = re.compile(r"""<a\b[^>]*?\bhref=["']([^"']*)["']""", re.IGNORECASE)


def build(out: Path = OUT) -> Path:
    """Build every page into ``out``; gives the first one.

    Raises:
        SystemExit: Sphinx warned or failed, a link leads nowhere, or a page loads something from outside.
    """
    source = out.with_name(f"{out.name}-source")
    shutil.rmtree(source, ignore_errors=True)
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(
        HERE, source, ignore=shutil.ignore_patterns("__pycache__", "[!c]*.py", "notebooks")
    )  # not conf.py
    shutil.copy(HERE.parent / "examples" / "own_task.py", source / "tutorials")
    for page, kept in notebooks.pairs():
        shutil.copy(kept, source / "tutorials")
        (source / "tutorials" / page.name).unlink()
    for page in source.rglob("*.md"):
        said = re.sub(r"(tutorials/[\w-]+)\.md", r"\1.ipynb", page.read_text(encoding="utf-8"))
        page.write_text(said, encoding="utf-8")
    for table in source.rglob("*.csv"):
        head, _, rows = table.read_text(encoding="utf-8").partition("\n")
        table.write_text(f"{head.replace('_', ' ')}\n{rows}", encoding="utf-8")
    print("building the pages takes a minute", file=sys.stderr)
    for path, text in generated.pages().items():
        write_text(source / path, text)
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": str(HERE.parent)}
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        str(source),
        str(out),
    ]
    done = subprocess.run(command, env=environment, check=False, text=True, stderr=subprocess.PIPE)
    if done.returncode:
        raise SystemExit(f"Sphinx warned, or failed:\n{done.stderr}")
    if wrong := list(problems(out)):
        raise SystemExit("\n".join(wrong))
    return out / "index.html"


def problems(out: Path) -> Iterator[str]:
    """A sentence for each link that leads nowhere, and for each thing that a page loads from outside."""
    for page in sorted(out.rglob("*.html")):
        text = page.read_text(encoding="utf-8")
        for address in LOADS.findall(text):
            if re.match(r"(https?:)?//", address) and 'rel="canonical"' not in text:
                yield f"{page}: loads {address} from outside"
        for address in LINKS.findall(text) + LOADS.findall(text):
            path = unquote(address.split("#")[0].split("?")[0])
            if path and not re.match(r"[a-z]+:|//", path) and not (page.parent / path).exists():
                yield f"{page}: {address} leads nowhere"


def main() -> None:
    """Build, and say where."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT, help="folder for the pages")
    given = parser.parse_args()
    print(build(given.out.resolve()))


if __name__ == "__main__":
    main()
