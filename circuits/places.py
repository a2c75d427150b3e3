"""A circuit's ground truth as places to interchange: the subspaces, or attention scores, where a variable lives."""

from __future__ import annotations

import numpy as np

from circuits.circuit import Circuit
from circuits.location import Location
from interp.interventions.interchange import Place
from interp.interventions.sites import Site


def places(circuit: Circuit, location: Location) -> list[Place]:
    """The places that together hold a variable at one of its locations, one per position.

    >>> from circuits.registry import build
    >>> circuit = build("wma-handwired", n_experts=2)
    >>> [str(place.site) for place in places(circuit, circuit.location("votes", "embed"))]
    ['embed@p_1', 'embed@p_2']
    """
    labels = dict.fromkeys(location.labels)
    if location.keys:
        assert location.head is not None
        head = circuit.head_index(location.head)
        return [Place.of(Site.at_hook(location.hook, head, label)) for label in labels]
    pairs = list(zip(location.directions, location.labels, strict=True))
    directions = {label: np.stack([d.vector() for d, at in pairs if at == label]) for label in labels}
    return [Place.of(Site.at_hook(location.hook, None, label), directions[label]) for label in labels]
