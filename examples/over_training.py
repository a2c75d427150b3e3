"""When does a state become readable, when is it used, and when is it right? One training, audited at its checkpoints.

A small search of graphs (10 names, 14 edges, two layers of width 64) is trained for up to 1,000 batches, and every
claim of ``interp audit`` is measured at checkpoints of the run: about two CPU minutes in all. Run it with
``python examples/over_training.py [FOLDER]``; it goes on where it was stopped, and writes ``over_training.csv`` (a row
a claim and checkpoint), ``arrivals.csv`` (from which checkpoint on each claim has its last word) and a figure.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from interp.audit import Budget, audit
from interp.results import figures
from interp.support.files import write_csv, write_figure
from interp.training.batches import EpisodeSource, watched
from interp.training.config import Stage, TrainingConfig
from interp.training.goal import preset
from interp.training.runs import load_run
from interp.training.trainer import train

STEPS = (1, 100, 200, 300, 400, 500, 600, 700, 1000)
"""Batches at which it is audited; stages end when their depth is answered, so that the run ends before the last."""
BUDGET = Budget(episodes=64, rounds=6, writes=4)
CURVES = {
    "behaviour": "right, of the rounds that can know",
    "decoded": "R2 of the set",
    "used": "share of the loss",
}
"""The claims that are drawn, and what their numbers are."""


def configuration(steps: int, seed: int = 0) -> TrainingConfig:
    """A search of small graphs that is learned in a minute: the laptop preset with fewer names."""
    until = {"answered_1": 0.95, "answered_2": 0.95}
    stages = [Stage(2, steps // 4, until={"answered_1": 0.95}), Stage(3, steps // 4, until=until)]
    sizes = {"n_nodes": (10, 10), "n_edges": (14, 14)}
    stages.append(Stage(4, steps - 2 * (steps // 4)))
    return replace(
        preset("reachability", "laptop"),
        sizes=sizes,
        stages=stages,
        seed=seed,
        eval_every=50,
        eval_rounds=4,
    )


def main(
    folder: Path, steps: tuple[int, ...] = STEPS, budget: Budget = BUDGET, seed: int = 0
) -> pd.DataFrame:
    """Train, audit at every checkpoint, and write tables and figure; a row for each claim and checkpoint."""
    path = folder / "over_training.csv"
    config = configuration(max(steps), seed)
    frame = pd.DataFrame({"step": []})
    if path.exists():
        frame = pd.read_csv(path).fillna({"about": ""})
    for step in steps:
        if step in set(frame["step"]):
            continue
        train(config, folder / "run", name="search", stop_at=step, device="cpu")
        run = load_run(folder / "run", f"search-{step}")
        if run.step in set(frame["step"]):
            continue  # it ended before
        model = run.model
        episodes = EpisodeSource(config, model.layout).evaluation()
        evaluation = watched(model, episodes, config.commit)
        audited = audit(model, budget=budget)
        claims = audited.to_frame().assign(key=[measure.key for measure in audited])
        answers = []
        for name, number in evaluation.items():
            if name.startswith(("accuracy", "answered")):
                answers.append({"key": "behaviour", "about": name, "number": number})
        checkpoint = pd.concat([pd.DataFrame(answers), claims]).assign(step=run.step)
        frame = pd.concat([frame, checkpoint], ignore_index=True)
        write_csv(path, frame)
    write_csv(folder / "arrivals.csv", arrivals(frame))
    write_figure(folder / "over_training.svg", drawn(frame))
    return frame


def arrivals(frame: pd.DataFrame) -> pd.DataFrame:
    """Find the checkpoint from which on each claim has the word that it has at the last one."""
    rows = []
    claims = frame[frame["verdict"].notna()]
    for key, lines in claims.groupby("key", sort=False):
        subjects = lines["about"]
        first = lines[subjects == subjects.iloc[0]].sort_values("step")
        steps, words = first["step"], first["verdict"]
        last_word = words.iloc[-1]
        differs = words != last_word
        if differs.any():
            steps = steps[steps > steps[differs].max()]
        rows.append({"key": key, "verdict": last_word, "from_step": int(steps.min())})
    return pd.DataFrame(rows)


def drawn(frame: pd.DataFrame) -> Any:
    """Draw behaviour, what can be read, and what is used, over batches; with the controls of the last two."""
    parts = []
    is_of_all = frame["about"].isin(["accuracy", ""])
    for key, name in CURVES.items():
        lines = frame[is_of_all & (frame["key"] == key)]
        curve = lines.rename(columns={"number": "mean"})[["step", "mean", "low", "high"]]
        parts.append(curve.assign(algorithm=key, name=name))
    return figures.curves(pd.concat(parts), x="step", xlabel="batches", ylabel="share")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "output/over-training"))
