"""Interchange at the true sites of every circuit, beside wrong positions and placebos.

Every row of every circuit's ground truth (:attr:`circuits.circuit.Circuit.carried`), in every form of every machine
(:data:`FORMS`). Setting these locations to another episode's must have the whole effect that the algorithm asks for
(score and slope 1). The same subspaces at other positions must have none of it (``wrong`` is the largest score, at
``wrong_at``), and neither must equally large moves orthogonal to them (``placebo`` and ``placebo_worst``: mean and
largest score of :data:`_N_PLACEBOS` draws, each made both ways).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

Advance = Callable[[int], None]
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


def sites(
    quick: bool = False,
    advance: Advance = lambda steps: None,
    *,
    forms: Sequence[str] = tuple(FORMS),
    variables: Sequence[str] | None = None,
    n_pairs: int | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Scores at the true sites of every variable, at wrong positions and of placebos; one row per form and claim.

    Args:
        advance: called with 1 after each form.
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
            for row in _measured(circuit, claims, quick, n_pairs, seed)
        ]
        advance(1)
    return pd.DataFrame(rows)


def _measured(
    circuit: Circuit, claims: Sequence[Claim], quick: bool, n_pairs: int | None, seed: int
) -> list[dict[str, Any]]:
    model = compile_circuit(circuit, torch.float64).eval()
    task, n_episodes = tasks.of(model), n_pairs or N_PAIRS[quick]
    base = task.sample_for(model, n_episodes, N_ROUNDS, 2 * seed)
    source = task.sample_for(model, n_episodes, N_ROUNDS, 2 * seed + 1)
    runs = rollout(model, base), rollout(model, source)

    def score(claim: Claim, places: Sequence[Place]) -> InterchangeResult:
        return interchange(
            model, *runs, circuit.algorithm, claim.variable, places, outcome=claim.outcome
        )

    rows = []
    for claim in claims:
        wrong = {}
        for label, places in _elsewhere(claim.places, circuit.layout, N_WRONG[quick]).items():
            wrong[label] = score(claim, places).score().estimate
        placebos = []
        for draw in range(_N_PLACEBOS):
            drawn = [place.placebo(model.config.d_model, draw) for place in claim.places]
            places = [place for place in drawn if place is not None]
            if not places:
                continue
            opposite = [_opposite(place) for place in places]
            placebos.append(score(claim, places).score().estimate)
            placebos.append(score(claim, opposite).score().estimate)
        frame = score(claim, claim.places).to_frame()
        (row,) = frame[COLUMNS].to_dict("records")
        farthest = max(wrong, key=wrong.__getitem__)
        row["wrong"] = wrong[farthest]
        row["wrong_at"] = farthest
        row["n_wrong"] = len(wrong)
        row["placebo"] = float(np.mean(placebos)) if placebos else float("nan")
        row["placebo_worst"] = max(placebos, default=float("nan"))
        rows.append(row)
    return rows


COLUMNS = [
    "variable",
    "places",
    "outcome",
    "n_pairs",
    "n_informative",
    "score",
    "score_low",
    "score_high",
    "slope",
    "slope_low",
    "slope_high",
]
"""What is taken of the result of an interchange."""


@dataclass(frozen=True)
class _Opposite(Place):
    """A placebo that moves the other way."""

    def __call__(self, base: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return 2 * base - super().__call__(base, source)


def _opposite(place: Place) -> Place:
    return _Opposite(**vars(place))


def _elsewhere(places: Sequence[Place], layout: RoundLayout, most: int) -> dict[str, list[Place]]:
    """The subspaces of ``places``, all together, at each of at most ``most`` positions where none of them is."""
    taken = {place.site.position for place in places}
    others = [label for label in layout.labels if label not in taken]
    spread = np.linspace(0, len(others) - 1, min(most, len(others)))
    chosen = [others[i] for i in np.unique(spread.round().astype(int))]
    places_of_hooks: dict[tuple[str, int | None], list[Place]] = {}
    for place in places:
        hook = (place.site.hook, place.site.head)
        places_of_hooks.setdefault(hook, []).append(place)
    elsewhere = {}
    for label in chosen:
        elsewhere[label] = [_at(at_hook, label) for at_hook in places_of_hooks.values()]
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


def sites_summary(frame: pd.DataFrame) -> str:
    """The worst of every form, and the rows that fall short."""
    off = pd.DataFrame({key: (frame[key] - 1).abs() for key in ("score", "slope")})
    worst = frame.assign(score_off=off["score"], slope_off=off["slope"]).groupby(
        ["machine", "form"], sort=False
    )
    measures = ("score_off", "slope_off", "wrong", "placebo", "placebo_worst")
    table = worst.agg(rows=("score", "size"), **{name: (name, "max") for name in measures})
    is_exact = off.max(axis=1, skipna=False) <= EXACT
    is_nothing_elsewhere = ~(frame["wrong"] > NOTHING)
    is_nothing_by_placebos = ~(frame["placebo"] > NOTHING)
    short = ~(is_exact & is_nothing_elsewhere & is_nothing_by_placebos)
    columns = [
        "form",
        "variable",
        "outcome",
        "score",
        "slope",
        "wrong",
        "wrong_at",
        "placebo",
        "placebo_worst",
    ]
    listed = frame.loc[short, columns].to_string(index=False) if short.any() else "none"
    return (
        f"Interchange at {len(frame)} true sites of {len(table)} handwired forms: largest distances of score and slope "
        f"from 1, largest score at a wrong position and of placebos (mean over {_N_PLACEBOS} draws, and worst)\n"
        f"{table.map('{:.2g}'.format).to_string()}\n"
        f"Rows farther than {EXACT:g} from 1, or with a wrong position or a mean placebo above {NOTHING}: {listed}"
    )
