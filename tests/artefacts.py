"""Every kind of file that the product writes, small: ``python -m tests.artefacts FOLDER``.

``differing`` compares two such folders byte by byte; what clocks and processes say is left out, and nothing else.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from typer.testing import CliRunner

import interp
from interp.cli import app
from interp.model import saved
from interp.model.checkpoints import save_checkpoint
from interp.tasks import experts
from interp.tasks.qlearning import datasets
from interp.training.runs import STATE_FILE
from probes import calibration
from tests.test_full_disk import COMMANDS, SMALL

MORE = {
    "sweep": ["probe", "wma-handwired", "--sweep", "--episodes", "10", "--rounds", "8"],
    "map": ["patch", "wma-handwired", "--episodes", "8", "--rounds", "6", "--map", "3", "--seed", "1"],
    "tables": ["patch", "wma-handwired", "--experts", "2", "--episodes", "8", "--round", "3", "--tables"],
    "llm score": ["llm", "score", "llm run"],
    "llm report": ["llm", "report", "llm run"],
}
CLOCKS = re.compile(
    r'"(?:seconds|cpu_seconds|wall_seconds|cpu_s|started|ended|at|timestamp|process)": *(?:"[^"]*"|[-\d.e+]+)'
)
"""Fields that hold what a clock or the system says."""
OF_PROCESSES = (".lock", ".holder")
"""Files that say which process works in a folder."""


def write(folder: Path) -> None:
    """Write one of every kind into a folder each; commands run in it, so that paths are the same."""
    calibration.TABLES["small"] = SMALL
    for name, command in {**COMMANDS, **MORE}.items():
        given = [str(folder / word) if word == "llm run" else word for word in command]
        done = CliRunner().invoke(app, [*given, "--out", str(folder / name)])
        assert done.exit_code in (0, 1), (name, done.output, done.exception)
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "said.txt").write_text(done.output.replace(str(folder), "FOLDER"))
    model, episodes = interp.load("wma-handwired", n_experts=2), experts.sample(3, 4, 2, seed=0)
    run = interp.rollout(model, episodes, names_filter=["hook_embed"])
    saved.save(run, folder / "python" / "run.safetensors")
    save_checkpoint(model, folder / "python" / "checkpoint")
    drawn = datasets.generate(6, n_states=(2, 3), n_actions=(2, 2), n_rounds=3)
    datasets.save(drawn, folder / "python" / "data.safetensors")


def contents(folder: Path) -> Iterator[tuple[str, str]]:
    """Every file by its name, with the digest of its bytes less what clocks say."""
    for path in sorted(one for one in folder.rglob("*") if one.is_file() and one.name not in OF_PROCESSES):
        content = path.read_bytes()
        if path.name == STATE_FILE:  # its header holds the seconds trained so far, and a digest of them
            content = content[8 + int.from_bytes(content[:8], "little") :]
        if path.suffix in (".json", ".jsonl", ".txt", ".md", ".html"):
            content = CLOCKS.sub('"clock": 0', content.decode()).replace(str(folder), "FOLDER").encode()
        yield str(path.relative_to(folder)), hashlib.sha256(content).hexdigest()


def differing(one: Path, other: Path) -> tuple[int, list[str]]:
    """How many files there are, and the names of those that differ or are in one folder only."""
    first, second = dict(contents(one)), dict(contents(other))
    names = sorted(first.keys() | second.keys())
    return len(names), [name for name in names if first.get(name) != second.get(name)]


if __name__ == "__main__":
    write(Path(sys.argv[1]).resolve())
