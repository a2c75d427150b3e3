"""What runs on each kind of machine: ``python -m tests.machines_of_others.rooms`` prints the table of kinds and rooms.

A room that does not apply says so in a sentence; anything else that is raised is a fault. The machines are untrained:
that a room runs is no claim about what it finds.
"""

import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import interp
import interp.audit
import probes
from circuits import compare
from circuits.compare.question import Budget
from interp.core import catalog
from interp.interventions import mediation
from interp.interventions.interchange import interchange
from interp.interventions.moves import Writer, transition
from interp.interventions.patching import sweep
from reports.build import write
from tests.machines_of_others.kinds import made, pair

SHOWN = ("GRU of 2 layers", "LSTM", "loop", "HRM", "Mamba", "thoughts", "agent")
TINY = Budget(known=16, test=8, rounds=6, starts=2, horizon=2, battery=4, untrained=1)
AUDITED = interp.audit.Budget(episodes=8, rounds=3, writes=1, copies=1)
RAN = "ran"
"""What a cell says of a room that ran whole."""


def _rollout(machine: Any, folder: Path) -> str:
    run = interp.rollout(machine, pair(machine)[0], names_filter=lambda name: True)
    assert run.predictions.isfinite().all()
    assert len(run.cache) >= len(machine.points)
    return RAN


def _probes(machine: Any, folder: Path) -> str:
    key = catalog.of(machine).analysis.probed[0]
    (probe,) = probes.probe(machine, pair(machine, 16)[0], [key], n_untrained=1)
    assert "untrained" in probe.controls
    return RAN


def _patching(machine: Any, folder: Path) -> str:
    task = catalog.of(machine)
    corruption = task.corruption(task.analysis.default_corruption)
    episodes, _ = pair(machine)
    clean, corrupted = corruption.build(episodes, 3)
    effects = sweep(machine, clean, corrupted, 3, read_round=4).to_frame()
    first_label = machine.channels[0].labels[0]
    effects_of_label = effects[effects["site"] == f"latent@{first_label}"]["effect"]
    assert len(effects_of_label)
    assert effects_of_label.notna().all()
    return RAN


def _interchange(machine: Any, folder: Path) -> str:
    algorithm = catalog.of(machine).explains(machine)
    result = interchange(machine, *pair(machine), algorithm, algorithm.memory, "latent")
    assert len(result.to_frame())
    return RAN


def _mediation(machine: Any, folder: Path) -> str:
    through = [key for key in machine.points if key != "latent"][:1]
    if through and machine.points[through[0]].n_layers:
        through = [f"{through[0]}[0]"]
    mediated = mediation.mediate(machine, *pair(machine), "latent", through, round=[3])
    return mediated.reason or RAN


def _steps(machine: Any, folder: Path) -> str:
    known, episodes = pair(machine, 16)
    algorithm = catalog.of(machine).explains(machine)
    state = tuple(variable.key for variable in algorithm.variables if variable.role == "state")
    writer = Writer.fit(machine, interp.rollout(machine, known), algorithm.run(known), state)
    steps = transition(machine, episodes, writer, round=[2], horizon=2)
    assert steps.under(algorithm).r2().low <= 1
    return RAN


def _compare(machine: Any, folder: Path) -> str:
    known = interp.load("wma-handwired", n_experts=4)
    if machine.layout.task != "experts":
        known = interp.load("qlearning-handwired", n_states=4, n_actions=3)
    comparison = compare.machines(machine, known, budget=TINY)
    lacking = []
    for measure in comparison:
        if measure.verdict == "not applicable":
            sentence = str(measure).rstrip(".")
            lacking.append(sentence.replace(known.name, "another"))
    assert len(lacking) < len(comparison.measures)
    return "; ".join([RAN, *lacking])


def _audit(machine: Any, folder: Path) -> str:
    verdicts = interp.audit.audit(machine, budget=AUDITED)
    assert not np.isnan(verdicts["used"].number.estimate)
    return RAN


def _report(machine: Any, folder: Path) -> str:
    report = write(machine, out=folder, n_episodes=12, n_rounds=10, quick=True)
    page = report.path.read_text("utf-8")
    assert "Not computed" not in page
    text = re.sub(r'"data:[^"]*"', "", page)  # the tables that a reader may save say it again
    reasons = re.findall(r"[Nn]ot applicable:?([^<.]*)", text)
    lacking = {reason.strip(" .()") for reason in reasons} - {""}
    return "; ".join([RAN, *sorted(lacking)])


ROOMS: dict[str, Callable[[Any, Path], str]] = {
    "rollout": _rollout,
    "probes": _probes,
    "patching": _patching,
    "interchange": _interchange,
    "mediation": _mediation,
    "steps": _steps,
    "audit": _audit,
    "compare": _compare,
    "report": _report,
}
"""Room -> what runs in it, of a machine and a folder to write to; it gives "ran", and what does not apply."""


def said(kind: str, room: str, folder: Path) -> str:
    """What a room says of a kind of machine, which is "it"."""
    machine = made(kind)
    try:
        text = ROOMS[room](machine, folder)
    except interp.InputError as error:
        text = f"not applicable: {error}"
    text_of_it = re.sub(rf"\b{re.escape(machine.name)}\b", "it", text)
    outcome, *why = text_of_it.split("; ")
    return "; ".join([outcome, *sorted(why)])


def main() -> None:
    """Print the table, with a note for everything that is not applicable."""
    notes: list[str] = []
    rows = []
    for kind in SHOWN:
        cells = []
        for room in ROOMS:
            with tempfile.TemporaryDirectory() as folder:
                cell, _, why = said(kind, room, Path(folder)).partition("; ")
            if why and why not in notes:
                notes.append(why)
            if why:
                cell += f" ({notes.index(why) + 1})"
            cells.append(cell)
            sys.stderr.write(f"{kind}, {room}: {cell}\n")
        rows.append(f"| {kind} | {' | '.join(cells)} |")
    head = f"| | {' | '.join(ROOMS)} |"
    rule = f"|{' --- |' * (len(ROOMS) + 1)}"
    footnotes = [f"\n({i}) {note}." for i, note in enumerate(notes, 1)]
    sys.stdout.write("\n".join([head, rule, *rows, *footnotes]) + "\n")


if __name__ == "__main__":
    main()
