"""A block that is applied several times in a round, as in a looped or depth-recurrent model: one set of weights.

What is carried, ``z``, is refined ``cycles`` times by the block, to which what the round says is given every time. The
index of a cycle stands where a layer's does, so that every tool that takes a layer takes a cycle::

    >>> import torch, interp
    >>> from torch import nn
    >>> from interp.machines.said import Said
    >>> class Looped(nn.Module):
    ...     def __init__(self, said):
    ...         super().__init__()
    ...         self.enter, self.read = nn.Linear(said.n_told, 8), nn.Linear(8 + said.n_asked, 2)
    ...         self.block = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    >>> from interp.tasks import experts
    >>> layout = experts.TASK.layout(n_experts=4)
    >>> said = Said(layout)
    >>> machine = loop(Looped(said), layout, cycles=3, shape=(8,), hear=lambda m, fed: m.enter(said.after(fed)),
    ...                read=lambda m, z, fed: m.read(torch.cat([z, said.before(fed)], 1)), name="looped")
    >>> run = interp.rollout(machine, experts.sample(2, 5, 4, seed=0), names_filter="points.cycle.2")
    >>> tuple(run.cache["points.cycle.2"].shape)                       # the block's third run in each round
    (2, 5, 8)
    >>> interp.check_machine(machine)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from interp.checks import checked, integer
from interp.errors import require
from interp.machine import Channel
from interp.machines.cells import Hear, Read
from interp.model.adapted import AdaptedMachine, Point, adapt
from interp.model.layout import RoundLayout
from interp.task import Task


@checked
def loop(
    module: nn.Module,
    task: str | Task | RoundLayout,
    *,
    cycles: int,
    shape: tuple[int, ...],
    hear: Hear,
    read: Read,
    block: str = "block",
    inject: Callable[[Any, Tensor, Tensor], Tensor] | None = None,
    **options: Any,
) -> AdaptedMachine:
    """A machine of a module with a block that loops; ``entered`` and ``cycle`` are what each run is given and gives.

    Args:
        task, options: as ``interp.adapt`` takes them.
        cycles: how often the block runs in a round; 1 where the rounds themselves are the loop.
        shape: of what is carried, without the batch axis: ``(width,)``, or ``(pos, width)``.
        hear: ``(module, fed)`` to what the round gives the block, in the shape of what is carried.
        read: ``(module, z, fed)`` to scores, from what was carried into the round, ``[batch, *shape]``.
        block: name of the submodule; it takes a tensor, and returns one of the same shape.
        inject: ``(module, z, heard)`` to what the block is given; their sum when None.
    """
    integer("cycles", cycles, 1)
    require(len(shape) in (1, 2), f"shape is (width,) or (pos, width), got {shape}")
    require(
        block in dict(module.named_modules()),
        f"block {block!r} must name a submodule; there are {', '.join(filter(None, dict(module.named_modules())))}",
    )

    def step(module: Any, carried: dict[str, Tensor], fed: Any) -> tuple[Tensor, dict[str, Tensor]]:
        z, heard, refine = carried["z"], hear(module, fed), module.get_submodule(block)
        scores = read(module, z, fed)
        for _ in range(cycles):
            z = refine(z + heard if inject is None else inject(module, z, heard))
        return scores, {"z": z}

    axes = "pos" if len(shape) == 2 else ""
    labels = tuple(f"z_{i + 1}" for i in range(shape[0])) if axes else ()
    points = {
        "entered": Point(block, of="input", times=cycles, axes=axes, labels=labels),
        "cycle": Point(block, times=cycles, axes=axes, labels=labels),
    }
    options["points"] = {**points, **(options.get("points") or {})}
    return adapt(module, task, step=step, channels=[Channel("z", shape)], **options)
