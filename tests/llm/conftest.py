"""A server for a test, and how work is planned and played on it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from interp.llm.backend import AGENTS, Connection, Settings
from interp.llm.plan import Job, instances, plan
from interp.llm.protocol import Session
from interp.llm.runner import RunSummary, run
from interp.llm.schemes import Condition, built_in_prompts
from tests.llm.server import Server

Serve = Callable[..., Any]
SETTINGS = Settings("tester")
NO_NOTE, NOTE_ONLY = [Condition("online", "no-note")], [Condition("online", "note-only")]


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[int, dict[str, Any]], Any]], Server]]:
    """Start a server for ``answer``; all are stopped after the test."""
    servers: list[Server] = []

    def start(answer: Callable[[int, dict[str, Any]], Any]) -> Server:
        servers.append(Server(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def agent(name: str) -> Callable[[int, dict[str, Any]], str]:
    """What a scripted agent answers to a request."""
    return lambda number, body: AGENTS[name](body["messages"])


good = agent("counter")


def jobs(
    n: int = 1,
    rounds: int = 5,
    conditions: Any = NO_NOTE,
    settings: Settings = SETTINGS,
    regime: str = "flat",
) -> list[Job]:
    return plan(
        settings, built_in_prompts(), instances((regime,), n, rounds, 4, seed=1), conditions
    )


def go(
    url: str, folder: Path, work: list[Job], malformed_limit: int = 20, **connection: Any
) -> RunSummary:
    connected = Connection(
        url, **{"max_retries": 2, "timeout": 5.0, "concurrency": 1, **connection}
    )
    return run(work, folder, connected, malformed_limit=malformed_limit)


def asked(session: Session) -> Any:
    """What a session asks next, of one that goes on."""
    request = session.next()
    assert request is not None
    return request


def play(session: Session, agent: Callable[[Any], str]) -> Session:
    """Run a session to its end with ``agent``, without any server."""
    while (request := session.next()) is not None:
        session.feed(agent(request.messages))
    return session
