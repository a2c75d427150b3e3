"""The runner against llama.cpp's own server with a tiny random-weight model: real decoding, real refusals."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interp.llm.backend import Connection, Settings
from interp.llm.plan import instances, plan
from interp.llm.protocol import read_lines, replay
from interp.llm.runner import RunSummary, run
from interp.llm.schemes import CONDITIONS, Condition, built_in_prompts
from tests.llm.tiny import write_tiny_gguf
from tests.refusals import refuses

Start = Callable[..., str]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start a llama.cpp server; all stop with the module."""
    xllamacpp = pytest.importorskip(
        "xllamacpp", reason="the llama.cpp server comes with the dev extra"
    )
    model = write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")
    servers = []

    def start(context: int, keys: tuple[str, ...] = ()) -> str:
        params = xllamacpp.CommonParams()
        params.model.path = str(model)
        params.n_ctx, params.n_parallel, params.warmup, params.verbosity = 2 * context, 2, False, 0
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        params.port = 0
        params.api_keys = list(keys)
        servers.append(xllamacpp.Server(params))
        return f"{servers[-1].listening_address}/v1"

    yield start
    servers.clear()


@pytest.fixture(scope="module")
def url(llama: Start) -> str:
    return llama(8192)


def play(
    url: str,
    folder: Path,
    settings: Settings,
    conditions: Any = CONDITIONS,
    rounds: int = 2,
    **connection: Any,
) -> RunSummary:
    work = plan(settings, built_in_prompts(), instances(("flat",), 1, rounds, 4), conditions)
    return run(
        work,
        folder,
        Connection(url, **{"concurrency": 2, "timeout": 30.0, "max_retries": 1, **connection}),
    )


@pytest.mark.parametrize("form", ["grammar", "json_schema"])
def test_every_condition_parses_with_constrained_decoding(
    form: str, url: str, tmp_path: Path
) -> None:
    """Four schemes, three protocols, random weights: with a grammar every answer is usable, at temperature 0.7."""
    settings = Settings(
        "tiny", temperature=0.7, top_p=0.8, response_format=form, max_tokens=400, max_reasks=8
    )
    conditions = CONDITIONS if form == "grammar" else [c for c in CONDITIONS if not c.has_note]
    summary = play(url, tmp_path, settings, conditions, rounds=1)
    assert summary.complete
    assert summary.overflowed == 0
    assert summary.malformed == 0
    for path in tmp_path.rglob("*.jsonl"):
        calls = read_lines(path)[0][1:-1]
        assert all(
            call["finish_reason"] == "stop" and call["usage"]["prompt_tokens"] > 500
            for call in calls
        )


def test_a_seed_makes_sampling_repeatable(url: str, tmp_path: Path) -> None:
    """The seed of (instance, round, turn, attempt) reaches the sampler: a run repeated is the same run."""
    settings = Settings("tiny", temperature=1.5, response_format="grammar")
    replies = []
    for name in ("a", "b"):
        play(url, tmp_path / name, settings, [Condition("online", "note-only")], concurrency=1)
        (path,) = (tmp_path / name).rglob("*.jsonl")
        replies.append([record.get("reply") for record in read_lines(path)[0][1:]])
    assert replies[0] == replies[1]


@pytest.mark.long
def test_real_garbage_is_missing_not_zero(url: str, tmp_path: Path) -> None:
    """Without a grammar random weights write noise: re-asked, then missing; the run goes on to its end."""
    settings = Settings("tiny", temperature=1.0, max_tokens=12, max_reasks=1)
    work = plan(settings, built_in_prompts(), instances(("flat",), 1, 2, 4), CONDITIONS)
    summary = run(work, tmp_path, Connection(url, timeout=30.0), malformed_limit=0)
    assert summary.complete
    assert summary.malformed == summary.calls == 2 * 2 * (1 + 2 + 2) * 2
    session = work[0].session()
    replay(session, read_lines(tmp_path / work[0].place)[0][1:], tmp_path)
    assert np.isnan(session.predictions).all()


def test_a_full_context_keeps_the_prefix(llama: Start, tmp_path: Path) -> None:
    """llama.cpp's real 400 ends the episode; what was played is kept and is not asked again."""
    small = llama(2560)
    settings = Settings("tiny", response_format="grammar", max_tokens=40)
    summary = play(small, tmp_path, settings, [Condition("online", "no-note")], rounds=40)
    assert summary.complete
    assert summary.overflowed == 1
    assert 2 <= summary.calls < 40
    (path,) = tmp_path.rglob("*.jsonl")
    last = read_lines(path)[0][-1]
    assert last["end"] == "overflow"
    assert last["round"] == summary.calls
    assert "context" in last["error"]
    assert play(small, tmp_path, settings, [Condition("online", "no-note")], rounds=40).calls == 0


def test_a_real_401_stops_and_the_right_key_goes_on(
    llama: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = llama(8192, ("the-right-key-123",))
    settings = Settings("tiny", response_format="grammar")
    monkeypatch.setenv("LLAMA_KEY", "a-wrong-key-456")
    refuses(
        r"refused the request \(401\).*check the key in LLAMA_KEY",
        play,
        locked,
        tmp_path,
        settings,
        key_env="LLAMA_KEY",
    )
    monkeypatch.setenv("LLAMA_KEY", "the-right-key-123")
    assert play(locked, tmp_path, settings, CONDITIONS[:1], key_env="LLAMA_KEY").complete
    assert not any(b"the-right-key-123" in path.read_bytes() for path in tmp_path.rglob("*.jsonl"))
