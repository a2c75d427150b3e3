"""Each command with --shard: what several processes divide, or are stopped in, has the bytes of one process.

Processes are forked from this one, which has imported everything, so that a share costs little more than its work.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from interp.evaluation.experts import by_regime
from interp.support import shares
from interp.support.shares import WORK_FILE
from tests import artefacts
from tests.shell import invoked, printed, refusal

TINY = [
    "batch_size=2",
    "eval_episodes=2",
    "d_model=8",
    "n_heads=1",
    "stages=[{n_rounds=2, steps=4}]",
]
OF_TRAINING = [word for text in TINY for word in ("--set", text)]
COMMANDS = {
    "train": ["train", "experts", "--name", "run", "--seeds", "0:4", *OF_TRAINING],
    "evaluate": ["evaluate", "wma-handwired", "--experts", "2", "--episodes", "30"],
    "audit": ["audit", "wma-handwired", "wma-gru", "--quick"],
    "compare": ["compare", "wma-handwired", "none", "--more", "wma-gru", "--quick"],
    "patch": ["patch", "wma-handwired", "--experts", "2", "--episodes", "8", "--round", "3", "--tables"],
    "probe": ["probe", "wma-handwired", "--sweep", "--experts", "2", "--episodes", "10", "--rounds", "6"],
    "benchmark": ["benchmark", "--quick", "--subject", "wma-handwired R, plain", "--question", "nodes"],
    "ledger": ["ledger", "--quick", "--model", "wma-handwired", "qlearning-handwired"],
    "llm score": ["llm", "score", "traces"],
    "develop": ["develop", "trained/run/seed-0", "trained/run/seed-1", "--targets", "counts"],
}  # fmt: skip
SLOW = ("audit", "compare", "evaluate", "patch", "probe")
OTHER_SETTINGS = {"train": ["--set", "lr=0.5"], "benchmark": ["--seeds", "5"]}
COMMANDS["compare"] += ["--episodes", "8", "--rounds", "6"]
COMMANDS["benchmark"] += ["--method", "attention", "--seeds", "4"]
COMMANDS["develop"] += ["--episodes", "16", "--rounds", "5"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with traces of a scripted agent, and trainings of two seeds that kept states."""
    folder = tmp_path_factory.mktemp("inputs")
    traces = ["--episodes", "2", "--rounds", "6", "--regime", "flat", "stratified"]
    conditions = ["--conditions", "online-no-note", "weather-note-only"]
    printed("llm", "run", "--agent", "counter", *traces, *conditions, "--out", folder / "traces")
    options = ["--seeds", "0:2", "--keep-every", "2"]
    printed(
        "train", "experts", "--name", "run", *options, *OF_TRAINING, "--out", folder / "trained"
    )
    return folder


@dataclass(frozen=True)
class Small:
    """A small command, and the folder that one undisturbed process of it wrote."""

    words: list[str]
    alone: Path


def _param(name: str) -> Any:
    """Return a command as a parameter; those that take over 20 CPU seconds in all are slow."""
    marks = [pytest.mark.slow(reason="20 to 90 CPU seconds")] if name in SLOW else []
    return pytest.param(name, marks=marks)


@pytest.fixture(scope="module", params=map(_param, COMMANDS))
def command(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Small]:
    """Run a command where its inputs are, and yield it."""
    words = COMMANDS[request.param]
    place = tmp_path_factory.getbasetemp()
    if request.param in ("llm score", "develop"):
        place = request.getfixturevalue("inputs")
    alone = tmp_path_factory.mktemp("alone")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(by_regime, "fitting_regimes", lambda model: ["uniform", "drift"])
        printed(*words, "--out", alone)
        yield Small(words, alone)


def start(*several: list[str]) -> int:
    """Fork a process that runs commands, one after the other, and return its id."""
    child = os.fork()
    if child == 0:
        os.setpgrp()
        code = 1
        try:
            for words in several:
                result = invoked(*words)
                code = result.exit_code
                if code:
                    sys.stderr.write(f"{words}: {result.output} {result.exception!r}")
                    break
        finally:
            os._exit(code)
    return child


def exit_status(child: int) -> int:
    """Wait for a process and return its exit status, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def written(folder: Path) -> list[Path]:
    """Files in a folder that are whole."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in paths if not path.name.startswith(".")]


def require_equal(folder: Path, other: Path) -> None:
    """Fail where two folders differ by a byte that no clock wrote."""
    n_files, names = artefacts.differing(folder, other)
    assert n_files > 0
    assert names == []


@pytest.mark.long
def test_shares_of_two_workers_one_of_them_killed_give_the_bytes_of_one_process(
    command: Small, tmp_path: Path
) -> None:
    """The plan does the first part and says how to queue; other settings are refused by name; a killed share is
    done by the next process.
    """
    out = tmp_path / "divided"
    words = [*command.words, "--out", str(out)]

    planned = printed(*words, "--plan")
    assert "one took" in planned
    assert "sbatch --array=1-" in planned
    (place,) = [path.parent for path in out.rglob(WORK_FILE)]
    n_parts = len(shares.status(place))
    assert n_parts >= 2
    assert f"1 of {n_parts} parts are in" in planned

    change = OTHER_SETTINGS.get(words[0], ["--seed", "7"])
    refused = refusal(*words, *change, "--shard", "1/4")
    assert f"shares in {str(place)!r} were made with" in refused

    killed = start([*words, "--shard", "2/4"])
    time.sleep(0.1)
    os.kill(killed, signal.SIGKILL)
    assert exit_status(killed) in (-signal.SIGKILL, 0)  # the quickest share ends sooner
    first = start([*words, "--shard", "1/4"], [*words, "--shard", "2/4"])
    second = start([*words, "--shard", "3/4"], [*words, "--shard", "4/4"])
    assert [exit_status(first), exit_status(second)] == [0, 0]
    status = json.loads(printed("status", place, "--json"))["parts"]
    assert {part["state"] for part in status} == {"done"}
    assert all(part["seconds"] is not None and part["commit"] for part in status)

    printed(*words)
    assert not (place / WORK_FILE).exists()
    require_equal(command.alone, out)


@pytest.mark.long
def test_a_command_that_is_told_to_end_goes_on_to_the_same_bytes(
    command: Small, tmp_path: Path
) -> None:
    """SIGTERM comes once the first part is kept; the exit status is 143."""
    out = tmp_path / "stopped"
    words = [*command.words, "--out", str(out)]
    child = start(words)
    while not written(out):
        time.sleep(0.01)
    os.kill(child, signal.SIGTERM)
    assert exit_status(child) == 143
    printed(*words)
    require_equal(command.alone, out)
