"""One request to an OpenAI-compatible server, with every way in which it can fail sorted into three.

- *Transient* (429, 5xx, cut connections, timeouts, a body that is not a completion): tried again, with back-off, by the
  ``openai`` client and, for broken bodies, here; :class:`UnavailableError` when that did not help.
- *Context overflow* (a 400 or 413 that says so): :class:`ContextOverflowError`; the episode ends and its prefix counts.
- *Refused* (every other 4xx: key, rights, model name, parameters): ``InputError``; the run stops at once.

The key comes from an environment variable and lives in the client only; :meth:`Client.scrub` takes it out of
everything that a server says, before anything is recorded or shown.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, cast

from interp.errors import InputError, require
from interp.llm.schemes import RESPONSE_FORMATS, Condition, Message, Turn, response_format
from interp.llm.settings import THINKING_OFF, Connection, Settings

# Keys shorter than this are placeholders ("EMPTY", "none"), not secrets: taking them out of texts would damage these.
_SHORTEST_SECRET = 8


class UnavailableError(RuntimeError):
    """The server did not give an answer, however often it was asked; the run can be resumed."""


class ContextOverflowError(RuntimeError):
    """The conversation no longer fits into the model's context."""


@dataclass(frozen=True)
class Reply:
    """What the server said; ``usage`` is its own record, unchanged."""

    text: str
    finish_reason: str
    model: str
    system_fingerprint: str | None
    usage: dict[str, Any] | None
    reasoning_chars: int
    seconds: float


class Client:
    """An asynchronous client for one server and model.

    Raises:
        InputError: the ``openai`` package is not installed, or a remote server has no key.
    """

    def __init__(self, settings: Settings, connection: Connection):
        if find_spec("openai") is None:
            raise InputError(
                "running a language model needs the openai package; install the extra: pip install "
                "'latent-context-interp[llm]'"
            )
        self.settings, self.connection = settings, connection
        key = os.environ.get(connection.key_env, "").strip()
        require(
            bool(key) or connection.is_local,
            f"the environment variable {connection.key_env} is not set; put the key for {connection.base_url} there",
        )
        self._secret = key if len(key) >= _SHORTEST_SECRET else None
        import openai

        self._openai = openai
        self._client = openai.AsyncOpenAI(
            api_key=key or "none",
            base_url=connection.base_url,
            timeout=connection.timeout,
            max_retries=connection.max_retries,
        )
        self._pace = _Pace(connection.requests_per_minute)

    async def close(self) -> None:
        await self._client.close()

    async def ask(self, messages: Sequence[Message], condition: Condition, turn: Turn, seed: int) -> Reply:
        """The reply to ``messages``.

        Raises:
            ContextOverflowError, UnavailableError, InputError: see the module's text.
        """
        fields = self._fields(condition, turn)
        if self.settings.send_seed:
            fields["seed"] = seed
        return await self.request(messages, fields)

    async def request(self, messages: Sequence[Message], fields: dict[str, Any]) -> Reply:
        """One completion with the given request fields."""
        await self._pace.wait()
        start = time.monotonic()
        # Every single wait is bounded by the client's timeout, a server that drips bytes is not: hence the total.
        total = (self.connection.max_retries + 1) * (self.connection.timeout + 10)
        for attempt in range(3):
            try:
                async with asyncio.timeout(total):
                    found = await self._client.chat.completions.create(
                        model=self.settings.model, messages=cast(Any, list(messages)), **fields
                    )
                return self._read(found, time.monotonic() - start)
            except (self._openai.APIConnectionError, TimeoutError) as error:
                cause = error.__cause__ or error
                raise UnavailableError(
                    self.scrub(f"no answer from {self.connection.base_url}: {type(cause).__name__}: {cause}"[:300])
                ) from None
            except self._openai.APIStatusError as error:
                raise self._sort(error) from None
            except (self._openai.OpenAIError, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
                problem = self.scrub(f"{type(error).__name__}: {error}"[:200])
            await asyncio.sleep(0.1 * 4**attempt)
        raise UnavailableError(f"{self.connection.base_url} sent what is not a chat completion ({problem})")

    def _fields(self, condition: Condition, turn: Turn) -> dict[str, Any]:
        settings = self.settings
        fields: dict[str, Any] = {
            name: value
            for name in ("temperature", "top_p", "max_tokens")
            if (value := getattr(settings, name)) is not None
        }
        form, form_extra = response_format(settings.response_format, condition, turn)
        extra = THINKING_OFF[settings.thinking_off] | form_extra | settings.extra_body
        return fields | form | ({"extra_body": extra} if extra else {})

    def _read(self, found: Any, seconds: float) -> Reply:
        choice = found.choices[0]
        message = choice.message
        reasoning = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None) or ""
        text = message.content if isinstance(message.content, str) else ""
        usage = found.usage.model_dump(exclude_none=True) if found.usage is not None else None
        return Reply(
            text=self.scrub(text),
            finish_reason=self.scrub(str(choice.finish_reason or "")),
            model=self.scrub(str(found.model or "")),
            system_fingerprint=self.scrub(found.system_fingerprint),
            usage=self.scrub(usage),
            reasoning_chars=len(str(reasoning)),
            seconds=round(seconds, 4),
        )

    def _sort(self, error: Any) -> Exception:
        status = error.status_code
        said = self.scrub(" ".join(str(error).split())[:300])
        if status in (408, 409, 429) or status >= 500:
            return UnavailableError(f"{self.connection.base_url} answered {status} to every attempt: {said}")
        if status in (400, 413) and _OVERFLOW.search(f"{error} {error.body}"):
            return ContextOverflowError(said)
        advice = {
            401: f"check the key in {self.connection.key_env}",
            402: "check the account's balance",
            403: f"check what the key in {self.connection.key_env} may do",
            404: f"check the model name {self.settings.model!r} and the address",
        }.get(status, "check the model name and the settings")
        return InputError(f"the server refused the request ({status}): {said}; {advice} and run again to resume")

    def scrub(self, value: Any) -> Any:
        """``value`` (text, or lists and dicts of it) without the key and without lone surrogates."""
        if isinstance(value, str):
            text = value.encode("utf-8", "replace").decode("utf-8")
            return text.replace(self._secret, "<key>") if self._secret else text
        if isinstance(value, dict):
            return {self.scrub(key): self.scrub(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.scrub(item) for item in value]
        return value

    def holds_key(self, text: str) -> bool:
        """Is the key in ``text``? Asked of everything that is about to be written."""
        return self._secret is not None and self._secret in text

    async def check_response_format(self, condition: Condition) -> None:
        """One call that a model would not answer in JSON unless the server made it.

        Raises:
            InputError: the server ignores the response format that was asked for.
        """
        kind = self.settings.response_format
        if kind == "none":
            return
        fields = self._fields(condition, "prediction") | {"max_tokens": 64}
        ask = "Reply with the plain word hello. Do not use JSON."
        reply = await self.request([{"role": "user", "content": ask}], fields)
        start = re.sub(r"\s", "", reply.text)
        wanted = "{" if kind == "json_object" else '{"prediction":'
        require(
            start.startswith(wanted) or (not start and reply.finish_reason == "length"),
            f"the server ignores response_format {kind!r} (it answered {reply.text[:40]!r}); use another: "
            f"{', '.join(name for name in RESPONSE_FORMATS if name != kind)}",
        )


# OpenAI: context_length_exceeded; vLLM and DeepSeek: "maximum context length"; llama.cpp: exceed_context_size_error.
_OVERFLOW = re.compile(
    r"context[_ ](?:length|size|window)|maximum context|prompt is too long|too many (?:input )?tokens", re.IGNORECASE
)


class _Pace:
    """Spaces requests evenly, so that no more than ``per_minute`` start in any minute."""

    def __init__(self, per_minute: float | None):
        self._gap = 60 / per_minute if per_minute else 0.0
        self._next = 0.0

    async def wait(self) -> None:
        now = time.monotonic()
        start = max(now, self._next)
        self._next = start + self._gap
        if start > now:
            await asyncio.sleep(start - now)
