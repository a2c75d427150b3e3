"""One state decoder: it recovers what latents hold linearly, per latent or from all, and never sees what it decodes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from interp.decoder import Affine, Decoder, cross_fitted
from interp.errors import InputError


@pytest.fixture
def held() -> tuple[torch.Tensor, np.ndarray]:
    """Latents ``[12, 6, 3, 16]`` whose latent i holds row i of a state ``[12, 6, 3, 4]``, by a code of its own."""
    rng = np.random.default_rng(0)
    states = rng.normal(size=(12, 6, 3, 4))
    latents = np.einsum("btik,ikd->btid", states, rng.normal(size=(3, 4, 16))) + rng.normal(size=16)
    return torch.from_numpy(latents), states


@pytest.mark.parametrize("per_latent", [True, False])
def test_a_state_held_linearly_is_read_exactly_on_other_episodes(held, per_latent):
    latents, states = held
    decoder = Decoder.fit(latents[:8], states[:8], per_latent=per_latent)
    np.testing.assert_allclose(decoder(latents[8:]), states[8:], atol=1e-9)
    np.testing.assert_allclose(cross_fitted(latents, states, per_latent=per_latent), states, atol=1e-9)


def test_a_map_per_latent_reads_no_other_latent(held):
    latents, states = held
    decoder = Decoder.fit(latents, states, per_latent=True)
    moved = latents.clone()
    moved[:, :, 1] += 1
    changed = (decoder(moved) - decoder(latents)).abs().amax((0, 1, 3))
    assert changed[0] == changed[2] == 0 and changed[1] > 0.01


def test_a_penalty_shrinks_and_none_does_not():
    """On a napkin: x = -1, 1 and y = 2 x give the slope 2; a penalty of one mean square halves it."""
    x = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    assert Affine.fit(x, 2 * x + 5).slopes.item() == pytest.approx(2)
    halved = Affine.fit(x, 2 * x + 5, ridge=1.0)
    assert halved.slopes.item() == pytest.approx(1) and halved.middle.item() == pytest.approx(5)


def test_what_is_decoded_was_held_out():
    """States that are noise cannot be read from other noise: fitted in place they would be read perfectly."""
    rng = np.random.default_rng(1)
    latents, states = torch.from_numpy(rng.normal(size=(10, 1, 1, 12))), rng.normal(size=(10, 1, 1))
    np.testing.assert_allclose(Decoder.fit(latents, states)(latents), states, atol=1e-9)
    assert np.abs(cross_fitted(latents, states).numpy() - states).max() > 0.5


def test_what_does_not_fit_is_refused(held):
    latents, states = held
    with pytest.raises(InputError, match="at least 5 episodes, got 4"):
        cross_fitted(latents[:4], states[:4])
    with pytest.raises(InputError, match="leading axes of the latents"):
        Decoder.fit(latents, states[:8])
    with pytest.raises(InputError, match="with 3 latents"):
        Decoder.fit(latents, states[:, :, :2], per_latent=True)
