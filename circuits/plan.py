"""What verification needs to know of one machine: part of the machine's own ground truth, reached by its record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from interp.algorithm import Values

if TYPE_CHECKING:
    from circuits.circuit import Circuit

Size = int | tuple[int, ...]
"""The sizes of a task, in its order: one number, or several as in (states, actions)."""


@dataclass(frozen=True)
class VerificationPlan:
    """How :func:`circuits.verify` checks a machine.

    Attributes:
        sizes: those that are promised, and checked by default.
        episodes: (circuit, rounds, episodes, seed) -> episodes of the circuit's size to run on; fewer rounds or
            episodes than asked for where more would repeat the same.
        output: key of the variable that the model's prediction must equal.
        tolerance: (variable, dtype) -> the largest error allowed, and whether "error" or "relative" is meant; besides
            variables it is asked about "carried_state", "residue", "position_code" and "distribution".
        undecided: (circuit, its algorithm's values, dtype) -> variable -> ``[episode, round]``, where it hangs on a tie
            closer than rounding and is not compared.
        unit: (circuit, its algorithm's values, variable) -> what a value counts as large against, > 0: a relative error
            is ``|difference| / max(unit, |reference|)``, so that a circuit for tiny rewards is held to tiny errors.
        most_undecided: share of the rows of a variable that may be undecided before its check fails.
    """

    sizes: tuple[Size, ...]
    episodes: Callable[[Circuit, int, int, int], Any]
    output: str
    tolerance: Callable[[str, str], tuple[float, str]]
    undecided: Callable[[Circuit, Values, str], Mapping[str, np.ndarray]] = lambda circuit, values, dtype: {}
    unit: Callable[[Circuit, Values, str], float] = lambda circuit, values, key: 1.0
    most_undecided: float = 0.1
