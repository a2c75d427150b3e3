"""Recurrent cells and layers: what passes is ``h``, of an LSTM ``h`` and ``c``, of several layers one row each.

A GRU that was fitted to a task with an input format of its own; the two functions say that format::

    >>> import torch, interp
    >>> from torch import nn
    >>> class Fitted(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.rnn, self.head = nn.GRU(5, 8, num_layers=2, batch_first=True), nn.Linear(12, 2)
    >>> def signs(fed, labels):
    ...     return 2.0 * (fed.tokens[:, machine_layout.positions(labels)] - machine_layout.token_ids["q0"]) - 1
    >>> from interp.tasks import experts
    >>> machine_layout, votes = experts.TASK.layout(n_experts=4), [f"p_{i + 1}" for i in range(4)]
    >>> machine = cell(Fitted(), machine_layout, core="rnn", hear=lambda m, fed: signs(fed, [*votes, "y"]),
    ...                read=lambda m, h, fed: m.head(torch.cat([h, signs(fed, votes)], 1)), name="fitted")
    >>> [label for channel in machine.channels for label in channel.labels], list(machine.points)[1:4]
    (['h_1', 'h_2'], ['reset_1', 'update_1', 'new_1'])
    >>> interp.check_machine(machine)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from interp.checks import checked
from interp.errors import require
from interp.machine import Channel
from interp.model.adapted import AdaptedMachine, adapt
from interp.model.cells import gates
from interp.model.layout import RoundLayout
from interp.task import Task

_Tree = dict[str, Tensor]
Hear = Callable[[Any, Any], Tensor]
"""``(module, fed)`` to what the model hears of a round."""
Read = Callable[[Any, Tensor, Any], Tensor]
"""``(module, state, fed)`` to the scores ``[batch, outcome]``."""


@checked
def cell(
    module: nn.Module,
    task: str | Task | RoundLayout,
    *,
    hear: Hear,
    read: Read,
    core: str = "core",
    hears: Literal["after", "before"] = "after",
    first: Callable[[Any], Tensor] | None = None,
    show_gates: bool = True,
    **options: Any,
) -> AdaptedMachine:
    """A machine of a module with a recurrent cell or layers in it.

    Args:
        task, options: as ``interp.adapt`` takes them: ``sizes``, ``name``, further ``points``, ``output``, ...
        hear: ``(module, fed)`` to the cell's input ``[batch, input]``.
        read: ``(module, h, fed)`` to scores; ``h`` is ``[batch, width]``, of several layers the top one's.
        core: name of the submodule: ``nn.GRUCell``, ``nn.LSTMCell``, or ``nn.GRU``, ``nn.LSTM`` of one direction.
        hears: "after": the prediction is read from what is carried, and then the cell hears the round with its truth;
            "before": the cell hears the round, and the prediction is read from what it then holds.
        first: the input ``[1, input]`` that the cell has heard before round 0, where there is one.
        show_gates: whether the gates are points. The cell then computes in its open form, which equals PyTorch's kernel
            to rounding; without, bit for bit.
    """
    parts = dict(module.named_modules())
    part = parts.get(core)
    require(
        isinstance(part, nn.GRUCell | nn.LSTMCell) or (isinstance(part, nn.GRU | nn.LSTM) and bool(gates(part))),
        f"core {core!r} must name an nn.GRUCell, nn.LSTMCell, or an nn.GRU or nn.LSTM of one direction without "
        f"projections, got {type(part).__name__}; the module has {', '.join(filter(None, parts))}",
    )
    cells: Any = part
    n_layers, names = getattr(cells, "num_layers", 1), "hc" if isinstance(part, nn.LSTMCell | nn.LSTM) else "h"
    shape = (cells.hidden_size,) if n_layers == 1 else (n_layers, cells.hidden_size)

    def run(module: Any, x: Tensor, carried: _Tree) -> _Tree:
        state = _state(module.get_submodule(core), x, tuple(carried[name] for name in names))
        return dict(zip(names, state, strict=True))

    def step(module: Any, carried: _Tree, fed: Any) -> tuple[Tensor, _Tree]:
        held = run(module, hear(module, fed), carried) if hears == "before" else carried
        scores = read(module, held["h"] if n_layers == 1 else held["h"][:, -1], fed)
        return scores, held if hears == "before" else run(module, hear(module, fed), carried)

    def start(module: Any) -> _Tree:
        x = first(module) if first else torch.empty(0)
        after = run(module, x, {name: x.new_zeros(1, *shape) for name in names})
        return {name: part[0].detach() for name, part in after.items()}

    shown = {gate: f"{core}.{gate}" for gate in gates(cells)} if show_gates else {}
    options["points"] = {**shown, **(options.get("points") or {})}
    if first is not None:
        options["initial"] = start
    return adapt(module, task, step=step, channels=[Channel(name, shape) for name in names], **options)


def _state(cells: Any, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """What cells hold after one input: each part ``[batch, width]``, or ``[batch, layer, width]`` of several layers."""
    if isinstance(cells, nn.RNNCellBase):
        held = cells(x, state if len(state) > 1 else state[0])
        return held if isinstance(held, tuple) else (held,)
    one = cells.num_layers == 1
    layers = tuple((part.unsqueeze(0) if one else part.transpose(0, 1)).contiguous() for part in state)
    _, held = cells(x.unsqueeze(1 if cells.batch_first else 0), layers if len(layers) > 1 else layers[0])
    parts = held if isinstance(held, tuple) else (held,)
    return tuple(part.squeeze(0) if one else part.transpose(0, 1) for part in parts)
