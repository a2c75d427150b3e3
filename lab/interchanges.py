"""How far interchanges and learned subspaces can be trusted: tables on machines that are known.

* ``sites``: every row of every circuit's ground truth (:attr:`circuits.circuit.Circuit.carried`), in every form of
  every machine (:data:`FORMS`). Setting these locations to another episode's must have the whole effect that the
  algorithm asks for (score and slope 1). The same subspaces at other positions must have none of it (``wrong`` is the
  largest score, at ``wrong_at``), and neither must equally large moves orthogonal to them (``placebo`` and
  ``placebo_worst``: mean and largest score of :data:`_N_PLACEBOS` draws, each made both ways);
  :mod:`interp.interventions.interchange`.
* ``alignment``: subspaces learned (DAS) at sites that hold a variable and at others, beside the untrained control
  (:mod:`interp.interventions.alignment`): :data:`_ALIGNED`.
* ``machines``: what a comparison says of every known machine (:mod:`lab.known`), and what is right.
* ``resolution``: how small a deviation it answers with "no" (:mod:`lab.resolution`).

``python -m lab calibrate`` writes them after those of :mod:`lab.probing`; the last two only where they are asked for.
What this is NOT: evidence about a learned model, where no one knows the subspaces and a variable may be spread over
places that are no position's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from circuits import compare
from circuits.benchmark.known_machine import FORMS, SIZES
from circuits.circuit import Circuit
from circuits.compiler import compile_circuit, wired
from circuits.registry import build, differentiable, load
from interp import tasks
from interp.interventions.alignment import UNTRAINED, Search, align
from interp.interventions.interchange import Claim, InterchangeResult, interchange
from interp.interventions.sites import Place
from interp.model.layout import RoundLayout
from interp.model.rollout import rollout
from lab import known, resolution
from lab.known import scores
from lab.probing import Advance, Table

N_PAIRS, N_WRONG, N_ROUNDS = {True: 16, False: 24}, {True: 4, False: 12}, 12
"""Pairs of episodes, wrong positions (evenly spaced over the round where it has more), and rounds."""
_N_PLACEBOS = 4
"""Directions of placebos. Each is taken towards the source's activation and as far away from it: a placebo moves along
what else differs between the two (a candidate's name beside its mark), and where its effect is aligned with the wanted
one by c, towards it scores 2 c - c^2 and away -2 c - c^2. Reachability (8 nodes, "sum"), mean of towards alone and of
both: member .040, -.038; source -.006, -.049; target .051, .038. A single draw is up to .10: only means are bounded."""
DRAWS = 5
"""Sizes drawn of each known machine that has a size, beside the one of the table: errors of them are counted, too."""
EXACT, NOTHING = 1e-6, 0.05
"""How far from 1 score and slope of a row may be, and how large those of wrong positions and placebos."""


@dataclass(frozen=True)
class Aligned:
    """A variable of a handwired model, and sites of the residual stream that hold it in a form that the prediction uses
    (``true``) or do not (``wrong``). The model has the quick sizes."""

    model: str
    variable: str
    true: tuple[str, ...]
    wrong: tuple[str, ...]


_ALIGNED = (
    Aligned(
        "wma-handwired",
        "log_weights",
        ("embed@<z>", "resid_post[1]@p?"),
        ("embed@<w>", "resid_post[1]@p_3", "resid_post[0]@p?"),
    ),
    Aligned(
        "qlearning-handwired",
        "choice",
        ("resid_post[2]@Select",),
        ("resid_post[1]@r", "resid_post[1]@Select"),
    ),
)


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
        claims = [claim for claim in wired(circuit) if not claim.control]
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
    pair = [
        tasks.of(model).sample_for(model, n_pairs or N_PAIRS[quick], N_ROUNDS, 2 * seed + i)
        for i in (0, 1)
    ]
    runs = rollout(model, pair[0]), rollout(model, pair[1])

    def score(claim: Claim, places: Sequence[Place]) -> InterchangeResult:
        return interchange(
            model, *runs, circuit.algorithm, claim.variable, places, outcome=claim.outcome
        )

    rows = []
    for claim in claims:
        wrong = {
            label: score(claim, places).score().estimate
            for label, places in _elsewhere(claim.places, circuit.layout, N_WRONG[quick]).items()
        }
        moved = [
            [place.placebo(model.config.d_model, draw) for place in claim.places]
            for draw in range(_N_PLACEBOS)
        ]
        known = [[place for place in places if place is not None] for places in moved]
        both_ways = [
            moves
            for places in known
            if places
            for moves in (places, [_opposite(place) for place in places])
        ]
        placebos = [score(claim, moves).score().estimate for moves in both_ways]
        columns = ["variable", "places", "outcome", "n_pairs", "n_informative"]
        graded = [f"{what}{end}" for what in ("score", "slope") for end in ("", "_low", "_high")]
        (row,) = score(claim, claim.places).to_frame()[[*columns, *graded]].to_dict("records")
        at = max(wrong, key=wrong.__getitem__)
        rows.append(
            {
                **{str(key): value for key, value in row.items()},
                "wrong": wrong[at],
                "wrong_at": at,
                "n_wrong": len(wrong),
                "placebo": float(np.mean(placebos)) if placebos else float("nan"),
                "placebo_worst": max(placebos, default=float("nan")),
            }
        )
    return rows


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
    at = np.unique(np.linspace(0, len(others) - 1, min(most, len(others))).round().astype(int))
    hooks: dict[tuple[str, int | None], list[Place]] = {}
    for place in places:
        hooks.setdefault((place.site.hook, place.site.head), []).append(place)
    return {others[i]: [_at(several, others[i]) for several in hooks.values()] for i in at}


def _at(places: Sequence[Place], label: str) -> Place:
    """The span of the subspaces of places of one hook, at another position."""
    site = places[0].site
    moved = type(site)(site.component, site.layer, site.head, label)
    bases = [place.basis.T for place in places if place.basis is not None]
    if not bases:
        return Place(moved)
    directions = np.concatenate([basis.numpy() for basis in bases])
    _, lengths, rows = np.linalg.svd(directions, full_matrices=False)
    return Place.of(moved, rows[lengths > 1e-9])


def alignment(
    quick: bool = False,
    advance: Advance = lambda steps: None,
    *,
    machines: Sequence[Aligned] = _ALIGNED,
    seed: int = 0,
) -> pd.DataFrame:
    """Held-out accuracy of learned subspaces at true and wrong sites; one row per site and condition.

    The quick table has fewer episodes, and one start of each fit instead of up to three.
    """
    n_episodes, n_rounds = (32, 12) if quick else (48, 16)
    search = Search(steps=100, restarts=1, seed=seed) if quick else Search(seed=seed)
    frames = []
    for machine in machines:
        sizes: dict[str, Any] = {**SIZES[True][machine.model]}
        model = load(machine.model, **sizes)
        task, smooth = tasks.of(model), differentiable(model)
        pair = [task.sample_for(model, n_episodes, n_rounds, 2 * seed + i) for i in (0, 1)]
        for site in (*machine.true, *machine.wrong):
            asked = (model, *pair, task.explains(model), machine.variable, site)
            result = align(*asked, round=slice(1, n_rounds), search=replace(search, smooth=smooth))
            frames.append(
                result.to_frame().assign(machine=machine.model, true_site=site in machine.true)
            )
            advance(1)
    return pd.concat(frames, ignore_index=True)


def sites_summary(frame: pd.DataFrame) -> str:
    """The worst of every form, and the rows that fall short."""
    off = pd.DataFrame({key: (frame[key] - 1).abs() for key in ("score", "slope")})
    worst = frame.assign(score_off=off["score"], slope_off=off["slope"]).groupby(
        ["machine", "form"], sort=False
    )
    measures = ("score_off", "slope_off", "wrong", "placebo", "placebo_worst")
    table = worst.agg(rows=("score", "size"), **{name: (name, "max") for name in measures})
    short = (
        ~(off.max(axis=1, skipna=False) <= EXACT)
        | (frame["wrong"] > NOTHING)
        | (frame["placebo"] > NOTHING)
    )
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


def alignment_summary(frame: pd.DataFrame) -> str:
    """Learned and untrained accuracy on informative held-out pairs, by site."""
    table = frame.pivot_table(
        "iia_informative", ["machine", "variable", "true_site", "site"], "condition", sort=False
    )
    return (
        "Learned subspaces: accuracy on informative held-out pairs, at sites that hold the variable and others\n"
        f"{table[['learned', UNTRAINED, 'norm-matched random']].round(3).to_string()}"
    )


def machines(quick: bool, advance: Advance, part: str) -> pd.DataFrame:
    """The row of one known machine, ``"TASK: KEY"``, at quick or full budget."""
    task, _, key = part.partition(": ")
    row = scores.score(
        known.gallery(task, DRAWS)[key],
        known.reference(task),
        compare.Budget.quick() if quick else compare.Budget(),
    )
    advance(1)
    return pd.DataFrame([row])


def every_machine(quick: bool) -> tuple[str, ...]:
    """The parts of the table "machines"."""
    return tuple(f"{task}: {key}" for task in known.TASKS for key in known.gallery(task, DRAWS))


@cache
def rules() -> dict[str, str]:
    """A digest of the source of comparison and of the known machines: words under other rules are other words."""
    rooms = (Path(one.__file__).parent for one in (compare, known) if one.__file__)
    sources = [path.read_bytes() for room in rooms for path in sorted(room.glob("*.py"))]
    return {"rules": hashlib.sha256(b"".join(sources)).hexdigest()}


def deviations(quick: bool, advance: Advance, part: str) -> pd.DataFrame:
    """The words on one deviation, ``"TASK: NAME, SIZE, SEED"``, at quick or full budget."""
    key, size, seed = part.split(", ")
    row = resolution.measure(
        key, float(size), int(seed), compare.Budget.quick() if quick else compare.Budget()
    )
    advance(1)
    return pd.DataFrame([row])


def every_deviation(quick: bool) -> tuple[str, ...]:
    """The parts of the table "resolution"."""
    every, seeds = resolution.deviations().values(), range(resolution.SEEDS[quick])
    return tuple(
        f"{one.key}, {size:g}, {seed}" for one in every for size in one.sizes for seed in seeds
    )


_N_SITES = sum(len(machine.true) + len(machine.wrong) for machine in _ALIGNED)
TABLES: dict[str, Table] = {
    "sites": Table(sites, dict.fromkeys((True, False), len(FORMS)), sites_summary),
    "alignment": Table(alignment, dict.fromkeys((True, False), _N_SITES), alignment_summary),
    "machines": Table(
        machines, {True: 1, False: 1}, scores.summary, every_machine, rules, takes_long=True
    ),
    "resolution": Table(
        deviations, {True: 1, False: 1}, resolution.summary, every_deviation, rules, takes_long=True
    ),
}
"""Written by ``python -m lab calibrate`` after those of :mod:`lab.probing`."""
