"""Bars show on a terminal, and elsewhere a line now and then."""

import os
import pty
import subprocess
import sys

WORK = """
from interp.workers import bar, display
with display("start", 7, completed=2, shown={shown}) as update:
    update(advance=1)
    update(completed=5, text="half way")
with bar("steps", 3) as done:
    if {shown}:
        done(2)
"""


def on_a_terminal(shown):
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    subprocess.run([sys.executable, "-c", WORK.format(shown=shown)], check=True, stderr=theirs, env=environment)
    os.close(theirs)
    text = os.read(ours, 100_000).decode()
    os.close(ours)
    return text


def test_a_terminal_sees_text_and_counts():
    text = on_a_terminal(True)
    assert "half way" in text and "5/7" in text and "2/3" in text


def test_a_hidden_bar_is_silent_on_a_terminal():
    assert "/7" not in on_a_terminal(False)


def test_nothing_is_shown_elsewhere():
    done = subprocess.run([sys.executable, "-c", WORK.format(shown=True)], check=True, capture_output=True)
    assert done.stdout == done.stderr == b""


def test_a_line_now_and_then_is_shown_elsewhere():
    often = f"import interp.workers; interp.workers._EVERY = 0{WORK.format(shown=True)}"
    done = subprocess.run([sys.executable, "-c", often], check=True, capture_output=True, text=True)
    assert done.stderr.splitlines() == ["start: 3 of 7", "half way: 5 of 7", "steps: 2 of 3"] and not done.stdout
