"""How small a deviation from the reference does a comparison detect?

    resolution.seen("experts", quick=True)          # what shipped measurements say, a Resolution for each deviation
    print(resolution.sentence("experts", quick=True))

A :class:`Deviation` is a machine that differs from its task's reference by one number, such as a
gain, a leak or a lag. Machines with several sizes of the deviation are compared with the reference,
with several seeds. The *resolution* of a question is the smallest size from which on the comparison
says "no" in half of the runs, and in 95 % of them. It holds for one budget. ``python -m lab
calibrate --table resolution`` measures it; its results are in ``resolution-quick.csv`` and, for the
full budget, ``resolution.csv`` beside this file. It is NOT a promise about other kinds of
deviations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from circuits import compare
from interp.core.machine import Machine
from interp.support.checks import checked, index_by_key, require_columns
from interp.support.errors import require, require_known
from interp.tasks.experts.algorithms import weighted_majority
from interp.tasks.experts.families import fading_majority, late_majority, majority_window
from interp.tasks.qlearning.algorithms import q_learning
from lab import known
from lab.known import QUESTIONS, edits
from lab.known.makers import GAIN, computed

HALF = 0.5
MOST = 0.95
"""Shares of runs (``HALF`` and ``MOST``) for which the smallest detected size is reported."""
SEEDS = {True: 3, False: 20}
"""Number of runs of each size, for the quick (True) and the full budget. With 3 runs, "95 %" means
all.
"""


@dataclass(frozen=True)
class Deviation:
    """A family of machines that differ from the reference by one number.

    Attributes:
        key: task and name, such as "experts: lag".
        sizes: values of the number, from the smallest deviation to the largest.
        make: returns the machine for a value.
        words: phrase for what a comparison detects, with the value as ``{}``.
    """

    key: str
    sizes: tuple[float, ...]
    make: Callable[[float], Machine]
    words: str

    @property
    def task(self) -> str:
        """Key of the task."""
        return self.key.partition(": ")[0]


def deviations() -> Mapping[str, Deviation]:
    """Return all deviations, by key."""

    def gain(factor: float) -> Machine:
        return computed(weighted_majority(factor * GAIN))

    def leak(keep: float) -> Machine:
        return computed(fading_majority(GAIN, decay=keep))

    def noise(sd: float) -> Machine:
        return edits.noisy(known.reference("experts"), sd)

    def late(lag: float) -> Machine:
        return computed(late_majority(GAIN, lag=int(lag)))

    def window(rounds: float) -> Machine:
        return computed(majority_window(GAIN, window=int(rounds)))

    def discount(gamma: float) -> Machine:
        return computed(q_learning(gamma=gamma))

    def rate(alpha: float) -> Machine:
        return computed(q_learning(alpha=alpha))

    larger = "a gain {} times as large"
    records = (
        Deviation("experts: gain", (1.05, 1.1, 1.2, 1.4, 2.0), gain, larger),
        Deviation("experts: less gain", (0.95, 0.9, 0.8, 0.7, 0.5), gain, larger),
        Deviation("experts: leak", (0.998, 0.99, 0.98, 0.95, 0.9), leak, "a leak of {}"),
        Deviation("experts: lag", (1, 2, 3), late, "a lag, in rounds, of {}"),
        Deviation("experts: window", (16, 12, 8, 5, 3), window, "a window of {} rounds"),
        Deviation("experts: noise", (0.01, 0.03, 0.1, 0.3, 1.0), noise, "noise of {} nats a round"),
        Deviation("qlearning: discount", (0.88, 0.85, 0.8, 0.7, 0.5), discount, "a discount of {}"),
        Deviation("qlearning: rate", (0.11, 0.12, 0.15, 0.2, 0.4), rate, "a learning rate of {}"),
    )
    return index_by_key(records, "deviation")


@checked
def measure(key: str, size: float, seed: int, budget: compare.Budget) -> dict[str, Any]:
    """Compare one deviating machine with the reference; return the verdicts as a row of the table.

    Args:
        key: key of the deviation.
        size: value of the deviating number.
        seed: seed of the comparison.
        budget: budget of the comparison.
    """
    records = deviations()
    require_known("deviation", key, records, limit=20)
    deviation = records[key]
    machine = deviation.make(size)
    reference = known.reference(deviation.task)
    comparison = compare.machines(machine, reference, budget=replace(budget, seed=seed))
    row = {"deviation": key, "size": size, "seed": seed}
    for question in QUESTIONS:
        row[question] = comparison[question].verdict
    row["cpu_seconds"] = comparison.settings["cpu_seconds"]
    return row


@dataclass(frozen=True)
class Resolution:
    """The smallest deviation that a question detects, which means that its verdict is "no".

    Attributes:
        deviation: key of the deviation.
        question: key of the question.
        half, most: smallest size from which on at least half, or 95 %, of the runs detect it; None
            if no size is detected so often.
        runs: number of runs of each size.
    """

    deviation: str
    question: str
    half: float | None
    most: float | None
    runs: int


def resolutions(frame: pd.DataFrame) -> list[Resolution]:
    """Return the resolution of every question for every deviation, from rows of :func:`measure`."""
    require_columns("rows of measured deviations", frame, "deviation", "size", "seed", *QUESTIONS)
    records = deviations()
    measured: list[Resolution] = []
    for key, rows in frame.groupby("deviation", sort=False):
        n_runs = rows["size"].value_counts()
        sizes = [size for size in records[str(key)].sizes if size in n_runs]
        require(bool(sizes), f"no row of {key!r} has one of its sizes; measure it again")
        for question in QUESTIONS:
            verdicts = rows[question]
            if (verdicts == "not applicable").all():
                continue
            shares = verdicts.eq("no").groupby(rows["size"]).mean()  # of runs, by size
            resolution = Resolution(
                deviation=str(key),
                question=question,
                half=_smallest_seen(sizes, shares, HALF),
                most=_smallest_seen(sizes, shares, MOST),
                runs=int(n_runs.min()),
            )
            measured.append(resolution)
    return measured


def _smallest_seen(
    sizes: Sequence[float], shares: pd.Series[Any], threshold: float
) -> float | None:
    """Return the smallest size from which on every size was detected in at least this share of
    runs.

    Args:
        sizes: sizes from the smallest deviation to the largest.
        shares: share of runs that detected it, by size.
        threshold: the share to reach.
    """
    smallest = None
    for size in reversed(sizes):  # from the largest deviation, up to the first that is missed
        if shares[size] < threshold:
            break
        smallest = size
    return smallest


@checked
def summary(frame: pd.DataFrame) -> str:
    """Return the resolutions as a text table."""
    rows = []
    for resolution in resolutions(frame):
        if resolution.half is None:
            continue
        row = {
            "deviation": resolution.deviation,
            "question": resolution.question,
            "half of the runs": resolution.half,
            "95 %": resolution.most,
            "runs": resolution.runs,
        }
        rows.append(row)
    table = pd.DataFrame(rows).to_string(index=False) if rows else "nothing was seen"
    seconds = frame["cpu_seconds"].sum()
    return (
        'Resolution: the smallest deviation from which on a comparison says "no"; what is not listed was not '
        f"seen at any size ({len(frame)} comparisons, {seconds:.0f} CPU seconds)\n{table}"
    )


@checked
def seen(task: str, quick: bool) -> list[Resolution]:
    """Return the shipped resolutions for a task at the quick or the full budget; empty if none
    ship.
    """
    path = Path(__file__).with_name(f"resolution{'-quick' if quick else ''}.csv")
    if not path.is_file():
        return []
    measured = resolutions(pd.read_csv(path))
    return [resolution for resolution in measured if resolution.deviation.startswith(f"{task}: ")]


@checked
def sentence(task: str, quick: bool) -> str:
    """Return a sentence on which deviations a comparison detects in 95 % of runs; "" if nothing was
    measured.

    For each deviation it names the question that detects it best.
    """
    records = deviations()
    detected = [resolution for resolution in seen(task, quick) if resolution.most is not None]
    if not detected:
        return ""
    best: dict[str, Resolution] = {}
    for resolution in detected:
        # Sizes are compared by their rank, since a smaller deviation may have a larger number.
        rank = records[resolution.deviation].sizes.index
        leader = best.setdefault(resolution.deviation, resolution)
        if rank(resolution.most) < rank(leader.most):
            best[resolution.deviation] = resolution
    deviations_seen = []
    for key, resolution in best.items():
        size = f"{resolution.most:g}"
        deviations_seen.append(f"{records[key].words.format(size)} ({resolution.question})")
    n_runs = min(resolution.runs for resolution in detected)
    runs = "one run" if n_runs == 1 else f"{n_runs} runs"
    return (
        f"Measured on machines that depart from the handwired one, {runs} of each size: "
        f"this comparison would have seen {', '.join(deviations_seen)}."
    )
