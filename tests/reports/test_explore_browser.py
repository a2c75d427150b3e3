"""A live page in a real browser: by keyboard alone, narrow and wide, in two tabs, and when its server is killed."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import Page

import interp
from reports.explore import Edit
from reports.explore.server import Served
from tests.reports.browser import Browser
from tests.reports.test_explore import TWELVE
from tests.reports.test_screens import UNFOLD, faults, violations

KINDS = [
    "wma-handwired",
    "wma-learned-additive",
    "qlearning-learned",
    "reachability-learned",
    "wma-gru",
]


@contextmanager
def opened(browser: Browser, model: Any, view: str = "") -> Iterator[tuple[Served, Page]]:
    """A served machine in the browser, which may ask this computer, and is heard."""
    served = interp.explore(model, view=view)
    browser.page.context.set_offline(False)
    browser._sent.clear()
    browser._said.clear()
    try:
        browser.page.goto(served.address)
        yield served, browser.page
        home = served.address.split("?")[0]
        assert [url for url in browser.requests() if not url.startswith(home)] == []
        assert browser.complaints() == []
    finally:
        browser.page.goto("about:blank")
        browser.page.context.set_offline(True)
        served.close()


def look(page: Page, width: int, dark: bool) -> None:
    page.emulate_media(media="screen", color_scheme="dark" if dark else "light")
    page.set_viewport_size({"width": width, "height": 1000})


def tabbed(page: Page, wanted: str, most: int = 80) -> None:
    """Press the tab key until an element that a selector names has the focus."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate("(wanted) => document.activeElement.matches(wanted)", wanted):
            return
    raise AssertionError(f"{wanted} was not reached by the tab key")


@pytest.mark.long
def test_a_view_is_made_and_undone_by_keyboard_alone(browser: Browser) -> None:
    """Choose a round, move the state in it, read what it does, undo it, set a cell; no outside request, no fault."""
    with opened(browser, interp.load("wma-handwired", n_experts=2), "round=1&rounds=5") as (
        _,
        page,
    ):
        look(page, 390, dark=True)
        tabbed(page, "#round-2")
        page.keyboard.press("Enter")
        page.wait_for_url("**/?round=2&rounds=5")
        assert (
            page.evaluate("document.activeElement.id") == "round-2"
        )  # the focus stays where it was
        page.keyboard.press("ArrowRight")
        page.wait_for_url("**/?round=3&rounds=5")
        page.keyboard.press("ArrowLeft")
        page.wait_for_url("**/?round=2&rounds=5")
        tabbed(page, "#move-state > summary")
        page.keyboard.press("Enter")
        tabbed(page, "form[aria-label='Move the decoded state'] input[name=value]")
        page.keyboard.type("2.5")
        page.keyboard.press("Enter")
        page.wait_for_url("**edit=move+2+log_weights.0+2.5")
        assert page.inner_text("#said").endswith(
            "the decoded log-weights: e_1 changes by 2.500, in round 2."
        )
        assert faults(browser) == {}
        look(page, 1440, dark=False)
        assert faults(browser) == {}
        tabbed(page, "a[aria-label='Undo move 2 log_weights.0 2.5']")
        page.keyboard.press("Enter")
        page.wait_for_url("**/?round=2&rounds=5")
        page.go_back()
        page.wait_for_url("**edit=move+2+log_weights.0+2.5")
        page.wait_for_selector(".edits li")
        tabbed(page, "[id='tile-log_weights.1']")
        page.keyboard.type("-1.5")
        page.keyboard.press("Enter")
        page.wait_for_url("**edit=move+2+log_weights.1+-*")
        page.wait_for_selector(".edits li + li")
        assert page.evaluate("document.activeElement.id") == "tile-log_weights.1"
        assert page.input_value("[id='tile-log_weights.1']") == "-1.5"


def made(page: Page, edit: Edit) -> None:
    """Make an edit by its form."""
    names = {"input": "change-input", "move": "move-state"}
    fold = page.locator(f"#{names.get(edit.kind, 'take-away')}")
    if fold.get_attribute("open") is None:
        fold.locator("summary").click()
    label = {
        "move": "Move the decoded state",
        "input": "Change an input",
        "patch": "Patch from another episode",
    }
    form = fold.locator(f"form[aria-label='{label.get(edit.kind, 'Ablate or patch')}']")
    if edit.kind == "input" and "reward=" in edit.value:
        form = fold.locator("form:has(input[value$='reward='])")
        form.locator("[name=value]").fill(edit.value.removeprefix("reward="))
    elif edit.kind == "input":
        edit_text = f"{edit.what} {edit.value}"
        listed = form.locator("[name=what] option").evaluate_all(
            "all => all.map((one) => one.value)"
        )
        form.locator("[name=what]").select_option(
            edit_text if edit_text in listed else f"{edit.what} expert=p_1"
        )
    elif edit.kind == "move":
        form.locator("[name=what]").select_option(edit.what)
        form.locator("[name=value]").fill(edit.value)
    else:
        form.locator("[name=what]").fill(edit.what)
        if edit.kind == "patch":
            form.locator("[name=value]").select_option(edit.value)
        else:
            form.locator("[name=kind]").select_option(edit.kind)
    form.locator("[name=at]").fill(str(edit.round))
    if edit.in_later_rounds:
        form.locator("[name=on]").check()
    form.locator("button").click()


@pytest.mark.slow(
    reason="twelve edits by form on five machines, each run again by the Python of its page: two minutes"
)
@pytest.mark.parametrize("name", KINDS)
def test_edits_made_by_forms_give_what_their_python_gives(browser: Browser, name: str) -> None:
    with opened(browser, name, "rounds=6&episode=1&round=3") as (_, page):
        look(page, 1024, dark=False)
        for text in TWELVE[name]:
            if name == "wma-handwired":
                text = text.replace("log_weights.1 1.5", "log_weights.3 1.5")
            edit = Edit.parse(text)
            made(page, edit)
            page.wait_for_function(
                "(what) => location.search.includes(what)", arg=f"edit={edit.kind}+{edit.round}"
            )
            assert page.locator(".edits li").count() == 1, page.inner_text("body")
            scope: dict[str, Any] = {}
            exec(page.locator("#code").text_content(), scope)
            with page.expect_download() as download:
                page.locator("a[href^='keep/data.csv']").click()
            frame = pd.read_csv(download.value.path())
            predictions = frame["model_after"].to_numpy().reshape(scope["predictions"].shape)
            assert np.abs(predictions - scope["predictions"].double().numpy()).max() <= 1e-6, text
            page.locator(".edits a").first.click()
            page.wait_for_function("() => !location.search.includes('edit')")


@pytest.mark.slow(
    reason="five machines at three widths in two themes, their longer parts computed: three minutes"
)
@pytest.mark.parametrize("name", KINDS)
def test_every_width_and_theme(browser: Browser, name: str) -> None:
    view = f"rounds=6&round=4&edit={TWELVE[name][-3].replace(' ', '+')}&edit=input+3+{TWELVE[name][0].split(' ', 2)[2]}"
    with opened(browser, name, view.replace(" ", "+")) as (served, page):
        page.evaluate(
            "document.querySelectorAll('details:not(:has(iframe))').forEach((one) => { one.open = true; })"
        )
        for width in (390, 1024, 1440):
            for dark in (False, True):
                look(page, width, dark)
                assert faults(browser) == {}, (width, dark)
        home, query = served.address.split("?")
        folds = page.locator("details:has(iframe)").evaluate_all("all => all.map((one) => one.id)")
        assert set(folds) == ({"attention"} if name != "wma-gru" else set())
        for part in folds:
            page.goto(f"{home}part/{part}?{query}")
            page.evaluate(UNFOLD)
            look(page, 390, dark=False)
            assert violations(browser) == [], part


@pytest.mark.slow(reason="a machine of 64 experts, of 145 positions a round: half a minute")
def test_a_machine_of_64_experts(browser: Browser) -> None:
    with opened(
        browser, interp.load("wma-handwired", n_experts=64), "edit=move+10+log_weights.63+4"
    ) as (_, page):
        for width in (390, 1440):
            look(page, width, dark=False)
            assert faults(browser) == {}, width
        assert page.locator("#state tbody tr").count() == 64


def test_no_head_is_hidden_and_no_number_is_clipped(browser: Browser) -> None:
    """All that one click ablates is seen without scrolling, and a cell of the Q-table shows its whole number."""
    model = interp.load("qlearning-handwired", n_states=2, n_actions=2)
    view = "rounds=3&round=2&edit=move+2+table.0.1+-0.0123456"
    hidden = "((box) => box.scrollHeight - box.clientHeight)(document.querySelector('.chips'))"
    clipped = "[...document.querySelectorAll('.tile input')].filter((one) => one.scrollWidth > one.clientWidth)"
    with opened(browser, model, view) as (_, page):
        for width in (390, 1440):
            look(page, width, dark=False)
            assert page.locator(".chips a").last.inner_text().startswith("ablate head L")
            assert page.evaluate(hidden) <= 1
            assert page.evaluate(f"{clipped}.map((one) => one.value)") == []


@pytest.mark.long
def test_two_tabs_do_not_disturb_each_other(browser: Browser) -> None:
    """What a page shows is in its address, so that the other tab's edit is not in it."""
    with opened(browser, interp.load("wma-gru"), "round=1&rounds=5") as (served, page):
        second_page = page.context.new_page()
        second_page.goto(served.address + "&edit=zero+2+latent+-")
        page.locator("#round-3").click()
        page.wait_for_url("**/?round=3&rounds=5")
        assert page.locator(".edits li").count() == 0
        second_page.locator("#round-4").click()
        second_page.wait_for_url("**edit=zero+2+latent+-")
        assert second_page.locator(".edits li").count() == 1
        second_page.close()


@pytest.mark.slow(reason="two starts of the command, the first one killed: ten seconds of one core")
def test_a_killed_server_is_said_and_another_shows_the_view(browser: Browser) -> None:
    """The page says that nobody answers; the command that it names shows the same view."""
    words = [sys.executable, "-c", "from interp.cli import app; app()", "explore", "wma-gru"]
    command = {
        "stdout": subprocess.PIPE,
        "text": True,
        "env": {**os.environ, "PYTHONPATH": os.getcwd()},
    }
    page = browser.page
    page.context.set_offline(False)
    first = subprocess.Popen(words, **command)
    second = None
    try:
        page.goto(first.stdout.readline().partition("?")[0] + "?rounds=6&edit=move+3+counts.1+2.5")
        notice, numbers = page.inner_text("#said"), page.inner_text("#state table")
        again = re.search(r"--view '([^']*)'", page.inner_text("main"))[1]
        first.send_signal(signal.SIGKILL)
        first.wait()
        page.locator("#round-2").click()
        page.wait_for_selector("text=The server does not answer")
        second = subprocess.Popen([*words, "--view", again], **command)
        address = second.stdout.readline().strip()
        page.goto(address)
        assert unquote(address).endswith(unquote(again))
        assert (page.inner_text("#said"), page.inner_text("#state table")) == (notice, numbers)
    finally:
        for process in filter(None, (first, second)):
            process.kill()
            process.wait()
            process.stdout.close()
        page.goto("about:blank")
        page.context.set_offline(True)
