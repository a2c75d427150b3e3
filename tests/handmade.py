"""Machines whose insides are known: the GRU written by hand (:mod:`lab.known.handmade`), and one that counts hits."""

import torch
from torch import nn

import interp
from circuits.benchmark import KnownMachine
from interp.interventions.experiment import Edit, Experiment, batches
from interp.interventions.sites import Place, Site
from lab.known.handmade import KEPT, algorithm, majority
from tests.machines import N_EXPERTS, adapted

__all__ = ["KEPT", "algorithm", "intervened", "known", "leaky", "majority"]

GAIN, DECAY = 0.5, 0.8


def known() -> KnownMachine:
    """The machine as a subject of the benchmark: log-weights in four of its nine dimensions, matches in the new state.

    Nothing varies in its update gate.
    """
    machine = majority(log_gamma=GAIN, decay=DECAY)
    matched = torch.cat([torch.eye(4), torch.eye(4), torch.zeros(1, 4)]).double() / 2**0.5
    weighed, _ = torch.linalg.qr(machine.module.weigh.weight.detach().T)
    places = {
        "log_weights": (
            Place(Site.parse("latent", machine), weighed),
            Place(Site.parse("weigh", machine)),
        ),
        "match": (Place(Site.parse("new", machine), matched),),
    }
    return KnownMachine(
        name="handmade",
        machine="handmade",
        form="GRU",
        variant="plain",
        model=machine,
        algorithm=algorithm(GAIN, DECAY),
        edges=None,
        places=places,
    )


class Leaky(nn.Module):
    """Weights that are written by hand: ``h' = decay h + gain hit``, and a clock."""

    def __init__(self, decay: float, gain: float) -> None:
        super().__init__()
        self.keep = nn.Parameter(torch.full((N_EXPERTS,), decay, dtype=torch.float64))
        self.gain = nn.Parameter(torch.full((N_EXPERTS,), gain, dtype=torch.float64))
        self.hits = nn.Identity()

    def reset_parameters(self) -> None:
        """Draw other weights."""
        nn.init.uniform_(self.keep)
        nn.init.uniform_(self.gain)


def leaky(decay: float = DECAY, gain: float = GAIN, clock: int = 1):
    """A machine of two channels of different widths whose carried vector is known: the log-weights, and a clock."""

    def step(m, carried, fed):
        advice = fed.tokens[:, 3 : 3 + 2 * N_EXPERTS : 2] - 3
        truth = fed.tokens[:, -2:-1] - 3
        p = (carried["h"].softmax(-1) * advice).sum(-1)
        hits = m.hits((advice == truth).to(carried["h"]))
        after = {"clock": carried["clock"] + 1, "h": m.keep * carried["h"] + m.gain * hits}
        return torch.stack([1 - p, p], -1), after

    channels = [interp.Channel("clock", (clock,)), interp.Channel("h", (N_EXPERTS,))]
    options = {"output": "probability", "name": "leaky", "read": lambda carried: carried["h"]}
    return adapted(Leaky(decay, gain), step, {"hits": "hits"}, channels=channels, **options)


def intervened(model, base, source, places, rounds):
    """Predictions ``[episode, round, ...]`` and next latents of base rounds with places taken from the source's."""
    edits = {"taken": [Edit(place, source) for place in places]}
    (ran,) = batches(Experiment(model, base, edits, list(rounds), commit="target"))
    return ran.predictions[0, :, :, 0], ran.carried[0, :, :, 0]
