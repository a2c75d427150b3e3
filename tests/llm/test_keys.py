"""Keys and prompts go to the server they were given for, and to no file, proxy or other host."""

import json
from pathlib import Path
from typing import Any

import pytest

from interp.llm.backend import Connection, Settings
from interp.llm.plan import Job
from interp.llm.runner import run
from interp.llm.schemes import Condition
from interp.support.errors import InputError
from tests.llm import conftest
from tests.llm import server as raw
from tests.llm.conftest import Serve, go, good
from tests.refusals import refuses

KEY = "sk-test-4711-very-secret"


def jobs(**settings: Any) -> list[Job]:
    conditions = [Condition("online", "no-note"), Condition("weather", "note-only")]
    return conftest.jobs(1, 2, conditions, Settings("m", **settings))


def test_the_key_is_sent_and_never_written(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    """A server that repeats the key in answers, errors and every other field cannot get it into a file or message."""
    monkeypatch.setenv("TEST_KEY", KEY)
    refuse = {"on": False}

    def answer(number: int, body: dict[str, Any]) -> Any:
        if refuse["on"]:
            return raw.Status(401, {"error": {"message": f"Incorrect API key provided: {KEY}"}})
        extra = {
            "system_fingerprint": KEY,
            "model": f"m {KEY}",
            "usage": {"prompt_tokens": 1, "note": KEY},
            KEY: KEY,
        }
        word = "sunny" if "forecast" in str(body["messages"]) else 1
        return raw.Completion(
            json.dumps({"prediction": word, "note": f"my key is {KEY}"}), extra=extra
        )

    server = serve(answer)
    work = jobs()
    go(server.url, tmp_path, work, key_env="TEST_KEY")
    assert server.keys[0] == f"Bearer {KEY}"
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*.jsonl"))
    assert KEY.encode() not in written
    assert b"<key>" in written
    assert go(server.url, tmp_path, work, key_env="TEST_KEY").calls == 0, (
        "scrubbed replies must replay"
    )
    refuse["on"] = True
    with pytest.raises(InputError) as caught:
        go(server.url, tmp_path / "other", work, key_env="TEST_KEY")
    assert KEY not in str(caught.value)
    assert "<key>" in str(caught.value)
    assert "TEST_KEY" in str(caught.value)
    refuses(
        "hold the key",
        go,
        server.url,
        tmp_path / "b",
        jobs(extra_body={"k": KEY}),
        key_env="TEST_KEY",
    )
    assert KEY not in "".join(capfd.readouterr())


def test_a_server_on_this_machine_is_reached_without_proxies_and_without_keys_of_others(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy in the environment sees nothing of a local run, and the local server sees no key of a provider."""
    proxy = serve(lambda n, body: raw.Status(500))
    address = proxy.url.removesuffix("/v1")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, address)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server = serve(good)
    assert go(server.url, tmp_path, jobs()).complete
    assert proxy.requests == []
    assert set(server.keys) == {None}


def test_the_proxy_of_the_environment_serves_other_hosts(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bypass is for this machine only: a request to another host goes through the proxy."""
    proxy = serve(good)
    monkeypatch.setenv("HTTP_PROXY", proxy.url.removesuffix("/v1"))
    monkeypatch.setenv("TEST_KEY", KEY)
    assert go("http://model.invalid/v1", tmp_path, jobs(), key_env="TEST_KEY").complete
    assert proxy.keys[0] == f"Bearer {KEY}"


def test_a_key_goes_to_the_host_it_was_given_for_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider's key is found at its own address; any other host needs a variable of its own, before any request."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("MY_KEY", "mine")
    assert Connection("https://api.openai.com/v1").key() == KEY
    assert (
        Connection("http://127.0.0.1:8000/v1").key()
        == Connection("http://[::1]:8000/v1").key()
        == ""
    )
    assert Connection("https://models.example/v1", key_env="MY_KEY").key() == "mine"
    for url in (
        "https://models.example/v1",
        "https://api.openai.com.evil.example/v1",
        "http://10.0.0.7:8000/v1",
    ):
        refuses(
            r"no key was given for .*--key-env.*other providers are not sent", Connection(url).key
        )
    monkeypatch.delenv("OPENAI_API_KEY")
    refuses(
        "environment variable OPENAI_API_KEY is not set",
        Connection("https://api.openai.com/v1").key,
    )


def test_redirects_to_another_server_are_refused(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither prompt nor key follows a redirect; the sentence says where it leads."""
    monkeypatch.setenv("TEST_KEY", KEY)
    thief = serve(good)
    elsewhere = {"Location": f"{thief.url}/chat/completions"}
    server = serve(lambda n, body: raw.Status(307, headers=elsewhere))
    refuses(
        r"redirects to 'http://127.0.0.1:\d+/v1/chat/completions'; prompts and keys are not",
        go,
        server.url,
        tmp_path,
        jobs(),
        key_env="TEST_KEY",
    )
    assert thief.requests == []
    assert len(server.requests) == 1


def test_keys_in_addresses_are_refused() -> None:
    for url in ("http://user:pw@host/v1", "https://host/v1?key=abc"):
        refuses("must not hold a user, password, query", Connection, url)
    for url in ("https://example.invalid/v1", "http://127.0.0.1:9/v1"):
        refuses(
            "environment variable NO_SUCH_KEY is not set",
            run,
            jobs(),
            "unused",
            Connection(url, key_env="NO_SUCH_KEY"),
        )
