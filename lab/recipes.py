"""Recipes of trained subjects: which models learn while interchanges tie them to an algorithm, and what is known then.

:mod:`lab.tying` says what that means, :mod:`lab.tied_training` trains by them, and :mod:`circuits.benchmark`
loads what was trained. Each learns from a random start to predict what the algorithm predicts; all of its weights are
free, and none is zero in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from interp import tasks
from interp.core.algorithm import Algorithm, Values
from interp.interventions.sites import head_address
from interp.model.config import LatentTransformerConfig
from interp.model.layout import EncodedRounds, RoundLayout
from interp.model.transformer import HookedLatentTransformer
from lab import tying
from lab.tying import Batch, Tie

_OF_THE_MODEL = [
    "d_model",
    "n_layers",
    "n_heads",
    "d_mlp",
    "normalization_type",
    "output",
    "clipped",
    "attention_rules",
]
_OF_THE_MODEL += ["latent_update", "init_std"]


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
        unused_at: heads at positions, as sites, that must not matter either; where any are named, some are changed in
            every step.
        loud: how many times the difference to the other round is put in where it must not matter: what leaks little
            through a head adds up over rounds, and is hardly seen in predictions.
        output, clipped, attention_rules, latent_update: of the model, as in its configuration.
        attends: the attention that heads are taught in the first ``attention_steps`` steps, beside all else: from the
            variables and the layout of a round, site of a pattern -> ``[episode, round, key]``.
        n_rounds: of an episode; ``curriculum`` holds other lengths in training, as (first step, rounds).
        horizon: rounds that are compared after an intervention.
        draws: ties that are interchanged in a step.
        steps, batch, lr: of Muon for the blocks' matrices, of AdamW for the rest.
        polish: steps that follow at a third of the rate, which falls to 0 a second time.
    """

    machine: str
    algorithm: Algorithm
    sizes: Mapping[str, int]
    ties: tuple[Tie, ...]
    idle: tuple[tuple[int, int], ...]
    doubtful: tuple[tuple[int, int], ...] = ()
    unused_at: tuple[str, ...] = ()
    loud: float = 1.0
    sampling: Mapping[str, Any] = field(default_factory=dict)
    d_model: int = 32
    n_layers: int = 3
    n_heads: int = 4
    d_mlp: int = 96
    normalization_type: str | None = "LNPre"
    output: str = "logits"
    clipped: bool = False
    attention_rules: tuple[tuple[str, ...], ...] = ()
    latent_update: str = "add"
    init_std: float = 0.1
    n_rounds: int = 12
    curriculum: tuple[tuple[int, int], ...] = ()
    attends: Callable[[Values, RoundLayout], dict[str, np.ndarray]] = lambda values, layout: {}
    attention_steps: int = 0
    horizon: int = 3
    draws: int = 2
    steps: int = 5600
    batch: int = 40
    lr: float = 3e-3
    polish: int = 0

    @property
    def d_head(self) -> int:
        """Width of a head."""
        return self.d_model // self.n_heads

    @property
    def unused(self) -> list[str]:
        """The sites that must not matter: idle heads, and heads at positions where the circuit has no use for them."""
        return [*("z[{}.{}]".format(*head) for head in self.idle), *self.unused_at]

    def model_config(self, name: str, seed: int) -> LatentTransformerConfig:
        """The configuration of the model that is trained."""
        return LatentTransformerConfig(
            layout=tasks.get(self.algorithm.task).layout(**self.sizes),
            d_head=self.d_head,
            write_map=True,
            **{name: getattr(self, name) for name in _OF_THE_MODEL},
            name=name,
            origin={"trained": name, "seed": seed},
        )


def _attention(values: Values, layout: RoundLayout) -> dict[str, np.ndarray]:
    """Where the heads of handwired Weighted Majority look that move what differs between episodes, or else the sink."""
    keys = np.eye(layout.n_positions)
    votes = keys[[i for i, label in enumerate(layout.labels) if label.startswith("p_")]]
    everywhere = np.ones((*values["label"].shape, 1))
    sink, fetched, told = (
        everywhere * keys[layout.position(label)] for label in ("<w>", "<z>", "y")
    )
    return {
        "pattern[0.0]@p?": fetched,
        "pattern[0.1]@w?": told,
        "pattern[0.2]@w?": fetched,
        "pattern[0.0]@w?": sink,
        "pattern[0.2]@p?": sink,
        "pattern[1.0]@p?": values["weights"] @ votes,
        "pattern[1.1]@w?": values["match"] @ votes,
    }


def recipes() -> dict[str, Recipe]:
    """Every kind of trained subject."""
    experts, mdps = tasks.get("experts"), tasks.get("qlearning")
    three = tuple((i,) for i in range(3))
    # The handwired heads that move what differs between episodes: 2.1, 2.2 and 2.3, then 3.1 and 3.2.
    working = {"z[0.0]@p?", "z[0.1]@w?", "z[0.2]@w?", "z[1.0]@p?", "z[1.1]@w?"}
    read = {0: experts.layout(n_experts=3).labels, 1: ("p?", "w?")}
    every = [
        f"z[{layer}.{head}]@{label}" for layer in read for head in range(3) for label in read[layer]
    ]
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
        "wma-roles": Recipe(
            machine="wma-handwired",
            algorithm=experts.algorithm("weighted_majority", gain=0.5),
            sizes={"n_experts": 3},
            ties=(
                Tie("log_weights", {"latent@<z>": three}),
                Tie("log_weights", {"z[0.0]@p?": three}),
                Tie("log_weights", {"z[0.2]@w?": three}, "state"),
                Tie("label", {"z[0.1]@w?": ((),)}, "state"),
                Tie("match", {"z[1.1]@w?": three}, "state"),
            ),
            idle=(),
            unused_at=tuple(site for site in every if site not in working),
            loud=3.0,
            d_model=36,
            n_layers=2,
            n_heads=3,
            d_mlp=0,
            normalization_type=None,
            output="probability",
            clipped=True,
            attention_rules=(("softmax",) * 3, ("softmax", "linear", "softmax")),
            latent_update="replace",
            attends=_attention,
            attention_steps=1500,
            curriculum=((0, 5), (300, 8), (1200, 12), (3500, 30)),
            steps=5000,
            polish=2500,
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


def batch_of(
    recipe: Recipe,
    model: HookedLatentTransformer,
    n_episodes: int,
    seed: int,
    n_rounds: int | None = None,
) -> Batch:
    """Encoded episodes with every variable, of the recipe's rounds when None; the latents are still to be filled in.

    Where rounds hold the model's own choice, a random one stands there: the model learns to do without it.
    """
    task = tasks.get(recipe.algorithm.task)
    episodes = task.sample(
        n_episodes, n_rounds or recipe.n_rounds, seed=seed, **recipe.sizes, **recipe.sampling
    )
    layout = model.layout.fit(episodes)
    rounds = layout.encode(episodes)
    tokens = rounds.tokens
    if layout.choice_position is not None:
        drawn = np.random.default_rng([seed, 1]).integers(layout.n_outputs, size=tokens.shape[:2])
        tokens = layout.commit(tokens, torch.from_numpy(drawn))
    encoded = EncodedRounds(tokens, rounds.values.to(model.W_E), rounds.slots)
    return Batch(encoded, layout, recipe.algorithm.run(episodes))


def truth(kind: str, seed: int) -> dict[str, Any]:
    """What is known of a subject, as ``truth.json`` beside its weights says it.

    A tied latent is the embedding at its position there: the site that handwired machines name, too.
    """
    recipe = recipes()[kind]
    basis = tying.bases(recipe.ties, recipe.d_model, recipe.d_head, seed)
    heads = [(layer, head) for layer in range(recipe.n_layers) for head in range(recipe.n_heads)]
    return {
        "name": f"{recipe.machine} trained, seed {seed}",
        "machine": recipe.machine,
        "algorithm": {"key": recipe.algorithm.key, "parameters": dict(recipe.algorithm.parameters)},
        "sizes": dict(recipe.sizes),
        "seed": seed,
        "nodes": {
            head_address(layer, head): "" if (layer, head) in recipe.idle else "content"
            for layer, head in heads
            if (layer, head) not in recipe.doubtful
        },
        "claims": [
            {
                "variable": tie.variable,
                "outcome": tie.outcome,
                "places": {
                    site.replace("latent@", "embed@"): basis[site].tolist() for site in tie.holds
                },
            }
            for tie in recipe.ties
        ],
    }
