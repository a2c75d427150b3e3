"""The optimizer Muon: orthogonalised momentum for weight matrices (Jordan et al. 2024; step size as
in Liu et al. 2025).

``torch.optim.Muon`` accepts only 2-D parameters. Attention weights in this package are stacks of
matrices, one per head; each matrix of a stack is orthogonalised separately.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn

_MOMENTUM = 0.95
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic iteration: singular values go to about 1 (.7 to 1.2) in five steps."""
_ADAM_RMS = 0.2
"""Usual root mean square of AdamW's update, divided by its rate; it puts both rates on one scale."""


def is_stack(name: str, parameter: Tensor) -> bool:
    """Return True if Muon trains a parameter: a weight matrix, or a stack of them, in a block of
    the transformer. Return False for biases, embeddings and the unembedding.

    Args:
        name: name of the parameter, such as "blocks.0.attn.W_Q".
        parameter: the parameter.
    """
    is_weight = name.rpartition(".")[2].startswith("W_")
    return is_weight and name.startswith("blocks.") and parameter.ndim >= 2


def split_parameters(
    model: nn.Module,
) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Split the parameters of a transformer into those that Muon trains (:func:`is_stack`), and all
    others.
    """
    stacks = []
    others = []
    for name, parameter in model.named_parameters():
        if is_stack(name, parameter):
            stacks.append(parameter)
        else:
            others.append(parameter)
    return stacks, others


class Muon(torch.optim.Optimizer):
    """The optimizer Muon for matrices and stacks of matrices: momentum SGD that orthogonalises the
    update of each matrix.

    ``W <- (1 - lr wd) W - .2 lr sqrt(max(rows, columns)) O(g + .95 m)`` with ``m <- .95 m + g``.
    Here ``W`` is the matrix, ``g`` its gradient, ``m`` the momentum, ``wd`` the weight decay, and
    ``O`` orthogonalises. The learning rate ``lr`` is on AdamW's scale, and weight decay is
    decoupled as in AdamW.

    Args:
        parameters: the parameters to train, each with 2 or more axes.
        lr: learning rate.
        weight_decay: decoupled weight decay.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, weight_decay: float) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group["lr"], group["weight_decay"])

    def _update(self, parameter: nn.Parameter, lr: float, weight_decay: float) -> None:
        """Decay a stack of matrices, and move it along its orthogonalised momentum, in place."""
        gradient = parameter.grad
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        momentum = state["momentum"].mul_(_MOMENTUM).add_(gradient)
        # Nesterov momentum: the gradient is added to the momentum once more, ahead of the next step.
        update = orthogonalise(gradient + _MOMENTUM * momentum)
        # An orthogonal [rows, columns] matrix has the root mean square 1 / sqrt(max(rows, columns)).
        rate = _ADAM_RMS * lr * max(parameter.shape[-2:]) ** 0.5
        parameter.mul_(1 - lr * weight_decay).add_(update, alpha=-rate)


def orthogonalise(
    matrix: Float[Tensor, "*stack rows columns"],
) -> Float[Tensor, "*stack rows columns"]:
    """Return approximately ``U V^T`` of each matrix's singular value decomposition, by
    Newton-Schulz iterations.
    """
    a, b, c = _NEWTON_SCHULZ
    is_tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if is_tall else matrix
    # The iteration needs singular values of at most 1, which the Frobenius norm bounds; 0 stays 0.
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-7)
    for _ in range(5):
        square = x @ x.mT  # the smaller of the two products
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if is_tall else x
