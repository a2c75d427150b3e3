"""The tutorials as notebooks: ``python -m docs.notebooks`` runs ``tutorials/*.md`` and writes ``notebooks/*.ipynb``.

A block of Python becomes a cell of code, what stands between two becomes a cell of Markdown. Notebooks hold what their
cells print and draw, so that a code host shows it; what is larger than :data:`LARGEST` is left out. A tutorial is run
anew where it or the packages have changed. ``tests/test_notebooks.py`` holds the notebooks to their tutorials.
"""

from __future__ import annotations

import atexit
import base64
import hashlib
import io
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from docs.generated import ROOMS
from interp.support.files import write_text

HERE = Path(__file__).parent
NOTEBOOKS = HERE / "notebooks"
CACHE = HERE.parent / "output" / "docs-notebooks"
LARGEST = 60_000
"""Bytes of one output of a stored notebook; the live view of attention needs more."""
_CODE = re.compile(r"^```(?:\{code-cell\} )?python\n(.*?)^```\n?", re.DOTALL | re.MULTILINE)
_KERNELS: list[
    Any
] = []  # one for all tutorials: each would import the packages anew, for three seconds
_EMPTY = "```python\n%reset -f\n%cd -q {__import__('tempfile').mkdtemp()}\nget_ipython().execution_count = 1\n```\n"
_FRONT = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)


def pairs() -> list[tuple[Path, Path]]:
    """Every tutorial, and where its notebook lies."""
    return [
        (page, NOTEBOOKS / f"{page.stem}.ipynb")
        for page in sorted((HERE / "tutorials").glob("*.md"))
    ]


def notebook(page: str) -> dict[str, Any]:
    """A tutorial's text as a notebook (nbformat 4.5) that was not run; links to tutorials lead to notebooks.

    >>> [cell["cell_type"] for cell in notebook("# A\\n\\n```python\\n1 + 1\\n```\\n\\n[Two](b.md).\\n")["cells"]]
    ['markdown', 'code', 'markdown']
    """
    cells: list[dict[str, Any]] = []
    for i, part in enumerate(_CODE.split(_FRONT.sub("", page))):
        text = (
            part.strip("\n")
            if i % 2
            else re.sub(r"(\]\([\w-]+)\.md\)", r"\1.ipynb)", part.strip("\n"))
        )
        code = (
            {"cell_type": "code", "execution_count": None, "outputs": []}
            if i % 2
            else {"cell_type": "markdown"}
        )
        cells += (
            [{"id": f"cell-{len(cells)}", "metadata": {}, "source": text, **code}] if text else []
        )
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}


def executed(page: Path) -> dict[str, Any]:
    """The notebook of a tutorial with its outputs, run without the names of others unless it was run before."""
    digest = hashlib.sha256(page.read_bytes())
    for source in (path for room in ROOMS for path in sorted((HERE.parent / room).rglob("*.*"))):
        digest.update(source.read_bytes() if source.suffix in (".py", ".toml", ".csv") else b"")
    kept = CACHE / f"{page.stem}-{digest.hexdigest()[:16]}.ipynb"
    if not kept.is_file():
        import nbformat
        from jupyter_client.manager import AsyncKernelManager
        from jupyter_core.utils import run_sync
        from nbclient import NotebookClient
        from nbclient.exceptions import CellExecutionError

        began, own = (
            time.perf_counter(),
            {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": str(HERE.parent)},
        )
        own["PYTHONWARNINGS"] = (
            "ignore:IProgress not found"  # what tqdm says in every kernel without ipywidgets
        )
        if not _KERNELS:
            _KERNELS.append(AsyncKernelManager())
            atexit.register(run_sync(_KERNELS[0].shutdown_kernel), now=True)
        quiet = {"record_timing": False, "extra_arguments": ["--log-level=ERROR"]}
        for part in (_EMPTY, page.read_text(encoding="utf-8")):
            of_part = NotebookClient(
                nbformat.from_dict(notebook(part)), km=_KERNELS[0], timeout=300, **quiet
            )
            try:
                made = of_part.execute(env=own)
            except CellExecutionError as error:
                n = sum(cell.get("execution_count") is not None for cell in of_part.nb["cells"])
                raise SystemExit(
                    f"{page}: its cell of code {n} raised {error.ename}: {error.evalue}"
                ) from None
        for cell in [cell for cell in made["cells"] if cell["cell_type"] == "code"]:
            cell["outputs"] = [one for one in cell["outputs"] if one.get("name") != "stderr"]
        write_text(kept, json.dumps(made))
        print(f"{page.stem} ran for {time.perf_counter() - began:.0f} s", file=sys.stderr)
    return json.loads(kept.read_text(encoding="utf-8"))


def stored(made: dict[str, Any]) -> str:
    """A notebook as it is kept: pictures in 64 colours, and of an output of several kinds those that are small."""
    from PIL import Image

    for cell in made["cells"]:
        cell["source"] = cell["source"].splitlines(keepends=True)
        for kinds in (output["data"] for output in cell.get("outputs", []) if "data" in output):
            if "image/png" in kinds:
                buffer, picture = (
                    io.BytesIO(),
                    Image.open(io.BytesIO(base64.b64decode(kinds["image/png"]))),
                )
                picture.convert("RGB").quantize(64).save(buffer, "png", optimize=True)
                kinds["image/png"] = base64.b64encode(buffer.getvalue()).decode()
            for kind in [kind for kind, held in kinds.items() if len(json.dumps(held)) > LARGEST]:
                del kinds[kind]
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for page, path in pairs():
        print(write_text(path, stored(executed(page))))
