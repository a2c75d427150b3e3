"""The same instances in Inspect: what is said, and what comes of it, is what the runner's own traces hold."""

from pathlib import Path
from typing import Any

import inspect_advice
import numpy as np
import pytest
from inspect_advice import expert_advice, write_traces

from interp.llm.backend import AGENTS, AgentBackend, Settings
from interp.llm.loading import load
from interp.llm.plan import instances, plan
from interp.llm.runner import run
from interp.llm.schemes import Condition, built_in_prompts
from interp.llm.scores import run_regret
from tests.refusals import refuses

NAMES = ("weather-note-only", "online-no-note")


def test_a_log_of_inspect_gives_the_traces_of_the_runner(tmp_path: Path) -> None:
    """The counter behind Inspect's mock model: predictions, notes and regret as without Inspect; a log of another task
    is refused."""
    pytest.importorskip(
        "inspect_ai", reason="an optional extra that is not installed with the development tools"
    )
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    def answer(messages: Any, *_: Any) -> Any:
        chat = [{"role": message.role, "content": message.text} for message in messages]
        text = AGENTS["counter"](chat) if chat[0]["role"] == "system" else "hello"
        usage = ModelUsage(
            input_tokens=7, output_tokens=3, total_tokens=10
        )  # else it is counted by a file from the net
        return ModelOutput.from_content("mock", text).model_copy(update={"usage": usage})

    task = expert_advice(NAMES, "flat", n_instances=2, n_rounds=4, seed=3)
    model = get_model("mockllm/model", custom_outputs=answer)
    (log,) = eval(
        task, model=model, log_dir=str(tmp_path / "logs"), display="none", temperature=0.5
    )
    assert log.status == "success", log.error
    (written,) = (tmp_path / "logs").iterdir()
    assert len(write_traces(written, tmp_path / "traces")) == 4
    imported = load(tmp_path / "traces")
    drawn, conditions = (
        instances(("flat",), 2, 4, 4, seed=3),
        [Condition.parse(name) for name in NAMES],
    )
    work = plan(Settings("counter"), built_in_prompts(), drawn, conditions)
    run(work, tmp_path / "own", AgentBackend("counter", AGENTS["counter"]))
    for imported_run, played_run in zip(imported, load(tmp_path / "own"), strict=True):
        assert imported_run.model == "mockllm/model"
        assert imported_run.condition == played_run.condition
        assert imported_run.ended == "complete"
        assert np.array_equal(imported_run.predictions, played_run.predictions)
        assert imported_run.notes == played_run.notes
        assert np.array_equal(imported_run.advice, played_run.advice)
        assert imported_run.calls == played_run.calls
        assert imported_run.total_prompt_tokens == 7 * imported_run.calls
    mean = log.results.scores[0].metrics["mean"].value
    assert mean == pytest.approx(
        np.mean([run_regret(imported_run)[-1] for imported_run in imported])
    )
    eval(
        Task(dataset=[Sample(input="x")]),
        model=model,
        log_dir=str(tmp_path / "other"),
        display="none",
    )
    refuses(
        "is no log of expert_advice",
        write_traces,
        next((tmp_path / "other").iterdir()),
        tmp_path / "none",
    )


def test_without_inspect_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspect_advice, "find_spec", lambda name: None)
    for make in (expert_advice, lambda: write_traces(tmp_path / "x.eval", tmp_path)):
        refuses(r"install the extra: pip install 'latent-context-interp\[inspect\]'", make)
