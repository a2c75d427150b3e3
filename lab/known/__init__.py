"""Known machines: models of which it is known what a comparison with their reference must, and must not, say.

    from lab import known
    known.gallery("experts")                                 # every specimen of a task, by its key
    known.gallery("experts", draws=5)                        # and five more of each kind that has a size
    known.reference("experts")                               # the machine that all of them are compared with

:mod:`lab.known.records` says what was done, the sizes between which it may be done, and which words are right.
:mod:`lab.known.makers` makes a machine of each record. Thresholds were chosen with half of them; the others, and all
draws, are held out. The table "machines" of ``python -m lab calibrate`` runs all of them.

What is claimed of a machine, and is rightly answered with "yes" or "no". *Behaviour*: it gives the same predictions,
whatever is asked and however rarely. *State*: each machine's state can be had from the other's, where the prediction
depends on it, with the round supplied where needed; "either" where only one way is exact. *Update*: the reference's
state, decoded, changes as in the reference with whatever a round holds. *Circuit*: heads play the same roles; edits of
what is written leave them as they are. Right is "either" where nobody can say, or where the deviation is as large as
thresholds allow; a question without a word is not scored.
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
    """A known machine.

    Attributes:
        key: its name in the gallery, unique in its task, such as "leaky 0.9".
        make: builds it.
        right: the right word on each question of a comparison with the reference of its task. "undecided" and "not
            applicable" are never wrong, and never right.
        why: what was done to it, and why these words are right.
        algorithm: key of the family that must be named; "" for none of these, None where it is not scored.
        held_out: whether it was left out when thresholds were chosen.
    """

    key: str
    task: str
    make: Callable[[], Machine]
    right: Mapping[str, Right]
    why: str
    algorithm: str | None
    held_out: bool


def _specimen(record: Record, rng: np.random.Generator | None) -> Specimen:
    """Return the machine of a record, of its first size, or of one that is drawn between its two."""
    size = record.sizes[:1]
    if rng is not None:
        low, high = sorted(record.sizes)
        if float(low).is_integer() and float(high).is_integer():
            size = (float(rng.integers(int(low), int(high) + 1)),)
        else:
            size = (round(float(rng.uniform(low, high)), 3),)
    words = {question: getattr(record, question) for question in QUESTIONS}
    right = {question: word for question, word in words.items() if word}
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
    """Every known machine of a task by its key, those that no threshold was chosen with (``held_out``) among them.

    Args:
        draws: how many further sizes of each deviation that has a size are drawn, each from its own seed; a size that
            comes again is not counted again.

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
    for specimen in specimens:
        gallery_by_key.setdefault(specimen.key, specimen)
    return gallery_by_key
