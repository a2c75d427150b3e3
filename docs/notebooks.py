"""The tutorials as notebooks: ``python -m docs.notebooks`` writes ``notebooks/*.ipynb`` from ``tutorials/*.md``.

A block of Python becomes a cell of code, what stands between two becomes a cell of Markdown. Notebooks hold no outputs,
which would age; ``tests/test_notebooks.py`` holds them to their tutorials, whose Python the tests run.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from interp.files import write_text

HERE = Path(__file__).parent
NOTEBOOKS = HERE / "notebooks"
_CODE = re.compile(r"^```(?:\{code-cell\} )?python\n(.*?)^```\n?", re.DOTALL | re.MULTILINE)
_FRONT = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)


def notebook(page: str) -> dict[str, Any]:
    """A tutorial's text as a notebook (nbformat 4.5).

    >>> [cell["cell_type"] for cell in notebook("# A\\n\\n```python\\n1 + 1\\n```\\n\\nTwo.\\n")["cells"]]
    ['markdown', 'code', 'markdown']
    """
    parts = _CODE.split(_FRONT.sub("", page))
    cells: list[dict[str, Any]] = []
    for i, part in enumerate(parts):
        if text := part.strip("\n"):
            cell: dict[str, Any] = {
                "id": f"cell-{len(cells)}",
                "metadata": {},
                "source": text.splitlines(keepends=True),
            }
            code = {"cell_type": "code", "execution_count": None, "outputs": []}
            cells.append({**cell, **(code if i % 2 else {"cell_type": "markdown"})})
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}


def texts() -> dict[Path, str]:
    """Where every notebook lies, and what stands in it."""
    return {
        NOTEBOOKS / f"{page.stem}.ipynb": json.dumps(notebook(page.read_text(encoding="utf-8")), indent=1) + "\n"
        for page in sorted((HERE / "tutorials").glob("*.md"))
    }


if __name__ == "__main__":
    for path, text in texts().items():
        print(write_text(path, text))
