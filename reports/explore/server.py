"""The page of a machine on this computer: a server on the loopback, whose every page says all of its state.

A page is asked for with a token that is a part of its address, which is compared in constant time, and requests that
name another host are refused. Views are computed one at a time: hooks are the machine's.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from itertools import chain
from typing import Any
from urllib.parse import urlencode

from interp.core import catalog
from interp.core.machine import Machine
from interp.model.library import load
from interp.model.run import room
from interp.results.style import house_style
from interp.support.checks import checked, checked_fields
from interp.support.errors import InputError, require, require_known, theirs
from interp.support.foreign import csv, one_line, svg
from reports.attention import library_script
from reports.blocks import TEMPLATES, environment, stylesheet
from reports.explore import page
from reports.explore.answer import Answer, answer
from reports.explore.view import LONGEST, N_EPISODES, Bench, Edit, View, script

_ROUNDS = 30  # rounds of an episode, where the task has so many that say something new
_TRIED = 4  # changes of an input that are tried, at most, for the one that a page opens with
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_STOPPED = "the work was stopped; fold and open its box to begin again"
_MISSING = (
    "a live page needs the extra `explore`; run: pip install 'latent-context-interp[explore]'"
)


@dataclass(eq=False)
@checked_fields
class Explorer:
    """A machine that can be looked at, and perhaps another one beside it.

    ``origin`` is Python that loads the machine, empty where nobody knows; ``command`` are the shell's words for the
    page.
    """

    model: Machine
    reference: Machine | None = None
    origin: str = ""
    command: str = ""
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        if self.reference is not None:
            tasks = [machine.layout.task for machine in (self.model, self.reference)]
            require(
                tasks[0] == tasks[1],
                f"the machines are of different tasks, {tasks[0]!r} and {tasks[1]!r}",
            )

    @lru_cache(maxsize=64)  # noqa: B019  (an explorer lives as long as its page)
    def answer(self, view: View) -> tuple[Answer, Answer | None]:
        """What the edits of a view do to the machine, and to the one beside it."""
        with self._lock:
            first, second = self._benches(view.regime, view.rounds, view.seed)
            return answer(first, view), None if second is None else answer(
                second, view, whole=False
            )

    @lru_cache(maxsize=4)  # noqa: B019
    def _benches(self, regime: str, rounds: int, seed: int) -> tuple[Bench, Bench | None]:
        task = catalog.of(self.model)
        if regime:
            require_known(f"regime of {task.key!r}", regime, task.data.regimes(), limit=40)
        n_rounds = rounds or room(self.model, task.at_most(_ROUNDS))
        episodes = task.half(1).sample_for(self.model, N_EPISODES, n_rounds, seed, regime)
        first = Bench(self.model.eval(), self.origin, episodes, regime, seed)
        return first, None if self.reference is None else Bench(
            self.reference.eval(), "", episodes, regime, seed
        )

    def opening(self, view: View) -> View:
        """A view as it is, or where it has no edit and no round a telling one, whose edit acts half-way.

        It is the single change of an input that moves a prediction most; where none does, another episode's latents.
        """
        if view.edits or view.round:
            return view
        bench = self._benches(view.regime, view.rounds, view.seed)[0]
        n, at = len(bench.episodes), bench.n_rounds // 2
        edits = [
            Edit("input", at, of.key, said)
            for of, _, said in bench.changes
            if not of.changes_history
        ]
        others = [Edit("patch", at, "latent", str((view.episode + i) % n)) for i in range(1, n)]
        for kind in (edits[:_TRIED], others[:_TRIED]):
            tried = [replace(view, edits=(edit,)) for edit in kind]
            moved = {one: self.answer(one)[0].differences()["machine"] for one in tried}
            best = max(tried, key=lambda one: float(moved[one].sum()), default=view)
            if tried and moved[best].max() > page.VISIBLE:
                return replace(best, round=int(moved[best].argmax()))
        return view

    def rows(self, name: str, view: View) -> Iterator[dict[str, Any]]:
        """The rows of a longer part, each computed when it is asked for."""
        rows = {"layers": page.layers, "carriers": page.carriers}[name](self.answer(view)[0])
        while True:
            with self._lock:
                row = next(rows, None)
            if row is None:
                return
            yield row

    def page(self, view: View) -> str:
        """The page of a view."""
        one, other = self.answer(view)
        with self._lock:
            shown = page.contents(one, other)
        usual = {"view": view, "bench": one.bench, "answer": one, "explorer": self}
        return str(environment().get_template("explore.html.j2").render(**shown, **usual))

    def part(self, name: str, view: View) -> Iterator[str]:
        """A longer part of a page as it comes: each row when it is computed."""
        template = environment().get_template("explore_part.html.j2")
        if name == "attention":
            one = self.answer(view)[0]
            with self._lock:
                views = [each.html(f"attention-{i}") for i, each in enumerate(page.attention(one))]
            return iter([str(template.render(name=name, view=view, views=views, rows=None))])
        told = self.rows(name, view)
        first = next(told, None)  # what is refused is refused before a page begins

        rows = chain([] if first is None else [first], told)
        return iter(template.generate(name=name, view=view, rows=rows, views=None))

    def added(self, query: str, given: dict[str, str]) -> View:
        """A view with one edit more, as a form says it; refused where the edit is none of this machine's."""
        view = View.of(query)
        for name in given:
            require_known("part of an edit", name, ("kind", "at", "on", "to", "what", "value"))
        kind, at, on = given.get("kind", ""), given.get("at", ""), given.get("on", "")
        to = given.get("to", "").strip()
        what, value = given.get("what", "").strip(), given.get("value", "").strip() or to or "-"
        if kind == "input":
            what, _, options = what.partition(" ")
            value = f"{options}{value}" if options.endswith("=") else options or "-"
        edit = Edit.parse(f"{kind} {at}{'-' if on and kind != 'input' else ''} {what} {value}")
        others = view.edits
        if to:  # a number of the decoded state becomes so much: its only move in that round
            named = [(one.kind, one.round, one.on, one.what) for one in (*others, edit)]
            others = tuple(
                one for one, name in zip(others, named, strict=False) if name != named[-1]
            )
            now = self.answer(replace(view, edits=others))[0]
            key, _ = edit.moved(now.bench)
            held = now.decoded[1][key][
                (edit.rounds(now.bench).start, *map(int, edit.what.split(".")[1:]))
            ]
            edit = replace(edit, value=f"{float(edit.value) - float(held):.6g}")
        changed = replace(
            view, edits=(*others, edit) if not to or abs(float(edit.value)) >= 1e-6 else others
        )
        self.answer(changed)
        return changed


@cache
def _assets() -> dict[str, tuple[str, str]]:
    own = {
        name: (TEMPLATES / name).read_text("utf-8")
        for name in ("explore.css", "explore.js", "attention.js")
    }
    return {
        "style.css": (f"{stylesheet()}\n{own['explore.css']}", "text/css"),
        "explore.js": (own["explore.js"], "text/javascript"),
        "attention.js": (own["attention.js"], "text/javascript"),
        "circuitsvis.js": (library_script(), "text/javascript"),
    }


def _app(explorer: Explorer, token: str) -> Any:
    """The server of an explorer, as an ASGI application; every address of it begins with the token."""
    with theirs(_MISSING, of=ImportError):
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.middleware.trustedhost import TrustedHostMiddleware
        from starlette.requests import Request
        from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
        from starlette.routing import Route

    def refused(why: str, status: int, query: str = "") -> Response:
        shown = {"why": why, "query": query, "command": explorer.command}
        text = environment().get_template("explore_refused.html.j2").render(**shown)
        return HTMLResponse(text, status, headers=_HEADERS)

    def guarded(give: Callable[[Request], Response]) -> Callable[[Request], Response]:
        def respond(request: Request) -> Response:
            query = str(request.url.query)
            if not hmac.compare_digest(str(request.path_params["token"]).encode(), token.encode()):
                return refused(
                    "this address has no token, or that of another run", 403, query[:LONGEST]
                )
            names = [name for name, _ in request.query_params.multi_items() if name != "edit"]
            require(
                len(names) == len({*names}),
                f"an address says each part once, got two of {', '.join(names)}",
            )
            return give(request)

        return respond

    def given(kind: str, text: str, **headers: str) -> Response:
        return Response(text, media_type=kind, headers={**_HEADERS, **headers})

    def part(request: Request) -> Response:
        name = str(request.path_params["name"])
        require_known("part of a page", name, ("attention", "layers", "carriers"))
        return StreamingResponse(
            explorer.part(name, View.of(str(request.url.query))),
            media_type="text/html",
            headers=_HEADERS,
        )

    def add(request: Request) -> Response:
        asked = dict(request.query_params)
        view = explorer.added(asked.pop("view", ""), asked)
        return RedirectResponse(f"./?{view.query()}", 303, headers=_HEADERS)

    def look(request: Request) -> Response:
        said = dict(request.query_params)
        now = View.of(said.pop("view", ""))
        asked = View.of(urlencode([(name, text) for name, text in said.items() if text]))
        require(not asked.edits, "an edit is added by its own form")
        changed = {name: getattr(asked, name) for name in said} | {"hold": asked.hold}
        if (asked.rounds, asked.regime) != (now.rounds, now.regime):
            changed["round"] = 0
        return RedirectResponse(f"./?{now.query(**changed)}", 303, headers=_HEADERS)

    def kept(request: Request) -> Response:
        view, name = View.of(str(request.url.query)), str(request.path_params["file"])
        (one, other), files = explorer.answer(view), ("data.csv", "figure.svg", "view.py")
        require_known("file of a view", name, files)
        if name == "figure.svg":
            with house_style():
                text = svg(page.figure(one, other))
        else:
            text = csv(one.frame()) if name == "data.csv" else script(one.bench, view)
        kind = dict(zip(files, ("text/csv", "image/svg+xml", "text/x-python"), strict=True))[name]
        return given(kind, text, **{"Content-Disposition": f'attachment; filename="{name}"'})

    def asset(request: Request) -> Response:
        name = str(request.path_params["file"])
        require_known("asset", name, _assets())
        text, kind = _assets()[name]
        return given(kind, text, **{"Cache-Control": "private, max-age=3600"})

    routes = {
        "/": lambda request: given("text/html", explorer.page(View.of(str(request.url.query)))),
        "/add": add,
        "/look": look,
        "/part/{name}": part,
        "/stopped": lambda _: refused(_STOPPED, 200),
        "/keep/{file}": kept,
        "/asset/{file}": asset,
    }
    hosts = Middleware(
        TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"], www_redirect=False
    )

    def refuse_page(request: Any, error: Exception) -> Any:
        return refused("there is no such page", 404)

    def refuse_input(request: Any, error: Exception) -> Any:
        return refused(str(error), 400)

    def report_fault(request: Any, error: Exception) -> Any:
        kind = type(error).__name__
        return refused(f"a fault of ours, not of the view: {kind}: {one_line(error)}", 500)

    handlers: dict[Any, Any] = {
        404: refuse_page,
        InputError: refuse_input,
        Exception: report_fault,
    }
    listed = [Route(f"/{{token}}{path}", guarded(give)) for path, give in routes.items()]
    return Starlette(routes=listed, middleware=[hosts], exception_handlers=handlers)


@dataclass(eq=False)
@checked_fields
class Served:
    """A page that is being served; ``address`` opens it. :meth:`close` ends it, as the end of Python does."""

    explorer: Explorer
    port: int
    view: View

    def __post_init__(self) -> None:
        with theirs(_MISSING, of=ImportError):
            import uvicorn
            from uvicorn.protocols.http.auto import AutoHTTPProtocol

        class Patient(AutoHTTPProtocol):  # type: ignore[valid-type, misc]
            """It answers a client that has closed its own half of the connection after the request."""

            def eof_received(self) -> bool:
                return bool(self.cycle and not self.cycle.response_complete)

        self.token, self.view = secrets.token_urlsafe(24), self.explorer.opening(self.view)
        require(
            0 <= self.port < 65536, f"a port is 0 for any free one, or up to 65535, got {self.port}"
        )
        try:  # whoever opens the address at once waits until it is served; nothing beyond this computer reaches it
            self._socket = socket.create_server(("127.0.0.1", self.port))
        except OSError as error:
            why = os.strerror(error.errno or 0)
            raise InputError(
                f"port {self.port} cannot be used: {why}; leave it out for a free one"
            ) from error
        self.port = self._socket.getsockname()[1]
        settings: dict[str, Any] = {
            "log_level": "error",
            "lifespan": "off",
            "access_log": False,
            "http": Patient,
        }
        self._server = uvicorn.Server(uvicorn.Config(_app(self.explorer, self.token), **settings))

    def __repr__(self) -> str:
        return f"{self.explorer.model.name} at {self.address}"

    @cached_property
    def address(self) -> str:
        """Where the page is, with its token."""
        query = self.view.query()
        return f"http://127.0.0.1:{self.port}/{self.token}/" + (f"?{query}" if query else "")

    def run(self) -> None:
        """Serve until interrupted."""
        self._server.run(sockets=[self._socket])

    def start(self) -> Served:
        """Serve beside what goes on, with what is in use now (:func:`interp.tasks.using`), until :meth:`close`."""
        self._thread = threading.Thread(target=copy_context().run, args=(self.run,), daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop serving."""
        self._server.should_exit = True
        self._thread.join()


@checked
def explore(
    model: Machine | str, reference: Machine | str | None = None, *, view: str = "", port: int = 0
) -> Served:
    """Serve a live page of a machine on this computer, beside what goes on; its ``address`` opens it.

    Args:
        model: a machine, or what :func:`interp.load` takes.
        reference: another machine of the same task, run beside it on the same episodes and edits of inputs and state.
        view: what the page shows first: the query of an address that was kept. Without a round and an edit it opens
            half-way, with the change of an input that moves a prediction most.
        port: 0 for any free one.

    >>> import interp
    >>> page = interp.explore(interp.load("wma-handwired", n_experts=2))
    >>> page.address.startswith("http://127.0.0.1:")
    True
    >>> page.close()
    """
    one = load(model) if isinstance(model, str) else model
    other = load(reference) if isinstance(reference, str) and reference else reference or None
    origin = f"interp.load({model!r})" if isinstance(model, str) else ""
    command = f"interp explore {model}" if isinstance(model, str) else ""
    return Served(Explorer(one, other, origin, command), port, View.of(view)).start()
