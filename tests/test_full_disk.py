"""A full disk at any write of any command: one sentence, exit code 2, nothing half-written."""

import os
import resource

import pandas as pd
import pytest

from lab import tables
from tests.shell import invoked

TRAINED = [
    "--set",
    "stages=[{n_rounds=2, steps=4}]",
    "--set",
    "checkpoint_every=2",
    "--set",
    "eval_every=4",
]
TRAINED += [
    "--set",
    "eval_episodes=2",
    "--set",
    "eval_rounds=2",
    "--set",
    "batch_size=2",
    "--set",
    "d_model=8",
]
TRAINED += ["--set", "n_heads=1", "--set", "precision='float32'", "--name", "m"]
ONE_METHOD = ["--method", "zero:single"]
COMMANDS = {
    "train": ["train", "experts", *TRAINED],
    "verify": ["verify", "wma-handwired", "--rounds", "3", "--episodes", "2"],
    "patch": ["patch", "wma-handwired", "--episodes", "4", "--rounds", "4", "--round", "2"],
    "probe": ["probe", "wma-handwired", "--episodes", "8", "--rounds", "6"],
    "evaluate": ["evaluate", "wma-handwired", "--episodes", "30"],
    "report": ["report", "wma-handwired", "--episodes", "8", "--rounds", "12"],
    "compare": ["compare", "wma-handwired", "--quick", "--episodes", "8", "--rounds", "12"],
    "benchmark": [
        "benchmark",
        "--quick",
        "--subject",
        "wma-handwired R, plain",
        "--question",
        "edges",
        *ONE_METHOD,
    ],
    "llm run": ["llm", "run", "--agent", "counter", "--episodes", "1", "--rounds", "3"],
    "calibrate": ["calibrate", "--quick", "--table", "small"],
}


def list_parts(quick):
    return list("abcdefgh")


def make_part(quick, part):
    return pd.DataFrame({"part": [part] * 500})


SMALL = tables.Table(list_parts, make_part, lambda frame: f"{len(frame)} rows")
"""A table for ``python -m lab calibrate``, of eight parts."""


@pytest.fixture(autouse=True)
def small_table(monkeypatch):
    monkeypatch.setitem(tables.TABLES, "small", SMALL)


ROOM = {
    "evaluate": (0, 3_000),
    "report": (0, 300_000),
    "compare": (300, 3_000, 10**8),
    "benchmark": (300, 10**8),
}
"""Bytes that a file can have; most of the work of these two comes before their first write."""


def run_with_room_for(n_bytes, arguments):
    """Exit code and output of a command in a forked process whose files can have ``n_bytes``."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, n_bytes))
        result = invoked(*arguments)
        raw = (
            ""
            if result.exception is None or isinstance(result.exception, SystemExit)
            else repr(result.exception)
        )
        os.write(write, f"{result.exit_code}|{raw}|{result.output}"[:60_000].encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        report = stream.read().decode()
    os.waitpid(child, 0)
    code, raw, output = report.split("|", 2)
    return int(code), raw, output


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_is_told_in_a_sentence_and_leaves_nothing_half_written(name, tmp_path):
    """Every command runs to its first write, several times: minutes together."""
    arguments = [*COMMANDS[name], "--out", str(tmp_path / "out")]
    refused = 0
    for n_bytes in ROOM.get(name, (0, 300, 3_000, 10**8)):
        code, raw, output = run_with_room_for(n_bytes, arguments)
        assert raw == "", (n_bytes, raw)
        if code == 2:
            refused += 1
            (line,) = [line for line in output.splitlines() if "cannot write" in line]
            assert line.startswith("interp: "), output
            assert "free some space" in line, output
        else:
            assert code == 0, output
            assert n_bytes == 10**8, output
        unfinished = [
            path.name
            for path in tmp_path.rglob("*")
            if ".~" in path.name or path.name.startswith(".m.")
        ]
        assert unfinished == []
    assert refused
    assert code == 0 or name in ROOM
