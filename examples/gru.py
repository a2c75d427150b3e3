"""A GRU, an LSTM and a block that loops, from training to a report, by the calls of every other model.

Each is a plain ``torch.nn`` module that reads a round's tokens; ``interp.adapt`` makes a machine of it. They learn
prediction with expert advice, and the GRU the pulls of ``own_task.py``, too.
Run it with ``python examples/gru.py [FOLDER]``.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import interp
import interp.tasks
import probes
from circuits import compare
from interp.interventions.interchange import interchange
from interp.interventions.patching import sweep
from interp.tasks import experts
from interp.training.config import Stage, TrainingConfig
from interp.training.trainer import train
from reports.build import write

WIDTH, CYCLES = 48, 3


class Loop(nn.Module):
    """What is carried, refined by one block several times a round."""

    def __init__(self, n_told: int, width: int) -> None:
        super().__init__()
        self.enter = nn.Linear(n_told + width, width)
        self.block = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)
        )

    def forward(self, told: Tensor, h: Tensor) -> Tensor:
        z = h + 0.1 * self.enter(torch.cat([told, h], 1))
        for _ in range(CYCLES):
            z = z + 0.1 * self.block(z)
        return z


class Learner(nn.Module):
    """A cell that is told a round, and a readout of what it carries and of what the round asks."""

    def __init__(self, cell: nn.Module, n_asked: int, n_told: int, n_outcomes: int) -> None:
        super().__init__()
        self.hear = nn.Sequential(nn.Linear(n_told, 64), nn.ReLU())
        self.cell = cell
        self.read = nn.Sequential(
            nn.Linear(WIDTH + n_asked, 64), nn.ReLU(), nn.Linear(64, n_outcomes)
        )


def machine(kind: str, task: str = "experts") -> Any:
    """An untrained machine of one of the three kinds."""
    record = interp.tasks.get(task)
    layout = record.layout(**{size.name: size.default for size in record.sizes})
    n_ids, end = len(layout.vocabulary), layout.predict_position
    asked = [
        i for i in range(1, end) if i not in layout.latent_positions
    ]  # what a round says before it asks
    told = [*asked, *range(end + 1, layout.update_position)]  # and with the truth

    def said(tokens: Tensor, positions: list[int], like: Tensor) -> Tensor:
        return nn.functional.one_hot(tokens[:, positions], n_ids).flatten(1).to(like)

    def step(
        learner: Learner, carried: dict[str, Tensor], fed: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        h = carried["h"]
        scores = learner.read(torch.cat([h, said(fed.tokens, asked, h)], 1))
        state = (h, carried["c"]) if kind == "lstm" else h
        after = learner.cell(learner.hear(said(fed.tokens, told, h)), state)
        return scores, dict(zip("hc", after, strict=True)) if kind == "lstm" else {"h": after}

    cell = {"gru": nn.GRUCell, "lstm": nn.LSTMCell, "loop": Loop}[kind](64, WIDTH)
    inside = {"gru": ("reset", "update", "new"), "lstm": ("input", "forget", "output"), "loop": ()}[
        kind
    ]
    points: dict[str, Any] = {gate: f"cell.{gate}" for gate in inside}
    if kind == "loop":
        points["block"] = interp.Point("cell.block", times=CYCLES)
    learner = Learner(cell, len(asked) * n_ids, len(told) * n_ids, layout.n_outputs)
    channels = [interp.Channel(name, (WIDTH,)) for name in ("hc" if kind == "lstm" else "h")]
    return interp.adapt(learner, layout, step=step, channels=channels, points=points, name=kind)


def look(name: str, folder: Path, steps: int, n_episodes: int) -> Path:
    """Train the machine of that name on expert advice, and ask it everything."""
    config = TrainingConfig(
        "experts", (Stage(20, steps),), lr=3e-3, batch_size=64, sizes={"n_experts": (4, 4)}
    )
    learned = interp.load(str(train(config, folder / name, name=f"{name}-learned", machine=name)))
    base, source = (experts.sample(n_episodes, 20, 4, seed=seed) for seed in (100, 101))
    print(name, *probes.probe(learned, base, ["log_weights"]), sep="\n")
    pair = experts.TASK.corruption("flip-vote").build(base, round=5, expert="p_2")
    rows = [f"latent@{label}" for channel in learned.channels for label in channel.labels]
    print(
        sweep(learned, *pair, 6, sites=["latent", *rows], read_round=8).to_frame()[
            ["site", "fraction"]
        ]
    )
    algorithm = experts.TASK.explains(learned)
    print(interchange(learned, base, source, algorithm, algorithm.memory, "latent").to_frame())
    print(compare.machines(learned, "wma-handwired", budget=compare.Budget.quick()).to_frame())
    return write(learned, out=folder, n_episodes=n_episodes, n_rounds=20, quick=True).path


def main(folder: Path, steps: int = 600, n_episodes: int = 32) -> list[Path]:
    from own_task import PULLS, exchange_history, sample

    interp.tasks.register(PULLS)
    for kind in ("gru", "lstm", "loop"):
        interp.register_machine(
            kind, partial(machine, kind), description=f"examples/gru.py: {kind}", task="experts"
        )
    pages = [look(kind, folder, steps, n_episodes) for kind in ("gru", "lstm", "loop")]
    interp.register_machine(
        "gru-pulls", partial(machine, "gru", "pulls"), description="a GRU", task="pulls"
    )
    config = TrainingConfig("pulls", (Stage(20, steps),), lr=3e-3)
    run = train(config, folder / "pulls", name="pulls-gru", machine="gru-pulls")
    pulls = interp.load(str(run))
    print(*probes.probe(pulls, sample(n_episodes, 12, seed=5), ["wins"]), sep="\n")
    print(
        sweep(
            pulls, *exchange_history(sample(n_episodes, 12, seed=5), 5), 5, sites=["latent@h"]
        ).to_frame()
    )
    return pages


if __name__ == "__main__":
    print(*main(Path(*sys.argv[1:2] or ["output/gru"])), sep="\n")
