"""A model in this process: the same traces as any other player, batched without moving an answer, deterministic."""

import asyncio
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from interp.llm.backend import Reply, Settings
from interp.llm.loading import load
from interp.llm.local import LocalBackend, load_model, render_prompt, tokenize_answers
from interp.llm.plan import instances, plan
from interp.llm.protocol import read_lines
from interp.llm.runner import run
from interp.llm.schemes import CONDITIONS, Condition, Prompt
from tests.llm.tiny import write_tiny_chat
from tests.refusals import refuses
from tests.shell import printed

SHORT = {condition.scheme: Prompt("Predict.", "short") for condition in CONDITIONS}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_chat(tmp_path_factory.mktemp("hf") / "tiny"))


def changed(tiny: str, change: Any) -> str:
    """A copy of the folder whose weights a function changes; none of them are left where it is None."""
    folder = Path(tempfile.mkdtemp()) / "other"
    if change is None:
        (folder / "x").mkdir(parents=True)
        return str(folder)
    shutil.copytree(tiny, folder)
    save_file(
        change(load_file(folder / "model.safetensors")),
        folder / "model.safetensors",
        {"format": "pt"},
    )
    return str(folder)


def go(
    tiny: str, folder: Path, concurrency: int = 4, conditions: Any = CONDITIONS, **settings: Any
) -> Any:
    chosen = Settings(tiny, **{"response_format": "grammar", "max_tokens": 12, **settings})
    work = plan(chosen, SHORT, instances(("flat",), 2, 2, 4), conditions)
    return run(work, folder, LocalBackend(chosen, concurrency), malformed_limit=0)


@pytest.mark.long
def test_every_condition_is_played_and_a_batch_moves_no_answer(tiny: str, tmp_path: Path) -> None:
    """Two framings, three protocols, two instances: with a grammar every answer is usable, and episodes played four at
    a time get the answers that they get one at a time."""
    together = go(tiny, tmp_path / "a", concurrency=4)
    assert together.complete
    assert together.malformed == 0
    go(tiny, tmp_path / "b", concurrency=1)
    for singly_played, batched in zip(load(tmp_path / "a"), load(tmp_path / "b"), strict=True):
        assert np.array_equal(singly_played.predictions, batched.predictions)
        assert singly_played.notes == batched.notes
        assert singly_played.total_prompt_tokens == batched.total_prompt_tokens > 0
    assert go(tiny, tmp_path / "a").calls == 0, "a resumed run asks nothing"


@pytest.mark.long
def test_sampling_repeats_with_the_seeds_of_the_requests(tiny: str, tmp_path: Path) -> None:
    """Free answers of random weights are noise: malformed, never 0, and the same noise in every run."""
    condition = [Condition("online", "note-only")]
    replies = []
    sampling = {"response_format": "none", "temperature": 1.0, "top_p": 0.9}
    for name in ("a", "b"):
        done = go(tiny, tmp_path / name, conditions=condition, **sampling)
        assert done.malformed == done.calls
        lines = []
        for path in sorted((tmp_path / name).rglob("*.jsonl")):
            lines += read_lines(path)[0]
        replies.append([line["reply"] for line in lines if "reply" in line])
    assert replies[0] == replies[1]
    assert len(set(replies[0])) > 10


def test_a_prediction_under_a_grammar_is_sampled_above_temperature_0(
    tiny: str, tmp_path: Path
) -> None:
    """Random weights hardly prefer an answer; the same seeds give the same sample."""
    conditions = [Condition("online", "no-note"), Condition("weather", "no-note")]
    predictions = {}
    for name, temperature in (("certain", 0.0), ("sampled", 2.0), ("again", 2.0)):
        go(tiny, tmp_path / name, conditions=conditions, temperature=temperature)
        played = [run.predictions for run in load(tmp_path / name)]
        predictions[name] = np.concatenate(played).tolist()
    assert predictions["sampled"] != predictions["certain"]
    assert predictions["again"] == predictions["sampled"]


def test_the_prompt_is_the_models_own_and_both_answers_share_a_beginning(tiny: str) -> None:
    _, tokenizer = load_model(tiny)
    text = render_prompt(tokenizer, [{"role": "user", "content": "x"}])
    assert text == "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"
    begin, choices, texts = tokenize_answers(tokenizer, Condition("weather", "no-note"))
    assert tokenizer.decode(begin) == '{"prediction": "'
    assert tokenizer.decode(list(choices)) == "rs"
    assert texts == ('{"prediction": "rainy"}', '{"prediction": "sunny"}')


@pytest.mark.long
def test_a_full_context_keeps_the_prefix(tiny: str, tmp_path: Path) -> None:
    chosen = Settings(tiny, response_format="grammar")
    work = plan(chosen, SHORT, instances(("flat",), 1, 60, 4), [Condition("online", "no-note")])
    done = run(work, tmp_path, LocalBackend(chosen))
    (only_run,) = load(tmp_path)
    assert done.overflowed == 1
    assert only_run.ended == "overflow"
    assert 5 < only_run.rounds < 60


@pytest.mark.long
def test_an_answer_has_all_the_room_of_its_own_prompt(tiny: str) -> None:
    """Random weights write until the context of 4,096 tokens is full, whatever else is in the batch."""
    backend = LocalBackend(Settings(tiny, max_tokens=None, temperature=1.0))
    ask = partial(
        backend.ask, condition=Condition.parse("online-no-note"), turn="prediction", seed=3
    )

    async def ask_all(*texts: str) -> list[Reply]:
        replies = [ask([{"role": "user", "content": text}]) for text in texts]
        return await asyncio.gather(*replies)

    texts = ("x" * 4040, "x" * 4055)
    together = asyncio.run(ask_all(*texts))
    alone = [asyncio.run(ask_all(text))[0] for text in texts]
    assert [reply.text for reply in together] == [reply.text for reply in alone]
    for reply in together:
        assert reply.usage is not None
        assert sum(reply.usage.values()) == 4096


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda tiny: load_model("nobody/such-a-name"),
            "nor such a name in Hugging Face's cache, and nothing is down",
        ),
        (
            lambda tiny: load_model(changed(tiny, None)),
            "the folder has no config.json .one of traces is read by",
        ),
        (
            lambda tiny: load_model(
                changed(tiny, lambda held: {**held, "score.weight": torch.ones(2)})
            ),
            "the weights of .* do not fit its configuration at score.weight",
        ),
        (lambda tiny: load_model(tiny, "no-such-device"), "cannot load the model .*no-such-device"),
        (
            lambda tiny: LocalBackend(Settings(tiny, response_format="json_schema")),
            "unknown response format .* 'json_schema'",
        ),
    ],
)
def test_bad_input_is_told_in_a_sentence(make: Any, message: str, tiny: str) -> None:
    refuses(message, make, tiny)


@pytest.mark.parametrize(
    "idle",
    [
        {"extra_body": {"top_k": 1}},
        {"send_seed": False},
        {"thinking_off": "deepseek"},
        {"temperature": None},
    ],
)
def test_settings_that_only_a_server_follows_are_refused(idle: dict[str, Any], tiny: str) -> None:
    refuses("do nothing for a model in this process", LocalBackend, Settings(tiny, **idle))


def test_the_command_plays_a_folder(tiny: str, tmp_path: Path) -> None:
    options = (
        "--backend transformers --response-format grammar --episodes 1 --rounds 2 --regime flat"
    )
    command = ["llm", "run", tiny, *options.split(), "--conditions", "online-no-note"]
    assert "1 of 1 episodes" in printed(*command, "--out", tmp_path)
