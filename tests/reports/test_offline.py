"""The page in a real browser with the network cut: it asks for nothing, complains of nothing, and its views work."""

from pathlib import Path
from typing import Any

import pytest


@pytest.mark.long
def test_opens_offline_without_a_request_or_a_complaint(browser: Any, small_page: Path) -> None:
    """Issue 2: no request, no console error, with the network cut and the policy in force."""
    browser.open(small_page)
    browser.wait("document.querySelectorAll('.view canvas').length > 0")
    assert browser.evaluate("document.title") == "Offline"
    assert browser.evaluate("document.querySelectorAll('figure svg').length") == 4
    assert browser.requests() == []
    assert browser.complaints() == []


def test_a_view_is_drawn_when_it_is_opened(browser: Any, small_page: Path) -> None:
    """The view that is open has a canvas per head and the zoomed one; the closed one has none until it is opened."""
    browser.open(small_page)
    count = "document.querySelectorAll('details.attention')[{}].querySelectorAll('canvas').length"
    browser.wait(count.format(0) + " === 4")
    assert browser.evaluate(count.format(1)) == 0
    browser.evaluate("document.querySelectorAll('details.attention summary')[1].click()")
    browser.wait(count.format(1) + " === 4")
    inked = """(() => { const c = [...document.querySelectorAll('.view')[1].querySelectorAll('canvas')].pop();
      const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; const seen = new Set();
      for (let i = 0; i < d.length; i += 4) seen.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]); return seen.size; })()"""
    browser.wait(inked + " > 5")
    assert browser.complaints() == []


def test_the_policy_is_in_force(browser: Any, small_page: Path) -> None:
    """A script that is not the page's own does not run, and nothing can be fetched or sent, even with a network."""
    browser.open(small_page)
    browser.evaluate(
        "document.body.appendChild(Object.assign(document.createElement('script'), {text: 'window.ran = 1'}))&&0"
    )
    assert browser.evaluate("window.ran") is None
    refused = "fetch('https://example.org/').then(() => 'sent', (error) => error.name)"
    assert browser.evaluate(refused) == "TypeError"
    assert any("Content Security Policy" in text for text in browser.complaints())


def test_light_and_dark(browser: Any, small_page: Path) -> None:
    """Ground, text and the figures' ink follow the reader's colour scheme, with a contrast of at least 7:1."""
    probe = """(() => {
      const linear = (v) => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
      const lum = (css) => css.match(/[\\d.]+/g).slice(0, 3).map((v) => linear(v / 255))
        .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
      const text = document.querySelector('figure svg text');
      return [lum(getComputedStyle(document.body).backgroundColor), lum(getComputedStyle(text).fill)]; })()"""
    grounds = []
    for dark in (False, True):
        browser.open(small_page, dark=dark)
        ground, ink = browser.evaluate(probe)
        assert (max(ground, ink) + 0.05) / (min(ground, ink) + 0.05) > 7
        grounds.append(ground)
    assert grounds[0] > 0.9
    assert grounds[1] < 0.05
