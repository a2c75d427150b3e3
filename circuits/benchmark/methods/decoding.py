"""Linear probes: where a variable can be decoded, along which directions, and whether it exists.

``probe`` scores by R2 on episodes that the probe was not fitted on; ``probe:within-round`` takes the mean of every
round out of activations and variables first, so that what merely drifts with the round is not found. A variable is
declared to exist where the best site reaches :data:`THRESHOLD`. Directions: ``probe:weights`` are the probe's own,
``probe:pattern`` how activations vary with what is decoded (Haufe et al., 2014).
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from circuits.benchmark.material import Material
from circuits.benchmark.method import Answer, Method, register
from circuits.benchmark.questions.exists import asked
from circuits.benchmark.questions.where import variables
from circuits.benchmark.subject import Subject
from interp.decoder import RIDGE, Affine
from interp.interventions.sites import Site
from interp.model.replay import replay

THRESHOLD = 0.5
"""Held-out R2 from which a variable is declared to exist."""
NAMES = {"probe": "linear probe", "probe:within-round": "linear probe, round means removed"}


def activation(subject: Subject, material: Material, site: str) -> Tensor:
    """The larger batch's activations at a site, ``[episode, round, d_model]``."""
    place = Site.parse(site)
    n = material.effort.fits
    run = material.run(1, n)

    def cached() -> Tensor:
        return replay(subject.model, run, names_filter=[place.hook])[2][place.hook].double()

    every = material.once(("activation", place.hook), cached)
    return every[:, :, run.layout.position(str(place.position))]


def probe(x: Tensor, y: Tensor, within_round: bool) -> tuple[Affine, float]:
    """A probe fitted on the first two thirds of the episodes, and its R2 on the others (over all elements together)."""
    if within_round:
        x, y = x - x.mean(0), y - y.mean(0)
    cut = 2 * len(x) // 3
    varies = bool(((x[:cut] - x[:cut].mean((0, 1))).abs() > 1e-9).any())
    fitted = Affine.fit(x[:cut].flatten(0, 1), y[:cut].flatten(0, 1), RIDGE if varies else 0.0)
    left = (fitted(x[cut:]) - y[cut:]).square().sum()
    about = (y[cut:] - y[:cut].mean((0, 1))).square().sum()
    return fitted, float(1 - left / about) if float(about) > 0 else float("nan")


def where(within_round: bool, subject: Subject, material: Material) -> Answer:
    """R2 of every variable at every site that is asked for."""
    items = material.items("where")
    return Answer({(key, site): _found(subject, material, key, site, within_round)[1] for key, site in items})


def exists(within_round: bool, subject: Subject, material: Material) -> Answer:
    """The best R2 of each variable over all sites that any variable is looked for at."""
    sites = dict.fromkeys(site for _, site in material.items("where"))
    scores = {
        item: max(_found(subject, material, item, site, within_round)[1] for site in sites)
        for item in material.items("exists")
    }
    return Answer(scores, frozenset(item for item, r2 in scores.items() if r2 >= THRESHOLD))


def subspace(pattern: bool, subject: Subject, material: Material) -> Answer:
    """Directions of a probe at each site, the ones along which it varies most first."""
    found = {}
    for key, site in material.items("subspace"):
        fitted, _ = _found(subject, material, key, site, False)
        decoded = fitted.slopes.T @ fitted.covariance @ fitted.slopes
        sizes, axes = torch.linalg.eigh(decoded)
        axes = axes[:, sizes > 1e-9 * sizes.max()].flip(1)
        columns = (fitted.covariance @ fitted.slopes if pattern else fitted.slopes) @ axes
        found[key, site] = torch.linalg.qr(columns)[0]
    return Answer({}, subspaces=found)


def _found(subject: Subject, material: Material, key: str, site: str, within_round: bool) -> tuple[Affine, float]:
    variables(subject, material)
    x, y = activation(subject, material, site), torch.from_numpy(np.asarray(asked(subject, material, key)))
    return material.once(("probe", key, site, within_round), lambda: probe(x, y, within_round))


for _key, _name in NAMES.items():
    _within = _key != "probe"
    register(Method(_key, _name, "where", partial(where, _within)))
    register(Method(_key, f"{_name}, R2 >= {THRESHOLD}", "exists", partial(exists, _within)))
register(
    Method("probe:weights", "directions of a linear probe", "subspace", partial(subspace, False)),
    Method("probe:pattern", "directions along which decoded activations vary", "subspace", partial(subspace, True)),
)
