"""Which nodes matter: patching whole nodes, mediation, and the strongest edge that leaves each.

* ``noising`` puts the corrupted run's value of a node into the clean run, ``denoising`` the reverse, at all positions
  of the round.
* ``mediation``: of the effect of exchanging all that a round reads, which share passes through a node? The embedding is
  the cause, so everything passes through it. A node's score is the larger one of the shares that it blocks while it is
  frozen and carries by itself, of the prediction and of the state that the round leaves; shares count by size, because
  what inhibits has negative ones.
* Methods of edges, by their own keys: a node is as strong as the strongest edge that leaves it.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from torch import Tensor

from circuits.benchmark.known_machine import KnownMachine
from circuits.benchmark.material import Case, Material
from circuits.benchmark.methods import FAINT, METHODS, READINGS, Method, register, strongest
from circuits.benchmark.question import Answer
from interp.interventions.mediation import Split, mediate
from interp.interventions.patching import of_pair
from interp.interventions.sites import Site

_CAUSE = "embed"
_BY_EDGES = (
    *("zero:single", "zero:joined", "resample:joined", "zero+resample:joined", "zero+resample:everything"),
    *("eap-ig:joined", "attention", "composition"),
)
"""Keys of the methods of edges that score nodes, too."""


def _sites(material: Material) -> dict[str, Site]:
    """Every node and the site that holds what it writes."""
    nodes = material.items("nodes")
    others = {node: f"mlp_out[{node[4:]}]" if node.startswith("mlp ") else f"z[{node}]" for node in nodes}
    return {node: Site.parse("embed" if node == "embed" else others[node]) for node in nodes}


def _patched(direction: str, reading: str, subject: KnownMachine, material: Material) -> Answer:
    """The largest effect over what is read, as a share of what the corruption changes."""
    sites = _sites(material)

    def effects(case: Case) -> np.ndarray:
        def moved() -> Tensor:
            return of_pair(case.pair, sites=list(sites.values()), metric=case.metric, direction=direction).effects

        effect = material.once(("node patching", case.corruption, case.exit, case.round, direction), moved)
        return (effect.mean(-1).abs() / case.scale).numpy(force=True)

    return strongest(material, reading, list(sites), effects)


def _mediated(subject: KnownMachine, material: Material) -> Answer:
    """The larger share of both exits; raw latents where the state has no exact readout."""
    through = {node: site for node, site in _sites(material).items() if site.component != _CAUSE}
    best = {node: 0.0 if node in through else 1.0 for node in material.items("nodes")}
    models = subject.model, material.run(2), material.run(3)
    split = Split(n_random=0, seed=material.seed)
    for outcome in ("prediction", "state" if subject.model.is_handwired else "latents"):
        rounds, sites = material.effort.round, list(through.values())
        mediation = mediate(*models, _CAUSE, sites, outcome=outcome, rounds=rounds, split=split)
        shares = np.abs(np.stack([mediation.lost, mediation.brought]).sum(-1)).max(0) / mediation.total.sum()
        for node, share in zip(through, shares[:-1].tolist(), strict=True):  # the last one is all of them jointly
            best[node] = max(best[node], share if share >= FAINT else 0.0)
    return Answer(best)


def _outgoing(key: str, subject: KnownMachine, material: Material) -> Answer:
    scores = METHODS["edges", key].answer(subject, material).scores
    return Answer({n: max((v for (s, _), v in scores.items() if s == n), default=0.0) for n in material.items("nodes")})


register(Method("mediation", "mediation, both exits", "nodes", _mediated))
for _direction in ("noising", "denoising"):
    for _reading in ("single", "prediction", "state", "joined", "another"):
        _name = f"activation patching, {_direction}, {READINGS[_reading]}"
        register(Method(f"{_direction}:{_reading}", _name, "nodes", partial(_patched, _direction, _reading)))
for _key in _BY_EDGES:
    register(Method(_key, f"strongest edge by {_key}", "nodes", partial(_outgoing, _key)))
