"""Bars show on a terminal, and elsewhere a line now and then."""

import io
import os
import pty
import re
import subprocess
import sys
import time
from itertools import groupby

from interp.support import workers

WORK = """
from interp.support.workers import bar, display
with display("start", 7, completed=2, shown={shown}) as update:
    update(advance=1)
    update(completed=5, text="half way")
with bar("steps", 3) as done:
    if {shown}:
        done(2)
"""

KEPT = """
import time
from interp.support.workers import bar
with bar("grading", 6) as done:
    for _ in range(5):
        done(1)
    time.sleep(1)
"""


def on_a_terminal(shown, work=WORK):
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    subprocess.run(
        [sys.executable, "-c", work.format(shown=shown)], check=True, stderr=theirs, env=environment
    )
    os.close(theirs)
    text = os.read(ours, 100_000).decode()
    os.close(ours)
    return text


def test_a_terminal_sees_text_and_counts():
    text = on_a_terminal(True)
    assert "half way" in text
    assert "5/7" in text
    assert "2/3" in text


def test_a_hidden_bar_is_silent_on_a_terminal():
    assert "/7" not in on_a_terminal(False)


def test_nothing_is_shown_elsewhere():
    done = subprocess.run(
        [sys.executable, "-c", WORK.format(shown=True)], check=True, capture_output=True
    )
    assert done.stdout == done.stderr == b""


def test_a_line_now_and_then_is_shown_elsewhere(monkeypatch):
    """How long it takes first, then what the innermost work says, whether or not a step has ended."""
    stream = io.StringIO()

    def until(line, n=1):
        patience = time.monotonic() + 60
        while stream.getvalue().count(line) < n and time.monotonic() < patience:
            time.sleep(0.01)

    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(workers, "_SECONDS_BETWEEN_LINES", 0.05)
    monkeypatch.setattr(workers, "_START_SECONDS", 0.01)
    with workers.printing_progress(lambda: "all of it", first="takes an hour"):
        until("all of it")
        with workers.display("start", 7, completed=3) as update:
            until("start", 2)
            update(completed=5, text="half way")
            until("half way", 2)
        until("all of it", stream.getvalue().count("all of it") + 1)
    first, *lines = stream.getvalue().splitlines()
    texts = [text for text, _ in groupby(line.rsplit(" (", 1)[0] for line in lines)]
    assert texts == ["all of it", "start: 3 of 7", "half way: 5 of 7", "all of it"]
    assert first == "takes an hour"
    assert re.fullmatch(r".* \([0-9]+ s\)", lines[-1])


def test_steps_that_were_kept_say_nothing_of_how_long_the_others_take():
    """Five of six were done before: the sixth is not said to take a moment."""
    text = on_a_terminal(True, KEPT)
    assert "5/6" in text
    assert "\x1b[36m-:--:--" in text
    assert "\x1b[36m0:" not in text
