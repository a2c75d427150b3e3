"""A real server on loopback that puts an agent behind the OpenAI chat protocol, and what it can answer but a text."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Status:
    """Answer with an HTTP error."""

    code: int
    body: dict[str, Any] = field(default_factory=lambda: {"error": {"message": "no"}})
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Raw:
    """Answer with these bytes."""

    data: bytes
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    code: int = 200


@dataclass
class Message:
    """Answer with a completion whose message has these fields (and whose top level these)."""

    fields: dict[str, Any]
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass
class Completion:
    """Answer with a completion that has this text and more fields."""

    text: str | None
    finish_reason: str = "stop"
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass
class Hang:
    """Wait before answering."""

    seconds: float
    then: Any = "{}"


CUT = object()
"""Close the connection in the middle of the answer."""


class _Quiet(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that are killed reset their connections; that is what some tests do."""


class Server:
    """``answer(number, request body) -> text | Status | Raw | Completion | Hang | CUT`` behind /v1/chat/completions."""

    def __init__(self, answer: Callable[[int, dict[str, Any]], Any]):
        self.answer = answer
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.in_flight = self.most_in_flight = 0
        self.lock = threading.Lock()
        self.http = _Quiet(("127.0.0.1", 0), self._handler())
        self.http.daemon_threads = True
        self.thread = threading.Thread(
            target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_address[1]}/v1"

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()

    def _handler(server: Server) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Headers and body leave as two packets; with Nagle's algorithm that costs 40 ms a call.
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with server.lock:
                    number = len(server.requests)
                    server.requests.append(body)
                    server.keys.append(self.headers.get("Authorization"))
                    server.in_flight += 1
                    server.most_in_flight = max(server.most_in_flight, server.in_flight)
                try:
                    self._send(server.answer(number, body), body)
                except (BrokenPipeError, ConnectionResetError):
                    pass
                finally:
                    with server.lock:
                        server.in_flight -= 1

            def _send(self, reply: Any, body: dict[str, Any]) -> None:
                if isinstance(reply, Hang):
                    time.sleep(reply.seconds)
                    reply = reply.then
                if reply is CUT:
                    self.send_response(200)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", "5000")
                    self.end_headers()
                    self.wfile.write(b'{"id": "cut')
                    self.close_connection = True
                    return
                if isinstance(reply, str) or reply is None:
                    reply = Completion(reply)
                if isinstance(reply, Message):
                    whole = completion(Completion("", extra=reply.extra), body)
                    whole["choices"][0]["message"] = {"role": "assistant", **reply.fields}
                    reply = Raw(json.dumps(whole).encode())
                if isinstance(reply, Completion):
                    reply = Raw(json.dumps(completion(reply, body)).encode())
                if isinstance(reply, Status):
                    said = json.dumps(reply.body).encode()
                    reply = Raw(said, headers=reply.headers, code=reply.code)
                self.send_response(reply.code)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Type", reply.content_type)
                self.send_header("Content-Length", str(len(reply.data)))
                self.end_headers()
                self.wfile.write(reply.data)

            def log_message(self, *args: Any) -> None:
                pass

        return Handler


def completion(reply: Completion, body: dict[str, Any]) -> dict[str, Any]:
    """A chat completion with the fields a real server sends; tokens are counted by words."""
    prompt = sum(len(message["content"].split()) for message in body["messages"])
    answer = len((reply.text or "").split())
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": f"{body['model']}-served",
        "system_fingerprint": "fp_test",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": reply.text},
                "finish_reason": reply.finish_reason,
            }
        ],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer,
            "prompt_tokens_details": {"cached_tokens": prompt // 2},
        },
        **reply.extra,
    }
