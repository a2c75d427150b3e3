"""Copies of a machine with fresh random weights, in which no trained number remains."""

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
    """Initialise weights anew: call the method ``reset_parameters`` of every submodule that has
    it.
    """
    for part in module.modules():
        reset = getattr(part, "reset_parameters", None)
        if reset is not None:
            reset()


def draw_anew(
    machine: _Machine, seed: int, draw: Callable[[_Machine], object] = reset_parameters
) -> _Machine:
    """Return a copy of a model, with fresh random weights and in evaluation mode. The global random
    generator is not changed.

    Args:
        machine: the model; it keeps its weights.
        seed: seed of the new weights, which are the same on every device.
        draw: function that is called with the copy and initialises its weights.
    """
    fresh = copy.deepcopy(machine).cpu()
    weights = _select_real(fresh.named_parameters())
    buffers = _select_real(fresh.named_buffers())
    buffers_before = {name: buffer.clone() for name, buffer in buffers.items()}
    version_before = machine.weights_version()
    # DRAWING is a lock: only one thread at a time may seed PyTorch's global generator.
    with DRAWING, torch.random.fork_rng(devices=[]), torch.no_grad():
        # Whatever is not initialised below is then still NaN, however a module stores or uses it.
        for tensor in (*weights.values(), *buffers.values()):
            tensor.fill_(torch.nan)
        torch.default_generator.manual_seed(seed)
        draw(fresh)
        has_reset = getattr(machine, "reset", None) is not None
        draws_nothing = all(weight.isnan().any() for weight in weights.values())
        # A reset= that draws nothing is refused below; drawing all the rest would hide that.
        if not (has_reset and draws_nothing):
            _draw_the_rest(fresh)
        for name, buffer in buffers.items():
            if buffer.isnan().all():  # nothing initialises it: a constant, such as a mask
                buffer.copy_(buffers_before[name])
    _require_fresh_weights(machine, fresh, weights)
    # The user's reset= may have put the trained weights into the copy, or drawn over them.
    addresses = {weight.data_ptr() for weight in machine.parameters() if weight.numel()}
    is_separate = addresses.isdisjoint(weight.data_ptr() for weight in fresh.parameters())
    require(
        is_separate and machine.weights_version() == version_before,
        f"reset= of {machine.name!r} takes the trained weights, and may have drawn over them",
    )
    fresh.may_overflow = True
    return fresh.to(machine.device).eval()


def _select_real(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Any]:
    """Return the floating-point tensors by name; only these can be filled with NaN."""
    return {name: tensor for name, tensor in tensors if tensor.is_floating_point()}


def _require_fresh_weights(
    machine: HookedMachine, fresh: HookedMachine, weights: dict[str, Any]
) -> None:
    """Refuse a copy of a model in which a weight was not initialised, or which has no weights.

    :func:`draw_anew` filled the copy with NaN. A weight or buffer that still contains NaN was not
    initialised.

    Args:
        machine: the original model.
        fresh: the copy.
        weights: the copy's floating-point weights by name, as they were listed before they were
            initialised. A weight that was replaced by a new tensor since then must not be NaN
            either.
    """
    # Those of before and those of now, since initialising may have replaced a parameter.
    tensors = {
        **weights,
        **_select_real(fresh.named_buffers()),
        **_select_real(fresh.named_parameters()),
    }
    not_drawn = [name for name, tensor in tensors.items() if tensor.isnan().any()]
    missing = ", ".join(not_drawn).replace("module.", "")  # names as in the user's module
    require(
        not missing and len(weights) > 0,
        f"nothing says how to draw {missing or 'anything'} of {machine.name!r} anew; give adapt(..., reset=...)",
    )


def _draw_the_rest(module: nn.Module) -> None:
    """Initialise the weights of a copy that are still NaN.

    It calls ``reset_parameters`` of their submodule (PyTorch's convention), or
    ``_init_weights(submodule)`` of a module that contains it (the convention of the transformers
    library).
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
    """Initialise the weights of a submodule that are still NaN, and keep the others.

    Args:
        part: the submodule.
        draw: function that initialises all weights of the submodule.
        *args: arguments of ``draw``.
    """
    weights = _select_real(part.named_parameters(recurse=False)).values()
    drawn = [(weight, weight.clone()) for weight in weights if not weight.isnan().any()]
    if len(drawn) == len(weights):
        return
    draw(*args)  # writes over all weights, so those that were drawn before are put back
    for weight, value in drawn:
        weight.copy_(value)
