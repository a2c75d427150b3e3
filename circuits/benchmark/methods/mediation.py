"""Mediation: of the effect of exchanging all that a round reads, which share passes through a node?

The embedding is the cause, so everything passes through it. A node's score is the larger one of the shares that it
blocks while it is frozen and carries by itself, of the prediction and of the state that the round leaves; shares count
by size, because what inhibits has negative ones.
"""

from __future__ import annotations

import numpy as np

from circuits.benchmark.material import Material
from circuits.benchmark.method import Answer, Method, register
from circuits.benchmark.methods.node_patching import sites_of
from circuits.benchmark.methods.reading import FAINT
from circuits.benchmark.subject import Subject
from interp.interventions.mediation import mediate

CAUSE = "embed"


def mediated(subject: Subject, material: Material) -> Answer:
    """The larger share of both exits; raw latents where the state has no exact readout."""
    through = {node: site for node, site in sites_of(material).items() if site.component != CAUSE}
    best = {node: 0.0 if node in through else 1.0 for node in material.items("nodes")}
    for outcome in ("prediction", "state" if subject.model.is_handwired else "latents"):
        found = mediate(
            *(subject.model, material.episodes(2), material.episodes(3), CAUSE, list(through.values())),
            outcome=outcome,
            rounds=material.effort.round,
            n_random=0,
            runs=(material.run(2), material.run(3)),
            seed=material.seed,
        )
        shares = np.abs(np.stack([found.lost, found.brought]).sum(-1)).max(0) / found.total.sum()
        for node, share in zip(through, shares[:-1].tolist(), strict=True):  # the last one is all of them jointly
            best[node] = max(best[node], share if share >= FAINT else 0.0)
    return Answer(best)


register(Method("mediation", "mediation, both exits", "nodes", mediated))
