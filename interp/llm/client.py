"""A server that speaks OpenAI's chat-completions protocol, with every way in which it can fail sorted into four.

They are the four of :mod:`interp.llm.backend`; docs/method/traces.md says which status means which. The key goes to the
address alone: redirects are refused, and :meth:`Client.scrub` takes the key out of everything that a server says.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from interp.llm import backend
from interp.llm.schemes import RESPONSE_FORMATS, Condition, Message, Turn, json_in, response_format
from interp.support.errors import InputError, require
from interp.support.files import json_values

# Keys shorter than this are placeholders ("EMPTY", "none"), not secrets: taking them out of texts would damage these.
_SHORTEST_SECRET = 8
_LONGEST_PAUSE = 60.0
_LARGEST = (
    32 * 10**6
)  # bytes of an answer: a million tokens with what a server tells of each take less
_TRANSIENT = (408, 409, 425, 429)
# OpenAI: context_length_exceeded; vLLM and DeepSeek: "maximum context length"; llama.cpp: exceed_context_size_error.
_OVERFLOW = re.compile(
    r"context[_ ](?:length|size|window)|maximum context|prompt is too long|too many (?:input )?tokens",
    re.IGNORECASE,
)


class _TransientError(Exception):
    """One attempt failed in a way that may pass; ``pause`` is what the server asked for, in seconds."""

    def __init__(self, text: str, pause: float | None = None):
        super().__init__(text)
        self.pause = pause


class Client(backend.Backend):
    """An asynchronous client for one server and model."""

    def __init__(self, settings: backend.Settings, connection: backend.Connection):
        if find_spec("httpx") is None:
            raise InputError(
                "asking a server needs the httpx package; install the extra: pip install 'latent-context-interp[llm]'"
            )
        import httpx

        self.settings, self.connection = settings, connection
        self.address, self.concurrency = connection.base_url, connection.concurrency
        key = connection.key()
        self._secret = key if len(key) >= _SHORTEST_SECRET else None
        self._httpx = httpx
        self._http = httpx.AsyncClient(
            headers={"Accept-Encoding": "gzip, deflate"}
            | ({"Authorization": f"Bearer {key}"} if key else {}),
            timeout=connection.timeout,
            limits=httpx.Limits(max_connections=connection.concurrency),
            trust_env=not connection.is_local,
        )
        self._url = httpx.URL(connection.base_url.rstrip("/") + "/chat/completions")
        self._gap = 60 / connection.requests_per_minute if connection.requests_per_minute else 0.0
        self._next = 0.0

    async def close(self) -> None:
        await self._http.aclose()

    async def ask(
        self, messages: Sequence[Message], condition: Condition, turn: Turn, seed: int
    ) -> backend.Reply:
        """The reply to ``messages``, or one of the errors of :mod:`interp.llm.backend`."""
        sent = {"seed": seed} if self.settings.send_seed else {}
        return await self.request(messages, self._fields(condition, turn) | sent)

    async def request(self, messages: Sequence[Message], fields: dict[str, Any]) -> backend.Reply:
        """One completion with the given request fields."""
        body = {"model": self.settings.model, "messages": list(messages), **fields}
        problem = ""
        for attempt in range(self.connection.max_retries + 1):
            # Requests are spaced evenly, so that no more than so many start in any minute.
            now = time.monotonic()
            start = max(now, self._next)
            self._next = start + self._gap
            await asyncio.sleep(start - now)
            try:
                # The client's timeout bounds each wait for bytes; a server that drips them needs one for the whole.
                async with asyncio.timeout(self.connection.timeout):
                    return self._read(await self._post(body), time.monotonic() - start)
            except RecursionError:
                problem, pause = "what it sent is nested too deeply", None
            except _TransientError as error:
                problem, pause = str(error), error.pause
            except (self._httpx.RequestError, TimeoutError) as error:
                problem, pause = f"no answer ({type(error).__name__}: {error})", None
            if attempt < self.connection.max_retries:
                doubled = min(0.5 * 2**attempt, 8.0) * (1 - 0.25 * random.random())
                await asyncio.sleep(min(pause, _LONGEST_PAUSE) if pause is not None else doubled)
        raise backend.UnavailableError(
            self.scrub(
                f"{self.address} gave no answer in {self.connection.max_retries + 1} attempts: {problem[:500]}"
            )
        )

    async def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        """Post once; the body of a completion, which may be no longer than :data:`_LARGEST`, packed or not."""
        async with self._http.stream("POST", self._url, json=body) as response:
            if response.has_redirect_location:
                raise InputError(
                    f"{self._url.host} redirects to {response.headers['location']!r}; prompts and keys are not sent "
                    "there. Give that address as the base URL if it is the right one"
                )
            packing = response.headers.get("content-encoding", "identity").strip().lower()
            if packing not in ("identity", "", "gzip", "deflate"):
                words = f"the server packs its answer by {packing[:60]!r}, which was not asked for"
                raise backend.RefusedError(self.scrub(words))
            text = ""
            async for piece in response.aiter_text():
                text += piece
                if len(text) > _LARGEST:
                    raise backend.RefusedError(
                        f"the server's answer is larger than {_LARGEST // 10**6} MB"
                    )
        found, status = json_in(text), response.status_code
        if status < 300 and isinstance(found, dict) and found.get("choices"):
            return found
        # What the server says about an error: the message where there is one, else the whole body.
        said = found
        for name in ("error", "message"):
            said = said[name] if isinstance(said, dict) and said.get(name) else said
        whole = said if isinstance(said, str) else json.dumps(found) if found is not None else text
        error = found.get("error") if isinstance(found, dict) else None
        code = error.get("code") if isinstance(error, dict) else None
        words = " ".join(whole.split())[:1000] or "(an empty body)"
        words += f" [{code}]" if isinstance(code, str) and code not in words else ""
        if status < 300 and isinstance(code, int) and 400 <= code < 600:
            status = code
        if status >= 300:
            raise self._sort(status, words, response.headers)
        if _OVERFLOW.search(words):
            raise backend.ContextOverflowError(self.scrub(words))
        raise _TransientError(f"what it sent is not a chat completion: {words}")

    def _fields(self, condition: Condition, turn: Turn) -> dict[str, Any]:
        settings = self.settings
        sampling = {
            name: getattr(settings, name) for name in ("temperature", "top_p", "max_tokens")
        }
        fields = {name: value for name, value in sampling.items() if value is not None}
        form = response_format(settings.response_format, condition, turn)
        return fields | form | backend.THINKING_OFF[settings.thinking_off] | settings.extra_body

    def _read(self, found: dict[str, Any], seconds: float) -> backend.Reply:
        """A completion as a reply; what has no field of its own goes into ``more``, so that nothing is lost."""
        more = json_values(
            self.scrub({key: value for key, value in found.items() if value is not None})
        )
        choice = more["choices"][0] if isinstance(more["choices"], list) else None
        message = choice.get("message") if isinstance(choice, dict) else None
        finish = choice.pop("finish_reason", None) if isinstance(choice, dict) else None
        if (
            not isinstance(choice, dict)
            or not isinstance(message, dict)
            or not isinstance(finish, str | None)
        ):
            raise _TransientError(
                f"what it sent is not a chat completion: {json.dumps(found)[:300]}"
            )
        usage = more.pop("usage", None)
        content = message.get("content")
        if content is None or isinstance(content, str):
            message.pop("content", None)
        # A string, or a list of parts of which some are text.
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        texts = [
            part.get("text")
            for part in parts
            if isinstance(part, dict) and part.get("type") == "text"
        ]
        return backend.Reply(
            text="".join(text for text in texts if isinstance(text, str)),
            finish_reason=finish or "",
            model=str(more.pop("model", None) or ""),
            system_fingerprint=more.pop("system_fingerprint", None),
            usage=usage if isinstance(usage, dict) else None,
            seconds=round(seconds, 4),
            more=more,
        )

    def _sort(self, status: int, words: str, headers: Any) -> Exception:
        said = self.scrub(words)
        if status in _TRANSIENT or status >= 500:
            pauses = [
                float(text) / scale
                for text, scale in (
                    (headers.get("retry-after-ms"), 1000.0),
                    (headers.get("retry-after"), 1.0),
                )
                if re.fullmatch(r"\s*\d+(?:\.\d*)?\s*", text or "")
            ]
            return _TransientError(f"it answered {status}: {said}", next(iter(pauses), None))
        if status in (400, 413) and _OVERFLOW.search(words):
            return backend.ContextOverflowError(said)
        if status in (400, 403, 413, 422):
            return backend.RefusedError(f"the server refused the request ({status}): {said}")
        key = (
            f"in {self.connection.key_env}" if self.connection.key_env else f"for {self._url.host}"
        )
        advice = {
            401: f"check the key {key}",
            402: "check the account's balance",
            404: f"check the model name {self.settings.model!r} and the address",
        }.get(status, "check the address and the settings")
        return InputError(
            f"the server refused the request ({status}): {said}; {advice} and run again to resume"
        )

    def scrub(self, value: Any) -> Any:
        """``value`` (text, or lists and dicts of it) without the key and without lone surrogates."""
        if isinstance(value, str):
            text = value.encode("utf-8", "replace").decode("utf-8")
            return text.replace(self._secret, "<key>") if self._secret else text
        if isinstance(value, dict):
            return {self.scrub(key): self.scrub(item) for key, item in value.items()}
        return [self.scrub(item) for item in value] if isinstance(value, (list, tuple)) else value

    def holds_key(self, text: str) -> bool:
        return self._secret is not None and self._secret in text

    async def start(self, condition: Condition) -> None:
        """Where a response format is asked for: one call that a model would not answer in JSON unless made to."""
        kind = self.settings.response_format
        if kind == "none":
            return
        fields = self._fields(condition, "prediction")
        fields |= {"max_tokens": 64} if "max_tokens" in fields else {}
        ask = "Reply with the plain word hello. Do not use JSON."
        reply = await self.request([{"role": "user", "content": ask}], fields)
        start = re.sub(r"\s", "", reply.text)
        wanted = "{" if kind == "json_object" else '{"prediction":'
        require(
            start.startswith(wanted) or (not start and reply.finish_reason == "length"),
            f"the server ignores response_format {kind!r} (it answered {reply.text[:40]!r}); use another: "
            f"{', '.join(name for name in RESPONSE_FORMATS if name != kind)}",
        )
