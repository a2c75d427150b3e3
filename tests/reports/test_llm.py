"""The page on language models: both worlds on the same instances, the paper's numbers beside ours, nothing missing."""

from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interp.evaluation.experts.regret import regret
from interp.llm.backend import AGENTS, AgentBackend, Settings
from interp.llm.loading import load
from interp.llm.plan import instances, plan
from interp.llm.runner import run
from interp.llm.runs import episodes_of
from interp.llm.schemes import Condition, built_in_prompts
from interp.llm.scores import score
from reports.llm import transformer, write
from tests.refusals import refuses


class Served(AgentBackend):
    """A scripted agent whose calls have their price, as a server's have."""

    async def ask(self, *asked: Any) -> Any:
        return replace(
            await super().ask(*asked), usage={"prompt_tokens": 10, "completion_tokens": 5}
        )


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of two scripted agents."""
    folder = tmp_path_factory.mktemp("traces")
    conditions = [
        Condition("online", "no-note"),
        Condition("online", "note-only"),
        Condition("weather", "note-only"),
    ]
    for name in ("counter", "last-step"):
        work = plan(
            Settings(name), built_in_prompts(), instances(("stratified", "flat"), 2, 4), conditions
        )
        run(work, folder, Served("served", AGENTS[name]))
    return folder


@pytest.fixture(scope="module")
def page(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(traces, ["wma-handwired"], tmp_path_factory.mktemp("page"))


@pytest.mark.long
def test_the_page_has_both_worlds_and_the_paper(page: Path) -> None:
    """Curves, final tables with handwired model and paper, behaviour and notes are all on the page."""
    html = page.read_text("utf-8")
    for title in (
        "Regret over rounds",
        "Regret after the last round",
        "Answers and tokens",
        "Which algorithm explains the choices",
        "Notes",
        "Prompts",
    ):
        assert f"<h2>{title}</h2>" in html
    assert html.count("<svg") == 1 + 2 + 2, (
        "regret of all models first, a figure for each of two, and two on notes"
    )
    for text in (
        "wma-handwired",
        "DeepSeek-V3 (paper)",
        "Qwen-3-14B (paper)",
        "built-in wording, version 1",
        "served",
    ):
        assert text in html
    assert "You take part in an online prediction task" in html
    assert "Notes in the first instance of each group" in html
    assert html.count(">flat, weather framing</text>") == 2
    assert "(Paper, figures 4 and 15.)" in html
    assert 'class="sentence">No algorithm is named for ' in html
    assert "groups of runs.</p>" in html
    assert "--models wma-handwired --duplicates refuse --seed 0" in html


@pytest.mark.long
def test_the_python_of_a_page_scores_the_models_of_the_page(traces: Path, tmp_path: Path) -> None:
    """It always scored wma-handwired, whatever --models named."""
    html = unescape(write(traces, [], tmp_path, acts=[]).read_text("utf-8"))
    assert "others = {name: transformer(name) for name in []}" in html


def test_a_transformer_is_scored_on_the_instances_of_the_traces(traces: Path) -> None:
    """The handwired model's row is its regret on exactly the episodes that the language model played."""
    runs = load(traces)
    final = score(runs, {"ours": transformer("wma-handwired")}).to_frame()
    row = final[(final.model == "ours") & (final.regime == "flat")].iloc[0]
    episodes = episodes_of(runs, "flat")
    assert len(episodes) == 2
    assert row["n"] == 2
    expected = regret(transformer("wma-handwired")(episodes), episodes)[:, -1]
    assert np.isclose(row["mean"], expected.mean())
    assert np.isclose(row["std"], expected.std())


@pytest.mark.long
def test_the_page_opens_offline(traces: Path, page: Path, tmp_path: Path, browser: object) -> None:
    """With the network cut: no request, no console error; the same traces give the same page."""
    again = write(traces, ["wma-handwired"], tmp_path)
    assert again.read_text("utf-8") == page.read_text("utf-8")
    browser.open(again)  # type: ignore[attr-defined]
    assert browser.requests() == []
    assert browser.complaints() == []  # type: ignore[attr-defined]


def test_a_model_of_another_task_is_refused(traces: Path, tmp_path: Path) -> None:
    refuses("unknown model 'wma-handwird'", write, traces, ["wma-handwird"], tmp_path)
