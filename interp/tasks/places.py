"""Where a task's variables could be in a model: what a task says about a model of any kind.

A task writes two functions of a model, ``claims`` and ``aligned``; their rows name sites as texts.
:class:`Model` has what these functions need of the model.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from interp.core import catalog
from interp.core.display import lacks
from interp.core.machine import Machine


class Place(NamedTuple):
    """A row of ``claims``: a variable, and the sites that hold it.

    Attributes:
        variable: the key of the variable.
        sites: as texts; None are all that the machine carries.
        outcome: what changes with it: the "prediction", or the "state" that the round leaves.
        control: whether it is a place that cannot hold the variable.
    """

    variable: str
    sites: tuple[str, ...] | None = None
    outcome: str = "prediction"
    control: bool = False


def first_element(shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return 1 in the first element along the last axis of a state, 0 elsewhere: what steering adds to it."""
    change = np.zeros(shape)
    change[..., 0] = 1.0
    return change


class Model:
    """What the places of variables depend on.

    Attributes:
        memory: key of the variable that the model's algorithm carries; ``written``: of what a round
            writes of it.
        has_layers: True for a transformer, with sites that have layers and positions.
        last: the index of its last layer; ``layers``: those before it.
        replaces: whether an update replaces the slot that it is written to.
    """

    def __init__(self, machine: Machine) -> None:
        algorithm = catalog.of(machine).explains(machine)
        self.memory, self.written = algorithm.memory, algorithm.written
        self._state = algorithm.state
        self._labels = machine.layout.labels
        self.has_layers = not lacks(machine, "embed", "resid_post")
        self.last = machine.points["resid_post"].n_layers - 1 if self.has_layers else 0
        self.layers = range(self.last)
        config = getattr(machine, "config", None)
        self.replaces = getattr(config, "latent_update", "replace") != "add"

    def carried(self, key: str, otherwise: str) -> str:
        """Return ``key`` if the algorithm carries that variable, ``otherwise`` if not.

        Args:
            key: the variable.
            otherwise: what replaces it.
        """
        return key if key in self._state else otherwise

    def final(self, position: str) -> str:
        """Return the site after the last layer at a position."""
        return f"resid_post[{self.last}]@{position}"

    def before_final(self, position: str) -> str:
        """Return the site before the last layer at a position."""
        return f"resid_post[{max(self.last - 1, 0)}]@{position}"

    def below(self, variable: str, position: str, outcome: str = "prediction") -> list[Place]:
        """Return a place after each layer but the last, at a position.

        Args:
            variable: the variable.
            position: label of the position.
            outcome: where an interchange shows it.
        """
        return [
            Place(variable, (f"resid_post[{layer}]@{position}",), outcome) for layer in self.layers
        ]

    def at_all(self, site: str, start: str) -> tuple[str, ...]:
        """Return a site at every position with a label that begins with ``start``.

        Args:
            site: of the model, as text.
            start: of the labels.
        """
        return tuple(f"{site}@{label}" for label in self._labels if label.startswith(start))
