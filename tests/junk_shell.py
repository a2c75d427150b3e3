"""Junk for the command line: every command with right words, one to three of its options or arguments junk."""

import json
import os
import signal
import socket
import time
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import typer

from lab.calibrate import app as lab
from tests import shell
from tests.junk import TABLES
from tests.shell import invoked
from tests.test_full_disk import COMMANDS

RIGHT = {**COMMANDS, **TABLES["commands"]}
"""Words of a call of every command, by its name; ``folder`` is there."""

TEXTS = (*chain(*TABLES["texts"].values()), "\udcff", "x" * 5000)
"""What stands for a value; of the paths some are there (:func:`furnish`)."""
_MOMENT, _HANGING = 0.25, 60.0
"""CPU seconds after which what was not refused is at work, and seconds in which one that does not compute hangs."""
_STARTING = ("--jobs", "--processes")
"""Options that start processes: of numbers, they get those that start none."""


def furnish(folder: Path) -> Path:
    """A folder to work in, deep enough for paths that go up, with a file, a folder, a pipe and a dangling link."""
    home = folder / "a" / "b" / "c"
    (home / "folder").mkdir(parents=True)
    (home / "file").write_text("x")
    os.mkfifo(home / "fifo")
    (home / "link").symlink_to("nowhere")
    return home


@cache
def commands() -> dict[str, Any]:
    """Every command by its words."""
    every = (*shell.commands(), *shell.commands(typer.main.get_command(lab)))
    return {" ".join(words): one for words, one in every}


def spoiled(name: str, draw: Random) -> list[str]:
    """Words of a call of a command, one to three of its options or arguments junk."""
    words = list(RIGHT[name])
    options = [p for p in commands()[name].params if p.param_type_name == "option"]
    n_named = len(name.split())
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        value = draw.choice(TEXTS)
        where = draw.random()
        if where < 0.1:
            words.insert(draw.randrange(n_named, len(words) + 1), value)
        elif where < 0.25 and len(words) > n_named:
            words[draw.randrange(n_named, len(words))] = value
        else:
            option = draw.choice(options)
            key = draw.choice(option.opts)
            if getattr(option, "is_flag", False):
                words.append(key if draw.random() < 0.8 else f"{key}={value}")
            elif not (key in _STARTING and value.isdigit()):
                words += draw.choice(
                    ([key, value], [f"{key}={value}"], [key, value, draw.choice(TEXTS)], [key])
                )
    # Before all options: one that lacks its value would take it.
    return [*words[:n_named], "--json", *words[n_named:]] if draw.random() < 0.5 else words


def fault(words: list[str]) -> str:
    """What is wrong with how a call ended; "" where it was refused in a sentence, or began its work.

    It runs in a process of its own, which ends when it has computed for a moment, or listens: it is at work.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        os.setpgrp()
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, _MOMENT)
        socket.socket.listen = lambda *given: os._exit(0)  # type: ignore[method-assign]
        try:
            os.write(write, json.dumps(_ended(words)).encode())
        finally:
            os._exit(0)
    os.close(write)
    deadline = time.monotonic() + _HANGING
    while (
        ended := os.waitpid(child, os.WNOHANG)[0] == child
    ) is False and time.monotonic() < deadline:
        time.sleep(0.005)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not ended:
        os.waitpid(child, 0)
    os.set_blocking(read, False)
    with os.fdopen(read, "rb") as stream:
        said = stream.read() or b'""'
    return str(json.loads(said)) if ended else f"hangs for {_HANGING} s"


def _ended(words: list[str]) -> str:
    done = invoked(*words)
    signal.setitimer(signal.ITIMER_PROF, 0)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return f"raw: {done.exception!r}"
    if done.exit_code not in (0, 1, 2):
        return f"exit code {done.exit_code}: {done.output[-300:]}"
    if "Traceback" in done.output:
        return f"a traceback: {done.output[-300:]}"
    if done.exit_code == 2 and not done.stderr.strip():
        return "refused without a word"
    if "\x1b" in done.output:
        return f"a command for the terminal: {done.output[-300:]!r}"
    if "--json" in words and "--help" not in words and not _is_object(done.stdout):
        return f"no JSON object: {done.stdout[-300:]!r} {done.stderr[-300:]!r}"
    return ""


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text, parse_constant=lambda name: _refused(name)), dict)
    except ValueError:
        return False


def _refused(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
