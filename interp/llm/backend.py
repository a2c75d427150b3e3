"""What plays an episode's model: a server, a scripted agent or a model in this process, all asked in the same way.

The runner knows nothing but :class:`Backend`. Whatever goes wrong is one of four errors, which say what it means for
the run: the episode is over (:class:`ContextOverflowError`), the episode is set aside (:class:`RefusedError`), the
answer may come later (:class:`UnavailableError`), or nothing will work until the user changes something
(``InputError``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from interp.llm.schemes import Condition, Message, Turn


class UnavailableError(RuntimeError):
    """No answer came, however often it was asked for; the run can be resumed."""


class ContextOverflowError(RuntimeError):
    """The conversation no longer fits into the model's context."""


class RefusedError(RuntimeError):
    """The server refuses this very request, and will refuse it again; other requests may be answered."""


@dataclass(frozen=True)
class Reply:
    """What the model said.

    Attributes:
        usage: the server's own record, unchanged.
        more: everything else that the server sent (reasoning, refusal, tool calls, parts of the content, ids).
    """

    text: str
    finish_reason: str = "stop"
    model: str = ""
    system_fingerprint: str | None = None
    usage: dict[str, Any] | None = None
    seconds: float = 0.0
    more: dict[str, Any] = field(default_factory=dict)


@runtime_checkable
class Backend(Protocol):
    """Anything that answers."""

    @property
    def address(self) -> str:
        """Where the answers come from; recorded with every call."""

    @property
    def concurrency(self) -> int:
        """Episodes in progress at a time."""

    async def start(self, condition: Condition) -> None:
        """Called once before the first request: find out what can be found out without an episode."""

    async def ask(self, messages: Sequence[Message], condition: Condition, turn: Turn, seed: int) -> Reply:
        """The reply to ``messages``; raises the errors of this module, or ``InputError`` where nothing will work."""

    def holds_key(self, text: str) -> bool:
        """Is a secret in ``text``? Asked of everything that is about to be written."""

    async def close(self) -> None:
        """Called once after the last request."""


class AgentBackend:
    """A scripted agent (:mod:`interp.llm.agents`): no server, no waiting, the same traces."""

    concurrency = 1

    def __init__(self, name: str, agent: Callable[[Sequence[Message]], str]):
        self.name, self.agent = name, agent
        self.address = f"scripted agent {name}"

    async def start(self, condition: Condition) -> None:
        """Nothing can go wrong beforehand."""

    async def ask(self, messages: Sequence[Message], condition: Condition, turn: Turn, seed: int) -> Reply:
        """The scripted agent's answer."""
        await asyncio.sleep(0)  # so that an interrupt is noticed between two calls
        return Reply(self.agent(messages), model=self.name)

    def holds_key(self, text: str) -> bool:
        """False: a scripted agent needs no key."""
        return False

    async def close(self) -> None:
        """Nothing is open."""
