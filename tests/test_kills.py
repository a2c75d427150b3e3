"""kill -9 at random moments of what resumes: it goes on, and ends with what an undisturbed run ends with."""

import os
import random
import signal
import time

import pytest

from tests import artefacts
from tests.shell import invoked
from tests.test_full_disk import COMMANDS, small_table  # noqa: F401, a fixture

RESUMING = {
    "train": COMMANDS["train"],
    "sweep": ["probe", "wma-handwired", "--sweep", "--episodes", "10", "--rounds", "8"],
    "compare": COMMANDS["compare"],
    "benchmark": COMMANDS["benchmark"],
    "llm run": ["llm", "run", "--agent", "counter", "--episodes", "6", "--rounds", "40"],
    "calibrate": COMMANDS["calibrate"],
}
KILLS = 8


def started(arguments):
    """The process of a command."""
    child = os.fork()
    if child == 0:
        os.setpgrp()
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        os._exit(invoked(*arguments).exit_code)
    return child


def finished(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", RESUMING)
def test_a_killed_run_goes_on_and_ends_as_an_undisturbed_one(name, tmp_path):
    """Each command runs about twice in all: minutes together."""
    begin = time.monotonic()
    assert finished(started([*RESUMING[name], "--out", str(tmp_path / "whole")])) == 0
    whole_s, draw, killed = time.monotonic() - begin, random.Random(name), 0
    arguments = [*RESUMING[name], "--out", str(tmp_path / "broken")]
    for _ in range(KILLS):
        child = started(arguments)
        time.sleep(draw.uniform(0.02, 0.6) * whole_s)
        if os.waitpid(child, os.WNOHANG)[0] == 0:
            os.kill(child, signal.SIGKILL)
            killed += finished(child) == -signal.SIGKILL
    assert finished(started(arguments)) == 0
    assert killed >= 1
    n_files, names = artefacts.differing(tmp_path / "whole", tmp_path / "broken")
    assert n_files, (killed, names)
    assert names == [], (killed, names)
