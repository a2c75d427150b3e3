"""Handwired circuits whose state is changed after every round, by a function of the state.

    leaky = edits.leaky(interp.load("wma-handwired", n_experts=4), keep=0.9)

A round of the circuit first runs as usual. Then the state that it wrote is replaced by the edit's
function of the state before, the state after, and a memory of the edit. The memory is stored in
extra coordinates of the first latent, which nothing in the circuit reads, so that everything is
still carried in the latents. The heads are unchanged: an edited circuit is the same circuit.

States are ``[batch, ...]`` in double precision, as :meth:`~interp.core.machine.Machine.read_state`
returns them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from types import MethodType

import numpy as np
import torch
from torch import Tensor

from interp.model.transformer import HookedLatentTransformer
from interp.support.errors import require
from lab.variants import widened

Edit = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(state before the round, state after it, memory ``[batch, number]``) -> (new state, new memory).

The memory is zero at first.
"""


def edited(
    model: HookedLatentTransformer, edit: Edit, name: str, memory: int = 0
) -> HookedLatentTransformer:
    """Return the circuit with an edit of the state that it writes; untrained copies have no edit.

    Args:
        model: the circuit, a handwired model.
        edit: computes the new state and memory.
        name: name of the machine, by which edits of one circuit differ.
        memory: how many numbers the edit stores.

    Raises:
        InputError: a learned model, whose state cannot be read exactly.
    """
    require(
        model.is_handwired,
        f"{model.name!r} is a learned model; edit a handwired one, whose state is known",
    )
    first = model.config.d_model  # the memory is in the coordinates from here on
    changed = widened(model, memory) if memory else copy.deepcopy(model)
    spread = torch.linalg.pinv(changed.state_map).T  # maps a change of the state to the latents

    def write(
        machine: HookedLatentTransformer, latents: Tensor, update: Tensor, slots: Tensor
    ) -> Tensor:
        written = type(machine).write(machine, latents, update, slots)
        if not machine.is_handwired:  # an untrained copy
            return written
        before = machine.read_state(latents)
        after = machine.read_state(written)
        edited_state, next_memory = edit(before, after, latents[:, 0, first:])
        written = written + machine.layout.per_latent(edited_state - after) @ spread
        if memory:
            written[:, 0, first:] = next_memory
        return written

    changed.write = MethodType(write, changed)  # type: ignore[method-assign]
    changed.config = replace(changed.config, name=name)
    return changed.eval()


def _size(model: HookedLatentTransformer) -> int:
    """Return the number of numbers in the state."""
    return model.read_state(model.initial(1)).numel()


def leaky(model: HookedLatentTransformer, keep: float) -> HookedLatentTransformer:
    """Return the circuit with its state multiplied by ``keep`` after every round."""

    def fade(before: Tensor, after: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        return keep * after, memory

    return edited(model, fade, f"leaky {keep:g}")


def window(model: HookedLatentTransformer, rounds: float) -> HookedLatentTransformer:
    """Return the circuit with a sliding window: what a round added is subtracted ``rounds`` rounds
    later.
    """
    n = _size(model)  # the memory holds the gains of the last rounds, n numbers each, newest first

    def forget(before: Tensor, after: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        gained = (after - before).flatten(1)
        oldest = memory[:, -n:].reshape(after.shape)
        next_memory = torch.cat([gained, memory[:, :-n]], 1)
        return after - oldest, next_memory

    return edited(model, forget, f"last {rounds:g} rounds", n * int(rounds))


_CODES = 2**31
"""Number of values of the hash that seeds noise; as a fraction of it, a hash fits into a latent."""


def noisy(model: HookedLatentTransformer, sd: float) -> HookedLatentTransformer:
    """Return the circuit with Gaussian noise added to its state every round; the noise accumulates.

    The noise is seeded by a hash of the episode so far, which is carried. A run can thus be
    repeated, and the noise of an episode does not depend on other episodes in the batch.

    Args:
        model: the circuit.
        sd: standard deviation of the noise, in the state's units.
    """
    size = _size(model)
    factors = torch.arange(7, 7 + size)  # any distinct numbers, which weight the digits in the hash

    def disturb(before: Tensor, after: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        gained = (after - before).flatten(1)
        # Rounded after a shift, so that typical gains are not at the boundary between two integers,
        # where the precision of the computation would decide.
        digits = (1000 * gained + 0.123).round().long()
        # The hash so far is combined with the digits, and mixed by a linear congruential generator.
        code = (memory[:, 0] * _CODES).round().long()
        code = (31 * code + digits @ factors + 12345) % _CODES
        code = (code * 1103515245 + 12345) % _CODES
        noise = [np.random.default_rng(seed).standard_normal(size) for seed in code.tolist()]
        disturbance = torch.from_numpy(np.array(noise)).to(after)
        next_memory = (code / _CODES).to(memory).unsqueeze(-1)
        return after + sd * disturbance.reshape(after.shape), next_memory

    return edited(model, disturb, f"noise {sd:g}", 1)


def twice(model: HookedLatentTransformer) -> HookedLatentTransformer:
    """Return the circuit with a second copy of the state in its latents, which nothing reads."""

    def copy_gain(before: Tensor, after: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        return after, memory + (after - before).flatten(1)

    return edited(model, copy_gain, "two copies", _size(model))


def without_head(model: HookedLatentTransformer, head: str) -> HookedLatentTransformer:
    """Return the circuit with the output of one named head set to zero."""
    changed = copy.deepcopy(model)
    places = {}
    for layer, names in enumerate(changed.config.head_names):
        for index, name in enumerate(names):
            places[name] = (layer, index)
    require(
        head in places,
        f"{model.name!r} has no head {head!r}; its heads are {', '.join(places)}",
    )
    layer, index = places[head]
    with torch.no_grad():
        changed.blocks[layer].attn.W_O[index] = 0
    changed.config = replace(changed.config, name=f"without {head}")
    return changed
