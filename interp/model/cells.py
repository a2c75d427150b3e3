"""The gates of PyTorch's fused recurrent cells, as submodules that can be looked into.

``nn.GRUCell`` and ``nn.LSTMCell`` compute a round in one kernel, so no hook sees a gate. Their open form here computes
the same with the cell's own weights, gate by gate, to rounding (a test holds it).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class _Open(nn.Module):
    """A cell's gates; each is a submodule that passes its value on."""

    gates: tuple[str, ...]

    def __init__(self, cell: nn.RNNCellBase) -> None:
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


OPEN: dict[type[nn.Module], type[_Open]] = {nn.GRUCell: OpenGRU, nn.LSTMCell: OpenLSTM}
"""Fused cells by class, with their open form."""
