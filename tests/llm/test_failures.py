"""What stops a run and what does not: refusals of one message, silence, locks, malformed answers, slow servers."""

import fcntl
import gzip
import json
import resource
import time
from pathlib import Path
from typing import Any

import pytest

from interp.llm.loading import load
from interp.llm.plan import Job, Prices
from interp.llm.protocol import read_lines
from interp.support.errors import InputError
from tests.llm import server as raw
from tests.llm.conftest import NOTE_ONLY, Serve, go, good, jobs
from tests.refusals import refuses


def first_message(job: Job) -> dict[str, Any]:
    request = job.session().next()
    assert request is not None
    content: dict[str, Any] = json.loads(request.messages[1]["content"])
    return content


def is_victim(body: dict[str, Any], job: Job, at_round: int) -> bool:
    """Is this the request of ``job`` in round ``at_round`` (without a note: three messages a round)?"""
    long = len(body["messages"]) == 2 + 3 * at_round
    return long and json.loads(body["messages"][1]["content"]) == first_message(job)


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("code", "asked"), [(401, 1), (402, 1), (404, 1), (400, 3), (403, 3), (422, 3)]
)
def test_a_refusal_of_everything_stops_the_run(
    code: int, asked: int, serve: Serve, tmp_path: Path
) -> None:
    """Key, balance and model name: after one request. Parameters and rights look like a refused message, so three
    episodes are tried where nothing was answered yet."""
    server = serve(lambda n, body: raw.Status(code, {"error": {"message": "go away"}}))
    refuses(
        rf"refused the request \({code}\).*go away.* run again to resume",
        go,
        server.url,
        tmp_path,
        jobs(n=6),
    )
    assert len(server.requests) == asked


@pytest.mark.parametrize(("code", "at_round"), [(400, 0), (403, 2), (413, 0), (422, 2)])
def test_a_refused_message_sets_its_episode_aside(
    code: int, at_round: int, serve: Serve, tmp_path: Path
) -> None:
    """One message that is refused for good costs its own episode, in the first run and in every later one; the trace
    says what the server said, the prefix is kept, and the episode goes on once the server takes the message."""
    work = jobs(n=5, rounds=4)
    words = "Content Exists Risk"
    broken = {"on": True}

    def answer(number: int, body: dict[str, Any]) -> Any:
        if broken["on"] and is_victim(body, work[1], at_round):
            return raw.Status(code, {"error": {"message": words}})
        return good(number, body)

    server = serve(answer)
    for _ in range(2):
        summary = go(server.url, tmp_path, work)
        assert (summary.finished, summary.refused, summary.complete) == (4, 1, False)
        assert summary.unfinished[0][0] == str(work[1].place)
        assert words in summary.unfinished[0][1]
        assert "1 set aside after a refusal" in summary.sentence
    assert len(server.requests) == 4 * 4 + at_round + 2, "the refused message is asked once a run"
    lines = read_lines(tmp_path / work[1].place)[0]
    assert [line for line in lines if "refused" in line] == [
        {
            "refused": f"the server refused the request ({code}): {words}",
            "round": at_round,
            "turn": "prediction",
        }
    ]
    refused_index = work[1].instance.index
    refused_run = next(run for run in load(tmp_path) if run.index == refused_index)
    assert (refused_run.rounds, refused_run.ended) == (at_round, "refused")
    broken["on"] = False
    assert go(server.url, tmp_path, work).complete
    assert all(run.ended == "complete" and run.rounds == 4 for run in load(tmp_path))


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            raw.Status(403, {"error": {"message": "no rights", "code": "model_blocked"}}),
            "[model_blocked]",
        ),
        (raw.Status(422, {"detail": [{"loc": ["body", "seed"], "msg": "x" * 400}]}), '"seed"'),
        (raw.Raw(b"upstream says no", "text/plain", code=400), "upstream says no"),
        (raw.Raw(b'{"error": {"message": "quota used up", "code": 403}}'), "quota used up"),
        (raw.Raw(b'{"object": "error", "message": "model is loading"}'), "model is loading"),
        (raw.Raw(b"<html>bad gateway</html>", "text/html"), "bad gateway"),
    ],
)
def test_the_servers_own_words_are_told(
    said: Any, words: str, serve: Serve, tmp_path: Path
) -> None:
    """Whatever the status, also 200 with an error for a body, the message holds what the server said."""
    server = serve(lambda n, body: said)
    with pytest.raises(InputError) as caught:
        go(server.url, tmp_path, jobs(n=3), max_retries=0)
    assert words in str(caught.value)


# ------------------------------------------------------------------------------------------------ answers


def test_a_run_whose_first_answers_are_all_malformed_stops(serve: Serve, tmp_path: Path) -> None:
    """20 calls, not thousands; the sentence shows an answer and says what to try; one good answer and it goes on."""
    server = serve(lambda n, body: "I think it will rain.")
    refuses(
        r"the first 20 answers are all malformed.*I think it will rain.*--response-fo",
        go,
        server.url,
        tmp_path,
        jobs(n=5, rounds=20),
    )
    assert len(server.requests) == 20
    late = serve(lambda n, body: good(n, body) if n == 19 else "hm")
    assert go(late.url, tmp_path / "late", jobs(n=2, rounds=10)).complete
    assert go(server.url, tmp_path / "off", jobs(n=2, rounds=5), malformed_limit=0).malformed == 30


def test_everything_the_server_said_is_in_the_trace(serve: Serve, tmp_path: Path) -> None:
    """Reasoning, a refusal, tool calls, parts of the content and unknown fields: nothing is left out of the trace, and
    text in parts is read."""
    extra = {
        "reasoning_content": "A was right",
        "refusal": "I cannot",
        "tool_calls": [{"id": "t1", "type": "function"}],
    }
    parts = [
        {"type": "text", "text": '{"prediction"'},
        {"type": "text", "text": ": 1}"},
        {"type": "image", "x": 1},
    ]
    replies = [
        raw.Message({"content": '{"prediction": 1}', **extra}, {"service_tier": "flex"}),
        raw.Message({"content": parts}),
        raw.Message({"content": None, "refusal": "No."}),
    ]
    server = serve(lambda n, body: replies[min(n, 2)])
    summary = go(server.url, tmp_path, jobs(rounds=3))
    assert summary.complete
    assert summary.malformed == 3
    calls = read_lines(next(tmp_path.rglob("*.jsonl")))[0][1:-1]
    assert calls[0]["more"]["choices"][0]["message"] == {"role": "assistant", **extra}
    assert calls[0]["more"]["service_tier"] == "flex"
    assert calls[0]["reply"] == '{"prediction": 1}'
    assert calls[1]["reply"] == '{"prediction": 1}'
    assert calls[1]["more"]["choices"][0]["message"]["content"] == parts
    assert calls[2]["more"]["choices"][0]["message"]["refusal"] == "No."
    assert calls[2]["reply"] == ""
    assert all(call["address"] == server.url for call in calls)


def whole(**fields: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": '{"prediction": 1}'}
    return {"choices": [{"message": message, "finish_reason": "stop"}], **fields}


NOWHERE: list[tuple[int, dict[str, str]]] = [
    (301, {}),
    (302, {"Location": "http://["}),
    (307, {"Location": "//\x00"}),
    (308, {"Location": "http://elsewhere.example/v1"}),
]


@pytest.mark.parametrize(("code", "headers"), NOWHERE)
def test_a_redirect_to_nowhere_is_a_refusal(
    code: int, headers: dict[str, str], serve: Serve, tmp_path: Path
) -> None:
    server = serve(lambda n, body: raw.Status(code, headers=headers))
    refuses(
        r"redirect|refused the request|gave no answer",
        go,
        server.url,
        tmp_path,
        jobs(n=3),
        max_retries=0,
    )


@pytest.mark.parametrize(
    "usage",
    [
        "NaN",
        "1e400",
        "-1",
        "1" + "0" * 400,
        '"many"',
        "[1]",
        '{"cached_tokens": NaN}',
        "null",
        "true",
        "1.5",
    ],
)
def test_counts_that_are_none_do_not_stop_a_run(usage: str, serve: Serve, tmp_path: Path) -> None:
    """And the traces, which hold what was said as far as JSON can say it, are scored."""
    names = (
        "prompt_tokens",
        "completion_tokens",
        "prompt_tokens_details",
        "prompt_cache_hit_tokens",
        "x",
    )
    reply = json.dumps(whole(usage="USAGE", created="USAGE"))
    every = "{" + ", ".join(f'"{name}": {usage}' for name in names) + "}"
    for text in (reply.replace('"USAGE"', every), reply.replace('"USAGE"', usage)):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        server = serve(lambda n, body, text=text: raw.Raw(text.encode()))
        summary = go(server.url, folder, jobs(rounds=2))
        assert summary.complete
        assert 0 <= summary.prompt_tokens < 10
        (only_run,) = load(folder)
        assert only_run.rounds == 2
        assert only_run.total_prompt_tokens < 10


def bomb(kind: str) -> bytes:
    """An answer that is large, or becomes large, or cannot be unpacked."""
    if kind in ("unknown", "broken"):
        return b"{}" * 99
    start = json.dumps(whole(padding="")).encode().removesuffix(b'"}')
    size = 40 if kind == "large" else 100
    padding = start + b" " * (size * 10**6) + b'"}'
    for _ in range(kind.count("gzip") + kind.count("twice")):
        padding = gzip.compress(padding, 1)
    return padding


@pytest.mark.parametrize(
    ("kind", "packed"),
    [
        ("large", ""),
        ("gzip", "gzip"),
        ("gzip twice", "gzip, gzip"),
        ("unknown", "br"),
        ("broken", "gzip"),
    ],
)
def test_the_size_of_an_answer_is_bounded(
    kind: str, packed: str, serve: Serve, tmp_path: Path
) -> None:
    """.4 MB that unpacked to 400 MB filled the memory; what is honestly packed is read."""
    data = bomb(kind)
    server = serve(
        lambda n, body: raw.Raw(data, headers={"Content-Encoding": packed} if packed else {})
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refuses(
        r"larger than 32 MB|not asked for|DecodingError",
        go,
        server.url,
        tmp_path / "a",
        jobs(n=3),
        max_retries=0,
    )
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150_000, "kilobytes"
    honest = gzip.compress(json.dumps(whole()).encode())
    server = serve(lambda n, body: raw.Raw(honest, headers={"Content-Encoding": "gzip"}))
    assert go(server.url, tmp_path / "b", jobs(rounds=2)).complete


@pytest.mark.parametrize("note", ["A 3/5, B 2/5, " * 10**5, " " * 10**6, "x" * 25_000])
def test_a_note_of_megabytes_is_malformed(note: str, serve: Serve, tmp_path: Path) -> None:
    """It was recorded, and then scoring took more than a minute."""

    def answer(n: int, body: dict[str, Any]) -> str:
        is_note_due = "note" in body["messages"][-1]["content"]
        return json.dumps({"note": note}) if is_note_due else "{}"

    server = serve(answer)
    summary = go(server.url, tmp_path, jobs(rounds=2, conditions=NOTE_ONLY), malformed_limit=0)
    assert summary.malformed > 0
    (only_run,) = load(tmp_path)
    assert all(len(recorded or "") <= 20_000 for recorded in only_run.notes)


def test_a_finish_reason_that_is_no_word_and_an_answer_nested_too_deeply_are_none(
    serve: Serve, tmp_path: Path
) -> None:
    message = {
        "choices": [
            {"message": {"role": "assistant", "content": '{"prediction": 1}'}, "finish_reason": 3}
        ]
    }
    nested = "[" * 900 + "]" * 900
    deep = json.dumps(whole(deep="DEEP")).replace('"DEEP"', nested)
    for reply in (json.dumps(message), deep):
        server = serve(lambda n, body, reply=reply: raw.Raw(reply.encode()))
        refuses(
            r"nested too deeply|not a chat completion",
            go,
            server.url,
            tmp_path,
            jobs(n=3),
            max_retries=0,
        )


# ------------------------------------------------------------------------------------------------ pace, locks


def test_retries_are_paced_like_any_request(serve: Serve, tmp_path: Path) -> None:
    """A server that always says 429 is asked no more often than --requests-per-minute allows."""
    times: list[float] = []

    def answer(number: int, body: dict[str, Any]) -> Any:
        times.append(time.monotonic())
        return raw.Status(429, headers={"retry-after-ms": "1"})

    server = serve(answer)
    start = time.monotonic()
    refuses("429", go, server.url, tmp_path, jobs(n=4), requests_per_minute=1200.0, concurrency=4)
    assert len(times) >= 9
    assert times[-1] - start >= (len(times) - 1) * 60 / 1200, "the first may start at once"


def test_a_trace_that_another_process_writes_is_left_to_it(serve: Serve, tmp_path: Path) -> None:
    """The other episodes are played; the run says which one was left."""
    server = serve(good)
    work = jobs(n=3, rounds=2)
    held_path = tmp_path / work[0].place
    held_path.parent.mkdir(parents=True)
    with open(held_path, "wb") as trace_file:
        fcntl.flock(trace_file, fcntl.LOCK_EX)
        summary = go(server.url, tmp_path, work)
    assert summary.finished == 2
    assert not summary.complete
    assert "being written by another process" in summary.unfinished[0][1]
    assert go(server.url, tmp_path, work).complete


def test_a_dead_server_leaves_nothing_that_is_scored(tmp_path: Path) -> None:
    """A trace without an answer is set aside, with what to do."""
    assert not go("http://127.0.0.1:9/v1", tmp_path, jobs(n=1), max_retries=0).complete
    assert [len(read_lines(path)[0]) for path in tmp_path.rglob("*.jsonl")] == [1]
    refuses("holds no answer: the server never gave one; play it again", load, tmp_path)


@pytest.mark.parametrize("price", [-1.0, float("nan"), "1", True])
def test_prices_are_finite_and_not_negative(price: Any) -> None:
    refuses("prompt", Prices, prompt=price)
