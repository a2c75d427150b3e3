"""Known machines: models for which the right result of a comparison with a reference is known.

    from lab import known
    known.gallery("experts")                                 # every specimen of a task, by its key
    known.gallery("experts", draws=5)                        # and five more of each kind that has a size
    known.reference("experts")                               # the machine that all of them are compared with

:mod:`lab.known.records` lists the machines: what was done to each, with which sizes, and which
verdicts are right. :mod:`lab.known.makers` makes the machine of each record. Thresholds were chosen
with half of the machines; the others, and all drawn sizes, are held out. The table "machines" of
``python -m lab calibrate`` compares all of them.

A comparison makes four claims, each answered with "yes" or "no". *Behaviour*: the machine makes the
same predictions as the reference, for any input, however rare. *State*: each machine's state can be
computed from the other's, as far as predictions depend on it, with the round number as a further
input where needed; "either" is right if only one direction is exact. *Update*: the reference's
state, decoded from the machine, changes as in the reference for any input. *Circuit*: heads play
the same roles; edits of the written state do not change roles. "either" is also right if nobody can
say, or if the deviation is as large as the thresholds allow. A question without a right verdict is
not scored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from interp.core.machine import Machine
from interp.support.errors import require_known
from lab.known import makers
from lab.known.makers import REFERENCES, reference
from lab.known.records import RECORDS, Record, Right

__all__ = ["QUESTIONS", "TASKS", "Right", "Specimen", "gallery", "reference"]

TASKS = tuple(REFERENCES)
QUESTIONS = ("behaviour", "state", "update", "circuit")


@dataclass(frozen=True)
class Specimen:
    """A machine for which the right result of a comparison is known.

    Attributes:
        key: name in the gallery, unique in its task, such as "leaky 0.9".
        task: key of its task.
        make: builds the machine.
        right: the right verdict of each question of a comparison with the task's reference.
            "undecided" and "not applicable" count as neither right nor wrong.
        why: what was done to the machine, and why these verdicts are right.
        algorithm: key of the family of algorithms that should be named; "" if none should be, None
            if the name is not scored.
        held_out: True if thresholds were chosen without this machine.
    """

    key: str
    task: str
    make: Callable[[], Machine]
    right: Mapping[str, Right]
    why: str
    algorithm: str | None
    held_out: bool


def _specimen(record: Record, rng: np.random.Generator | None) -> Specimen:
    """Return the machine of a record.

    Args:
        record: the record; it has no size, or two sizes, such as the factors of two leaks.
        rng: draws a size between the two, a whole number if both are; None takes the first one.
    """
    size = record.sizes[:1]  # a tuple, empty if the record has no size
    if rng is not None:
        low, high = sorted(record.sizes)
        if float(low).is_integer() and float(high).is_integer():
            size = (float(rng.integers(int(low), int(high) + 1)),)
        else:
            size = (round(float(rng.uniform(low, high)), 3),)
    verdicts = {question: getattr(record, question) for question in QUESTIONS}
    right = {question: verdict for question, verdict in verdicts.items() if verdict}
    key = record.key.format(*size)
    why = record.what.format(*size)
    return Specimen(
        key=key,
        task=record.task,
        make=partial(makers.make, record.task, record.key, *size),
        right=right,
        why=why,
        algorithm=record.algorithm,
        held_out=rng is not None or record.held_out,
    )


def gallery(task: str, draws: int = 0) -> dict[str, Specimen]:
    """Return every known machine of a task, by key, including those held out from choosing
    thresholds.

    Args:
        task: key of the task.
        draws: how many further sizes to draw for each kind of machine that has a size; sizes that
            repeat are listed once.

    >>> gallery("experts")["itself"].right["behaviour"]
    'yes'
    """
    require_known("task with known machines", task, TASKS)
    records = [record for record in RECORDS if record.task == task]
    specimens = [_specimen(record, None) for record in records]
    for draw in range(draws):
        for index, record in enumerate(records):
            if record.sizes:
                specimens.append(_specimen(record, np.random.default_rng([draw, index])))
    gallery_by_key: dict[str, Specimen] = {}
    for specimen in specimens:  # the first of equal keys, which have equal sizes
        gallery_by_key.setdefault(specimen.key, specimen)
    return gallery_by_key
