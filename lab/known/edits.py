"""A handwired circuit that writes its state otherwise than it should: every edit is a function of the state.

    leaky = edits.leaky(interp.load("wma-handwired", n_experts=4), keep=0.9)

A round of the circuit runs as it is wired. Then the state that it wrote is exchanged for what the edit makes of the
state before, the state after and a memory of the edit's own. That memory is carried in further coordinates of the
first latent, which nothing in the circuit reads, so what passes from round to round passes in the latents as in every
machine. The heads are untouched: an edited circuit is the same circuit.

States are ``[batch, ...]`` as :meth:`~interp.core.machine.Machine.read_state` arranges them, in double precision.
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
"""(state before the round, state that the circuit makes of it, memory ``[batch, number]``) to the state that is left
and the memory that is left; the memory is zero at first."""


def edited(
    model: HookedLatentTransformer, edit: Edit, name: str, memory: int = 0
) -> HookedLatentTransformer:
    """The circuit with an edit of what it writes; its untrained copies have none.

    Args:
        name: of the machine, by which edits of one circuit are told apart.
        memory: how many numbers the edit carries.

    Raises:
        InputError: a learned model, whose state cannot be read exactly.
    """
    require(
        model.is_handwired,
        f"{model.name!r} is a learned model; edit a handwired one, whose state is known",
    )
    first = model.config.d_model
    changed = widened(model, memory) if memory else copy.deepcopy(model)
    spread = torch.linalg.pinv(changed.state_map).T

    def write(
        own: HookedLatentTransformer, latents: Tensor, update: Tensor, slots: Tensor
    ) -> Tensor:
        written = type(own).write(own, latents, update, slots)
        if not own.is_handwired:  # an untrained copy
            return written
        before, after = own.read_state(latents), own.read_state(written)
        state, kept = edit(before, after, latents[:, 0, first:])
        written = written + own.layout.per_latent(state - after) @ spread
        if memory:
            written[:, 0, first:] = kept
        return written

    changed.write = MethodType(write, changed)  # type: ignore[method-assign]
    changed.config = replace(changed.config, name=name)
    return changed.eval()


def _size(model: HookedLatentTransformer) -> int:
    """How many numbers the state has."""
    return int(model.read_state(model.initial(1)).numel())


def leaky(model: HookedLatentTransformer, keep: float) -> HookedLatentTransformer:
    """The state fades by the factor ``keep`` after every round."""
    return edited(model, lambda before, after, memory: (keep * after, memory), f"leaky {keep:g}")


def window(model: HookedLatentTransformer, rounds: int) -> HookedLatentTransformer:
    """What a round added is taken away again when it is ``rounds`` rounds old."""
    n = _size(model)

    def forget(before: Tensor, after: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        gained = (after - before).flatten(1)
        oldest = memory[:, -n:].reshape(after.shape)
        return after - oldest, torch.cat([gained, memory[:, :-n]], 1)

    return edited(model, forget, f"last {rounds} rounds", n * rounds)


def noisy(model: HookedLatentTransformer, sd: float) -> HookedLatentTransformer:
    """Gaussian noise of standard deviation ``sd``, in the state's units, is added every round, and stays.

    It is drawn from what the episode has gone through so far, of which a code is carried: a run can be repeated, and no
    episode's noise depends on another's.
    """
    size = _size(model)

    def disturb(before: Tensor, after: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        gained = (1000 * (after - before).flatten(1) + 0.123).round().long()
        code = (
            31 * (memory[:, 0] * 2**31).round().long() + gained @ torch.arange(7, 7 + size) + 12345
        ) % 2**31
        code = (code * 1103515245 + 12345) % 2**31
        drawn = [np.random.default_rng(int(one)).standard_normal(size) for one in code]
        noise = torch.from_numpy(np.array(drawn)).to(after).reshape(after.shape)
        return after + sd * noise, (code / 2.0**31).to(memory).unsqueeze(-1)

    return edited(model, disturb, f"noise {sd:g}", 1)


def twice(model: HookedLatentTransformer) -> HookedLatentTransformer:
    """A second copy of the state is carried, which nothing reads."""

    def keep(before: Tensor, after: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        return after, memory + (after - before).flatten(1)

    return edited(model, keep, "two copies", _size(model))


def without_head(model: HookedLatentTransformer, head: str) -> HookedLatentTransformer:
    """The circuit with one head that writes nothing, by the name of the head."""
    cut = copy.deepcopy(model)
    found = [
        (layer, row.index(head)) for layer, row in enumerate(cut.config.head_names) if head in row
    ]
    known = ", ".join(name for row in cut.config.head_names for name in row)
    require(len(found) == 1, f"{model.name!r} has no head {head!r}; its heads are {known}")
    layer, index = found[0]
    with torch.no_grad():
        cut.blocks[layer].attn.W_O[index] = 0
    cut.config = replace(cut.config, name=f"without {head}")
    return cut
