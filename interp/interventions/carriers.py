"""Which places carry which variables: interchange accuracies of many claims, each beside its controls.

A claim says that some places of the network hold a variable of the algorithm and that it shows in an outcome. It is
tested by :func:`interp.interventions.interchange.interchange`, and beside its accuracy stand those of

* doing nothing: pairs in which the unpatched run already gives the counterfactual's outcome;
* an equally large displacement of the same places in a random direction (a random subspace of equal rank), because
  moving an activation does something wherever it points.

A whole activation that is interchanged holds everything that reaches this place, so an accuracy of 1 says that the
variable is among it and that nothing else there matters to the outcome, not that the place holds the variable alone or
in any particular form. For that see :mod:`interp.interventions.alignment`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from torch import Tensor

from interp.interventions.causal import CausalModel
from interp.interventions.interchange import InterchangeResult, Place, interchange
from interp.interventions.sites import Site
from interp.tasks.experts.layout import ExpertRound
from interp.tasks.qlearning.layout import QLearningRound
from interp.model.rollout import Rounds, rollout
from interp.model.transformer import HookedLatentTransformer

RIDGE = 1e-3
"""Penalty of the decoder, in units of the mean variance of a latent's coordinates."""


@dataclass(frozen=True)
class Claim:
    """These places, together, hold ``variable``, and it shows in ``outcome`` ("prediction" or "state").

    Attributes:
        control: a place that cannot hold it, where the accuracy must be that of doing nothing.
    """

    variable: str
    places: tuple[Place, ...]
    outcome: str = "prediction"
    control: bool = False

    @classmethod
    def at(cls, variable: str, sites: Sequence[str], outcome: str = "prediction", control: bool = False) -> Claim:
        """A claim about whole activations."""
        return cls(variable, tuple(Place(Site.parse(site)) for site in sites), outcome, control)


def claims(model: HookedLatentTransformer, causal: CausalModel) -> list[Claim]:
    """Where a model of either task could hold the algorithm's variables, by whole activations, and where it cannot."""
    last = model.config.n_layers - 1
    if isinstance(model.layout, ExpertRound):
        votes = [label for label in model.layout.labels if label.startswith("p_")]
        memory = causal.memory
        return [
            Claim.at(memory, ["latent@<z>"]),
            *(Claim.at(memory, [f"resid_post[{layer}]@p?"]) for layer in range(last)),
            Claim.at(memory, ["embed@<w>"], control=True),
            Claim.at("votes", [f"embed@{vote}" for vote in votes]),
            Claim.at("prediction", [f"resid_post[{last}]@p?"]),
            Claim.at("hits" if causal.key == "bayes" else memory, ["latent@<z>"], "state"),
            Claim.at("label", ["embed@y"], "state"),
            *(Claim.at("label", [f"resid_post[{layer}]@w?"], "state") for layer in range(last)),
            Claim.at("label", ["embed@p?"], "state", control=True),
            *(Claim.at(name, [f"resid_post[{last}]@w?"], "state") for name in ("match", causal.state)),
        ]
    assert isinstance(model.layout, QLearningRound)
    labels = model.layout.labels
    candidates = [f"a_{i + 1}" for i in range(model.layout.n_actions)]
    arrived = [label for label in labels if label.startswith("s'")]
    return [
        Claim.at("table", ["latent"]),
        *(Claim.at("q_next", [f"resid_post[{layer}]@{a}" for a in candidates]) for layer in range(last)),
        Claim.at("q_next", ["embed@<BOS>"], control=True),
        Claim.at("next_state", [f"embed@{label}" for label in arrived]),
        Claim.at("choice", [f"resid_post[{last}]@Select"]),
        Claim.at("table", ["latent"], "state"),
        *(Claim.at(name, [f"embed@{label}"], "state") for name, label in (("action", "a"), ("reward", "r"))),
        Claim.at("reward", ["embed@<BOS>"], "state", control=True),
        *(Claim.at(name, [f"resid_post[{last}]@Update"], "state") for name in ("change", causal.state)),
    ]


def fitted_decoder(
    latents: Float[Tensor, "*sample latent d_model"], states: ArrayLike
) -> Callable[[Tensor], Float[Tensor, "*any"]]:
    """The affine map from a learned model's latents to what the algorithm holds at the same times (ridge regression).

    Fit it on the rounds that it is used at: how much a state changes in one round depends on the round.

    Args:
        latents: of a rollout, with any leading axes.
        states: ``[*sample, ...]``.
    """
    held = torch.as_tensor(np.asarray(states, dtype=np.float64)).to(latents.device)
    shape, flat = held.shape[latents.ndim - 2 :], latents.double().flatten(0, -3).flatten(1)
    held = held.reshape(len(flat), -1)
    centre, middle = flat.mean(0), held.mean(0)
    square = (flat - centre).T @ (flat - centre)
    # Latents have directions that hardly vary; without a penalty the map would read noise off them.
    penalty = RIDGE * square.diagonal().mean() * torch.eye(len(square)).to(square)
    slopes = torch.linalg.solve(square + penalty, (flat - centre).T @ (held - middle))

    def decode(found: Tensor) -> Tensor:
        return ((found.double().flatten(-2) - centre) @ slopes + middle).unflatten(-1, shape)

    return decode


def carriers(
    model: HookedLatentTransformer,
    base: Any,
    source: Any,
    causal: CausalModel,
    found: Sequence[Claim],
    *,
    rounds: Rounds = "all",
    decode: Callable[[Tensor], Tensor] | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """A row per claim: accuracy over informative pairs with its interval, and that of its controls.

    Args:
        base, source: episodes that pair up.
        decode: latents to state (:func:`fitted_decoder`); the exact readout of a handwired model when None.
    """
    runs = rollout(model, base), rollout(model, source)

    def score(claim: Claim, places: Sequence[Place]) -> InterchangeResult:
        return interchange(
            model,
            base,
            source,
            causal,
            claim.variable,
            places,
            outcome=claim.outcome,
            rounds=rounds,
            decode=decode,
            runs=runs,
        )

    rows = []
    for claim in found:
        elsewhere = [place.placebo(model.config.d_model, seed) for place in claim.places]
        placebos = [place for place in elsewhere if place is not None]  # attention scores have no direction
        random = score(claim, placebos).iia_informative if placebos else float("nan")
        row = score(claim, claim.places).to_frame()
        rows.append(row.assign(random=random, control=claim.control))
    return pd.concat(rows, ignore_index=True)
