"""A standard output that is closed gives a sentence or a result, and no traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases import cases

HOME = str(Path(__file__).parents[1])
INTERP = f"{sys.executable} -c 'from interp.cli import app; app()'"


def shell(line, folder, **more):
    """Exit code, standard output and error of a line in a shell, where ``interp`` is the command."""
    environment = {**os.environ, "PYTHONPATH": HOME, "OMP_NUM_THREADS": "1"}
    script = f'set -o pipefail; interp() {{ {INTERP} "$@"; }}; cd {folder}; {line}'
    return subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=environment, **more
    )


CLOSED = cases(__file__, "streams CLOSED")
LONGER = {
    "verify": "interp verify wma-handwired --rounds 3 --episodes 2 | head -1",
    "patch, closed": "interp patch wma-handwired --episodes 4 --rounds 4 --round 2 --out out >&-",
}


SLOW = [
    pytest.param(stream, marks=pytest.mark.slow)
    for stream in (*list(CLOSED.values())[2:], *LONGER.values())
]


@pytest.mark.long
@pytest.mark.parametrize("line", [*list(CLOSED.values())[:2], *SLOW])
def test_a_closed_output_gives_no_traceback(line, tmp_path):
    done = shell(line, tmp_path)
    assert "Traceback" not in done.stderr, done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr
    assert done.returncode in (0, 1, 2, 141), done


@pytest.mark.long
@pytest.mark.parametrize("words", ["--version", "ledger --help", "models", "models --json"])
def test_a_pipe_that_is_closed_early_ends_the_command_quietly(words, tmp_path):
    done = shell(f"interp {words} | head -0", tmp_path)
    assert (done.returncode, done.stderr) == (141, "")
