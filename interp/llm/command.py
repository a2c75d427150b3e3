"""What `interp llm run` asks: a server, a scripted agent, or a model in this process."""

from __future__ import annotations

import json
from typing import Any

from interp.errors import InputError, require, unknown_name
from interp.llm.agents import PLAYERS, scripted
from interp.llm.backend import AgentBackend, Backend
from interp.llm.settings import Connection, Settings

BACKENDS = ("server", "transformers")


def who_plays(model: str | None, base_url: str | None, agent: str | None, backend: str) -> str:
    """The name that goes into the settings, after a check that exactly one player was named.

    Raises:
        InputError: nobody, or more than one, or an option that does not belong to the player.
    """
    if backend not in BACKENDS:
        raise unknown_name("backend", backend, BACKENDS)
    if agent is not None:
        require(
            model is None and base_url is None and backend == "server",
            "--agent plays without a model: leave MODEL, --base-url and --backend out",
        )
        scripted(agent, PLAYERS)
        return agent
    if model is None:
        raise InputError(
            f"name who plays: --agent with one of {', '.join(PLAYERS)} (needs nothing else), MODEL with --base-url, or "
            "MODEL with --backend transformers"
        )
    needs = "a model on a server needs --base-url, its address, such as http://127.0.0.1:8000/v1"
    if backend == "server":
        require(base_url is not None, f"{needs}; for a model in this process give --backend transformers")
    else:
        require(base_url is None, f"--backend {backend} runs the model in this process: leave --base-url out")
    return model


def where_it_plays(
    settings: Settings, agent: str | None, backend: str, connection: Connection | None, concurrency: int, device: str
) -> Connection | Backend:
    """What :func:`interp.llm.runner.run` asks."""
    if agent is not None:
        return AgentBackend(agent, scripted(agent))
    if backend == "transformers":
        from interp.llm.local import LocalBackend

        return LocalBackend(settings, concurrency, device)
    assert connection is not None, "a server has a connection"
    return connection


def extra_fields(text: str) -> dict[str, Any]:
    """``--extra-body`` as request fields.

    Raises:
        InputError: not a JSON object.
    """
    try:
        extra = json.loads(text)
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        raise InputError(f"--extra-body must be a JSON object, got {text!r}")
    return extra
