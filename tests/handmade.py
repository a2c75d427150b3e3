"""The GRU whose weights are written by hand (:mod:`lab.known.handmade`), and what is known of its insides."""

import torch

from circuits.benchmark import KnownMachine
from interp.interventions.experiment import Edit, Experiment, batches
from interp.interventions.sites import Place, Site
from lab.known.handmade import KEPT, algorithm, majority

__all__ = ["KEPT", "algorithm", "intervened", "known", "majority"]


def known(log_gamma: float = 0.5, decay: float = 0.8) -> KnownMachine:
    """The machine as a subject of the benchmark: log-weights in four of its nine dimensions, matches in the new state.

    Nothing varies in its update gate.
    """
    machine = majority(log_gamma=log_gamma, decay=decay)
    matched = torch.cat([torch.eye(4), torch.eye(4), torch.zeros(1, 4)]).double() / 2**0.5
    weighed, _ = torch.linalg.qr(machine.module.weigh.weight.detach().T)
    places = {
        "log_weights": (Place(Site.parse("latent", machine), weighed), Place(Site.parse("weigh", machine))),
        "match": (Place(Site.parse("new", machine), matched),),
    }
    return KnownMachine(
        name="handmade",
        machine="handmade",
        form="GRU",
        variant="plain",
        model=machine,
        algorithm=algorithm(log_gamma, decay),
        edges=None,
        places=places,
    )


def intervened(model, base, source, places, rounds):
    """Predictions ``[episode, round, ...]`` and next latents of base rounds with places taken from the source's."""
    edits = {"taken": [Edit(place, source) for place in places]}
    (ran,) = batches(Experiment(model, base, edits, list(rounds), commit="target"))
    return ran.predictions[0, :, :, 0], ran.carried[0, :, :, 0]
