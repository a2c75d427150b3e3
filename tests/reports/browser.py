"""A tab of the machine's Chromium with the network cut: what it asks for and complains of is recorded."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import ConsoleMessage, Page, Request, Route, sync_playwright

STRICT = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'unsafe-inline'"
"""The policy of a careful server, under which a page has to work."""
ADDRESS = "http://reports.test/"


def executable() -> str | None:
    """Where the machine's Chromium is; None where there is none."""
    return next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )


class Browser:
    """A tab; ``page`` is Playwright's own, for its mouse, keyboard and media."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self._sent: list[Request] = []
        self._said: list[str] = []
        page.on("request", lambda request: self._sent.append(request))
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self._said.append(str(error)))

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning", "assert"):
            self._said.append(message.text)

    def open(
        self,
        path: Path,
        *,
        width: int = 1500,
        height: int = 1000,
        dark: bool = False,
        policy: str = "",
    ) -> None:
        """Open a file and wait until it has loaded.

        Args:
            policy: a content security policy that a server sends with it.
        """
        assert path.is_file(), f"there is no page at {path}"
        self.page.emulate_media(media="screen", color_scheme="dark" if dark else "light")
        self.page.set_viewport_size({"width": width, "height": height})
        self._sent.clear()
        self._said.clear()
        if not policy:
            self.page.goto(path.resolve().as_uri())
            return

        def serve(route: Route) -> None:
            headers = {"Content-Security-Policy": policy}
            route.fulfill(body=path.read_bytes(), content_type="text/html", headers=headers)

        self.page.route(f"{ADDRESS}*", serve)
        self.page.goto(ADDRESS + path.name)
        self.page.unroute(f"{ADDRESS}*")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression (promises are awaited)."""
        return self.page.evaluate(expression)

    def wait(self, condition: str, seconds: float = 20) -> None:
        """Wait until a JavaScript condition holds; it is looked at from outside, since the page forbids `eval`."""
        for _ in range(int(seconds / 0.05)):
            if self.evaluate(condition):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"still not so after {seconds} s: {condition}")

    def requests(self) -> list[str]:
        """What the page asked for, beyond itself and data: addresses."""
        urls = [r.url for r in self._sent if not r.is_navigation_request()]
        return [url for url in urls if not url.startswith("data:")]

    def complaints(self) -> list[str]:
        """Console errors and warnings, exceptions, and refusals by the content security policy."""
        return list(self._said)


@contextmanager
def chromium(path: str) -> Iterator[Browser]:
    """A new Chromium; it is closed in the end."""
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"]
        )
        context = opened.new_context(offline=True, accept_downloads=True)
        yield Browser(context.new_page())
        opened.close()
