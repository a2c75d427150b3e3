"""Trained subjects: models that learned a task while interchanges tied subspaces of them to the algorithm's variables.

Each learned from a random start to predict what the algorithm predicts, all of its weights are free, and none is zero
in the end. ``truth.json`` beside the weights says what is known: the tied sites hold their variables, the rest of these
sites does not matter, the idle heads matter nowhere and the others do. Edges are not known. ``lab/tied_training.py``
trains them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from circuits.benchmark.known_machine import KnownMachine
from interp import tasks
from interp.errors import require_known
from interp.interventions.interchange import Claim
from interp.interventions.sites import Site
from interp.interventions.swaps import Place
from interp.model.checkpoints import load_checkpoint

WEIGHTS = Path(__file__).parent / "weights"


def load(name: str) -> KnownMachine:
    """A shipped subject by the name of its folder, such as "wma-0", in float64 like the handwired ones."""
    require_known("trained subject", name, sorted(folder.name for folder in WEIGHTS.iterdir()))
    truth, model = _truth(WEIGHTS / name), load_checkpoint(WEIGHTS / name).to(torch.float64)
    claims = [
        Claim(
            one["variable"],
            tuple(Place(Site.parse(site), torch.tensor(basis).double()) for site, basis in one["places"].items()),
            one["outcome"],
        )
        for one in truth["claims"]
    ]
    places: dict[str, tuple[Place, ...]] = {}
    for claim in claims:
        places[claim.variable] = (*places.get(claim.variable, ()), *claim.places)
    algorithm = tasks.of(model).algorithm(truth["algorithm"]["key"], **truth["algorithm"]["parameters"])
    return KnownMachine(
        name=truth["name"],
        machine=truth["machine"],
        form="trained",
        variant="trained",
        model=model.eval(),
        algorithm=algorithm,
        sizes=truth["sizes"],
        edges=None,
        places=places,
        claims=tuple(claims),
        nodes=truth["nodes"],
        seed=truth["seed"],
    )


def builders() -> dict[str, Callable[[], KnownMachine]]:
    """Every shipped subject by name, and what loads it."""
    folders = sorted(folder for folder in WEIGHTS.iterdir() if folder.is_dir())
    return {_truth(folder)["name"]: partial(load, folder.name) for folder in folders}


def _truth(folder: Path) -> Any:
    return json.loads((folder / "truth.json").read_text("utf-8"))
