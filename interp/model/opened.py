"""PyTorch's fused recurrent cells computed gate by gate, so that hooks can be attached to the
gates.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

_GATES_OF_AN_RNN = ("new",)
_GATES_OF_A_GRU = ("reset", "update", "new")
_GATES_OF_AN_LSTM = ("input", "forget", "new", "output")
_GATES: dict[type[nn.Module], tuple[str, ...]] = {
    nn.RNNCell: _GATES_OF_AN_RNN,
    nn.RNN: _GATES_OF_AN_RNN,
    nn.GRUCell: _GATES_OF_A_GRU,
    nn.GRU: _GATES_OF_A_GRU,
    nn.LSTMCell: _GATES_OF_AN_LSTM,
    nn.LSTM: _GATES_OF_AN_LSTM,
}
"""Names of the gates of each class of recurrent cells and layers."""


def gates(part: nn.Module) -> tuple[str, ...]:
    """Return the names of the gates of one of PyTorch's recurrent cells or layers, such as
    ("reset", "update", "new") for a GRU. Hooks can be attached to these gates.

    Gates of several layers are numbered, as in ``reset_1``. The result is empty for any other
    module, for bidirectional layers, for an LSTM with projections, and if ``forward`` was replaced.
    """
    names = _GATES.get(type(part), ())
    if "forward" in vars(part):
        return ()
    if not names or isinstance(part, nn.RNNCellBase):
        return names
    layers: Any = part
    if layers.bidirectional or layers.proj_size:
        return ()
    if layers.num_layers == 1:
        return names
    numbers = range(1, layers.num_layers + 1)
    return tuple(f"{name}_{number}" for number, name in product(numbers, names))


class OpenedCell(nn.Module):
    """One of PyTorch's recurrent cells or layers, computed gate by gate. Each gate is a submodule,
    so hooks can be attached to it.

    PyTorch computes all gates in one fused kernel. This class uses the same weights; the results
    are equal up to rounding (a test compares them).

    Args:
        fused: the recurrent cell or layer, such as a ``torch.nn.GRUCell``.
    """

    def __init__(self, fused: Any) -> None:
        super().__init__()
        self._fused = [fused]  # in a list: the weights stay the fused module's, under its names
        for gate in gates(fused):
            self.add_module(gate, nn.Identity())

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Open a context in which a call of PyTorch's module (the argument ``fused``) runs this
        module instead, gate by gate.
        """
        fused = self._fused[0]
        fused.forward = self.forward
        try:
            yield
        finally:
            del fused.forward

    def forward(self, x: Tensor, state: Any = None) -> Any:
        """Compute gate by gate what PyTorch's module returns, and return it in the same form. A
        cell returns the new state; a layer returns the outputs and the last state.

        Args:
            x, state: the input and the state, in the form that PyTorch's module takes; None for a
                state of zeros.
        """
        fused = self._fused[0]
        if isinstance(state, Tensor):
            state = (state,)
        if isinstance(fused, nn.RNNCellBase):
            state = self._step(x, state, "", "")
            return state if len(state) > 1 else state[0]
        time_axis = 1 if fused.batch_first else 0
        last_states = []  # for each layer (h,), or (h, c)
        for layer in range(fused.num_layers):
            state_of_layer = None if state is None else tuple(part[layer] for part in state)
            gate_number = f"_{layer + 1}" if fused.num_layers > 1 else ""
            outputs = []
            for x_t in x.unbind(time_axis):
                state_of_layer = self._step(x_t, state_of_layer, f"_l{layer}", gate_number)
                outputs.append(state_of_layer[0])
            x = torch.stack(outputs, time_axis)  # input of the next layer
            if layer < fused.num_layers - 1:
                x = nn.functional.dropout(x, fused.dropout, fused.training)
            last_states.append(state_of_layer)
        parts = tuple(torch.stack(part) for part in zip(*last_states, strict=True))
        return x, parts if len(parts) > 1 else parts[0]

    def _step(
        self, x: Tensor, state: Any, weight_suffix: str, gate_suffix: str
    ) -> tuple[Tensor, ...]:
        """Compute one time step of one layer.

        Args:
            x: the input, ``[batch, input]``.
            state: ``(h,)``, or ``(h, c)`` for an LSTM; zeros when None.
            weight_suffix: ending of the names of the layer's weights, such as "_l0"; empty for a
                cell.
            gate_suffix: ending of the names of the layer's gates, such as "_1"; empty if there is
                one layer.

        Returns:
            The state after the step.
        """
        fused = self._fused[0]
        names = _GATES[type(fused)]
        if state is None:
            zeros = x.new_zeros(len(x), fused.hidden_size)
            state = (zeros, zeros)  # only an LSTM reads the second part, c
        h = state[0]
        # One [batch, width] for each gate, in the order of names, which is PyTorch's.
        from_x = self._project(x, f"ih{weight_suffix}").chunk(len(names), 1)
        from_h = self._project(h, f"hh{weight_suffix}").chunk(len(names), 1)
        # Identity modules, to which hooks on the gates are attached.
        points = [self.get_submodule(f"{name}{gate_suffix}") for name in names]
        if len(names) == 1:  # an RNN
            activate = getattr(torch, fused.nonlinearity)
            return (points[0](activate(from_x[0] + from_h[0])),)
        if len(names) == 3:  # a GRU
            reset = points[0]((from_x[0] + from_h[0]).sigmoid())
            update = points[1]((from_x[1] + from_h[1]).sigmoid())
            new = points[2]((from_x[2] + reset * from_h[2]).tanh())
            return (new + update * (h - new),)
        input_gate = points[0]((from_x[0] + from_h[0]).sigmoid())
        forget_gate = points[1]((from_x[1] + from_h[1]).sigmoid())
        new = points[2]((from_x[2] + from_h[2]).tanh())
        output_gate = points[3]((from_x[3] + from_h[3]).sigmoid())
        c = forget_gate * state[1] + input_gate * new
        return output_gate * c.tanh(), c

    def _project(self, x: Tensor, suffix: str) -> Tensor:
        fused = self._fused[0]
        bias = getattr(fused, f"bias_{suffix}", None)  # a layer may have no bias
        return nn.functional.linear(x, getattr(fused, f"weight_{suffix}"), bias)
