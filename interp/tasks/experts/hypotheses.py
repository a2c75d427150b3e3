"""What interventions and probes ask of a model of expert advice: its algorithm, where its variables could be, controls.

A handwired model is held against its own Weighted Majority, a learned one against the Bayes predictor of the uniform
regime. A claim is a question to the model, never evidence about it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from interp import catalog
from interp.algorithm import Algorithm
from interp.display import lacks
from interp.machine import Machine
from interp.task import RoundInputs, Steering
from interp.tasks.experts.algorithms import bayes, weighted_majority
from interp.tasks.experts.episodes import ExpertEpisodes


def losses(predictions: Tensor, episodes: ExpertEpisodes, rounds: slice) -> Tensor:
    """The probability of a mistake, ``|P(y = 1) - y|``, ``[*batch, episode, round]``."""
    labels = torch.from_numpy(episodes.labels[:, rounds])
    return (predictions - labels.to(predictions)).abs()


def hypothesis(model: Machine) -> Algorithm:
    """The algorithm that a model is held against."""
    arguments = model.origin.get("arguments", {}) if model.is_handwired else {}
    return weighted_majority(arguments["log_gamma"]) if "log_gamma" in arguments else bayes()


def round_inputs(episodes: ExpertEpisodes) -> RoundInputs:
    """Advice and label of each round, then also whether each expert was right: what one round says by itself."""
    advice, label = episodes.advice.astype(np.float64), episodes.labels.astype(np.float64)[..., None]
    plain = np.concatenate([advice, label], axis=-1)
    products = np.concatenate([plain, episodes.correct.astype(np.float64)], axis=-1)
    return RoundInputs((plain, products), np.concatenate([episodes.advice, episodes.labels[..., None]], axis=-1))


def aligned(model: Machine) -> tuple[tuple[str, str], ...]:
    """Subspaces to learn, (variable, site): the memory and the prediction; then a place that cannot hold them."""
    memory = catalog.of(model).explains(model).memory
    if lacks(model, "embed", "resid_post"):
        return ((memory, "latent"), ("votes", "latent"))
    last = model.points["resid_post"].n_layers - 1
    return (
        (memory, "embed@<z>"),
        (memory, f"resid_post[{max(last - 1, 0)}]@p?"),
        ("prediction", f"resid_post[{last}]@p?"),
        (memory, "embed@<w>"),
    )


def claims(model: Machine) -> tuple[tuple[Any, ...], ...]:
    """Where a model could hold the algorithm's variables, by whole activations, and where it cannot."""
    algorithm = catalog.of(model).explains(model)
    memory, held = algorithm.memory, "counts" if "counts" in algorithm.state else algorithm.memory
    if lacks(model, "embed", "resid_post"):
        return ((memory, None), (held, None, "state"))
    last = model.points["resid_post"].n_layers - 1
    # An update that is added to its slot holds what changes, one that replaces it the new state as well.
    added = getattr(getattr(model, "config", None), "latent_update", "replace") == "add"
    written = ("match",) if added else ("match", algorithm.written)
    return (
        (memory, ["latent@<z>"]),
        *((memory, [f"resid_post[{layer}]@p?"]) for layer in range(last)),
        (memory, ["embed@<w>"], "prediction", True),
        ("votes", [f"embed@{label}" for label in model.layout.labels if label.startswith("p_")]),
        ("prediction", [f"resid_post[{last}]@p?"]),
        (held, ["latent@<z>"], "state"),
        ("label", ["embed@y"], "state"),
        *(("label", [f"resid_post[{layer}]@w?"], "state") for layer in range(last)),
        ("label", ["embed@p?"], "state", True),
        *((key, [f"resid_post[{last}]@w?"], "state") for key in written),
    )


def steering() -> Steering:
    """More weight for the first expert, read in the probability of its own vote."""
    return Steering(
        change=lambda shape: 1.0 * np.broadcast_to(np.eye(shape[-1])[0], shape),
        doses=(-4, -2, -1, 0, 1, 2, 4),
        outcome=lambda episodes, t: episodes.advice[:, t, 0],
        what="first expert's weight + 1",
        shows="P(its vote)",
    )
