"""A standard output that is closed, and two processes that work in one folder: a sentence or a result, no traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_full_disk import COMMANDS

HOME = str(Path(__file__).parents[1])
INTERP = f"{sys.executable} -c 'from interp.cli import app; app()'"


def shell(line, folder, **more):
    """Exit code, standard output and error of a line in a shell, where ``interp`` is the command."""
    environment = {**os.environ, "PYTHONPATH": HOME, "OMP_NUM_THREADS": "1"}
    script = f'set -o pipefail; interp() {{ {INTERP} "$@"; }}; cd {folder}; {line}'
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, **more)


CLOSED = {
    "a table": "interp models | head -1",
    "JSON": "interp models --json | head -c 5",
    "help": "interp patch --help | head -1",
    "no output": "interp models >&-",
    "no output, JSON": "interp models --json >&-",
    "no error": "interp models --nothing 2>&-",
    "neither": "interp models --nothing >&- 2>&-",
    "a refusal": "interp report nothing | head -0",
}
LONGER = {
    "verify": "interp verify wma-handwired --rounds 3 --episodes 2 | head -1",
    "patch, closed": "interp patch wma-handwired --episodes 4 --rounds 4 --round 2 --out out >&-",
}


SLOW = [pytest.param(one, marks=pytest.mark.slow) for one in (*list(CLOSED.values())[2:], *LONGER.values())]


@pytest.mark.parametrize("line", [*list(CLOSED.values())[:2], *SLOW])
def test_a_closed_output_gives_no_traceback(line, tmp_path):
    done = shell(line, tmp_path)
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr, done.stderr
    assert done.returncode in (0, 1, 2, 141), done


@pytest.mark.slow(reason="two processes that train: 20 CPU seconds")
def test_of_two_trainings_in_one_folder_one_is_refused_and_the_other_ends_as_alone(tmp_path):
    """And the same command a third time finds it finished."""
    command = ["train", "experts", *COMMANDS["train"][2:], "--set", "stages=[{n_rounds=2, steps=400}]"]
    environment = {**os.environ, "PYTHONPATH": HOME, "OMP_NUM_THREADS": "1"}

    def started(out):
        code = "from interp.cli import app; app()"
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        given = [sys.executable, "-c", code, *command, "--out", str(tmp_path / out)]
        return subprocess.Popen(given, env=environment, cwd=HOME, **pipes)

    both = [started("both") for _ in range(2)]
    said = [one.communicate()[0] for one in both]
    codes = sorted(one.returncode for one in both)
    assert codes in ([0, 2], [0, 0]) and "Traceback" not in "".join(said), said
    assert codes == [0, 0] or "another process (process " in "".join(said), said
    alone = started("alone")
    assert alone.communicate() and alone.returncode == 0
    models = [next((tmp_path / out).rglob("model.safetensors")).read_bytes() for out in ("both", "alone")]
    assert models[0] == models[1]
