"""A circuit's ground truth as places to interchange: the subspaces, or attention scores, where a variable lives."""

from __future__ import annotations

import numpy as np

from circuits.circuit import Circuit, Site
from interp.interventions import sites
from interp.interventions.interchange import Place


def places(circuit: Circuit, site: Site) -> list[Place]:
    """The places that together hold a variable at one of its sites, one per position.

    >>> from circuits.registry import build
    >>> circuit = build("wma-handwired", n_experts=2)
    >>> [str(place.site) for place in places(circuit, circuit.variable("votes").sites[0])]
    ['embed@p_1', 'embed@p_2']
    """
    labels = dict.fromkeys(site.labels)
    if site.keys:
        assert site.head is not None
        return [Place.of(sites.Site.at_hook(site.hook, circuit.head_index(site.head), label)) for label in labels]
    pairs = list(zip(site.directions, site.labels, strict=True))
    directions = {label: np.stack([d.vector() for d, at in pairs if at == label]) for label in labels}
    return [Place.of(sites.Site.at_hook(site.hook, None, label), directions[label]) for label in labels]
