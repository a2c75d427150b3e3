"""The explorer's web server, for this computer only; a page's address contains its whole state.

Every address contains a secret token, which is compared in constant time. Requests for another host
name are refused. Views are computed one at a time, since hooks change the machine.
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
from interp.model.run import limit_rounds
from interp.results.style import house_style
from interp.support.checks import checked, checked_fields
from interp.support.errors import InputError, convert_errors, require, require_known
from interp.support.foreign import csv, escape_line, svg
from reports.attention import library_script
from reports.blocks import TEMPLATES, environment, stylesheet
from reports.explore import page
from reports.explore.answer import Answer, answer
from reports.explore.view import (
    LONGEST,
    N_EPISODES,
    ONE_ROUND_KINDS,
    Edit,
    Setup,
    View,
    write_script,
)

_MOST_ROUNDS = 30
"""Default number of rounds of an episode; fewer in a task whose later rounds bring nothing new."""
_MOST_TRIED = 4
"""Most edits that are tried to find the one that a page opens with."""
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
_STOPPED_TEXT = "the work was stopped; fold and open its box to begin again"
_MISSING_EXTRA = (
    "a live page needs the extra `explore`; run: pip install 'latent-context-interp[explore]'"
)


@dataclass(eq=False)
@checked_fields
class Explorer:
    """A machine (a model that carries latents from round to round) whose activations and edits a
    live page shows, with an optional reference machine to compare it with.

    Attributes:
        model: the machine.
        reference: the reference machine, of the same task; None for none.
        origin: Python code that loads the machine; "" if unknown.
        command: the shell command that opens the page; "" if unknown.
    """

    model: Machine
    reference: Machine | None = None
    origin: str = ""
    command: str = ""
    _lock: threading.RLock = field(init=False, default_factory=threading.RLock)

    def __post_init__(self) -> None:
        """Refuse a reference machine of another task."""
        if self.reference is not None:
            task = self.model.layout.task
            task_of_reference = self.reference.layout.task
            require(
                task == task_of_reference,
                f"the machines are of different tasks, {task!r} and {task_of_reference!r}",
            )

    @lru_cache(maxsize=64)  # noqa: B019  (an explorer lives as long as its page)
    def answer(self, view: View) -> tuple[Answer, Answer | None]:
        """Run the edits of a view on the machine and on the reference machine.

        Args:
            view: what the page shows: an episode, a round and edits.

        Returns:
            The machine's result, and the reference machine's (None if there is none).
        """
        with self._lock:
            setup, reference = self._make_setups(view.regime, view.rounds, view.seed)
            result = answer(setup, view)
            if reference is None:
                return result, None
            # The reference gets the edits of inputs and of the decoded state only.
            return result, answer(reference, view, whole=False)

    @lru_cache(maxsize=4)  # noqa: B019
    def _make_setups(self, regime: str, rounds: int, seed: int) -> tuple[Setup, Setup | None]:
        """Return the machine with sampled episodes, and the reference machine with the same ones
        (None if there is none).

        Args:
            regime: regime of the episodes; the task's default if empty.
            rounds: rounds per episode; 0 for the default.
            seed: seed of the episodes.
        """
        model = self.model
        task = catalog.of(model)
        if regime:
            require_known(f"regime of {task.key!r}", regime, task.data.regimes(), limit=40)
        n_rounds = rounds or limit_rounds(model, task.cap_rounds(_MOST_ROUNDS))
        # Half 1 of recorded participants: decoders are fitted on half 0.
        episodes = task.for_half(1).sample_for(model, N_EPISODES, n_rounds, seed, regime)
        reference = None
        if self.reference is not None:
            reference = Setup(self.reference.eval(), "", episodes, regime, seed)
        return Setup(model.eval(), self.origin, episodes, regime, seed, reference), reference

    def choose_opening_view(self, view: View) -> View:
        """Return what the page shows first.

        Args:
            view: the view that the user chose. If it has an edit or a round, it is returned
                unchanged. Otherwise an edit of the middle round is added, and the view shows the
                round in which predictions change most. The edit changes a single input: the first
                four possible changes are tried, and the one that changes predictions most is taken.
                If none of them changes predictions visibly, the edit patches in the latents of one
                of the next four episodes, chosen in the same way. If no patch has a visible effect
                either, the view is returned unchanged.
        """
        if view.edits or view.round:
            return view
        setup, _ = self._make_setups(view.regime, view.rounds, view.seed)
        middle = setup.n_rounds // 2
        inputs = []
        for corruption, _, options in setup.input_changes:
            if not corruption.changes_history:  # only what changes the middle round itself
                inputs.append(Edit("input", middle, corruption.key, options))
        patches = []
        for i in range(1, len(setup.episodes)):
            source = (view.episode + i) % len(setup.episodes)
            patches.append(Edit("patch", middle, "latent", str(source)))
        return self._choose_edit(view, inputs) or self._choose_edit(view, patches) or view

    def _choose_edit(self, view: View, edits: Sequence[Edit]) -> View | None:
        """Try some edits, and return the view with the one that changes predictions most; it shows
        the round of the largest change.

        Return None if no edit changes a prediction visibly.

        Args:
            view: a view without edits.
            edits: the edits to try, in order; only the first four are tried.
        """
        best = view
        largest = np.zeros(1)  # change of the prediction in each round by the best edit so far
        for edit in edits[:_MOST_TRIED]:
            tried = replace(view, edits=(edit,))
            result, _ = self.answer(tried)
            moves = result.differences()["machine"]
            if moves.sum() > largest.sum():
                best = tried
                largest = moves
        if largest.max() <= page.VISIBLE:
            return None
        return replace(best, round=int(largest.argmax()))

    def page(self, view: View) -> str:
        """Return the HTML page that shows a view: an episode, a round, and edits."""
        result, reference = self.answer(view)
        with self._lock:
            contents = page.template_variables(result, reference)
        template = environment().get_template("explore.html.j2")
        text = template.render(
            view=view, setup=result.setup, answer=result, explorer=self, **contents
        )
        return str(text)

    def attention(self, view: View) -> str:
        """Return the HTML page that shows attention in the round of a view; the main page embeds
        it.
        """
        result, _ = self.answer(view)
        with self._lock:
            attention = enumerate(page.attention(result))
            views = [part.html(f"attention-{i}") for i, part in attention]
        template = environment().get_template("explore_part.html.j2")
        return str(template.render(name="attention", view=view, views=views))

    def add_edit(self, query: str, parts: dict[str, str]) -> View:
        """Add the edit that a user enters in a form to a view, and return the changed view. Refuse
        an edit that the machine cannot have.

        Args:
            query: query string of the view.
            parts: fields of the form, all as text: ``kind``, ``what`` and ``value`` as in
                :class:`~reports.explore.view.Edit`, such as ``{"kind": "move", "what": "counts.1",
                "value": "2.5"}``; ``at``, the index of the round; and ``on``, where any text makes
                the edit act in all later rounds, too. Two kinds differ:

                - For "move", ``to`` may be passed in place of ``value``: the value that the number
                  is to have. It replaces an earlier edit of this number in the same round.
                - For "input", ``what`` is the key of the corruption and its options, such as
                  "flip-vote expert=p_2". If it ends with "=", ``value`` follows; otherwise
                  ``value`` is ignored.
        """
        view = View.of(query)
        for name in parts:
            require_known("part of an edit", name, _EDIT_PARTS)
        # The texts of the six fields, in the order of _EDIT_PARTS; "" for a field that is missing.
        kind, at_round, later, target, what, value = (
            parts.get(name, "").strip() for name in _EDIT_PARTS
        )
        value = value or target or "-"
        if kind == "input":  # "flip-vote expert=p_2" is a corruption and its options
            what, _, options = what.partition(" ")
            value = options + value if options.endswith("=") else options or "-"
        # Some kinds act in one round only, whatever the form says.
        dash = "-" if later and kind not in ONE_ROUND_KINDS else ""
        edit = Edit.parse(f"{kind} {at_round}{dash} {what} {value}")
        changed = replace(view, edits=(*view.edits, edit))
        if target:
            changed = self._set_number(view, edit)
        self.answer(changed)  # refuses what the machine cannot have
        return changed

    def _set_number(self, view: View, edit: Edit) -> View:
        """Return a view with an edit that gives a number of the decoded state a new value.

        An earlier change of this number is replaced. If the number has this value already, no edit
        is added.

        Args:
            view: the view, with its other edits.
            edit: an edit of the kind "move"; its ``value`` is the number's new value, not its
                change.
        """
        # All edits but earlier changes of the same number in the same rounds.
        others = tuple(
            earlier for earlier in view.edits if replace(earlier, value=edit.value) != edit
        )
        unset = replace(view, edits=others)
        result, _ = self.answer(unset)
        key, _ = edit.get_state_change(result.setup)  # refuses what names no number
        _, decoded = result.decoded  # with the other edits
        values = decoded[key][edit.rounds(result.setup).start].ravel()
        present = values[result.setup.list_addresses(key).index(edit.what)]
        difference = float(edit.value) - float(present)
        if abs(difference) < 1e-6:
            return unset
        return replace(view, edits=(*others, replace(edit, value=f"{difference:.6g}")))


_EDIT_PARTS = ("kind", "at", "on", "to", "what", "value")
"""Names of the fields of the form that adds an edit."""


@cache
def _load_assets() -> dict[str, tuple[str, str]]:
    """Return the style sheet and the scripts that a page loads, as (text, media type) by file name."""
    css = (TEMPLATES / "explore.css").read_text("utf-8")
    assets = {
        "style.css": (f"{stylesheet()}\n{css}", "text/css"),
        "circuitsvis.js": (library_script(), "text/javascript"),
    }
    for name in ("explore.js", "attention.js"):
        assets[name] = (TEMPLATES / name).read_text("utf-8"), "text/javascript"
    return assets


_DOWNLOAD_TYPES = {
    "data.csv": "text/csv",
    "figure.svg": "image/svg+xml",
    "view.py": "text/x-python",
}
"""Media types of the files of a view that can be downloaded, by file name."""


def _write_file(explorer: Explorer, name: str, view: View) -> str:
    """Return the content of a file that a user of the page can download: the data, the code or the
    figure.

    Args:
        explorer: the explorer.
        name: name of the file: "data.csv", "view.py" or "figure.svg".
        view: what the page shows: an episode, a round and edits.
    """
    result, reference = explorer.answer(view)
    if name == "data.csv":
        return csv(result.frame())
    if name == "view.py":
        return write_script(result.setup, view)
    with house_style():
        return svg(page.figure(result, reference))


def _change_view(query: str, parts: dict[str, str]) -> View:
    """Return a view (what the page shows) in which a form has changed the episode, the round or
    other fields, but no edits.

    Args:
        query: query string of the view.
        parts: fields of the form by name; an empty text means the default value.
    """
    current = View.of(query)
    # A view with the fields of the form, and with defaults elsewhere.
    chosen = View.of(urlencode({name: text for name, text in parts.items() if text}))
    require(not chosen.edits, "an edit is added by its own form")
    changed = {name: getattr(chosen, name) for name in parts}
    changed["hold"] = chosen.hold  # a form does not send a box that is not ticked
    if (chosen.rounds, chosen.regime) != (current.rounds, current.regime):
        changed["round"] = 0  # the episodes are others, perhaps shorter
    return replace(current, **changed)


def make_app(explorer: Explorer, token: str) -> Any:
    """Return the explorer's web application (ASGI).

    Args:
        explorer: the explorer.
        token: the secret with which all its addresses begin.
    """
    with convert_errors(_MISSING_EXTRA, of=ImportError):
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
        """Return a function that answers a request with ``respond`` if its address has the token of
        this run. It refuses other requests, and addresses with two values for one field of the
        view, except "edit".
        """

        def respond_to_token(request: Request) -> Response:
            """Check the token and the query, and respond."""
            # Compared in constant time, so that its duration tells nothing of the token.
            sent = str(request.path_params["token"])
            if not hmac.compare_digest(sent.encode(), token.encode()):
                why = "this address has no token, or that of another run"
                # The refusal shows the view's query, which the user can add to the new address.
                return refuse(why, 403, query=request.url.query[:LONGEST])
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

    def add_edit(request: Request) -> Response:
        fields = dict(request.query_params)
        query = fields.pop("view", "")
        return redirect(explorer.add_edit(query, fields))

    def change_view(request: Request) -> Response:
        fields = dict(request.query_params)
        query = fields.pop("view", "")
        return redirect(_change_view(query, fields))

    def get_download(request: Request) -> Response:
        name = request.path_params["file"]
        require_known("file of a view", name, _DOWNLOAD_TYPES)
        text = _write_file(explorer, name, get_view(request))
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return respond(_DOWNLOAD_TYPES[name], text, **headers)

    def get_asset(request: Request) -> Response:
        name = request.path_params["file"]
        require_known("asset", name, _load_assets())
        text, kind = _load_assets()[name]
        return respond(kind, text, **{"Cache-Control": "private, max-age=3600"})

    def get_stopped(request: Request) -> Response:
        return refuse(_STOPPED_TEXT, 200)

    routes = {
        "/": get_page,
        "/add": add_edit,
        "/look": change_view,
        "/part/{name}": get_part,
        "/stopped": get_stopped,
        "/keep/{file}": get_download,
        "/asset/{file}": get_asset,
    }

    def refuse_page(request: Any, error: Exception) -> Any:
        return refuse("there is no such page", 404)

    def refuse_input(request: Any, error: Exception) -> Any:
        return refuse(str(error), 400)

    def report_fault(request: Any, error: Exception) -> Any:
        kind = type(error).__name__
        return refuse(f"a fault of ours, not of the view: {kind}: {escape_line(error)}", 500)

    handlers: dict[Any, Any] = {
        404: refuse_page,
        InputError: refuse_input,
        Exception: report_fault,
    }
    host_names = ["127.0.0.1", "localhost"]
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=host_names, www_redirect=False)
    guarded = [Route(f"/{{token}}{path}", guard(route)) for path, route in routes.items()]
    return Starlette(routes=guarded, middleware=[hosts], exception_handlers=handlers)


@dataclass(eq=False)
@checked_fields
class Served:
    """A page of the explorer that is being served on this computer.

    Open its :attr:`address` in a browser. The server stops at :meth:`close`, or when Python exits.

    Attributes:
        explorer: the explorer.
        port: the port; 0 chooses a free one.
        view: the view with which the page opens.
    """

    explorer: Explorer
    port: int
    view: View

    def __post_init__(self) -> None:
        """Choose the opening view, reserve the port, and make the server, without starting it."""
        with convert_errors(_MISSING_EXTRA, of=ImportError):
            import uvicorn
            from uvicorn.protocols.http.auto import AutoHTTPProtocol

        class Patient(AutoHTTPProtocol):  # type: ignore[valid-type, misc]
            """An HTTP protocol that still answers a client which closed its sending half of the
            connection after the request.
            """

            def eof_received(self) -> bool:
                """Keep the connection open (True) until the response is complete."""
                return bool(self.cycle and not self.cycle.response_complete)

        self.token = secrets.token_urlsafe(24)
        self.view = self.explorer.choose_opening_view(self.view)
        require(
            0 <= self.port < 65536, f"a port is 0 for any free one, or up to 65535, got {self.port}"
        )
        # The port is open from now on, but only for this computer. A browser that opens the address
        # before the server runs waits for its answer.
        try:
            self._socket = socket.create_server(("127.0.0.1", self.port))
        except OSError as error:
            why = os.strerror(error.errno or 0)
            raise InputError(
                f"port {self.port} cannot be used: {why}; leave it out for a free one"
            ) from error
        self.port = self._socket.getsockname()[1]  # the free port that 0 stood for
        settings: dict[str, Any] = {
            "log_level": "error",
            "lifespan": "off",
            "access_log": False,
            "http": Patient,
        }
        app = make_app(self.explorer, self.token)
        self._server = uvicorn.Server(uvicorn.Config(app, **settings))

    def __repr__(self) -> str:
        return f"{self.explorer.model.name} at {self.address}"

    @cached_property
    def address(self) -> str:
        """The address of the page, with its secret token."""
        page_address = f"http://127.0.0.1:{self.port}/{self.token}/"
        query = self.view.query()
        return f"{page_address}?{query}" if query else page_address

    def run(self) -> None:
        """Run the server until it is interrupted."""
        self._server.run(sockets=[self._socket])

    def start(self) -> Served:
        """Start the server in a background thread, and return this object."""
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
    """Serve a live page of a machine on this computer, in the background, and return an object with
    the page's ``address``, to open in a browser.

    Args:
        model: the machine, or the name or checkpoint folder with which :func:`interp.load` loads it.
        reference: a machine of the same task to compare ``model`` with, passed in the same way; None
            for none. It runs the same episodes. Of the page's edits it gets those of inputs and of
            the decoded state; all others apply to ``model`` only.
        view: query string of a saved address, which says what the page shows first: an episode, a
            round and edits. If it names no edit, and no round but 0, an edit of the middle round is
            chosen, usually a change of one input (:meth:`Explorer.choose_opening_view`).
        port: port of the server; 0 for any free one.

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
        command += f" --reference {reference}" if command and reference else ""
        reference = load(reference) if reference else None
    return Served(Explorer(model, reference, origin, command), port, View.of(view)).start()
