"""What a run sends, and how it reaches the server: the part that can change an answer, and the part that cannot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from interp.errors import InputError, require, unknown_name
from interp.llm.schemes import RESPONSE_FORMATS

THINKING_OFF: dict[str, dict[str, Any]] = {
    "": {},
    "deepseek": {"thinking": {"type": "disabled"}},
    "chat-template": {"chat_template_kwargs": {"enable_thinking": False}},
}


@dataclass(frozen=True)
class Settings:
    """What can change an answer. A run is resumed with the same settings only.

    Args:
        model: the model's name on the server.
        temperature, top_p: None leaves a field out of the request.
        max_tokens: the longest answer; None leaves it out.
        response_format: "none" (as the paper), "json_object", "json_schema" or "grammar" (llama.cpp).
        thinking_off: "", "deepseek", or "chat-template" (Qwen-3 on vLLM, llama.cpp).
        extra_body: more request fields, such as ``{"top_k": 20}``.
        send_seed: send a seed made of instance, round, turn and attempt.
        max_reasks: how often a malformed answer is asked again before it counts as missing.

    Raises:
        InputError: a value outside its range.
    """

    model: str
    temperature: float | None = 0.0
    top_p: float | None = None
    max_tokens: int | None = 2048
    response_format: str = "none"
    thinking_off: str = ""
    extra_body: dict[str, Any] = field(default_factory=dict)
    send_seed: bool = True
    max_reasks: int = 2

    def __post_init__(self) -> None:
        require(bool(self.model.strip()), "model must name a model on the server, got an empty name")
        for name, value, low, high in (
            ("temperature", self.temperature, 0, 2),
            ("top_p", self.top_p, 0, 1),
            ("max_tokens", self.max_tokens, 1, 10**6),
            ("max_reasks", self.max_reasks, 0, 20),
        ):
            require(value is None or low <= value <= high, f"{name} must be in [{low}, {high}], got {value}")
        if self.response_format not in RESPONSE_FORMATS:
            raise unknown_name("response format", self.response_format, RESPONSE_FORMATS)
        if self.thinking_off not in THINKING_OFF:
            raise unknown_name("way to turn thinking off", self.thinking_off, [name for name in THINKING_OFF if name])


@dataclass(frozen=True)
class Connection:
    """How the server is reached; may differ when a run is resumed.

    Args:
        base_url: such as ``http://127.0.0.1:8000/v1``; without user, password or query.
        key_env: the environment variable with the key. A server on this machine needs none.
        concurrency: episodes in progress at a time (each has one call in flight).
        requests_per_minute: upper bound over all episodes; None for no bound.
        timeout: seconds for one attempt.
        max_retries: attempts after the first, for transient errors.

    Raises:
        InputError: a value outside its range.
    """

    base_url: str
    key_env: str = "OPENAI_API_KEY"
    concurrency: int = 4
    requests_per_minute: float | None = None
    timeout: float = 120.0
    max_retries: int = 8

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.base_url)
        except ValueError as error:
            raise InputError(f"base_url is not an address: {error}") from None
        require(
            parts.scheme in ("http", "https") and bool(parts.hostname),
            f"base_url must be an address such as http://127.0.0.1:8000/v1, got {parts.scheme or self.base_url!r}",
        )
        require(
            not (parts.username or parts.password or parts.query or parts.fragment),
            "base_url must not hold a user, password, query or fragment: they could be secrets and would be "
            "recorded; put the key into an environment variable and name it with key_env",
        )
        require(1 <= self.concurrency <= 1000, f"concurrency must be in [1, 1000], got {self.concurrency}")
        require(
            self.requests_per_minute is None or self.requests_per_minute > 0,
            f"requests_per_minute must be > 0, got {self.requests_per_minute}",
        )
        require(self.timeout > 0, f"timeout must be > 0 seconds, got {self.timeout}")
        require(0 <= self.max_retries <= 50, f"max_retries must be in [0, 50], got {self.max_retries}")

    @property
    def is_local(self) -> bool:
        return urlsplit(self.base_url).hostname in ("localhost", "127.0.0.1", "::1")
