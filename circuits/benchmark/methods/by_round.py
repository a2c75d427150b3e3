"""Rounds: ``patching`` puts the corrupted run's latents into the clean run, one round at a time, and reads the round
asked about; ``patching:own-round`` reads the round that is patched, as for models without memory; ``probe`` decodes
what was changed from the latents that each round reads.

Patching scores by the mean size of the effect, in nats; a probe by R2 on episodes that it was not fitted on.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from circuits.benchmark.known_machine import KnownMachine
from circuits.benchmark.material import Material
from circuits.benchmark.method import FAINT, Method, register
from circuits.benchmark.methods.variables import probe
from circuits.benchmark.question import Answer
from circuits.benchmark.questions import Item, changes, sides
from interp.interventions.patching import round_map
from interp.model.rollout import rollout
from interp.model.run import Rollout


def _patched(own_round: bool, subject: KnownMachine, material: Material) -> Answer:
    """Effects of the latents of each round on the prediction that is read; none where they come later."""
    read, scores = material.effort.round, dict.fromkeys(material.items("rounds"), 0.0)
    for key, at in changes(subject, material):
        effects = material.once(("round map", key, at), partial(_effects, subject, material, key, at))
        sizes = np.diagonal(effects) if own_round else np.nan_to_num(effects[:, read])
        scores |= {(key, at, t): size if size > FAINT else 0.0 for t, size in enumerate(sizes.tolist())}
    return Answer(scores)


def _effects(subject: KnownMachine, material: Material, key: str, at: int) -> Float[np.ndarray, "patched read"]:
    """Mean sizes of the effects of each round's latents on each round's prediction; NaN on earlier ones."""
    clean, corrupted = sides(subject, material, key, at)
    effects = round_map(subject.model, clean, corrupted, "latent", direction="noising").effects
    return np.asarray(np.abs(effects).mean(-1))


def _decodable(subject: KnownMachine, material: Material) -> Answer:
    """R2 of a probe for the inputs that the change touches, from the latents that each round reads."""
    scores: dict[Item, float] = {}
    for key, at in changes(subject, material):
        runs = [rollout(subject.model, episodes) for episodes in sides(subject, material, key, at)]
        wanted = _changed(runs, at)
        for t in range(material.effort.rounds):
            read = torch.stack([run.latents[:, t].flatten(1).double() for run in runs], 1)
            scores[key, at, t] = max(probe(read, wanted, False)[1], 0.0)
    return Answer(scores)


def _changed(runs: list[Rollout], at: int) -> Tensor:
    """A round's inputs that differ between the sides: which token, and which number, ``[episode, side, input]``."""
    tokens = torch.stack([run.tokens[:, at] for run in runs], 1)
    values = torch.stack([run.values[:, at] for run in runs], 1).double()
    kinds = torch.nn.functional.one_hot(tokens, int(tokens.max()) + 1).flatten(2).double()
    inputs = torch.cat([kinds, values.flatten(2)], -1)
    return inputs[:, :, (inputs[:, 0] != inputs[:, 1]).any(0)]


register(
    Method("patching", "patching of latents, the later round read", "rounds", partial(_patched, False)),
    Method("patching:own-round", "patching of latents, their own round read", "rounds", partial(_patched, True)),
    Method("probe", "probe for the changed input, by round", "rounds", _decodable),
)
