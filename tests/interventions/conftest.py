"""Models and episodes that the intervention tests share: an untrained learned-shape model, and a napkin model."""

from __future__ import annotations

import pytest
import torch

from interp.model.config import LatentTransformerConfig
from interp.model.layout import ExpertRound, QLearningRound
from interp.model.transformer import HookedLatentTransformer
from interp.tasks import experts, mdp


@pytest.fixture(scope="session")
def untrained() -> HookedLatentTransformer:
    """The learned models' architecture, small, in float64."""
    torch.manual_seed(0)
    config = LatentTransformerConfig(
        ExpertRound(3), d_model=16, n_layers=2, n_heads=2, d_head=8, d_mlp=32, init_std=0.5
    )
    return HookedLatentTransformer(config).double().eval()


@pytest.fixture(scope="session")
def untrained_q() -> HookedLatentTransformer:
    torch.manual_seed(1)
    config = LatentTransformerConfig(
        QLearningRound(3, 2), d_model=16, n_layers=2, n_heads=2, d_head=8, d_mlp=32, init_std=0.5
    )
    return HookedLatentTransformer(config).double().eval()


@pytest.fixture(scope="session")
def expert_episodes() -> experts.ExpertEpisodes:
    return experts.sample(n_episodes=6, n_rounds=8, n_experts=3, seed=0)


@pytest.fixture(scope="session")
def mdp_episodes() -> mdp.MDPEpisodes:
    return mdp.sample(n_episodes=6, n_rounds=8, n_states=3, n_actions=2, seed=0)
