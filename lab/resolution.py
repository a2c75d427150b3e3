"""How small a deviation a comparison answers with "no": what a "yes" is worth.

    resolution.seen("experts", quick=True)          # what shipped measurements say, a Resolution for each deviation
    print(resolution.sentence("experts", quick=True))

A :class:`Deviation` is a machine that departs from its task's reference by one number: a gain, a leak, a lag. Machines
of several sizes are compared with the reference, with several seeds of everything that a comparison draws. The
*resolution* of a question is the smallest size from which on the comparison says "no" in half of the runs, and
in 95 % of them. It is a property of the comparison at one budget, as its rules are; ``python -m lab calibrate --table
resolution`` measures it, and what it wrote stands in ``resolution-quick.csv`` beside this file (and, for full budget,
``resolution.csv``). What this is NOT: a promise about deviations of other kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from circuits import compare
from interp.core.machine import Machine
from interp.support.checks import checked, require_columns, unique
from interp.support.errors import require, require_known
from interp.tasks.experts.algorithms import weighted_majority
from interp.tasks.experts.families import fading_majority, late_majority, majority_window
from interp.tasks.qlearning.algorithms import q_learning
from lab import known
from lab.known import QUESTIONS, edits
from lab.known.makers import GAIN, computed

HALF, MOST = 0.5, 0.95
"""The shares of runs for which a smallest size is given."""
SEEDS = {True: 3, False: 20}
"""Quick or not -> runs of each size: with 3, "95 %" is all of them."""


@dataclass(frozen=True)
class Deviation:
    """One number by which a machine departs from the reference.

    Attributes:
        key: of its task and its name, such as "experts: lag".
        sizes: from the least departure to the largest.
        make: size to machine.
        words: what a comparison would have seen, with the size as ``{}``.
    """

    key: str
    sizes: tuple[float, ...]
    make: Callable[[float], Machine]
    words: str

    @property
    def task(self) -> str:
        """The key of its task."""
        return self.key.partition(": ")[0]


def _table(name: str) -> Callable[[Any], Machine]:
    """Q-learning with another rate or discount."""
    return lambda size: computed(q_learning(**{name: size}))


def deviations() -> Mapping[str, Deviation]:
    """Every deviation by its key."""

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

    found = (
        Deviation("experts: gain", (1.05, 1.1, 1.2, 1.4, 2.0), gain, "a gain {} times as large"),
        Deviation(
            "experts: less gain", (0.95, 0.9, 0.8, 0.7, 0.5), gain, "a gain {} times as large"
        ),
        Deviation("experts: leak", (0.998, 0.99, 0.98, 0.95, 0.9), leak, "a leak of {}"),
        Deviation("experts: lag", (1, 2, 3), late, "a lag, in rounds, of {}"),
        Deviation("experts: window", (16, 12, 8, 5, 3), window, "a window of {} rounds"),
        Deviation("experts: noise", (0.01, 0.03, 0.1, 0.3, 1.0), noise, "noise of {} nats a round"),
        Deviation(
            "qlearning: discount", (0.88, 0.85, 0.8, 0.7, 0.5), _table("gamma"), "a discount of {}"
        ),
        Deviation(
            "qlearning: rate",
            (0.11, 0.12, 0.15, 0.2, 0.4),
            _table("alpha"),
            "a learning rate of {}",
        ),
    )
    return unique(found, "deviation")


@checked
def measure(key: str, size: float, seed: int, budget: compare.Budget) -> dict[str, Any]:
    """The words on one deviation of one size, with one seed: a row of the table."""
    every = deviations()
    require_known("deviation", key, every, limit=20)
    one = every[key]
    found = compare.machines(
        one.make(size), known.reference(one.task), budget=replace(budget, seed=seed)
    )
    words = {question: found[question].verdict for question in QUESTIONS}
    return {
        "deviation": key,
        "size": size,
        "seed": seed,
        **words,
        "cpu_seconds": found.settings["cpu_seconds"],
    }


@dataclass(frozen=True)
class Resolution:
    """The smallest size of a deviation that a question answers with "no".

    Attributes:
        half, most: the smallest size from which on at least half, and 95 %, of the runs said so; None where no size
            was seen so often, and nothing can be said.
        runs: how many there were of each size.
    """

    deviation: str
    question: str
    half: float | None
    most: float | None
    runs: int


def resolutions(frame: pd.DataFrame) -> list[Resolution]:
    """The resolution of every question to every deviation, from rows of :func:`measure`."""
    require_columns("rows of measured deviations", frame, "deviation", "size", "seed", *QUESTIONS)
    found = []
    for key, of_one in frame.groupby("deviation", sort=False):
        order = [size for size in deviations()[str(key)].sizes if size in set(of_one["size"])]
        require(bool(order), f"no row of {key!r} has one of its sizes; measure it again")
        for question in QUESTIONS:
            if (of_one[question] == "not applicable").all():
                continue
            shares = of_one[question].eq("no").groupby(of_one["size"]).mean()
            half, most = (_least(order, shares, share) for share in (HALF, MOST))
            found.append(
                Resolution(str(key), question, half, most, int(of_one.groupby("size").size().min()))
            )
    return found


def _least(order: list[float], shares: pd.Series[Any], share: float) -> float | None:
    """The first of ``order`` from which on every size was seen in at least ``share`` of its runs."""
    least = None
    for size in reversed(order):
        if shares[size] < share:
            break
        least = size
    return least


@checked
def summary(frame: pd.DataFrame) -> str:
    """The resolutions as a table."""
    rows = [
        {
            "deviation": r.deviation,
            "question": r.question,
            "half of the runs": r.half,
            "95 %": r.most,
            "runs": r.runs,
        }
        for r in resolutions(frame)
        if r.half is not None
    ]
    seconds = frame["cpu_seconds"].sum()
    return (
        'Resolution: the smallest deviation from which on a comparison says "no"; what is not listed was not '
        f"seen at any size ({len(frame)} comparisons, {seconds:.0f} CPU seconds)\n"
        f"{pd.DataFrame(rows).to_string(index=False) if rows else 'nothing was seen'}"
    )


@checked
def seen(task: str, quick: bool) -> list[Resolution]:
    """The resolutions that were measured for a task at quick or full budget; none where none ship."""
    path = Path(__file__).with_name(f"resolution{'-quick' if quick else ''}.csv")
    if not path.is_file():
        return []
    return [
        one for one in resolutions(pd.read_csv(path)) if deviations()[one.deviation].task == task
    ]


@checked
def sentence(task: str, quick: bool) -> str:
    """What a comparison at this budget would have seen in 95 % of the runs; "" where nothing was measured.

    Of each deviation the question that sees it best is named.
    """
    known_ones, told = deviations(), []
    by_deviation: dict[str, list[Resolution]] = {}
    for one in seen(task, quick):
        if one.most is not None:
            by_deviation.setdefault(one.deviation, []).append(one)
    for key, several in by_deviation.items():
        order = known_ones[key].sizes
        best = min(several, key=lambda r: order.index(r.most))
        told.append(f"{known_ones[key].words.format(f'{best.most:g}')} ({best.question})")
    if not told:
        return ""
    fewest = min(one.runs for several in by_deviation.values() for one in several)
    runs = "one run" if fewest == 1 else f"{fewest} runs"
    return (
        f"Measured on machines that depart from the handwired one, {runs} of each size: "
        f"this comparison would have seen {', '.join(told)}."
    )
