"""Models and episodes that the intervention tests share: an untrained learned-shape model, and a napkin model."""

import numpy as np
import pytest
import torch

import circuits
from interp.interventions.pairs import Metric
from interp.model.config import LatentTransformerConfig
from interp.model.transformer import HookedLatentTransformer
from interp.tasks import experts, mdp
from interp.tasks.experts.layout import ExpertRound
from interp.tasks.qlearning.layout import QLearningRound
from tests.machines import transformer

VALUE = Metric("value", "output", "units", lambda readout, pair: readout.predictions[..., -1])
"""The last of a prediction's numbers, as it is."""


@pytest.fixture(scope="session")
def untrained() -> HookedLatentTransformer:
    """The learned models' architecture, small, in float64."""
    return transformer(ExpertRound(3), d_mlp=32, init_std=0.5).double()


@pytest.fixture(scope="session")
def untrained_q() -> HookedLatentTransformer:
    return transformer(QLearningRound(3, 2), seed=1, d_mlp=32, init_std=0.5).double()


@pytest.fixture(scope="session")
def qlearning():
    circuit = circuits.build("qlearning-handwired", n_states=3, n_actions=2)
    return circuit, circuits.compile_circuit(circuit).double().eval()


@pytest.fixture(scope="session")
def pair():
    return [experts.sample(24, 12, 3, seed=seed) for seed in (0, 1)]


@pytest.fixture(scope="session")
def expert_episodes() -> experts.ExpertEpisodes:
    return experts.sample(n_episodes=6, n_rounds=8, n_experts=3, seed=0)


@pytest.fixture(scope="session")
def mdp_episodes() -> mdp.MDPEpisodes:
    return mdp.sample(n_episodes=6, n_rounds=8, n_states=3, n_actions=2, seed=0)


@pytest.fixture(scope="session")
def napkin() -> HookedLatentTransformer:
    """Two layers of two linear heads with integer weights, one expert: every output is a sum on a napkin.

    Coordinates of the residual stream: ``ask`` (1 at p? and w?), ``vote`` (2 for q0, 3 for q1), ``latent`` (z), ``out``
    and ``key`` (1 at p?). With v the vote, z the latent and y the label (as 2 or 3), at p?::

        head 0.0 adds 2 v^2 to out        head 1.0 adds 5 times out to out
        head 0.1 adds 3 z^2 to out        head 1.1 takes v^2 from out

    so ``P = 6 (2 v^2 + 3 z^2) - v^2``; and at w?, head 1.1 writes v^2 + y^2 to the latent, which is the next z.
    The first z is 1.
    """
    ask, vote, latent, out, key = range(5)
    config = LatentTransformerConfig(
        ExpertRound(1),
        d_model=5,
        n_layers=2,
        n_heads=2,
        d_head=1,
        normalization_type=None,
        attention_rules=(("linear", "linear"), ("linear", "linear")),
        attn_scale=1.0,
        latent_update="replace",
        output="probability",
        name="napkin",
        head_names=(("twice the vote", "thrice the latent"), ("five times", "vote")),
    )
    model = HookedLatentTransformer(config).double().eval()
    heads = {  # (layer, head): query reads, key reads, value reads, writes
        (0, 0): (ask, vote, vote, {out: 2}),
        (0, 1): (ask, latent, latent, {out: 3}),
        (1, 0): (out, key, key, {out: 5}),
        (1, 1): (ask, vote, vote, {out: -1, latent: 1}),
    }
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        ids = model.layout.token_ids
        for token, coordinate, value in (
            *(("p?", ask, 1), ("p?", key, 1), ("w?", ask, 1)),
            *(("q0", vote, 2), ("q1", vote, 3)),
        ):
            model.embed.table[ids[token], coordinate] = value
        model.latents.table[0, latent] = 1
        model.unembed.W_U[out, 1] = 1
        for (layer, head), (query, read, value, writes) in heads.items():
            attention = model.blocks[layer].attn
            attention.W_Q[head, query] = attention.W_K[head, read] = attention.W_V[head, value] = 1
            for coordinate, weight in writes.items():
                attention.W_O[head, 0, coordinate] = weight
    return model


@pytest.fixture(scope="session")
def napkin_pair() -> tuple[experts.ExpertEpisodes, experts.ExpertEpisodes]:
    """One episode of two rounds: votes 1, 1 (clean) or 0, 1 (corrupted); labels 0."""
    votes = np.array([[[1], [1]]]), np.array([[[0], [1]]])
    clean, corrupted = (
        experts.ExpertEpisodes(v, np.zeros((1, 2), int), np.full((1, 1), 0.5)) for v in votes
    )
    return clean, corrupted


@pytest.fixture(scope="session")
def wma():
    """The handwired Weighted Majority circuit for 3 experts, and its model in float64."""
    circuit = circuits.build("wma-handwired", n_experts=3)
    return circuit, circuits.compile_circuit(circuit).double().eval()
