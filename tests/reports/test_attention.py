"""A view of attention: what it holds, and that mouse and keyboard choose what circuitsvis draws."""

import base64
import gzip
import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import interp
from interp.tasks import experts
from reports.attention import AttentionView, heads_of, show
from reports.page import Report, Section
from tests.machines import gru
from tests.refusals import refused, refuses

LABELS = ("<w>", "<z>", "p?")
EPISODES, ROUNDS = (4, 7), (0, 5, 9)
NAMES = (("1.1", "1.2"), ("2.1",))


def patterns() -> list[np.ndarray]:
    """Two layers of 2 and 1 heads; in layer 2, `p?` reads `<z>` with a tenth for every round, episode 7 the most."""
    first = np.tile(np.eye(3), (2, 3, 2, 1, 1))
    second = np.zeros((2, 3, 1, 3, 3))
    second[..., 2, 1] = (np.arange(6).reshape(2, 3, 1) + 1) / 10
    return [first, second]


def view(**more: Any) -> AttentionView:
    return AttentionView(
        patterns(), LABELS, NAMES, "Attention", episodes=EPISODES, rounds=ROUNDS, **more
    )


def test_three_decimals_of_a_weight_are_right() -> None:
    """Six cells of three heads in two episodes of three rounds; the largest weight is 1000, `<w>` ends no script."""
    data = json.loads(view().data)
    bytes_ = np.frombuffer(gzip.decompress(base64.b64decode(data["weights"])), "<u2").reshape(
        2, 3, 3, 6
    )
    assert "<" not in view().data
    assert [layer["scale"] for layer in data["layers"]] == [1.0, 0.6]
    np.testing.assert_array_equal(bytes_[0, 0, 0], [1000, 0, 1000, 0, 0, 1000])
    np.testing.assert_allclose(
        bytes_[1, :, 2, 4] / data["levels"] * 0.6, [0.4, 0.5, 0.6], atol=0.0005
    )


def test_signed_scores_keep_their_sign() -> None:
    """Raw scores of linear heads: 1000 is nothing, below it is negative."""
    scores = np.zeros((1, 1, 1, 3, 3))
    scores[..., 2, 0] = -2.0
    data = json.loads(AttentionView([scores], LABELS, [("3.2",)], "Scores").data)
    assert data["layers"] == [{"heads": ["3.2"], "scale": 2.0, "signed": True}]
    levels = np.frombuffer(gzip.decompress(base64.b64decode(data["weights"])), "<u2")
    assert levels.tolist() == [1000, 1000, 1000, 0, 1000, 1000]


test_patterns_are_checked = refused(
    (
        np.zeros((1, 1, 2, 3, 4)),
        r"\(1, 1, 2, 3, 4\) does not fit 2 head names and 3 position labels",
    ),
    (np.full((1, 1, 2, 3, 3), np.nan), "holds NaN or infinity"),
    by=lambda pattern: AttentionView([pattern], LABELS, [("1.1", "1.2")], "Attention"),
)
"""A pattern that does not fit its labels, or holds NaN (silent blanks in the view), is an error."""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    report = Report("A page", "Text.", [Section("Attention", [view(first=(0, 1))])])
    return report.write(tmp_path_factory.mktemp("attention") / "page.html")


READS = "document.querySelector('[data-part=reads]').textContent"


def test_mouse_and_keyboard_choose(browser: Any, page: Path) -> None:
    """Summary, slider and menus are reached with Tab and moved with keys; a click on the slider moves it, too."""
    browser.open(page)
    keys = browser.page.keyboard
    browser.page.locator("details.attention summary").focus()
    keys.press("Enter")
    browser.wait("document.querySelectorAll('.view canvas').length === 3")
    for _ in range(3):
        keys.press("Tab")
    assert browser.evaluate("document.activeElement.dataset.control") == "layer"
    keys.press("ArrowDown")
    browser.wait("document.querySelectorAll('.view canvas').length === 2")
    browser.wait(READS + ".includes('round 5: 2.1: p? reads <z> (0.20)')")
    keys.press("Shift+Tab")
    keys.press("ArrowRight")
    browser.wait(READS + ".includes('round 9: 2.1: p? reads <z> (0.30)')")
    assert browser.evaluate("document.activeElement.getAttribute('aria-valuetext')") == "round 9"
    keys.press("Shift+Tab")
    keys.press("ArrowDown")
    browser.wait(READS + ".includes('round 9: 2.1: p? reads <z> (0.60)')")
    slider = browser.page.locator("input[type=range]")
    box = slider.bounding_box()
    browser.page.mouse.click(box["x"] + 3, box["y"] + box["height"] / 2)
    browser.wait(READS + ".includes('round 0: 2.1: p? reads <z> (0.40)')")
    assert browser.evaluate("document.querySelector('[data-part=round]').textContent") == "0"
    assert browser.complaints() == []


def test_print_and_pages_without_scripts_show_every_head(browser: Any, page: Path) -> None:
    """What a script must draw is hidden without one and on paper; the static picture names every head."""
    html = page.read_text("utf-8")
    assert '<details class="attention" hidden>' in html
    assert {name for names in NAMES for name in names} <= set(re.findall(r">(\d\.\d)</text>", html))
    browser.open(page)
    browser.page.emulate_media(media="print")
    assert not browser.page.locator("details.attention").is_visible()
    assert browser.page.locator("figure.attention svg").is_visible()


def test_a_round_may_be_counted_from_the_end() -> None:
    model, episodes = interp.load("wma-handwired", n_experts=2), experts.sample(2, 5, 2, seed=0)
    run = interp.rollout(model, episodes, names_filter="blocks.0.attn.hook_pattern")
    assert show(run, round=-1).first == (0, 4)
    refuses("round -6 is out of range", show, run, round=-6)


@pytest.mark.long
def test_a_notebook_shows_a_run(browser: Any, tmp_path: Path) -> None:
    """``show(run)`` draws itself in a frame with no request; a run without patterns is told what to cache."""
    model, episodes = interp.load("wma-handwired", n_experts=2), experts.sample(2, 12, 2, seed=0)
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.config.n_layers)]
    shown = show(interp.rollout(model, episodes, names_filter=names), heads_of(model))
    assert repr(shown) == "Attention in 10 rounds of 2 episodes (drawn in a notebook)"
    source = re.search(r'srcdoc="(.*?)"', shown._repr_html_(), re.DOTALL)
    assert source is not None
    (tmp_path / "frame.html").write_text(unescape(source[1]))
    browser.open(tmp_path / "frame.html")
    browser.wait("document.querySelectorAll('.view canvas').length === 3")
    assert browser.requests() == []
    assert browser.complaints() == []
    refuses("the run caches no attention; give rollout", show, interp.rollout(model, episodes))
    refuses("not applicable: gru has no attention heads", heads_of, gru())
