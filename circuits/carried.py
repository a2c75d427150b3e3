"""Which locations of a circuit together carry a variable, and where that shows.

A :class:`~circuits.circuit.Location` says that a variable can be *read* there. An interchange needs to know more:
which locations must be set together so that the rest of the round takes the new value (a copy may feed one part of the
update alone), and whether that shows in the prediction or in the state that is written. Each row here is such a claim,
and is measured by :mod:`circuits.calibration`; :func:`circuits.places.wired` turns rows into places of a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Carried:
    """These locations of a circuit together hold a variable of its algorithm.

    Attributes:
        variable: what is interchanged in the algorithm.
        locations: their names in the circuit's ground truth.
        outcome: where it shows: "prediction" or "state".
        held_as: the variable that the circuit locates there, where that is another one (a policy, for the choice).
    """

    variable: str
    locations: tuple[str, ...]
    outcome: str
    held_as: str = ""

    @property
    def located(self) -> str:
        """The variable whose locations these are."""
        return self.held_as or self.variable


def present(rows: Iterable[Carried], sites: Mapping[str, Iterable[Any]]) -> tuple[Carried, ...]:
    """The rows whose locations are all among ``sites``: those that this form of a circuit has.

    >>> from circuits.registry import build
    >>> sites = build("wma-handwired", variant="P").sites
    >>> rows = Carried("match", ("score 3.2",), "state"), Carried("label", ("w?",), "state")
    >>> [row.variable for row in present(rows, sites)]
    ['label']
    """
    known = {key: {location.name for location in locations} for key, locations in sites.items()}
    return tuple(row for row in rows if set(row.locations) <= known.get(row.located, set()))
