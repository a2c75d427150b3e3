"""The gates of PyTorch's fused recurrent cells and layers, as submodules that can be looked into.

``nn.GRUCell``, ``nn.LSTMCell``, ``nn.GRU`` and ``nn.LSTM`` compute in one kernel, so no hook sees a gate. Their open
form here computes the same with the module's own weights, gate by gate, to rounding (a test holds it). The gates of
several layers are numbered: ``reset_1``, ``reset_2``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class _Open(nn.Module):
    """A cell's gates; each is a submodule that passes its value on."""

    gates: tuple[str, ...]

    def __init__(self, cell: Any) -> None:
        super().__init__()
        self.of = [cell]  # in a list: the weights stay the cell's, under its names
        for gate in self.gates:
            self.add_module(gate, nn.Identity())

    def sums(self, x: Tensor, h: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """What each gate is given by the input, and by the carried state."""
        cell = self.of[0]
        given = nn.functional.linear(x, cell.weight_ih, cell.bias_ih)
        kept = nn.functional.linear(h, cell.weight_hh, cell.bias_hh)
        return given.chunk(len(self.gates), 1), kept.chunk(len(self.gates), 1)

    @contextmanager
    def instead(self) -> Iterator[None]:
        """While it is open, the cell computes in this form."""
        cell = self.of[0]
        cell.forward = self.forward
        try:
            yield
        finally:
            del cell.forward


class OpenGRU(_Open):
    """``nn.GRUCell``: gates ``reset``, ``update`` and ``new``."""

    gates = ("reset", "update", "new")

    def forward(self, x: Tensor, h: Tensor | None = None) -> Tensor:
        h = x.new_zeros(len(x), self.of[0].hidden_size) if h is None else h
        (x_r, x_z, x_n), (h_r, h_z, h_n) = self.sums(x, h)
        reset, update = (
            self.get_submodule("reset")((x_r + h_r).sigmoid()),
            self.get_submodule("update")((x_z + h_z).sigmoid()),
        )
        new = self.get_submodule("new")((x_n + reset * h_n).tanh())
        return new + update * (h - new)


class OpenLSTM(_Open):
    """``nn.LSTMCell``: gates ``input``, ``forget``, ``new`` and ``output``."""

    gates = ("input", "forget", "new", "output")

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        nothing = x.new_zeros(len(x), self.of[0].hidden_size)
        h, c = (nothing, nothing) if state is None else state
        sums = [given + kept for given, kept in zip(*self.sums(x, h), strict=True)]
        made = (torch.sigmoid, torch.sigmoid, torch.tanh, torch.sigmoid)
        taken, kept, new, shown = (
            self.get_submodule(gate)(act(total)) for gate, act, total in zip(self.gates, made, sums, strict=True)
        )
        c = kept * c + taken * new
        return shown * c.tanh(), c


class _Layer:
    """One layer of an ``nn.GRU`` or ``nn.LSTM``, under the names that a cell gives its weights."""

    def __init__(self, rnn: nn.RNNBase, layer: int) -> None:
        self.rnn, self.layer, self.hidden_size = rnn, layer, rnn.hidden_size

    def _weight(self, name: str) -> Any:
        return getattr(self.rnn, f"{name}_l{self.layer}", None)  # a layer may have no bias

    weight_ih = property(lambda self: self._weight("weight_ih"))
    weight_hh = property(lambda self: self._weight("weight_hh"))
    bias_ih = property(lambda self: self._weight("bias_ih"))
    bias_hh = property(lambda self: self._weight("bias_hh"))


class OpenLayers(_Open):
    """``nn.GRU`` and ``nn.LSTM`` of one direction, for sequences in a batch: every layer is an open cell."""

    def __init__(self, rnn: nn.RNNBase) -> None:
        self.gates = gates(rnn)
        super().__init__(rnn)
        form = _OF_LAYERS[type(rnn)]
        self.layers = [form(_Layer(rnn, layer)) for layer in range(rnn.num_layers)]
        for layer, opened in enumerate(self.layers):
            for gate in form.gates:
                opened.add_module(gate, self.get_submodule(_numbered(gate, layer, rnn.num_layers)))

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        rnn = self.of[0]
        time = 1 if rnn.batch_first else 0
        several = state if isinstance(state, tuple) else () if state is None else (state,)
        after = []
        for layer, opened in enumerate(self.layers):
            now: Any = None
            if several:
                now = tuple(part[layer] for part in several) if isinstance(state, tuple) else several[0][layer]
            shown = []
            for x_t in x.unbind(time):
                now = opened(x_t, now)
                shown.append(now[0] if isinstance(now, tuple) else now)
            x = torch.stack(shown, time)
            after.append(now if isinstance(now, tuple) else (now,))
        parts = tuple(torch.stack(part) for part in zip(*after, strict=True))
        return x, parts if len(parts) > 1 else parts[0]


OPEN: dict[type[nn.Module], type[_Open]] = {
    nn.GRUCell: OpenGRU,
    nn.LSTMCell: OpenLSTM,
    nn.GRU: OpenLayers,
    nn.LSTM: OpenLayers,
}
"""Fused cells and layers by class, with their open form."""
_OF_LAYERS: dict[type[nn.Module], type[_Open]] = {nn.GRU: OpenGRU, nn.LSTM: OpenLSTM}


def _numbered(gate: str, layer: int, n_layers: int) -> str:
    return gate if n_layers == 1 else f"{gate}_{layer + 1}"


def gates(part: nn.Module) -> tuple[str, ...]:
    """The names of the gates that can be looked into; none where a module is no fused cell or layers of one direction.

    >>> gates(nn.GRUCell(2, 3)), gates(nn.GRU(2, 3, num_layers=2))[-2:], gates(nn.Linear(2, 3))
    (('reset', 'update', 'new'), ('update_2', 'new_2'), ())
    """
    if isinstance(part, nn.RNNBase):
        of, plain = _OF_LAYERS.get(type(part)), not part.bidirectional and not part.proj_size
        if of is None or not plain:
            return ()
        several = range(part.num_layers)
        return tuple(_numbered(gate, layer, part.num_layers) for layer in several for gate in of.gates)
    return OPEN[type(part)].gates if type(part) in OPEN else ()
