"""Hypotheses about where a model stores a task's variables, for models of any architecture.

A task's functions ``claims`` and ``aligned`` map a model to sites, which are named by strings such
as ``"resid_post[1]@p?"`` (the residual stream after layer 1, at the position labelled ``p?``).
:class:`Model` has what these functions need to know about the model.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from interp.core import catalog
from interp.core.display import describe_lacking
from interp.core.machine import Machine


class Place(NamedTuple):
    """A hypothesis that interchange interventions test: certain activation sites of a model
    together hold a certain variable of the task's algorithm.

    Attributes:
        variable: key of the variable, such as "votes".
        sites: names of the sites, such as ``("resid_post[1]@p?",)``; None for the whole carried
            state.
        outcome: what an interchange intervention on the sites should change: the "prediction" of
            the round, or the "state" after the round.
        control: True for a control: a hypothesis that must fail, because its sites cannot hold the
            variable.
    """

    variable: str
    sites: tuple[str, ...] | None = None
    outcome: str = "prediction"
    control: bool = False


def mark_first_of_last_axis(shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return an array that is 1 at index 0 of the last axis and 0 elsewhere, such as ``[1, 0, 0,
    0]`` for the shape (4,). Steering adds multiples of this array to a state.

    Args:
        shape: shape of the array: that of the state in one episode and round.
    """
    change = np.zeros(shape)
    change[..., 0] = 1.0
    return change


class Model:
    """What must be known about a model to list the activation sites that may hold its algorithm's
    variables, and functions that name such sites.

    Attributes:
        memory: key of the variable that the algorithm of the model carries from round to round,
            such as "log_weights".
        written: key of the variable that a round writes into a latent, such as "next_log_weights".
        has_layers: True for a transformer, whose sites have layers and positions.
        last_layer: index of the last layer; 0 for a model without layers.
        layers_before_last: indices of the layers before the last.
        replaces_latents: True if an update replaces the latent that it is written to; False if the
            update is added to the latent.

    Args:
        machine: the model.
    """

    def __init__(self, machine: Machine) -> None:
        """Read the attributes from the model and from the algorithm that should explain it."""
        # The algorithm that should explain the model's predictions.
        algorithm = catalog.of(machine).explains(machine)
        self.memory, self.written = algorithm.memory, algorithm.written
        self._state = algorithm.state
        self._labels = machine.layout.labels
        # Only transformers have both of these kinds of activation site.
        self.has_layers = not describe_lacking(machine, "embed", "resid_post")
        self.last_layer = machine.points["resid_post"].n_layers - 1 if self.has_layers else 0
        self.layers_before_last = range(self.last_layer)
        # Machines without this setting replace the latent.
        config = getattr(machine, "config", None)
        self.replaces_latents = getattr(config, "latent_update", "replace") != "add"

    def pick_state(self, key: str, otherwise: str) -> str:
        """Return ``key`` if the model's algorithm carries the variable of this key from round to
        round; otherwise return ``otherwise``.

        Args:
            key: key of a variable.
            otherwise: key of the variable to use instead.
        """
        return key if key in self._state else otherwise

    def name_last_residual(self, position: str) -> str:
        """Return the name of the residual stream after the last layer, at one position: in a model
        with layers 0 to 2, ``"resid_post[2]@p?"`` for the position ``p?``.

        Args:
            position: label of the position.
        """
        return f"resid_post[{self.last_layer}]@{position}"

    def name_residual_before_last(self, position: str) -> str:
        """Return the name of the residual stream before the last layer, at one position: in a model
        with layers 0 to 2, ``"resid_post[1]@p?"`` for the position ``p?``.

        For a model with one layer, return the name of the residual stream after this layer.

        Args:
            position: label of the position.
        """
        layer = max(self.last_layer - 1, 0)
        return f"resid_post[{layer}]@{position}"

    def list_places_before_last(
        self, variable: str, position: str, outcome: str = "prediction"
    ) -> list[Place]:
        """Return one hypothesis for each layer except the last: the residual stream after the
        layer, at ``position``, holds the variable.

        Args:
            variable: key of the variable.
            position: label of the position.
            outcome: what an interchange intervention should change: the "prediction" of the round,
                or the "state" after the round.
        """
        places = []
        for layer in self.layers_before_last:
            places.append(Place(variable, (f"resid_post[{layer}]@{position}",), outcome=outcome))
        return places

    def list_sites(self, component: str, label_start: str) -> tuple[str, ...]:
        """Return the names of a component's sites at all positions whose labels begin with
        ``label_start``, such as ``("embed@p_1", "embed@p_2")``.

        Args:
            component: name of the component, such as "embed".
            label_start: beginning of the labels, such as ``p_``.
        """
        labels = [label for label in self._labels if label.startswith(label_start)]
        return tuple(f"{component}@{label}" for label in labels)
