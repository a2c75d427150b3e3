"""The notebooks are the tutorials: the same code, no outputs, none missing or out of date; pictures are drawn."""

import json
from pathlib import Path

import pandas as pd
import pytest

from docs import notebooks, pictures
from tests.test_tutorials import RUN


def test_every_notebook_is_what_its_tutorial_says() -> None:
    """`python -m docs.notebooks` writes them again after a tutorial changed."""
    texts = notebooks.texts()
    assert {path.name for path in notebooks.NOTEBOOKS.glob("*.ipynb")} == {path.name for path in texts}
    for path, text in texts.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is old: run python -m docs.notebooks"
        cells = json.loads(text)["cells"]
        page = (notebooks.HERE / "tutorials" / f"{path.stem}.md").read_text(encoding="utf-8")
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        assert code == [block.strip("\n") for block in RUN.findall(page)]
        assert all(cell["outputs"] == [] for cell in cells if cell["cell_type"] == "code")
        assert not any("```python" in "".join(cell["source"]) for cell in cells)


def test_the_pictures_are_drawn_from_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every verdict of every model stands in the picture."""
    monkeypatch.setattr(pictures, "PICTURES", tmp_path)
    drawn = {path.name: path.read_text(encoding="utf-8") for path in pictures.draw()}
    frame = pd.read_csv(pictures.TABLE)
    assert len(frame) == 4 * frame["model"].nunique() and all(
        model in drawn["verdicts.svg"] for model in frame["model"]
    )
    assert all(drawn["verdicts.svg"].count(f"<!-- {word} -->") == n for word, n in frame["word"].value_counts().items())
    seeds = pictures.between_seeds()
    counts = seeds.groupby("key")["word"].value_counts().to_dict()
    assert counts == {
        ("behaviour", "yes"): 10,
        ("state", "yes"): 9,
        ("state", "undecided"): 1,
        ("circuit", "no"): 5,
        ("circuit", "undecided"): 5,
    }  # as docs/results/seeds.md says
    assert (seeds["low"] <= seeds["number"]).all() and (seeds["number"] <= seeds["high"]).all()
    readme = (notebooks.HERE.parent / "README.md").read_text(encoding="utf-8")
    pages = [(notebooks.HERE / "results" / f"{name}.md").read_text("utf-8") for name in ("seeds", "learned-models")]
    said = readme + "".join(pages).replace("(../pictures", "(docs/pictures")
    assert all(f"docs/pictures/{name}" in said for name in drawn) and len(readme.splitlines()) <= 80
