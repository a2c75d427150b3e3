"""The notebooks are the tutorials: the same cells, with what they print and draw, small; pictures are drawn."""

import json
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from docs import notebooks, pictures
from interp.tasks import experts
from probes import probe
from tests.test_tutorials import RUN


def test_every_notebook_is_what_its_tutorial_says() -> None:
    """`python -m docs.notebooks` runs and writes them again after a tutorial changed."""
    paths = sorted(notebooks.NOTEBOOKS.glob("*.ipynb"))
    assert paths == [path for _, path in notebooks.pairs()]
    for page, path in notebooks.pairs():
        text, page_text = path.read_text(encoding="utf-8"), page.read_text(encoding="utf-8")
        stored_cells = json.loads(text)["cells"]
        cells = notebooks.notebook(page_text)["cells"]
        stored_sources = ["".join(cell["source"]) for cell in stored_cells]
        assert stored_sources == [cell["source"] for cell in cells], f"{path.name} is old"
        # No other kind of cell may have outputs.
        code = [cell for cell in stored_cells if "outputs" in cell]
        blocks = [block.strip("\n") for block in RUN.findall(page_text)]
        assert ["".join(cell["source"]) for cell in code] == blocks
        counts = [cell["execution_count"] for cell in code]
        assert counts == list(range(1, len(code) + 1)), "not every cell was run"
        outputs = [output for cell in code for output in cell["outputs"]]
        assert len(text) <= 300_000
        largest = 2 * notebooks.LARGEST
        assert all(len(json.dumps(output)) <= largest for output in outputs)
        assert not any("error" in output["output_type"] for output in outputs)
        assert not any(output.get("name") == "stderr" for output in outputs)
        has_a_picture = any("image/png" in output.get("data", {}) for output in outputs)
        assert path.stem == "own-task" or has_a_picture


@pytest.mark.long
def test_the_pictures_are_drawn_from_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every verdict of every model stands in the picture; those of models are of few episodes and no controls here."""
    sample = experts.sample

    def sample_few(n_episodes: int, **sizes: int) -> experts.ExpertEpisodes:
        return sample(n_episodes // 8, **sizes)

    monkeypatch.setattr(pictures, "PICTURES", tmp_path)
    monkeypatch.setattr(pictures.experts, "sample", sample_few)
    monkeypatch.setattr(pictures, "probe", partial(probe, n_untrained=0))
    drawn = {path.name: path.read_text(encoding="utf-8") for path in pictures.draw()}
    frame = pd.read_csv(pictures.TABLE)
    assert len(frame) == 4 * frame["model"].nunique()
    assert all(model in drawn["verdicts.svg"] for model in frame["model"])
    for word, n in frame["verdict"].value_counts().items():
        assert drawn["verdicts.svg"].count(f"<!-- {word} -->") == n
    seeds = pictures.between_seeds()
    verdicts = seeds["key"] + " " + seeds["verdict"]
    as_the_page_says = {  # docs/results/seeds.md
        "behaviour yes": 6,
        "behaviour no": 2,
        "behaviour undecided": 2,
        "state yes": 9,
        "state undecided": 1,
        "circuit no": 9,
        "circuit undecided": 1,
    }
    assert verdicts.value_counts().to_dict() == as_the_page_says
    assert (seeds["low"] <= seeds["number"]).all()
    assert (seeds["number"] <= seeds["high"]).all()
    readme = (notebooks.HERE.parent / "README.md").read_text(encoding="utf-8")
    pages = [path.read_text("utf-8") for path in (notebooks.HERE / "results").glob("*.md")]
    text_of_pages = readme + "".join(pages).replace("(../pictures", "(docs/pictures")
    assert all(f"docs/pictures/{name}" in text_of_pages for name in drawn)
    assert len(readme.splitlines()) <= 80
