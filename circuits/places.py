"""A circuit's ground truth as places to interchange: the subspaces, or attention scores, where a variable lives."""

from __future__ import annotations

import numpy as np

from circuits.circuit import Circuit, Location
from interp.interventions.carriers import Claim
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


def wired(circuit: Circuit) -> list[Claim]:
    """What the circuit's ground truth claims of every variable, and then its controls.

    >>> from circuits.registry import build
    >>> claims = wired(build("wma-handwired", n_experts=2))
    >>> claims[0].variable, claims[0].outcome, str(claims[0].places[0]), claims[-1].control
    ('log_weights', 'prediction', 'embed@<z> (rank 2)', True)
    """
    claims = []
    for row in circuit.carried:
        together = [place for at in circuit.locations(row.located, *row.locations) for place in places(circuit, at)]
        claims.append(Claim(row.variable, tuple(together), row.outcome))
    controls = circuit.not_carried.items()
    return claims + [Claim.at(variable, [at], outcome, True) for at, (variable, outcome) in controls]
