"""Trained subjects: models that learned a task while interchanges tied subspaces of them to the algorithm's variables.

What :mod:`circuits.benchmark.tying` means by that; here is which models (:func:`recipes`) and what is known of them.
Each learns from a random start to predict what the algorithm predicts, all of its weights are free, and none is zero in
the end. Known: the tied sites hold their variables, the rest of these sites does not matter, the idle heads matter
nowhere and the others do. Not known: edges. :mod:`circuits.benchmark.tied_training` trains them; ``weights/`` holds
those that are shipped, each with its held-out accuracies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from circuits.benchmark import tying
from circuits.benchmark.known_machine import KnownMachine
from circuits.benchmark.tying import Batch, Tie
from interp import tasks
from interp.algorithm import Algorithm
from interp.errors import require_known
from interp.interventions.interchange import Claim
from interp.interventions.sites import Site
from interp.interventions.swaps import Place
from interp.model.checkpoints import load_checkpoint
from interp.model.config import LatentTransformerConfig
from interp.model.layout import EncodedRounds
from interp.model.transformer import HookedLatentTransformer

WEIGHTS = Path(__file__).parent / "weights"


@dataclass(frozen=True)
class Recipe:
    """How a subject is trained.

    Attributes:
        machine: name of the handwired machine that computes the same.
        algorithm: what it imitates.
        sizes: of the task; ``sampling`` holds further arguments of its sampler.
        idle: heads as (layer, head) that must not matter.
        doubtful: heads that the shipped weights leave in between, so that they are not asked for: an idle one that
            still matters on its own, or one that is free to matter and hardly does.
        horizon: rounds that are compared after an intervention.
        draws: ties that are interchanged in a step.
        steps, batch, lr: of Muon for the blocks' matrices, of AdamW for the rest.
    """

    machine: str
    algorithm: Algorithm
    sizes: Mapping[str, int]
    ties: tuple[Tie, ...]
    idle: tuple[tuple[int, int], ...]
    doubtful: tuple[tuple[int, int], ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    d_model: int = 32
    n_layers: int = 3
    n_heads: int = 4
    d_mlp: int = 96
    normalization_type: str | None = "LNPre"
    n_rounds: int = 12
    horizon: int = 3
    draws: int = 2
    steps: int = 5600
    batch: int = 40
    lr: float = 3e-3

    def model_config(self, name: str, seed: int) -> LatentTransformerConfig:
        """The configuration of the model that is trained."""
        return LatentTransformerConfig(
            layout=tasks.get(self.algorithm.task).layout(**self.sizes),
            d_model=self.d_model,
            n_layers=self.n_layers,
            n_heads=self.n_heads,
            d_head=self.d_model // self.n_heads,
            d_mlp=self.d_mlp,
            normalization_type=self.normalization_type,
            write_map=True,
            init_std=0.1,
            name=name,
            origin={"trained": name, "seed": seed},
        )


def recipes() -> dict[str, Recipe]:
    """Every kind of trained subject."""
    experts, mdps = tasks.get("experts"), tasks.get("qlearning")
    three = tuple((i,) for i in range(3))
    return {
        "wma": Recipe(
            machine="wma-handwired",
            algorithm=experts.algorithm("weighted_majority", gain=0.6),
            sizes={"n_experts": 3},
            ties=(
                Tie("log_weights", {"latent@<z>": three}),
                Tie("log_weights", {"resid_post[1]@p?": three}),
                Tie("match", {"resid_post[1]@w?": three}, "state"),
            ),
            idle=((0, 3), (1, 3), (2, 2), (2, 3)),
            doubtful=((1, 1), (2, 2)),
        ),
        "qlearning": Recipe(
            machine="qlearning-handwired",
            algorithm=mdps.algorithm("q_learning", alpha=0.5, gamma=0.8, beta=4.0),
            sizes={"n_states": 2, "n_actions": 2},
            ties=(
                Tie("table", {f"latent@c_{a + 1}": ((0, a), (1, a)) for a in range(2)}),
                Tie("next_values", {"resid_post[1]@Select": ((0,), (1,))}),
                Tie("td_error", {"resid_post[2]@Update": ((),)}, "state"),
            ),
            idle=((0, 3), (1, 3), (2, 3), (3, 2), (3, 3)),
            doubtful=((0, 1), (2, 1), (3, 0)),
            n_layers=4,
            d_mlp=128,
            n_rounds=14,
            horizon=4,
            steps=5000,
        ),
    }


def batch_of(recipe: Recipe, model: HookedLatentTransformer, n_episodes: int, seed: int) -> Batch:
    """Encoded episodes with every variable; the latents are still to be filled in.

    Where rounds hold the model's own choice, a random one stands there: the model learns to do without it.
    """
    task = tasks.get(recipe.algorithm.task)
    episodes = task.sample(n_episodes, recipe.n_rounds, seed=seed, **recipe.sizes, **recipe.sampling)
    layout = model.layout.fit(episodes)
    rounds = layout.encode(episodes)
    tokens = rounds.tokens
    if layout.choice_position is not None:
        drawn = np.random.default_rng([seed, 1]).integers(layout.n_outputs, size=tokens.shape[:2])
        tokens = layout.commit(tokens, torch.from_numpy(drawn))
    encoded = EncodedRounds(tokens, rounds.values.to(model.W_E), rounds.slots)
    return Batch(encoded, layout, recipe.algorithm.run(episodes))


def _shipped() -> dict[str, tuple[str, int]]:
    """Name of every shipped subject -> its kind and seed."""
    known = recipes()
    names = {}
    for folder in sorted(WEIGHTS.glob("*-*")):
        kind, _, seed = folder.name.rpartition("-")
        names[f"{known[kind].machine} trained, seed {seed}"] = kind, int(seed)
    return names


def load(kind: str, seed: int) -> KnownMachine:
    """A shipped subject, in float64 like the handwired ones."""
    names = {pair: name for name, pair in _shipped().items()}
    require_known("trained subject", f"{kind}-{seed}", [f"{k}-{s}" for k, s in names])
    recipe, model = recipes()[kind], load_checkpoint(WEIGHTS / f"{kind}-{seed}").to(torch.float64)
    basis = tying.bases(recipe.ties, recipe.d_model, seed)
    claims = [
        Claim(tie.variable, tuple(Place(_seen(site), basis[site].double()) for site in tie.holds), tie.outcome)
        for tie in recipe.ties
    ]
    places: dict[str, tuple[Place, ...]] = {}
    for claim in claims:
        places[claim.variable] = (*places.get(claim.variable, ()), *claim.places)
    every = [(layer, head) for layer in range(recipe.n_layers) for head in range(recipe.n_heads)]
    heads = [head for head in every if head not in recipe.doubtful]
    return KnownMachine(
        name=names[kind, seed],
        machine=recipe.machine,
        form="trained",
        variant="trained",
        model=model.eval(),
        algorithm=recipe.algorithm,
        sizes=recipe.sizes,
        edges=None,
        places=places,
        claims=tuple(claims),
        nodes={f"{layer}.{head}": "" if (layer, head) in recipe.idle else "content" for layer, head in heads},
        seed=seed,
    )


def builders() -> dict[str, Callable[[], KnownMachine]]:
    """Every shipped subject by name, and what loads it."""
    return {name: partial(load, kind, seed) for name, (kind, seed) in _shipped().items()}


def _seen(site: str) -> Site:
    """A tied latent as the embedding at its position: the site that handwired machines name, too."""
    parsed = Site.parse(site)
    return Site("embed", position=parsed.position) if parsed.component == "latent" else parsed
