"""A client for servers with OpenAI's chat-completions protocol.

Every failure is turned into one of the four errors of :mod:`interp.llm.backend`;
docs/method/traces.md lists which HTTP status becomes which error. The key is sent only to the
address in the connection: redirects are refused. :meth:`Client.scrub` removes the key from
everything that the server returns.
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
from interp.llm.schemes import (
    RESPONSE_FORMATS,
    Condition,
    Message,
    Turn,
    response_format,
)
from interp.support.errors import InputError, require
from interp.support.files import json_values
from interp.support.foreign import json_in
from interp.support.replies import text_of

# Shorter keys are placeholders ("EMPTY", "none"), not secrets; removing them would damage texts.
_SHORTEST_SECRET = 8
_LONGEST_PAUSE = 60.0
_LARGEST_ANSWER = 32 * 10**6
"""Characters of an answer: a million tokens with what a server tells of each take less."""
_TRANSIENT_STATUSES = (408, 409, 425, 429)
# OpenAI: context_length_exceeded; vLLM and DeepSeek: "maximum context length"; llama.cpp: exceed_context_size_error.
_OVERFLOW_MESSAGE = re.compile(
    r"context[_ ](?:length|size|window)|maximum context|prompt is too long|too many (?:input )?tokens",
    re.IGNORECASE,
)


class _TransientError(Exception):
    """One attempt of a request failed for a reason that may pass, such as a busy server.

    Args:
        text: the message.
        pause: delay in seconds that the server requests before the next attempt; None if it
            requests none.
    """

    def __init__(self, text: str, pause: float | None = None):
        super().__init__(text)
        self.pause = pause


class Client(backend.Backend):
    """An asynchronous client for one server and one model.

    Args:
        settings: the model and everything that can change an answer.
        connection: address of the server, key and limits.
    """

    def __init__(self, settings: backend.Settings, connection: backend.Connection):
        """Open a client with the server's key. Nothing is sent yet."""
        if find_spec("httpx") is None:
            raise InputError(
                "asking a server needs the httpx package; install the extra: pip install 'latent-context-interp[llm]'"
            )
        import httpx

        self.settings = settings
        self.connection = connection
        self.address = connection.base_url
        self.concurrency = connection.concurrency
        key = connection.key()
        # The secret is removed from all that is recorded. Short keys are placeholders such as "x":
        # their removal would damage texts.
        self._secret = key if len(key) >= _SHORTEST_SECRET else None
        # By default, httpx also asks for encodings that optional packages decode. _post accepts only
        # these two, which httpx itself decodes piece by piece, so that the size can be limited.
        headers = {"Accept-Encoding": "gzip, deflate"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        self._httpx = httpx
        self._http = httpx.AsyncClient(
            headers=headers,
            timeout=connection.timeout,
            limits=httpx.Limits(max_connections=connection.concurrency),
            trust_env=not connection.is_local,  # proxies that environment variables name
        )
        self._url = f"{connection.base_url.rstrip('/')}/chat/completions"
        self._seconds_between = 0.0  # between the starts of two requests
        if connection.requests_per_minute:
            self._seconds_between = 60 / connection.requests_per_minute
        self._next_start = 0.0  # earliest time at which the next request may start

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def ask(
        self, messages: Sequence[Message], condition: Condition, turn: Turn, seed: int
    ) -> backend.Reply:
        """Return the server's reply; see :meth:`interp.llm.backend.Backend.ask` for the errors.

        Args:
            messages: the conversation so far.
            condition: wording of outcomes (0/1 or rainy/sunny), and whether the model writes notes.
            turn: which answer is requested, "prediction" or "note".
            seed: sampling seed; sent to the server if the settings have ``send_seed``.
        """
        fields = self._make_fields(condition, turn)
        if self.settings.send_seed:
            fields["seed"] = seed
        return await self.request(messages, fields)

    async def request(self, messages: Sequence[Message], fields: dict[str, Any]) -> backend.Reply:
        """Request one completion and return the reply. After a temporary error, such as a busy
        server, the request is repeated up to ``connection.max_retries`` times.

        Args:
            messages: the conversation so far.
            fields: further fields of the request, such as ``{"temperature": 0}``.

        Raises:
            UnavailableError: if all attempts failed for reasons that may pass.
            ContextOverflowError: if the conversation does not fit into the model's context.
            RefusedError: if the server refuses the request.
            InputError: if the user must change something, such as the key.
        """
        body = {"model": self.settings.model, "messages": list(messages), **fields}
        problem = ""
        n_attempts = self.connection.max_retries + 1
        for attempt in range(n_attempts):
            # Seconds: 0.5, 1, 2, 4, 8, 8, ...; at random a bit less, so that episodes do not all repeat
            # their requests at the same time.
            pause = min(0.5 * 2**attempt, 8.0) * random.uniform(0.75, 1)
            try:
                return await self._send_once(body)
            except RecursionError:
                problem = "what it sent is nested too deeply"
            except _TransientError as error:
                problem = str(error)
                if error.pause is not None:
                    pause = min(error.pause, _LONGEST_PAUSE)
            except (self._httpx.RequestError, TimeoutError) as error:
                problem = f"no answer ({type(error).__name__}: {error})"
            if attempt < self.connection.max_retries:
                await asyncio.sleep(pause)
        raise backend.UnavailableError(
            self.scrub(f"{self.address} gave no answer in {n_attempts} attempts: {problem[:500]}")
        )

    async def _send_once(self, body: dict[str, Any]) -> backend.Reply:
        """Send a request once and return the reply. A wait before it keeps requests at least ``60 /
        requests_per_minute`` seconds apart.

        Args:
            body: the whole request, as a JSON object.
        """
        now = time.monotonic()
        start = max(now, self._next_start)
        # Set before the wait, so that requests of other episodes queue up behind this one.
        self._next_start = start + self._seconds_between
        await asyncio.sleep(start - now)
        # The timeout of the HTTP client limits each wait for bytes. This one limits the whole
        # answer, which a server may send a few bytes at a time.
        async with asyncio.timeout(self.connection.timeout):
            completion = await self._post(body)
        return self._read_completion(completion, time.monotonic() - start)

    async def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        """Send one request, and return the completion that the server answers with, as a
        dictionary.

        Refused are redirects, encodings that were not asked for, and answers of more than
        :data:`_LARGEST_ANSWER` characters. Any other answer that is not a completion raises the
        error that :meth:`_choose_error` returns.

        Args:
            body: the whole request, as a JSON object.
        """
        # Everything is checked before the body is read, and the body is read only up to the limit.
        async with self._http.stream("POST", self._url, json=body) as response:
            if response.has_redirect_location:
                raise InputError(
                    f"{self.connection.host} redirects to {response.headers['location']!r}; prompts and keys are not "
                    "sent there. Give that address as the base URL if it is the right one"
                )
            encoding = response.headers.get("content-encoding", "").strip().lower()
            if encoding not in ("identity", "", "gzip", "deflate"):
                raise backend.RefusedError(
                    self.scrub(
                        f"the server packs its answer by {encoding[:60]!r}, which was not asked for"
                    )
                )
            text = ""
            async for piece in response.aiter_text():
                text += piece
                if len(text) > _LARGEST_ANSWER:
                    raise backend.RefusedError(
                        f"the server's answer is larger than {_LARGEST_ANSWER // 10**6} MB"
                    )
        content = json_in(text)
        is_object = isinstance(content, dict)
        if response.status_code < 300 and is_object and content.get("choices"):
            return dict(content)
        words, code = _describe_error(content, text)
        status = response.status_code
        # Some servers answer 200 and put the status of an error into the body.
        if status < 300 and isinstance(code, int) and 400 <= code < 600:
            status = code
        raise self._choose_error(status, words, response.headers)

    def _make_fields(self, condition: Condition, turn: Turn) -> dict[str, Any]:
        """Return the fields of a request, without model, messages and seed, as a dictionary:
        sampling, format of the answer, thinking, and the user's additional fields.

        Args:
            condition: wording of outcomes (0/1 or rainy/sunny), and whether the model writes notes.
            turn: which answer is requested, "prediction" or "note".
        """
        settings = self.settings
        fields: dict[str, Any] = {}
        for name in ("temperature", "top_p", "max_tokens"):
            value = getattr(settings, name)
            if value is not None:
                fields[name] = value
        fields |= response_format(settings.response_format, condition, turn)
        # The user's own fields come last, so that they replace the others.
        return fields | backend.THINKING_OFF[settings.thinking_off] | settings.extra_body

    def _read_completion(self, completion: dict[str, Any], seconds: float) -> backend.Reply:
        """Turn a completion into a reply. Fields that :class:`~interp.llm.backend.Reply` lacks go
        into ``more``, so that everything is recorded.

        Args:
            completion: body of the server's answer.
            seconds: duration of the call.
        """
        # What is taken out of `body` below goes into fields of its own; the rest becomes `more`.
        filled = {name: value for name, value in completion.items() if value is not None}
        body = json_values(self.scrub(filled))
        try:
            choice = body["choices"][0]
            message = choice["message"]
            finish_reason = choice.pop("finish_reason", None) or ""
            content = message.get("content")
            is_completion = isinstance(finish_reason, str)
        # A part is missing, or is no object. `choices` is not empty, which _post has checked.
        except (KeyError, TypeError, AttributeError):
            is_completion = False
        if not is_completion:
            raise _TransientError(
                f"what it sent is not a chat completion: {json.dumps(completion)[:300]}"
            )
        if not isinstance(content, list):  # a list of parts stays in ``body``
            message.pop("content", None)
        usage = body.pop("usage", None)
        if not isinstance(usage, dict):
            usage = None
        return backend.Reply(
            text=text_of(content),
            finish_reason=finish_reason,
            model=str(body.pop("model", "")),
            system_fingerprint=body.pop("system_fingerprint", None),
            usage=usage,
            seconds=round(seconds, 4),
            more=body,
        )

    def _choose_error(self, status: int, words: str, headers: Any) -> Exception:
        """Return the exception to raise for a failed request: a :class:`_TransientError` if another
        attempt may succeed, otherwise one of the errors of :mod:`interp.llm.backend`.

        Args:
            status: HTTP status.
            words: the server's message.
            headers: headers of the answer, which may request a delay.
        """
        words = self.scrub(words)
        # Servers have no common status for a conversation that is longer than the model's context.
        is_overflow = _OVERFLOW_MESSAGE.search(words) is not None
        # Some servers report an error with a status of success.
        if status < 300 and not is_overflow:
            return _TransientError(f"what it sent is not a chat completion: {words}")
        if status in _TRANSIENT_STATUSES or status >= 500:
            return _TransientError(f"it answered {status}: {words}", _read_requested_pause(headers))
        if is_overflow and (status < 300 or status in (400, 413)):
            return backend.ContextOverflowError(words)
        refusal = f"the server refused the request ({status}): {words}"
        # These are about the content of this request, and the run goes on with other episodes. Any
        # other status would meet every request, and stops the run.
        if status in (400, 403, 413, 422):
            return backend.RefusedError(refusal)
        where_key = f"for {self.connection.host}"
        if self.connection.key_env:
            where_key = f"in {self.connection.key_env}"
        advice_by_status = {
            401: f"check the key {where_key}",
            402: "check the account's balance",
            404: f"check the model name {self.settings.model!r} and the address",
        }
        advice = advice_by_status.get(status, "check the address and the settings")
        return InputError(f"{refusal}; {advice} and run again to resume")

    def scrub(self, value: Any) -> Any:
        """Return a value without the API key and without characters that are invalid in UTF-8.

        Args:
            value: text, or nested lists and dictionaries of text.
        """
        if isinstance(value, str):
            text = value.encode("utf-8", "replace").decode("utf-8")
            return text.replace(self._secret, "<key>") if self._secret else text
        if isinstance(value, dict):
            return {self.scrub(key): self.scrub(item) for key, item in value.items()}
        return [self.scrub(item) for item in value] if isinstance(value, list) else value

    def holds_key(self, text: str) -> bool:
        """Return whether the API key occurs in ``text``."""
        return self._secret is not None and self._secret in text

    async def start(self, condition: Condition) -> None:
        """Check that the server enforces the response format. The check asks for a plain word; a
        server that enforces the format cannot answer with it.

        Args:
            condition: wording of outcomes and kind of notes of the first episode.

        Raises:
            InputError: if the server answers in another format.
        """
        kind = self.settings.response_format
        if kind == "none":
            return
        fields = self._make_fields(condition, "prediction")
        if "max_tokens" in fields:
            fields["max_tokens"] = 64  # enough to see how the answer begins
        question = "Reply with the plain word hello. Do not use JSON."
        reply = await self.request([{"role": "user", "content": question}], fields)
        compact_text = re.sub(r"\s", "", reply.text)
        # How every answer in the format begins.
        beginning = "{" if kind == "json_object" else '{"prediction":'
        # A model that thinks first may reach the limit before it answers, which shows nothing.
        was_cut_before = not compact_text and reply.finish_reason == "length"
        others = ", ".join(name for name in RESPONSE_FORMATS if name != kind)
        require(
            was_cut_before or compact_text.startswith(beginning),
            f"the server ignores response_format {kind!r} (it answered {reply.text[:40]!r}); use another: {others}",
        )


def _describe_error(content: Any, text: str) -> tuple[str, Any]:
    """Return (message, code) of a server's error. If the body contains no message, the message is
    the whole body; if it contains no code, the code is None.

    Args:
        content: the body parsed as JSON; None if it is not JSON.
        text: the body as text.
    """
    error = content.get("error") if isinstance(content, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    words = error or content
    if isinstance(words, dict) and words.get("message"):
        words = words["message"]
    if not isinstance(words, str):
        words = text
    words = " ".join(words.split())[:1000] or "(an empty body)"
    # A code may be a word, such as "context_length_exceeded", or the number of a status.
    if isinstance(code, str) and code not in words:
        words += f" [{code}]"
    return words, code


def _read_requested_pause(headers: Any) -> float | None:
    """Return the delay in seconds that the headers of an answer request before the next attempt;
    None if they request none, or name a date instead of a delay.
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = headers.get(name, "").strip()
        if re.fullmatch(r"\d+(?:\.\d*)?", text):
            return float(text) * unit
    return None
