"""Interchange at the true sites of every circuit, beside wrong positions and placebos.

Every row of every circuit's ground truth (:attr:`circuits.circuit.Circuit.carried`), in every form of every machine
(:data:`FORMS`). Setting these locations to another episode's must have the whole effect that the algorithm asks for
(score and slope 1). The same subspaces at other positions must have none of it (``wrong`` is the largest score), and
neither must equally large moves orthogonal to them (``placebo``: mean score of :data:`_N_PLACEBOS` draws, each made
both ways).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from circuits.benchmark.known_machine import FORMS
from circuits.benchmark.known_machine import SIZES as SMALL
from circuits.circuit import Circuit
from circuits.compiler import compile_circuit, list_wired_claims
from circuits.registry import build
from interp import tasks
from interp.interventions.interchange import Claim, InterchangeResult, interchange
from interp.interventions.sites import Place
from interp.model.layout import RoundLayout
from interp.model.rollout import rollout

SIZES: dict[bool, dict[str, dict[str, int]]] = {
    True: SMALL,
    False: {
        "wma-handwired": {"n_experts": 5},
        "qlearning-handwired": {"n_states": 4, "n_actions": 3},
        "reachability-handwired": {"n_nodes": 8, "n_edges": 12},
    },
}
"""Task sizes of each machine, where it is ``quick`` and where it is not."""
N_PAIRS, N_WRONG, N_ROUNDS = {True: 16, False: 24}, {True: 4, False: 12}, 12
"""Pairs of episodes, wrong positions (evenly spaced over the round where it has more), and rounds."""
_N_PLACEBOS = 4
"""Directions of placebos. Each is taken towards the source's activation and as far away from it: a placebo moves along
what else differs between the two (a candidate's name beside its mark), and where its effect is aligned with the wanted
one by c, towards it scores 2 c - c^2 and away -2 c - c^2. Reachability (8 nodes, "sum"), mean of towards alone and of
both: member .040, -.038; source -.006, -.049; target .051, .038. A single draw is up to .10: only means are bounded."""
EXACT, NOTHING = 1e-6, 0.05
"""How far from 1 score and slope of a row may be, and how large those of wrong positions and placebos."""


def assert_every_location_has_a_row(circuit: Circuit) -> None:
    """No location of the ground truth is left untested in silence, and no row names a location that is not there."""
    located = {
        (key, location.name) for key, locations in circuit.sites.items() for location in locations
    }
    rows = {(row.location_key, place) for row in circuit.carried for place in row.locations}
    assert rows | set(circuit.partial) == located
    assert not rows & set(circuit.partial)


def sites(
    quick: bool = False,
    *,
    forms: Sequence[str] = tuple(FORMS),
    variables: Sequence[str] | None = None,
    n_pairs: int | None = None,
) -> pd.DataFrame:
    """Scores at the true sites of every variable, at wrong positions and of placebos; one row per form and claim.

    Args:
        forms: keys of :data:`FORMS`.
        variables: only these; all when None.
    """
    rows = []
    for form in forms:
        name, arguments = FORMS[form]
        circuit = build(name, **SIZES[quick][name], **arguments)
        claims = [claim for claim in list_wired_claims(circuit) if not claim.control]
        if variables is not None:
            claims = [claim for claim in claims if claim.variable in variables]
        rows += [
            {"machine": name, "form": form, **row}
            for row in _measured(circuit, claims, quick, n_pairs)
        ]
    return pd.DataFrame(rows)


def _measured(
    circuit: Circuit, claims: Sequence[Claim], quick: bool, n_pairs: int | None
) -> list[dict[str, Any]]:
    model = compile_circuit(circuit, torch.float64).eval()
    task, n_episodes = tasks.of(model), n_pairs or N_PAIRS[quick]
    base = task.sample_for(model, n_episodes, N_ROUNDS, 0)
    source = task.sample_for(model, n_episodes, N_ROUNDS, 1)
    runs = rollout(model, base), rollout(model, source)

    def score(claim: Claim, places: Sequence[Place]) -> InterchangeResult:
        return interchange(
            model, *runs, circuit.algorithm, claim.variable, places, outcome=claim.outcome
        )

    rows = []
    for claim in claims:
        wrong = []
        for places in _elsewhere(claim.places, circuit.layout, N_WRONG[quick]):
            wrong.append(score(claim, places).score().estimate)
        placebos = []
        for draw in range(_N_PLACEBOS):
            drawn = [place.placebo(model.config.d_model, draw) for place in claim.places]
            places = [place for place in drawn if place is not None]
            if not places:
                continue
            opposite = [_opposite(place) for place in places]
            placebos.append(score(claim, places).score().estimate)
            placebos.append(score(claim, opposite).score().estimate)
        (row,) = score(claim, claim.places).to_frame().to_dict("records")
        row["wrong"] = max(wrong)
        row["placebo"] = float(np.mean(placebos)) if placebos else float("nan")
        rows.append(row)
    return rows


@dataclass(frozen=True)
class _Opposite(Place):
    """A placebo that moves the other way."""

    def __call__(self, base: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return 2 * base - super().__call__(base, source)


def _opposite(place: Place) -> Place:
    return _Opposite(**vars(place))


def _elsewhere(places: Sequence[Place], layout: RoundLayout, most: int) -> list[list[Place]]:
    """The subspaces of ``places``, all together, at each of at most ``most`` positions where none of them is."""
    taken = {place.site.position for place in places}
    others = [label for label in layout.labels if label not in taken]
    spread = np.linspace(0, len(others) - 1, min(most, len(others)))
    chosen = [others[i] for i in np.unique(spread.round().astype(int))]
    places_of_hooks: dict[tuple[str, int | None], list[Place]] = {}
    for place in places:
        hook = (place.site.hook, place.site.head)
        places_of_hooks.setdefault(hook, []).append(place)
    elsewhere = []
    for label in chosen:
        elsewhere.append([_at(at_hook, label) for at_hook in places_of_hooks.values()])
    return elsewhere


def _at(places: Sequence[Place], label: str) -> Place:
    """The span of the subspaces of places of one hook, at another position."""
    site = places[0].site
    sibling = type(site)(site.component, site.layer, site.head, label)
    bases = [place.basis.T for place in places if place.basis is not None]
    if not bases:
        return Place(sibling)
    directions = np.concatenate([basis.numpy() for basis in bases])
    _, lengths, rows = np.linalg.svd(directions, full_matrices=False)
    return Place.of(sibling, rows[lengths > 1e-9])
