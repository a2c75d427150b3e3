"""What tests share: built pages, and a real Chromium, driven over its debugging pipe by the standard library."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import interp
from interp.interventions import ablation, tables
from interp.model.checkpoints import save_checkpoint
from interp.model.config import LatentTransformerConfig
from interp.model.layout import RoundLayout
from interp.model.transformer import HookedLatentTransformer
from interp.tasks.experts.evaluation import lengths
from interp.tasks.experts.layout import ExpertRound
from interp.tasks.qlearning.layout import QLearningRound
from reports import part
from reports.build import build
from reports.parts import softening

SMALL: dict[str, Any] = {"n_episodes": 8, "n_rounds": 12, "seed": 0}
SHARES = (0.05, 1.0)
TIMEOUT = 60.0


def tiny(layout: RoundLayout) -> HookedLatentTransformer:
    """A learned model that learned nothing."""
    torch.manual_seed(0)
    config = LatentTransformerConfig(layout, d_model=8, n_layers=2, n_heads=2, d_head=4, d_mlp=8, name="tiny")
    model = HookedLatentTransformer(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def fewer(patch: pytest.MonkeyPatch) -> None:
    """One temperature, half of the pairs, few circuits, one way to ablate and short long episodes stand for all."""
    nodes: dict[str, Any] = {}

    def scored(scorer: Any, keep: Any, **options: Any) -> Any:
        return ablation.evaluate(scorer, keep, **options | {"n_random": 2, "n_sets": 1})

    def ablated(scorer: Any) -> Any:
        if scorer.ablation == "resample":
            nodes["seen"] = ablation.ablate(scorer)
        return nodes["seen"].assign(ablation=scorer.ablation)

    patch.setattr(softening, "ETAS", (60,))
    patch.setattr(part, "CAUSAL_EPISODES", 12)
    patch.setattr(tables, "evaluate", scored)
    patch.setattr(tables, "ablate", ablated)
    patch.setattr(tables, "faithfulness_curve", partial(ablation.faithfulness_curve, shares=SHARES, n_random=1))
    patch.setattr("interp.tasks.experts.evaluation.by_regime.fitting_regimes", lambda model: ["uniform", "flat"])
    patch.setattr(lengths, "evaluate", partial(lengths.evaluate, n_rounds=30))


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The page of a small model of each kind, built once."""
    folder = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        fewer(patch)
        return {
            "wma-handwired": build("wma-handwired", folder, **SMALL),
            "qlearning-handwired": build(interp.load("qlearning-handwired", n_states=2, n_actions=2), folder, **SMALL),
            "wma-learned": _from_checkpoint(ExpertRound(2), folder / "experts"),
            "qlearning-learned": _from_checkpoint(QLearningRound(2, 2), folder / "qlearning"),
        }


def _from_checkpoint(layout: RoundLayout, folder: Path) -> Path:
    save_checkpoint(tiny(layout), folder / "tiny")
    return build(str(folder / "tiny"), folder, **SMALL)


class Browser:
    """Chromium with the network cut; a page's requests, console errors and exceptions are recorded."""

    def __init__(self, executable: str, profile: Path) -> None:
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()

        def as_three_and_four() -> None:  # Chromium reads commands from fd 3 and answers on fd 4
            read, write = os.dup(to_browser), os.dup(from_browser)
            os.dup2(read, 3)
            os.dup2(write, 4)

        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "--hide-scrollbars", "about:blank"]
        self._process = subprocess.Popen(
            [executable, *flags],
            close_fds=False,
            preexec_fn=as_three_and_four,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._ids, self.events = b"", itertools.count(1), []  # type: ignore[var-annotated]
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)

    def call(self, method: str, **params: Any) -> Any:
        return self._call(method, session=self._session, **params)

    def _call(self, method: str, session: str | None = None, **params: Any) -> Any:
        message = {"id": next(self._ids), "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        for received in self._messages(TIMEOUT):
            if received.get("id") == message["id"]:
                assert "error" not in received, f"{method}: {received['error']}"
                return received["result"]
        raise TimeoutError(f"{method} was not answered in {TIMEOUT} s")

    def _messages(self, seconds: float) -> Iterator[dict[str, Any]]:
        """Messages as they come; events are also kept."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            while b"\0" in self._buffer:
                line, self._buffer = self._buffer.split(b"\0", 1)
                message = json.loads(line)
                if "method" in message:
                    self.events.append(message)
                yield message
            if select.select([self._in], [], [], left)[0]:
                chunk = os.read(self._in, 1 << 20)
                if not chunk:
                    raise ConnectionError("Chromium closed its pipe")
                self._buffer += chunk

    def open(self, path: Path, *, width: int = 1500, height: int = 1000, dark: bool = False) -> None:
        """Open a file and wait until it has loaded."""
        assert path.is_file(), f"there is no page at {path}"
        self.events.clear()
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait("document.readyState === 'complete' && location.protocol === 'file:'")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression (promises are awaited)."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str, seconds: float = 20) -> None:
        """Wait until a JavaScript condition holds."""
        deadline = time.monotonic() + seconds
        while not self.evaluate(condition):
            assert time.monotonic() < deadline, f"still not so after {seconds} s: {condition}"
            time.sleep(0.05)

    def requests(self) -> list[str]:
        """What the page asked for, beyond itself and data: addresses."""
        sent = (e["params"] for e in self.events if e["method"] == "Network.requestWillBeSent")
        addresses = [(p["request"]["url"], p.get("type")) for p in sent]
        return [url for url, kind in addresses if kind != "Document" and not url.startswith("data:")]

    def complaints(self) -> list[str]:
        """Console errors and warnings, exceptions, and refusals by the content security policy."""
        found = []
        for event in self.events:
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(params["exceptionDetails"])[:500])
            if event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(json.dumps(params["args"])[:500])
            if event["method"] == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"]["text"])
        return found

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG; the window is made as tall as the page, else charts are redrawn while it is taken."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        width, height = self.evaluate("innerWidth"), int(size["height"])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        try:
            self._call("Browser.close")
            self._process.wait(10)
        except (OSError, subprocess.TimeoutExpired, TimeoutError):
            self._process.kill()
            self._process.wait(10)
        os.close(self._out)
        os.close(self._in)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One Chromium for the session. Missing: a failure in CI, elsewhere a skip with the reason."""
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None:
        message = "no chromium, chromium-browser or google-chrome on PATH: the offline page was not opened"
        if os.environ.get("CI"):
            pytest.fail(message + "; CI must install one (see .ci/run)")
        pytest.skip(message)
    opened = Browser(executable, tmp_path_factory.mktemp("chromium"))
    yield opened
    opened.close()
