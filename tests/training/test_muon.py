"""Muon: updates are orthogonal, matrix by matrix, and of AdamW's size."""

import pytest
import torch

from interp.model.transformer import HookedLatentTransformer
from interp.training.goal import preset
from interp.training.trainer import Muon, _orthogonalise, is_stack


@pytest.mark.parametrize("shape", [(6, 6), (3, 8, 4), (2, 4, 16)])
def test_singular_values_become_about_one(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found = torch.linalg.svdvals(_orthogonalise(matrix))
    assert found.min() > 0.5
    assert found.max() < 1.3


def test_singular_vectors_stay_and_each_matrix_of_a_stack_is_on_its_own():
    stack = torch.randn(3, 8, 4, generator=torch.Generator().manual_seed(1))
    left, _, right = torch.linalg.svd(stack[1], full_matrices=False)
    rotated = left.T @ _orthogonalise(stack)[1] @ right.T
    torch.testing.assert_close(rotated, torch.diag(rotated.diagonal()), atol=1e-4, rtol=0)
    torch.testing.assert_close(_orthogonalise(stack)[1], _orthogonalise(stack[1]))


def test_a_step_has_the_size_of_adamw():
    """Root mean square .2 lr for a square matrix, whatever the size of the gradient."""
    weight = torch.nn.Parameter(torch.zeros(32, 32))
    weight.grad = 1e-3 * torch.randn(32, 32, generator=torch.Generator().manual_seed(2))
    Muon([weight], lr=1e-2, weight_decay=0.0).step()
    assert weight.pow(2).mean().sqrt().item() == pytest.approx(0.2e-2, rel=0.25)


def test_it_descends_and_decays():
    torch.manual_seed(0)
    target = torch.randn(2, 5, 7)
    weight = torch.nn.Parameter(torch.zeros(2, 5, 7))
    optimizer = Muon([weight], lr=0.05, weight_decay=0.0)
    for _ in range(200):
        loss = (weight - target).pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.05 * target.pow(2).sum()
    decayed = torch.nn.Parameter(torch.ones(4, 4))
    decayed.grad = torch.zeros(4, 4)
    Muon([decayed], lr=0.1, weight_decay=0.5).step()
    torch.testing.assert_close(decayed.detach(), torch.full((4, 4), 0.95))


def test_it_trains_the_matrices_of_the_blocks_only():
    model = HookedLatentTransformer(preset("qlearning", "laptop").model_config("m"))
    chosen = {name.rpartition(".")[2] for name, parameter in model.named_parameters() if is_stack(name, parameter)}
    assert chosen == {"W_Q", "W_K", "W_V", "W_O", "W_in", "W_out"}
