"""The notebooks are the tutorials: the same cells, with what they print and draw, small; pictures are drawn."""

import json
from pathlib import Path

import pandas as pd
import pytest

from docs import notebooks, pictures
from tests.test_tutorials import RUN


def test_every_notebook_is_what_its_tutorial_says() -> None:
    """`python -m docs.notebooks` runs and writes them again after a tutorial changed."""
    assert sorted(notebooks.NOTEBOOKS.glob("*.ipynb")) == [path for _, path in notebooks.pairs()]
    for page, path in notebooks.pairs():
        text, page_text = path.read_text(encoding="utf-8"), page.read_text(encoding="utf-8")
        cells_held = json.loads(text)["cells"]
        cells = notebooks.notebook(page_text)["cells"]
        assert ["".join(cell["source"]) for cell in cells_held] == [
            cell["source"] for cell in cells
        ], f"{path.name} is old"
        code = [
            cell for cell in cells_held if "outputs" in cell
        ]  # which no other kind of cell may have
        assert ["".join(cell["source"]) for cell in code] == [
            block.strip("\n") for block in RUN.findall(page_text)
        ]
        assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)], (
            "not every cell was run"
        )
        outputs = [output for cell in code for output in cell["outputs"]]
        assert len(text) <= 300_000
        assert all(len(json.dumps(output)) <= 2 * notebooks.LARGEST for output in outputs)
        assert not any(
            "error" in output["output_type"] or output.get("name") == "stderr" for output in outputs
        )
        assert path.stem == "own-task" or any(
            "image/png" in output_text.get("data", {}) for output_text in outputs
        )


def test_the_pictures_are_drawn_from_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every verdict of every model stands in the picture."""
    monkeypatch.setattr(pictures, "PICTURES", tmp_path)
    drawn = {path.name: path.read_text(encoding="utf-8") for path in pictures.draw()}
    frame = pd.read_csv(pictures.TABLE)
    assert len(frame) == 4 * frame["model"].nunique()
    assert all(model in drawn["verdicts.svg"] for model in frame["model"])
    assert all(
        drawn["verdicts.svg"].count(f"<!-- {word} -->") == n
        for word, n in frame["verdict"].value_counts().items()
    )
    seeds = pictures.between_seeds()
    counts = (
        (seeds["key"] + " " + seeds["verdict"]).value_counts().to_dict()
    )  # as docs/results/seeds.md says
    known = {
        "behaviour yes": 6,
        "behaviour no": 2,
        "behaviour undecided": 2,
        "state yes": 9,
        "state undecided": 1,
    }
    assert counts == known | {"circuit no": 9, "circuit undecided": 1}
    assert (seeds["low"] <= seeds["number"]).all()
    assert (seeds["number"] <= seeds["high"]).all()
    readme = (notebooks.HERE.parent / "README.md").read_text(encoding="utf-8")
    pages = [path.read_text("utf-8") for path in (notebooks.HERE / "results").glob("*.md")]
    text_of_pages = readme + "".join(pages).replace("(../pictures", "(docs/pictures")
    assert all(f"docs/pictures/{name}" in text_of_pages for name in drawn)
    assert len(readme.splitlines()) <= 80
