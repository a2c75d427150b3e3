"""Every kind of file that the product writes, small: ``python -m tests.artefacts FOLDER``.

``differing`` compares two such folders byte by byte; what clocks and processes say is left out, and nothing else.
"""

import hashlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import interp
import probes
from interp.choices.explain import explain_choices
from interp.evaluation.experts import regret
from interp.interventions import edge_graph, interchange, mediation, pairs, patching, steering
from interp.interventions.alignment import Search, align
from interp.model import saved
from interp.model.checkpoints import save_checkpoint
from interp.model.transformer import untrained
from interp.support.files import write_csv, write_text
from interp.tasks import experts
from interp.training.config import TrainingConfig
from interp.training.runs import STATE_FILE
from interp.training.trainer import train
from lab import tables
from reports import attention
from tests.cases import cases
from tests.shell import invoked
from tests.test_full_disk import COMMANDS, SMALL

MORE = cases(__file__, "artefacts MORE")
CLOCKS = re.compile(
    r'"(?:seconds|cpu_seconds|cpu_seconds_by_method|cpu_s|started|ended|at|timestamp|process)": *'
    r'(?:"[^"]*"|[-\d.e+]+|\{[^}]*\})'
)
"""Fields that hold what a clock or the system says."""
PROGRESS = re.compile(
    r"^(?:.* \(\d+ s\)|interp .* takes about .*, on one core with default options\.)\n",
    re.MULTILINE,
)
"""Lines that a slow machine prints: after two seconds what a command takes, then one every half minute."""
OF_PROCESSES = (".lock", ".holder")
"""Files that say which process works in a folder."""


def write(folder: Path) -> None:
    """Write one of every kind into a folder each; commands run in it, so that paths are the same."""
    tables.TABLES["small"], outputs = SMALL, {}
    for name, command in {**COMMANDS, **MORE}.items():
        words = [str(folder / word) if word == "llm run" else word for word in command]
        done = invoked(*words, "--out", str(folder / name))
        assert done.exit_code in (0, 1), (name, done.output, done.exception)
        outputs[name] = PROGRESS.sub("", done.output).replace(str(folder), "FOLDER")
    for (
        name,
        text,
    ) in outputs.items():  # when all have run: `llm report` lists what a folder holds beside traces
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "said.txt").write_text(text)
    write_from_python(folder / "python")


def write_from_python(folder: Path) -> None:
    """What Python calls give, on as many threads as there are: rollouts, fits, interventions, trainings."""
    model, episodes = interp.load("wma-handwired", n_experts=2), experts.sample(3, 4, 2, seed=0)
    run = interp.rollout(model, episodes, names_filter=["hook_embed"])
    saved.save(run, folder / "run.safetensors")
    save_checkpoint(model, folder / "checkpoint")
    for name in ("wma-learned-additive", "qlearning-learned", "reachability-learned", "wma-gru"):
        _of_learned(name, folder / name)
    model = interp.load("wma-learned-additive")
    task, (base, source) = (
        interp.tasks.of(model),
        (experts.sample(16, 10, 4, seed=seed) for seed in (1, 2)),
    )
    clean, corrupted = task.corruption("flip-vote").build(base, round=3, expert="p_2")
    many = [experts.sample(64, 10, 4, seed=seed) for seed in (3, 4)]
    algorithm, run = experts.algorithms.weighted_majority(0.5), interp.rollout(model, base)
    wired, target = interp.load("wma-handwired", n_experts=4), probes.targets.log_weights(base)
    frames: dict[str, Any] = {}
    frames["patching"] = patching.sweep(model, clean, corrupted, 3)
    frames["map"] = patching.round_map(model, clean, corrupted, "latent")
    frames["interchange"] = interchange.interchange(
        model, base, source, algorithm, "log_weights", "latent"
    )
    frames["alignment"] = align(
        model, *many, algorithm, "log_weights", "latent", search=Search(rank=2, steps=20)
    )
    frames["mediation"] = mediation.mediate(
        model, base, source, "latent", "L0H0@p?", split=mediation.Split(n_random=2)
    )
    frames["attribution"] = edge_graph.attribute(pairs.prepare(model, clean, corrupted, 3), steps=3)
    frames["steering"] = steering.steer(
        wired, base, algorithm, steering.Doses(np.eye(4)[0], (1.0,)), round=3, n_random=2
    )
    frames["probe"] = probes.fit(run, target, n_untrained=1)
    frames["choices"] = explain_choices(
        base, base.labels, families=list(task.rivals().values())[:2]
    )
    frames["regret"] = regret.score(run.predictions, base)
    for name, result in frames.items():
        write_csv(folder / "frames" / f"{name}.csv", result.to_frame())
    seen = interp.rollout(wired, base, names_filter=lambda hook: hook.endswith("pattern"))
    write_text(folder / "attention.html", attention.show(seen).html("a"))
    values = algorithm.run(base)
    write_csv(
        folder / "algorithm.csv",
        pd.DataFrame({key: [str(value.tolist())] for key, value in values.items()}),
    )
    config = TrainingConfig(
        "experts", [{"n_rounds": 4, "steps": 20}], batch_size=32, precision="float32"
    )
    train(config, folder / "trained", name="m", device="cpu")


def _of_learned(name: str, folder: Path) -> None:
    """A rollout of a learned model, kept, and its weights drawn anew."""
    model = interp.load(name)
    saved.save(
        interp.rollout(model, interp.tasks.of(model).sample_for(model, 64, 12, 0)),
        folder / "run.safetensors",
    )
    (folder / "untrained.txt").write_text(untrained(model, 0).digest())


def contents(folder: Path) -> Iterator[tuple[str, str]]:
    """Every file by its name, with the digest of its bytes less what clocks say."""
    for path in sorted(
        file for file in folder.rglob("*") if file.is_file() and file.name not in OF_PROCESSES
    ):
        content = path.read_bytes()
        if (
            path.name == STATE_FILE
        ):  # its header holds the seconds trained so far, and a digest of them
            content = content[8 + int.from_bytes(content[:8], "little") :]
        if path.suffix in (".csv", ".json", ".jsonl", ".txt", ".md", ".html"):
            content = without_clocks(path, content.decode()).replace(str(folder), "FOLDER").encode()
        yield str(path.relative_to(folder)), hashlib.sha256(content).hexdigest()


def without_clocks(path: Path, text: str) -> str:
    """A text without what clocks say, and without the digests of lines and parts in which they say it."""
    if path.suffix == ".jsonl" or path.parent.name == "parts":
        text = re.sub(r'"sha256": *"\w+"', '"sha256": 0', text)
    return re.sub(r"\d+ s: complete", "0 s: complete", CLOCKS.sub('"clock": 0', text))


def differing(one: Path, other: Path) -> tuple[int, list[str]]:
    """How many files there are, and the names of those that differ or are in one folder only."""
    first, second = dict(contents(one)), dict(contents(other))
    names = sorted(first.keys() | second.keys())
    return len(names), [name for name in names if first.get(name) != second.get(name)]


if __name__ == "__main__":
    write(Path(sys.argv[1]).resolve())
