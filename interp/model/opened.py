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


def list_gates(part: nn.Module) -> tuple[str, ...]:
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


def unwrap_single(state: tuple[Tensor, ...]) -> Any:
    """Convert the state of a recurrent cell, a tuple, to what PyTorch's cells take and return: the
    tensor itself if there is only one, ``h``, otherwise the tuple ``(h, c)``.
    """
    return state if len(state) > 1 else state[0]


def wrap_single(state: Any) -> tuple[Tensor, ...]:
    """Convert the state that a PyTorch cell took or returned to a tuple: ``(h,)`` or ``(h, c)``."""
    return state if isinstance(state, tuple) else (state,)


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
        for gate in list_gates(fused):
            self.add_module(gate, nn.Identity())

    @contextmanager
    def replace_fused(self) -> Iterator[None]:
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
        fused = self._fused[0]  # PyTorch's module, which has the weights
        if isinstance(state, Tensor):
            state = (state,)
        if isinstance(fused, nn.RNNCellBase):
            state = self._step(x, state, weight_suffix="", gate_suffix="")
            return unwrap_single(state)
        time_axis = 1 if fused.batch_first else 0
        last_states = []  # for each layer (h,), or (h, c)
        for layer in range(fused.num_layers):
            state_of_layer = None if state is None else tuple(part[layer] for part in state)
            gate_suffix = f"_{layer + 1}" if fused.num_layers > 1 else ""
            outputs = []
            for x_t in x.unbind(time_axis):
                state_of_layer = self._step(
                    x_t, state_of_layer, weight_suffix=f"_l{layer}", gate_suffix=gate_suffix
                )
                outputs.append(state_of_layer[0])
            x = torch.stack(outputs, time_axis)  # input of the next layer
            if layer < fused.num_layers - 1:
                x = nn.functional.dropout(x, fused.dropout, fused.training)
            last_states.append(state_of_layer)
        # The state of all layers, h or (h, c): [layer, batch, width] each.
        parts = tuple(torch.stack(part) for part in zip(*last_states, strict=True))
        return x, unwrap_single(parts)

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
        fused = self._fused[0]  # PyTorch's module, which has the weights
        names = _GATES[type(fused)]  # of its gates
        if state is None:
            zeros = x.new_zeros(len(x), fused.hidden_size)
            state = (zeros, zeros)  # h, and c, which only an LSTM reads
        h = state[0]
        # One [batch, width] for each gate, in the order of names, which is PyTorch's.
        from_x = self._project(x, f"ih{weight_suffix}").chunk(len(names), 1)
        from_h = self._project(h, f"hh{weight_suffix}").chunk(len(names), 1)
        sums = [x_part + h_part for x_part, h_part in zip(from_x, from_h, strict=True)]
        # Identity modules, to which hooks on the gates are attached.
        points = [self.get_submodule(f"{name}{gate_suffix}") for name in names]
        # The equations are those in the documentation of torch.nn.RNN, GRU and LSTM.
        if len(names) == 1:  # an RNN
            (new_point,) = points
            activate = getattr(torch, fused.nonlinearity)
            return (new_point(activate(sums[0])),)
        if len(names) == 3:  # a GRU
            reset_point, update_point, new_point = points
            reset_sum, update_sum, _ = sums
            reset = reset_point(reset_sum.sigmoid())
            update = update_point(update_sum.sigmoid())
            # The reset gate acts on what the state contributes, its bias included.
            new = new_point((from_x[2] + reset * from_h[2]).tanh())
            return (new + update * (h - new),)
        input_point, forget_point, new_point, output_point = points
        input_sum, forget_sum, new_sum, output_sum = sums
        input_gate = input_point(input_sum.sigmoid())
        forget_gate = forget_point(forget_sum.sigmoid())
        new = new_point(new_sum.tanh())
        output_gate = output_point(output_sum.sigmoid())
        c = forget_gate * state[1] + input_gate * new
        return output_gate * c.tanh(), c

    def _project(self, x: Tensor, suffix: str) -> Tensor:
        """Multiply an input, or a state, by the weights of all gates, and add their biases; return
        ``[batch, gate * width]``.

        Args:
            x: the input or the state, ``[batch, n]``.
            suffix: ending of the names of the weights, such as "ih_l0".
        """
        fused = self._fused[0]
        bias = getattr(fused, f"bias_{suffix}", None)  # a layer may have no bias
        return nn.functional.linear(x, getattr(fused, f"weight_{suffix}"), bias)
