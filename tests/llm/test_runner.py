"""The runner against real servers on loopback: nothing is lost, nothing leaks, everything ends."""

import json
import resource
import sys
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interp.llm.backend import AGENTS, AgentBackend, Connection, Settings
from interp.llm.loading import load
from interp.llm.plan import Instance, Prices, estimate, instances, plan
from interp.llm.protocol import read_lines, replay
from interp.llm.runner import RunSummary, run
from interp.llm.schemes import CONDITIONS, Condition, built_in_prompts
from interp.support.errors import InputError
from interp.tasks import experts
from tests.cases import by_cases
from tests.llm import server as raw
from tests.llm.conftest import NOTE_ONLY, SETTINGS, Serve, agent, go, good, jobs, play
from tests.refusals import refuses


def records(folder: Path) -> dict[str, list[dict[str, Any]]]:
    return {
        str(path.relative_to(folder)): read_lines(path)[0]
        for path in sorted(folder.rglob("*.jsonl"))
    }


@pytest.mark.parametrize("name", ["counter", "full-history"])
def test_every_scripted_agent_plays_every_condition_over_http(
    name: str, serve: Serve, tmp_path: Path
) -> None:
    """Over HTTP an agent does exactly what it does without: the runner adds nothing and loses nothing."""
    server = serve(agent(name))
    work = jobs(rounds=2, conditions=CONDITIONS)
    summary = go(server.url, tmp_path, work, malformed_limit=0)
    assert summary.complete
    assert summary.calls == len(server.requests)
    for job in work:
        lines = read_lines(tmp_path / job.place)[0]
        alone = play(job.session(), AGENTS[name])
        over_http = job.session()
        for record in lines[1:-1]:
            over_http.feed(record["reply"], record["finish_reason"])
        assert np.array_equal(over_http.predictions, alone.predictions, equal_nan=True)
        assert over_http.notes == alone.notes
        assert lines[-1] == {"end": "complete"}


def test_a_call_is_recorded_with_all_the_server_said(serve: Serve, tmp_path: Path) -> None:
    """Served model, fingerprint, raw usage, finish reason and seed are in the trace, and the prompt with its digest."""
    server = serve(good)
    work = jobs(rounds=2, conditions=NOTE_ONLY)
    summary = run(
        work, tmp_path, Connection(server.url), Prices(prompt=1.0, cached=0.5, completion=2.0)
    )
    header, *calls, _ = read_lines(tmp_path / work[0].place)[0]
    assert header["prompt"]["sha256"] == work[0].prompt.sha256
    assert header["prompt"]["wording"].startswith("built-in")
    assert header["settings"]["temperature"] == 0.0
    assert header["made_with"]["address"] == server.url
    assert len(calls) == 4
    for call, sent in zip(calls, server.requests, strict=True):
        assert call["model"] == "tester-served"
        assert call["system_fingerprint"] == "fp_test"
        assert call["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        assert call["finish_reason"] == "stop"
        assert call["seed"] == sent["seed"]
        assert sent["temperature"] == 0.0
        assert "response_format" not in sent
    usage = [call["usage"] for call in calls]
    prompt, cached = (
        sum(u["prompt_tokens"] for u in usage),
        sum(u["prompt_tokens"] // 2 for u in usage),
    )
    answers = sum(u["completion_tokens"] for u in usage)
    assert summary.prompt_tokens == prompt
    millionths = (prompt - cached) + 0.5 * cached + 2 * answers
    assert summary.cost == pytest.approx(millionths / 1e6)


def test_settings_reach_the_server(serve: Serve, tmp_path: Path) -> None:
    """Sampling, thinking off, extra fields and the JSON schema of each turn are sent as set."""

    def answer(n: int, body: dict[str, Any]) -> str:
        if n == 0:
            return '{"prediction": 1}'
        return AGENTS["counter"](body["messages"])

    server = serve(answer)
    settings = Settings(
        "m",
        temperature=0.7,
        top_p=0.8,
        max_tokens=99,
        response_format="json_schema",
        thinking_off="chat-template",
        extra_body={"top_k": 20},
        send_seed=False,
    )
    go(server.url, tmp_path, jobs(rounds=1, conditions=NOTE_ONLY, settings=settings))
    first, second = server.requests[1:]
    assert (first["temperature"], first["top_p"], first["max_tokens"], first["top_k"]) == (
        0.7,
        0.8,
        99,
        20,
    )
    assert first["chat_template_kwargs"] == {"enable_thinking": False}
    assert "seed" not in first
    schemas = [
        body["response_format"]["json_schema"]["schema"]["required"] for body in (first, second)
    ]
    assert schemas == [["prediction"], ["note"]]


@pytest.mark.long
@pytest.mark.parametrize(("prices", "budget"), [(None, 16_000), (Prices(1.0, 0.1, 2.0), 0.009)])
def test_a_run_stops_before_its_budget_is_passed_and_goes_on_with_a_larger_one(
    prices: Prices | None, budget: float, serve: Serve, tmp_path: Path
) -> None:
    """In tokens or money, over all its runs: never passed, every paid answer on disk; with a larger
    budget the rest is played, as if it had never stopped."""
    server = serve(good)
    work = jobs(n=6, rounds=10, settings=Settings("tester", max_tokens=100))

    def spent(folder: Path) -> float:
        usage = [
            line["usage"] for lines in records(folder).values() for line in lines if "reply" in line
        ]
        prompt, answers = (
            sum(call[name] for call in usage) for name in ("prompt_tokens", "completion_tokens")
        )
        return (prices or Prices(1e6, 1e6, 1e6)).cost(prompt, prompt // 2 if prices else 0, answers)

    def start(most: float) -> RunSummary:
        return run(work, tmp_path, Connection(server.url, concurrency=3), prices, budget=most)

    first = start(budget)
    assert first.over_budget
    assert not first.complete
    assert "stopped before its budget is passed" in first.sentence
    assert len(server.requests) == first.calls
    assert 0.2 * budget < spent(tmp_path) <= budget
    assert start(budget).over_budget, "what is on disk counts"
    assert spent(tmp_path) <= budget, "what is on disk counts"
    assert start(100 * budget).complete
    assert len(server.requests) == 60
    go(server.url, tmp_path / "undisturbed", work)
    for stopped, undisturbed in zip(
        load(tmp_path / "tester"), load(tmp_path / "undisturbed"), strict=True
    ):
        assert np.array_equal(stopped.predictions, undisturbed.predictions)


def test_a_budget_counts_calls_on_disk_whose_tokens_nobody_reported(tmp_path: Path) -> None:
    """Scripted agents report no tokens: the highest cost of each call counts, in a resumed run, too."""
    work = jobs(n=2, rounds=30, settings=Settings("counter", max_tokens=100))

    def start(budget: float) -> RunSummary:
        return run(work, tmp_path, AgentBackend("counter", AGENTS["counter"]), budget=budget)

    first = start(20_000)
    assert first.calls > 3
    assert first.over_budget
    assert start(20_000).calls == 0
    assert start(40_000).calls > 0


def test_a_budget_needs_a_longest_answer(serve: Serve, tmp_path: Path) -> None:
    """Under either name; without one nothing bounds a call. The old field is not sent where it is left out."""
    server = serve(good)
    refuses(
        "a budget needs a longest answer",
        run,
        jobs(settings=Settings("m", max_tokens=None)),
        tmp_path,
        Connection(server.url),
        budget=1e6,
    )
    refuses(
        "a budget must be above 0, got 0", run, jobs(), tmp_path, Connection(server.url), budget=0
    )
    settings = Settings("m", None, max_tokens=None, extra_body={"max_completion_tokens": 50})
    run(jobs(rounds=1, settings=settings), tmp_path, Connection(server.url), budget=1e6)
    sent = server.requests[-1]
    assert sent["max_completion_tokens"] == 50
    assert not {"max_tokens", "temperature"} & sent.keys()


def test_an_ignored_response_format_is_noticed_before_any_episode(
    serve: Serve, tmp_path: Path
) -> None:
    server = serve(lambda n, body: "hello")
    refuses(
        r"ignores response_format 'json_object'.*'hello'",
        go,
        server.url,
        tmp_path,
        jobs(settings=Settings("m", response_format="json_object")),
    )
    assert len(server.requests) == 1
    assert not list(tmp_path.rglob("*.jsonl"))


# ------------------------------------------------------------------------------------------ transient trouble


def test_transient_errors_are_retried_until_they_pass(serve: Serve, tmp_path: Path) -> None:
    """429, 500, a cut connection, a timeout, bodies that are no completion: each costs a retry, none a prediction."""
    trouble = [
        raw.Status(429, headers={"retry-after-ms": "10"}),
        raw.Status(500),
        raw.CUT,
        raw.Hang(1.6, '{"prediction": 0}'),
        raw.Raw(b"<html>bad gateway</html>", "text/html"),
        raw.Raw(b'{"choices": []}'),
        raw.Raw(b"\x00\xff not json"),
        raw.Raw(b'{"object": "error", "message": "odd"}'),
    ]

    def answer(number: int, body: dict[str, Any]) -> Any:
        return trouble[number] if number < len(trouble) else good(number, body)

    server = serve(answer)
    summary = go(server.url, tmp_path, jobs(n=8, rounds=1), timeout=0.8, concurrency=8)
    assert summary.complete
    assert summary.calls == 8
    assert summary.malformed == 0
    assert len(server.requests) == 8 + len(trouble)


def test_a_server_that_stays_down_stops_the_run_and_loses_nothing(
    serve: Serve, tmp_path: Path
) -> None:
    """Retries are bounded; the run says so, and the same call goes on from where it was."""
    down = {"after": 7}

    def answer(n: int, body: dict[str, Any]) -> Any:
        if n >= down["after"]:
            return raw.Status(500)
        return AGENTS["counter"](body["messages"])

    server = serve(answer)
    work = jobs(n=6, rounds=5)
    refuses(
        r"no answer in 2 attempts: it answered 500.*run again to resume",
        go,
        server.url,
        tmp_path,
        work,
        max_retries=1,
        concurrency=1,
    )
    assert len(server.requests) <= 7 + 2 * 4
    n_replies = sum("reply" in line for lines in records(tmp_path).values() for line in lines)
    assert n_replies == 7
    down["after"] = 10**9
    summary = go(server.url, tmp_path, work)
    assert summary.complete
    assert summary.resumed_calls == 7
    assert summary.calls == 30 - 7


def test_one_bad_episode_does_not_stop_the_others(serve: Serve, tmp_path: Path) -> None:
    """An episode without an answer is reported and left for the next run."""
    victim = jobs(n=5, rounds=3)[2]
    messages_of_victim = victim.session().next().messages  # type: ignore[union-attr]
    first_of_victim = json.loads(messages_of_victim[1]["content"])
    broken = {"on": True}

    def answer(number: int, body: dict[str, Any]) -> Any:
        messages = body["messages"]
        is_victim = json.loads(messages[1]["content"]) == first_of_victim and len(messages) == 2
        if is_victim and broken["on"]:
            return raw.Status(503)
        return AGENTS["counter"](messages)

    server = serve(answer)
    work = jobs(n=5, rounds=3)
    summary = go(server.url, tmp_path, work, max_retries=0, concurrency=2)
    assert not summary.complete
    assert summary.unfinished
    assert "503" in summary.unfinished[0][1]
    broken["on"] = False
    assert go(server.url, tmp_path, work).complete


@by_cases("body")
def test_context_overflow_ends_the_episode_with_its_prefix(
    body: dict[str, Any], serve: Serve, tmp_path: Path
) -> None:
    """OpenAI's, vLLM's and llama.cpp's words for a full context end that episode only, and are not asked again."""

    def answer(number: int, sent: dict[str, Any]) -> Any:
        messages = sent["messages"]
        if len(messages) > 8:
            return raw.Status(400, body)
        return AGENTS["counter"](messages)

    server = serve(answer)
    work = jobs(n=2, rounds=5)
    summary = go(server.url, tmp_path, work)
    assert summary.complete
    assert summary.overflowed == 2
    assert summary.calls == 6
    before = len(server.requests)
    assert go(server.url, tmp_path, work).overflowed == 2
    assert len(server.requests) == before
    lines = read_lines(tmp_path / work[0].place)[0]
    assert lines[-1]["end"] == "overflow"
    assert lines[-1]["round"] == 3


def test_an_overflow_before_any_prediction_stops_the_run(serve: Serve, tmp_path: Path) -> None:
    """Too large a max_tokens looks like a full context from the first call on; it must not pass for empty episodes."""
    full = {"error": {"message": "maximum context length is 2048 tokens, you requested 2600"}}
    server = serve(lambda n, body: raw.Status(400, full))
    refuses(
        r"not even the first request fits .*; lower max_tokens \(2048\)",
        go,
        server.url,
        tmp_path,
        jobs(n=3),
        concurrency=1,
    )
    assert len(server.requests) == 1
    assert not any("end" in line for line in records(tmp_path).popitem()[1])


def test_concurrency_is_bounded(serve: Serve, tmp_path: Path) -> None:
    """At most `concurrency` calls are in flight."""
    server = serve(lambda n, body: raw.Hang(0.02, AGENTS["majority"](body["messages"])))
    go(server.url, tmp_path, jobs(n=12, rounds=2), concurrency=3)
    assert server.most_in_flight == 3


# ------------------------------------------------------------------------------------- kill, resume, full disk


def play_all(url: str, folder: Path) -> None:
    """What the process that is killed does."""
    work = plan(SETTINGS, built_in_prompts(), instances(("flat",), 3, 6, 4, seed=1))
    run(work, folder, Connection(url, concurrency=3))


NEEDED = 3 * 6 * (1 + 2 + 2) * 2


@pytest.mark.long
@pytest.mark.parametrize(
    "kills",
    [
        pytest.param((40, 120), id="two"),
        pytest.param(
            tuple(range(8, 8 + 20 * 8, 8)),
            id="twenty",
            marks=pytest.mark.slow(reason="20 processes"),
        ),
    ],
)
def test_kill_9_at_any_moment_repeats_at_most_the_calls_in_flight(
    kills: tuple[int, ...], serve: Serve, tmp_path: Path
) -> None:
    """Kills early and late, then a run to the end: the predictions are those of an undisturbed run, and the calls made
    exceed the calls needed by at most the three in flight at each kill."""
    server = serve(lambda n, body: raw.Hang(0.004, AGENTS["counter"](body["messages"])))
    for stop_at in kills:
        process = get_context("fork").Process(target=play_all, args=(server.url, tmp_path))
        process.start()
        deadline = time.monotonic() + 60
        while len(server.requests) < stop_at and process.is_alive() and time.monotonic() < deadline:
            time.sleep(0.002)
        process.kill()
        process.join()
        assert len(server.requests) >= stop_at
    play_all(server.url, tmp_path)
    print(f"{len(kills)} kills: {len(server.requests) - NEEDED} of {NEEDED} calls repeated")  # noqa: T201
    assert NEEDED <= len(server.requests) <= NEEDED + 3 * len(kills)
    for job in plan(SETTINGS, built_in_prompts(), instances(("flat",), 3, 6, 4, seed=1)):
        alone, again = play(job.session(), AGENTS["counter"]), job.session()
        records = read_lines(tmp_path / job.place)[0][1:]
        assert replay(again, records, tmp_path) == "complete"
        assert records[-1] == {"end": "complete"}
        assert again.predictions == alone.predictions
        assert again.notes == alone.notes
        assert len(records) - 1 == 6 * (1 + job.condition.has_note)


@pytest.mark.parametrize("cut", [1, 20, 200])
def test_a_torn_last_line_is_cut_and_asked_again(cut: int, serve: Serve, tmp_path: Path) -> None:
    server = serve(good)
    work = jobs(rounds=3, conditions=NOTE_ONLY)
    go(server.url, tmp_path, work)
    path = tmp_path / work[0].place
    whole = path.read_bytes()
    without_end = whole[: whole.rindex(b'{"end"')]
    path.write_bytes(without_end[:-cut])
    summary = go(server.url, tmp_path, work)
    assert summary.calls == 1
    assert summary.resumed_calls == 5
    replies = [line.get("reply") for line in read_lines(path)[0]]
    undisturbed_replies = [json.loads(line).get("reply") for line in whole.splitlines()]
    assert replies == undisturbed_replies


def test_a_torn_header_is_written_again(serve: Serve, tmp_path: Path) -> None:
    server = serve(good)
    work = jobs(rounds=1)
    path = tmp_path / work[0].place
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"format": "interp-llm')
    assert go(server.url, tmp_path, work).complete
    assert read_lines(path)[0][0]["format"] == "interp-llm-trace/2"


def test_a_full_disk_stops_with_a_sentence_and_keeps_whole_lines(
    serve: Serve, tmp_path: Path
) -> None:
    """A file size limit stands for the full disk (the same error path): whole lines stay, and resuming finishes."""
    server = serve(good)
    work = jobs(2, 8, CONDITIONS)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, before[1]))
        refuses(
            r"cannot write the trace .*: File too large; .* run the same command again",
            go,
            server.url,
            tmp_path,
            work,
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    written = {path: path.read_bytes() for path in tmp_path.rglob("*.jsonl")}
    assert any(len(text) > 5000 for text in written.values())
    assert all(text.endswith(b"\n") or not text for text in written.values())
    recorded = sum("reply" in record for lines in records(tmp_path).values() for record in lines)
    summary = go(server.url, tmp_path, work)
    assert summary.complete
    assert summary.resumed_calls == recorded > 0


def test_a_folder_that_cannot_be_written_is_told(serve: Serve, tmp_path: Path) -> None:
    server = serve(good)
    (tmp_path / "file").write_text("")
    refuses("cannot write the trace", go, server.url, tmp_path / "file", jobs())
    assert not server.requests


def test_other_settings_prompts_or_edits_are_refused(serve: Serve, tmp_path: Path) -> None:
    """A trace is resumed only as what it is; the first thing that differs is named."""
    server = serve(good)
    work = jobs(rounds=2, conditions=NOTE_ONLY)
    go(server.url, tmp_path, work)
    refuses(
        r"begun with another settings.temperature \(0.0, now 0.5\)",
        go,
        server.url,
        tmp_path,
        jobs(rounds=2, conditions=NOTE_ONLY, settings=Settings("tester", temperature=0.5)),
    )
    refuses(
        "has 2 rounds, and 1 were asked for",
        go,
        server.url,
        tmp_path,
        jobs(rounds=1, conditions=NOTE_ONLY),
    )
    with pytest.raises(InputError, match=r"begun with another instance\.accuracies"):
        other_instances = instances(("flat",), 1, 2, 4, seed=2)
        go(server.url, tmp_path, plan(SETTINGS, built_in_prompts(), other_instances, NOTE_ONLY))
    path = tmp_path / work[0].place
    text = path.read_text()
    for edit in (("A:", "B:"), ('"labels": [', '"labels": [1, ')):
        assert edit[0] in text
        path.write_text(text.replace(*edit, 1))
        refuses(r"line \d of the trace .* is damaged", go, server.url, tmp_path, work)
        refuses(r"line \d of the trace .* is damaged", load, tmp_path)
    path.write_text(text.replace('"round": 0', '"round": 0,,', 1))
    refuses(r"line 2 of the trace .* is damaged", go, server.url, tmp_path, work)


# ------------------------------------------------------------------------------------------------ before a run


@pytest.mark.long
def test_the_estimate_has_the_exact_calls_and_brackets_the_paper() -> None:
    """Calls are exact; prompt tokens of a 100-round run without a note lie in the range the paper's runs had."""
    every = estimate(jobs(2, 6, CONDITIONS)).frame.set_index("condition")
    assert [every.calls[c.name] for c in CONDITIONS] == [
        2 * 6 * (1 + c.has_note) for c in CONDITIONS
    ]
    long = [c for c in CONDITIONS if c.protocol != "note"]
    table = estimate(jobs(n=1, rounds=100, conditions=long), Prices(prompt=1.0)).frame
    frame = table.set_index("condition")
    for name in ("online-no-note", "weather-no-note"):
        assert 0.3e6 <= frame.prompt_tokens_low[name] <= 0.4e6
    for name in ("online-note-only", "weather-note-only"):
        assert frame.prompt_tokens_low[name] <= 0.12e6 <= frame.prompt_tokens_high[name]
    assert (frame.cost_low <= frame.cost_high).all()


def test_the_plan_is_balanced_and_complete() -> None:
    work = plan(SETTINGS, built_in_prompts(), instances(("flat", "stratified"), 3, 5), CONDITIONS)
    assert len(work) == len({job.place for job in work}) == 2 * 3 * len(CONDITIONS)
    assert [job.instance.index for job in work] == sorted(job.instance.index for job in work)
    refuses(
        "'weather-note' needs the prompt 'weather-note', which was not given",
        plan,
        SETTINGS,
        {},
        instances(("flat",), 1, 5),
        [Condition("weather", "note")],
    )


def test_an_instance_depends_on_its_regime_index_experts_and_seed_alone() -> None:
    """More rounds continue an instance, more instances add to it, and it is an episode like any other of its regime."""
    few, many = instances(("flat",), 2, 5, 4, seed=5), instances(("flat", "drift"), 3, 9, 4, seed=5)
    for short, long in zip(few, many[:2], strict=True):
        assert short.name == long.name
        assert np.array_equal(short.advice, long.advice[:5])
        assert np.array_equal(short.labels, long.labels[:5])
        assert np.array_equal(short.accuracies, long.accuracies)
    assert not np.array_equal(many[0].labels, many[1].labels)
    assert many[3].accuracies.shape == (9, 4), "accuracies that move are cut to the rounds, too"
    episodes = experts.sample(1, 1000, 4, regime="flat", seed=few[0].seed or 0)
    assert np.array_equal(few[0].advice, episodes.advice[0, :5])
    assert few[0].accuracies.min() >= 0.4
    assert isinstance(few[0], Instance)
    refuses(r"n_rounds must be in \[1, 1000\], got 1001", instances, ("flat",), 1, 1001)


def test_without_the_extra_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """httpx is optional: planning works without it, asking a server says how to get it."""
    monkeypatch.setitem(sys.modules, "httpx", None)
    work = jobs()
    refuses(
        r"needs the httpx package; install the extra: pip install",
        go,
        "http://127.0.0.1:1/v1",
        tmp_path,
        work,
    )
