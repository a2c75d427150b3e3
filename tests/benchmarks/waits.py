"""What people wait for, in CPU seconds and peak memory: commands, reports, comparisons, decisions, growth with size.

``python -m tests.benchmarks waits`` measures every row that ``output/benchmarks/waits.csv`` does not hold for this
commit, ``python -m tests.benchmarks waits ROW...`` the rows named, whether held or not. Each row is a process of its
own on one thread, and is written when it ends, so that what was stopped goes on. CPU seconds are those of the whole
process, imports included; ``value`` is what the row is about (seconds of one step, a ratio, MiB), ``goal`` the most
that it should be (of ratios to other libraries: the least). For the figures of an older commit, copy this file into
its checkout: it takes no more of this room than ``patching``.
"""

import csv
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OUT = Path("output/benchmarks/waits.csv")
FIELDS = ("commit", "row", "value", "unit", "goal", "cpu_s", "peak_mib", "more")
SMALL = ("--episodes", "16", "--rounds", "6")


@dataclass(frozen=True)
class Row:
    """One thing that is waited for: a command of ``interp``, or a function that returns its value and more numbers."""

    what: tuple[str, ...] | Callable[[], tuple[float, dict[str, Any]]]
    goal: float
    unit: str = "CPU s"


def cpu_of(call: Callable[[], object], repeats: int = 3) -> float:
    """The fewest CPU seconds of a call, after one that warms up."""
    call()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def decisions() -> tuple[float, dict[str, Any]]:
    """Milliseconds of one decision at round 500, and at 10 and 100, and each of 64: a round reads no history."""
    import torch

    from interp.model.config import LatentTransformerConfig
    from interp.model.rollout import rollout
    from interp.model.transformer import HookedLatentTransformer
    from interp.tasks import experts

    torch.manual_seed(0)
    layout = experts.TASK.layout(n_experts=4)
    config = LatentTransformerConfig(
        layout, d_model=64, n_layers=4, n_heads=4, d_head=16, d_mlp=256
    )
    model = HookedLatentTransformer(config).eval()
    single, many = (
        rollout(model, experts.sample(n, n_rounds, 4, seed=0))
        for n, n_rounds in ((1, 501), (64, 11))
    )
    numbers = {}
    with torch.no_grad():
        for name, run, t, n in (
            *((f"round {t}", single, t, 1) for t in (10, 100, 500)),
            ("each of 64", many, 10, 64),
        ):
            tokens, latents = run.tokens[:, t], run.latents[:, t]
            numbers[name] = round(
                1e3 * cpu_of(lambda t=tokens, z=latents: model.predict(t, z), 50) / n, 3
            )
    return numbers["round 500"], numbers


def patching() -> tuple[float, dict[str, Any]]:
    """How many times our patching sweep's seconds TransformerLens takes, residuals; heads."""
    from tests.benchmarks.patching import measure

    ratios = measure().set_index("sweep")["ratio"].round(2)
    return float(ratios["resid_pre"]), {"heads (goal 5)": float(ratios["head"])}


def rollout_growth() -> tuple[float, dict[str, Any]]:
    """CPU seconds of a rollout of 4,096 episodes over those of 1,024 (ten rounds, the learned model)."""
    import interp
    from interp.tasks import experts

    model = interp.load("wma-learned-additive")
    seconds = {}
    for n in (1024, 4096):
        batches = iter(
            [experts.sample(n, 10, 4, seed=seed) for seed in range(3)]
        )  # a session keeps what it ran
        seconds[n] = cpu_of(lambda batches=batches: interp.rollout(model, next(batches)), 2)
    return seconds[4096] / seconds[1024], {str(n): round(s, 2) for n, s in seconds.items()}


def experts_growth() -> tuple[float, dict[str, Any]]:
    """The power of n in a handwired rollout's CPU seconds, from 16 experts to 64 (64 episodes of five rounds)."""
    import math

    import interp
    from interp.tasks import experts

    seconds = {}
    for n in (4, 16, 64):
        model = interp.load("wma-handwired", n_experts=n)
        batches = iter([experts.sample(64, 5, n, seed=seed) for seed in range(3)])
        seconds[n] = cpu_of(
            lambda model=model, batches=batches: interp.rollout(model, next(batches)), 2
        )
    numbers = {f"{n} experts, s": round(s, 3) for n, s in seconds.items()}
    return math.log(seconds[64] / seconds[16], 4), {
        **numbers,
        "64 over 4": round(seconds[64] / seconds[4], 1),
    }


def bayes_growth() -> tuple[float, dict[str, Any]]:
    """The power of T in the Bayes predictor's CPU seconds, from 250 rounds to 4,000 (64 episodes of four experts)."""
    import math

    from interp.tasks import experts
    from interp.tasks.experts import predictors

    seconds = {}
    for n_rounds in (250, 1000, 4000):
        episodes = experts.sample(64, n_rounds, 4, seed=0)
        seconds[n_rounds] = cpu_of(
            lambda episodes=episodes: predictors.bayes(episodes, (0.0, 1.0)), 2
        )
    return math.log(seconds[4000] / seconds[250], 16), {
        f"{t} rounds, s": round(s, 4) for t, s in seconds.items()
    }


def rollout_memory() -> tuple[float, dict[str, Any]]:
    """MiB that a rollout of 512 x 200 needs at its peak beyond what it returns."""
    import interp
    from interp.tasks import experts

    model, episodes = interp.load("wma-learned-additive"), experts.sample(512, 200, 4, seed=0)
    interp.rollout(model, experts.sample(2, 2, 4, seed=0))
    before = _peak()
    run = interp.rollout(model, episodes)
    tensors = (run.predictions, run.latents, *run.fed.tensors().values())
    result = sum(tensor.numel() * tensor.element_size() for tensor in tensors) / 2**20
    return _peak() - before - result, {"before": round(before), "result": round(result)}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


SMALLEST: dict[str, Row] = {
    "help": Row(("--help",), 0.3),
    "models": Row(("models",), 0.4),
    "probe, smallest": Row(("probe", "wma-handwired", *SMALL), 4),
    "patch, smallest": Row(("patch", "wma-handwired", *SMALL), 4),
    "verify, smallest": Row(("verify", "wma-handwired", *SMALL), 3),
    "verify wma-handwired": Row(("verify", "wma-handwired"), 20),
}
CALLS: dict[str, Row] = {
    "decision": Row(decisions, 1.5, "ms at round 500"),
    "patch sweep": Row(patching, 4, "x TransformerLens, residuals"),
    "growth of rollouts": Row(rollout_growth, 4, "x for 4 x the episodes"),
    "growth in experts": Row(experts_growth, 1, "power of n"),
    "growth of Bayes": Row(bayes_growth, 1, "power of T"),
    "memory of a rollout": Row(rollout_memory, 100, "MiB beyond its result"),
}
WHOLE: dict[str, Row] = {
    "report, quick, Q": Row(("report", "qlearning-learned", "--quick"), 12),
    "report, quick, experts": Row(("report", "wma-learned-additive", "--quick"), 12),
    "report, quick, reachability": Row(("report", "reachability-learned", "--quick"), 12),
    "compare, quick": Row(("compare", "wma-learned-additive", "wma-handwired", "--quick"), 15),
    "report, experts": Row(("report", "wma-learned-additive"), 60),
    "report, Q": Row(("report", "qlearning-learned"), 60),
    "report, reachability": Row(("report", "reachability-learned"), 60),
}
ROWS: dict[str, Row] = {**SMALLEST, **CALLS, **WHOLE}
"""What is measured, by its name: cheap rows first."""


def measure(name: str) -> dict[str, Any]:
    """One row, in a process of its own; its peak is no less than this one's, which imports nothing for that reason."""
    row = ROWS[name]
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(row.what, tuple):
            command = ["-c", "from interp.cli import app; app()", *row.what]
            command += ["--out", folder] if row.what[0] not in ("--help", "models") else []
        else:
            command = ["-m", "tests.benchmarks.waits", name]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        with (Path(folder) / "said").open("w+") as output:
            child = subprocess.Popen(
                [sys.executable, *command], stdout=output, stderr=output, env=environment
            )
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            output.seek(0)
            text = output.read()
    if child.returncode:
        sys.exit(f"{name!r} ended with {child.returncode}:\n{text}")
    cpu = round(used.ru_utime + used.ru_stime, 2)
    value, more_numbers = (
        (cpu, {}) if isinstance(row.what, tuple) else json.loads(text.splitlines()[-1])
    )
    numbers = {"value": round(value, 3), "cpu_s": cpu, "peak_mib": round(used.ru_maxrss / 1024)}
    return {
        "commit": commit(),
        "row": name,
        **numbers,
        "unit": row.unit,
        "goal": row.goal,
        "more": json.dumps(more_numbers),
    }


def commit() -> str:
    """The commit that is measured, marked when files have changed since."""
    describe = ("describe", "--always", "--dirty", "--exclude", "*")
    return subprocess.run(
        ["git", *describe], capture_output=True, text=True, check=True
    ).stdout.strip()


def main(*names: str) -> None:
    if unknown := [name for name in names if name not in ROWS]:
        sys.exit(f"no row {unknown[0]!r}; there are {', '.join(map(repr, ROWS))}")
    OUT.parent.mkdir(parents=True, exist_ok=True)
    rows_before = list(csv.DictReader(OUT.open())) if OUT.exists() else []
    done = {row["row"] for row in rows_before if row["commit"] == commit()}
    for name in names or [name for name in ROWS if name not in done]:
        row = measure(name)
        with OUT.open("a", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            if not file.tell():
                writer.writeheader()
            writer.writerow(row)
        print(
            "{row:28} {value:8.3g} {unit:30} goal {goal:<5g} {cpu_s:7.2f} CPU s {peak_mib:6} MiB {more}".format(
                **row
            )
        )


if __name__ == "__main__":
    print(json.dumps(ROWS[sys.argv[1]].what()))  # type: ignore[operator]
