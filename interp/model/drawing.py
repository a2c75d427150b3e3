"""Copies of a machine with fresh random weights, which no trained number reaches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from interp.model.locks import DRAWING
from interp.support.errors import require

if TYPE_CHECKING:
    from interp.model.hooked import HookedMachine

_Machine = TypeVar("_Machine", bound="HookedMachine")


def reset_parameters(module: nn.Module) -> None:
    """Draw the weights of every submodule that has a method for it."""
    for part in module.modules():
        reset = getattr(part, "reset_parameters", None)
        if reset is not None:
            reset()


def draw_anew(
    machine: _Machine, seed: int, draw: Callable[[_Machine], object] = reset_parameters
) -> _Machine:
    """Return a copy in evaluation mode with fresh weights, drawn by no global generator.

    Args:
        machine: the machine; its weights stay as they are.
        seed: the same seed draws the same weights on every device.
        draw: draws the copy's weights.
    """
    fresh = copy.deepcopy(machine).cpu()
    weights = _select_real(fresh.named_parameters())
    buffers = _select_real(fresh.named_buffers())
    constants = {name: buffer.clone() for name, buffer in buffers.items()}
    version = machine.weights_version()
    with DRAWING, torch.random.fork_rng(devices=[]), torch.no_grad():
        # What is not drawn is still not a number afterwards, however a module keeps or computes its weights.
        for tensor in (*weights.values(), *buffers.values()):
            tensor.fill_(torch.nan)
        torch.default_generator.manual_seed(seed)
        draw(fresh)
        has_reset = getattr(machine, "reset", None) is not None
        draws_nothing = all(weight.isnan().any() for weight in weights.values())
        if not (has_reset and draws_nothing):  # a reset= that draws nothing is refused below
            _draw_the_rest(fresh)
        for name, buffer in buffers.items():
            if buffer.isnan().all():  # nothing draws it: a mask, or the codes of positions
                buffer.copy_(constants[name])
    _require_drawn(machine, fresh, weights)
    addresses = {weight.data_ptr() for weight in machine.parameters() if weight.numel()}
    is_separate = addresses.isdisjoint(weight.data_ptr() for weight in fresh.parameters())
    require(
        is_separate and version == machine.weights_version(),
        f"reset= of {machine.name!r} takes the trained weights, and may have drawn over them",
    )
    fresh.may_overflow = True
    return fresh.to(machine.device).eval()


def _select_real(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Any]:
    return {name: tensor for name, tensor in tensors if tensor.is_floating_point()}


def _require_drawn(machine: HookedMachine, fresh: HookedMachine, weights: dict[str, Any]) -> None:
    """Refuse a copy in which a number was not drawn: weights that it had before, or has now.

    Args:
        machine: the original.
        fresh: the copy.
        weights: of the copy before the draw.
    """
    tensors = {
        **weights,
        **_select_real(fresh.named_buffers()),
        **_select_real(fresh.named_parameters()),
    }
    not_drawn = [name for name, tensor in tensors.items() if tensor.isnan().any()]
    missing = ", ".join(not_drawn).replace("module.", "")
    require(
        not missing and len(weights) > 0,
        f"nothing says how to draw {missing or 'anything'} of {machine.name!r} anew; give adapt(..., reset=...)",
    )


def _draw_the_rest(module: nn.Module) -> None:
    """Draw the weights that are not numbers yet: by their submodule, or by what the module says of its parts.

    ``reset_parameters`` is PyTorch's, and ``_init_weights(submodule)`` that of transformers' models.
    """
    initializers = [getattr(owner, "_init_weights", None) for owner in module.modules()]
    for part in module.modules():
        reset = getattr(part, "reset_parameters", None)
        if reset is not None:
            _draw_missing(part, reset)
        for initialize in initializers:
            if callable(initialize):
                _draw_missing(part, initialize, part)


def _draw_missing(part: nn.Module, draw: Callable[..., object], *args: nn.Module) -> None:
    """Draw the weights of a submodule that are not numbers yet; weights that are numbers stay.

    Args:
        part: the submodule.
        draw: draws all its weights.
        *args: of ``draw``.
    """
    weights = _select_real(part.named_parameters(recurse=False)).values()
    drawn = [(weight, weight.clone()) for weight in weights if not weight.isnan().any()]
    if len(drawn) == len(weights):
        return
    draw(*args)
    for weight, value in drawn:
        weight.copy_(value)
