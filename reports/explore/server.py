"""The page of a machine on this computer: a server on the loopback; the address of a page has all
of its state.

Every address contains a token, which is compared in constant time, and requests that
name another host are refused. Views are computed one at a time, since hooks belong to the machine.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from typing import Any
from urllib.parse import urlencode

import numpy as np

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
    """A machine that can be looked at, and perhaps a second one to compare it with.

    ``origin`` is Python that loads the machine, "" if unknown; ``command`` are the shell's words
    for the page.
    """

    model: Machine
    reference: Machine | None = None
    origin: str = ""
    command: str = ""
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        if self.reference is not None:
            task = self.model.layout.task
            task_of_reference = self.reference.layout.task
            require(
                task == task_of_reference,
                f"the machines are of different tasks, {task!r} and {task_of_reference!r}",
            )

    @lru_cache(maxsize=64)  # noqa: B019  (an explorer lives as long as its page)
    def answer(self, view: View) -> tuple[Answer, Answer | None]:
        """Return what the edits of a view do to the machine, and to the second one."""
        with self._lock:
            bench, reference = self._benches(view.regime, view.rounds, view.seed)
            shown = answer(bench, view)
            if reference is None:
                return shown, None
            return shown, answer(reference, view, whole=False)

    @lru_cache(maxsize=4)  # noqa: B019
    def _benches(self, regime: str, rounds: int, seed: int) -> tuple[Bench, Bench | None]:
        task = catalog.of(self.model)
        if regime:
            require_known(f"regime of {task.key!r}", regime, task.data.regimes(), limit=40)
        n_rounds = rounds or room(self.model, task.at_most(_ROUNDS))
        episodes = task.half(1).sample_for(self.model, N_EPISODES, n_rounds, seed, regime)
        bench = Bench(self.model.eval(), self.origin, episodes, regime, seed)
        if self.reference is None:
            return bench, None
        reference = Bench(self.reference.eval(), "", episodes, regime, seed)
        bench.giver = reference
        return bench, reference

    def opening(self, view: View) -> View:
        """Return a view as it is; without an edit and a round, one with a visible edit half-way.

        The edit is the single change of an input that moves a prediction most; where none does,
        another episode's latents.
        """
        if view.edits or view.round:
            return view
        bench = self._benches(view.regime, view.rounds, view.seed)[0]
        middle = bench.n_rounds // 2
        inputs = []
        for corruption, _, options in bench.changes:
            if not corruption.changes_history:
                inputs.append(Edit("input", middle, corruption.key, options))
        patches = []
        for i in range(1, len(bench.episodes)):
            source = (view.episode + i) % len(bench.episodes)
            patches.append(Edit("patch", middle, "latent", str(source)))
        return self._choose(view, inputs) or self._choose(view, patches) or view

    def _choose(self, view: View, edits: Sequence[Edit]) -> View | None:
        """Return the view with the edit that moves predictions most, at the round where it does; None if none does.

        Args:
            view: that has no edits.
            edits: those that are tried, in this order.
        """
        best = view
        largest = np.zeros(1)
        for edit in edits[:_TRIED]:
            tried = replace(view, edits=(edit,))
            moves = self.answer(tried)[0].differences()["machine"]
            if moves.sum() > largest.sum():
                best = tried
                largest = moves
        if largest.max() <= page.VISIBLE:
            return None
        return replace(best, round=int(largest.argmax()))

    def page(self, view: View) -> str:
        """Return the page of a view."""
        shown, reference = self.answer(view)
        with self._lock:
            contents = page.contents(shown, reference)
        template = environment().get_template("explore.html.j2")
        text = template.render(
            view=view, bench=shown.bench, answer=shown, explorer=self, **contents
        )
        return str(text)

    def attention(self, view: View) -> str:
        """Return the attention of the chosen round, a page of its own within the page."""
        shown = self.answer(view)[0]
        with self._lock:
            attention = enumerate(page.attention(shown))
            views = [part.html(f"attention-{i}") for i, part in attention]
        template = environment().get_template("explore_part.html.j2")
        return str(template.render(name="attention", view=view, views=views))

    def added(self, query: str, parts: dict[str, str]) -> View:
        """Add an edit from a form to a view; refuse one that this machine does not have.

        Args:
            query: of the view.
            parts: of the edit: ``kind``, round ``at``, ``what``, ``value``, ``on`` for later
                rounds, too, or ``to``, what a number of the decoded state becomes.
        """
        view = View.of(query)
        for name in parts:
            require_known("part of an edit", name, _EDIT_PARTS)
        kind, at_round, later, target, what, value = (
            parts.get(name, "").strip() for name in _EDIT_PARTS
        )
        value = value or target or "-"
        if kind == "input":
            what, _, options = what.partition(" ")
            value = options + value if options.endswith("=") else options or "-"
        dash = "-" if later and kind not in ("input", "memory") else ""
        edit = Edit.parse(f"{kind} {at_round}{dash} {what} {value}")
        changed = replace(view, edits=(*view.edits, edit))
        if target:
            changed = self._set_number(view, edit)
        self.answer(changed)
        return changed

    def _set_number(self, view: View, edit: Edit) -> View:
        """Replace a move of a number by the one that gives the number the value of ``edit``, if any
        is needed.

        Args:
            view: with its other edits.
            edit: a move; its value is what the number becomes.
        """
        others = tuple(
            one_edit for one_edit in view.edits if replace(one_edit, value=edit.value) != edit
        )
        unset = replace(view, edits=others)
        now = self.answer(unset)[0]
        key, _ = edit.moved(now.bench)
        index = tuple(int(number) for number in edit.what.split(".")[1:])
        values = now.decoded[1][key][edit.rounds(now.bench).start]
        difference = float(edit.value) - float(values[index])
        if abs(difference) < 1e-6:
            return unset
        return replace(view, edits=(*others, replace(edit, value=f"{difference:.6g}")))


_EDIT_PARTS = ("kind", "at", "on", "to", "what", "value")


@cache
def _assets() -> dict[str, tuple[str, str]]:
    """Return what a page loads: name -> (text, media type)."""
    css = (TEMPLATES / "explore.css").read_text("utf-8")
    assets = {
        "style.css": (f"{stylesheet()}\n{css}", "text/css"),
        "circuitsvis.js": (library_script(), "text/javascript"),
    }
    for name in ("explore.js", "attention.js"):
        assets[name] = (TEMPLATES / name).read_text("utf-8"), "text/javascript"
    return assets


_KEPT = {"data.csv": "text/csv", "figure.svg": "image/svg+xml", "view.py": "text/x-python"}
"""Files of a view that can be kept -> their media types."""


def _write_kept(explorer: Explorer, name: str, view: View) -> str:
    """Return the text of a file of a view.

    Args:
        explorer: the machine.
        name: of the file.
        view: the view.
    """
    shown, reference = explorer.answer(view)
    if name == "data.csv":
        return csv(shown.frame())
    if name == "view.py":
        return script(shown.bench, view)
    with house_style():
        return svg(page.figure(shown, reference))


def _look(query: str, parts: dict[str, str]) -> View:
    """Return the view of a query with what a form says of it; an empty field says the usual."""
    now = View.of(query)
    chosen = View.of(urlencode([(name, text) for name, text in parts.items() if text]))
    require(not chosen.edits, "an edit is added by its own form")
    changed = {name: getattr(chosen, name) for name in parts}
    changed["hold"] = chosen.hold
    if (chosen.rounds, chosen.regime) != (now.rounds, now.regime):
        changed["round"] = 0
    return replace(now, **changed)


def _app(explorer: Explorer, token: str) -> Any:
    """Return the server of an explorer, an ASGI application; every address of it begins with the token."""
    with theirs(_MISSING, of=ImportError):
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.middleware.trustedhost import TrustedHostMiddleware
        from starlette.requests import Request
        from starlette.responses import HTMLResponse, RedirectResponse, Response
        from starlette.routing import Route

    def refuse(why: str, status: int, query: str = "") -> Response:
        template = environment().get_template("explore_refused.html.j2")
        text = template.render(why=why, query=query, command=explorer.command)
        return HTMLResponse(text, status, headers=_HEADERS)

    def guard(respond: Callable[[Request], Response]) -> Callable[[Request], Response]:
        def respond_to_token(request: Request) -> Response:
            sent = str(request.path_params["token"])
            if not hmac.compare_digest(sent.encode(), token.encode()):
                why = "this address has no token, or that of another run"
                return refuse(why, 403, request.url.query[:LONGEST])
            pairs = request.query_params.multi_items()
            names = [name for name, _ in pairs if name != "edit"]
            if len(names) > len(set(names)):
                listed = ", ".join(names)
                raise InputError(f"an address says each part once, got two of {listed}")
            return respond(request)

        return respond_to_token

    def respond(kind: str, text: str, **headers: str) -> Response:
        return Response(text, media_type=kind, headers={**_HEADERS, **headers})

    def redirect(view: View) -> Response:
        return RedirectResponse(f"./?{view.query()}", 303, headers=_HEADERS)

    def get_view(request: Request) -> View:
        return View.of(request.url.query)

    def get_page(request: Request) -> Response:
        return respond("text/html", explorer.page(get_view(request)))

    def get_part(request: Request) -> Response:
        require_known("part of a page", request.path_params["name"], ("attention",))
        return respond("text/html", explorer.attention(get_view(request)))

    def add(request: Request) -> Response:
        parts = dict(request.query_params)
        query = parts.pop("view", "")
        return redirect(explorer.added(query, parts))

    def look(request: Request) -> Response:
        parts = dict(request.query_params)
        query = parts.pop("view", "")
        return redirect(_look(query, parts))

    def get_kept(request: Request) -> Response:
        name = request.path_params["file"]
        require_known("file of a view", name, _KEPT)
        text = _write_kept(explorer, name, get_view(request))
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return respond(_KEPT[name], text, **headers)

    def get_asset(request: Request) -> Response:
        name = request.path_params["file"]
        require_known("asset", name, _assets())
        text, kind = _assets()[name]
        return respond(kind, text, **{"Cache-Control": "private, max-age=3600"})

    def get_stopped(request: Request) -> Response:
        return refuse(_STOPPED, 200)

    routes = {
        "/": get_page,
        "/add": add,
        "/look": look,
        "/part/{name}": get_part,
        "/stopped": get_stopped,
        "/keep/{file}": get_kept,
        "/asset/{file}": get_asset,
    }

    def refuse_page(request: Any, error: Exception) -> Any:
        return refuse("there is no such page", 404)

    def refuse_input(request: Any, error: Exception) -> Any:
        return refuse(str(error), 400)

    def report_fault(request: Any, error: Exception) -> Any:
        kind = type(error).__name__
        return refuse(f"a fault of ours, not of the view: {kind}: {one_line(error)}", 500)

    handlers: dict[Any, Any] = {
        404: refuse_page,
        InputError: refuse_input,
        Exception: report_fault,
    }
    names = ["127.0.0.1", "localhost"]
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=names, www_redirect=False)
    listed = [Route(f"/{{token}}{path}", guard(route)) for path, route in routes.items()]
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
            """A protocol that answers a client which has closed its half of the connection after
            the request.
            """

            def eof_received(self) -> bool:
                return bool(self.cycle and not self.cycle.response_complete)

        self.token = secrets.token_urlsafe(24)
        self.view = self.explorer.opening(self.view)
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
        app = _app(self.explorer, self.token)
        self._server = uvicorn.Server(uvicorn.Config(app, **settings))

    def __repr__(self) -> str:
        return f"{self.explorer.model.name} at {self.address}"

    @cached_property
    def address(self) -> str:
        """Where the page is, with its token."""
        page_address = f"http://127.0.0.1:{self.port}/{self.token}/"
        query = self.view.query()
        return f"{page_address}?{query}" if query else page_address

    def run(self) -> None:
        """Run the server until it is interrupted."""
        self._server.run(sockets=[self._socket])

    def start(self) -> Served:
        """Start the server in a thread, with the context of this one (:func:`interp.tasks.using`),
        until :meth:`close`.
        """
        self._thread = threading.Thread(target=copy_context().run, args=(self.run,), daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop the server."""
        self._server.should_exit = True
        self._thread.join()


@checked
def explore(
    model: Machine | str, reference: Machine | str | None = None, *, view: str = "", port: int = 0
) -> Served:
    """Open a live page of a machine on this computer, in the background; its ``address`` opens it.

    Args:
        model: a machine, or what :func:`interp.load` takes.
        reference: another machine of the same task, run with it on the same episodes and edits of
            inputs and state.
        view: what the page shows first: the query of a saved address. Without a round and an edit
            it opens half-way, with the change of an input that moves a prediction most.
        port: 0 for any free one.

    >>> import interp
    >>> page = interp.explore(interp.load("wma-handwired", n_experts=2))
    >>> page.address.startswith("http://127.0.0.1:")
    True
    >>> page.close()
    """
    origin = ""
    command = ""
    if isinstance(model, str):
        origin = f"interp.load({model!r})"
        command = f"interp explore {model}"
        model = load(model)
    if isinstance(reference, str):
        reference = load(reference) if reference else None
    return Served(Explorer(model, reference, origin, command), port, View.of(view)).start()
