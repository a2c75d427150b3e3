"""Same seed, same bytes: every kind of file, in two processes, with two hash seeds, and on one and on two threads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from interp.cli import command
from tests import artefacts

HOME = str(Path(__file__).parents[1])


def written(folder, **environment):
    """A folder of artefacts, written by a process of its own."""
    environment = {**os.environ, "PYTHONPATH": HOME, "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, "-m", "tests.artefacts", str(folder)]
    subprocess.run(command, check=True, cwd=HOME, env=environment, capture_output=True)
    return folder


@pytest.mark.slow(reason="over 300 files three times: 13 CPU minutes")
def test_files_of_every_kind_are_the_same_bytes_each_time(tmp_path):
    first = written(tmp_path / "a" / "x", PYTHONHASHSEED="1")
    again = written(tmp_path / "b" / "x", PYTHONHASHSEED="2")
    n_files, names = artefacts.differing(first, again)
    assert names == [], names
    kinds = {(Path(name).parts[0], Path(name).suffix) for name, _ in artefacts.contents(first)}
    assert n_files > 300 and len(kinds) >= 66
    n_files, names = artefacts.differing(first, written(tmp_path / "c" / "x", OMP_NUM_THREADS="2"))
    # Gradient steps amplify the order of sums: an alignment, and on some machines a training.
    trained = ("train/", "python/trained/")
    assert all(
        name == "python/frames/alignment.csv" or name.startswith(trained) for name in names
    ), names


def test_a_byte_that_differs_is_found_and_a_clock_is_not(tmp_path):
    for name, seconds, score in (("a", 1.5, 1), ("b", 2.5, 1), ("c", 1.5, 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.json").write_text(f'{{"seconds": {seconds}, "score": {score}}}')
    assert artefacts.differing(tmp_path / "a", tmp_path / "b") == (1, [])
    assert artefacts.differing(tmp_path / "a", tmp_path / "c") == (1, ["x.json"])


def test_lines_that_only_a_slow_machine_prints_are_set_aside():
    """A command that has run for two seconds says how long it takes: on a loaded machine alone."""
    said = command._list_durations("audit")["--quick"]
    printed = f"{said}\nauditing wma-handwired: 2 of 3 (30 s)\nIt takes about 3 rounds.\n"
    assert artefacts.PROGRESS.sub("", printed) == "It takes about 3 rounds.\n"
