"""A known machine that is no transformer: a GRU with weights written by hand.

:func:`majority` computes Weighted Majority with fading log-weights. Its carried vector is a leaky
sum of what each expert did. It has two units per expert: the first adds +1 if expert and truth are
both 1 and -1 otherwise, the second adds +1 if both are 0 and -1 otherwise. A last unit counts
rounds. If the update gate is constant at z = ``decay`` and nothing is reset, a GRU cell computes
this sum::

    h' = z h + (1 - z) tanh(W x)        hits = (h_both_1 + h_both_0 + 2 h_rounds) / (2 (1 - z))
                                        P = sum_i softmax(log_gamma hits)_i votes_i

The state is known exactly, although it is stored in 2 n + 1 overlapping numbers. A GRU always
forgets a little. A ``decay`` of :data:`KEPT` is as close to 1 as double precision allows; its
predictions differ from Weighted Majority's by 2e-5 in 30 rounds.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from interp.core.algorithm import Algorithm
from interp.core.machine import Channel
from interp.model.adapted import AdaptedMachine, adapt
from interp.tasks.experts.families import fading_majority

KEPT = 1 - 2.0**-20
"""Decay of a machine that forgets almost nothing."""
_SURE = 40.0
"""A pre-activation for which tanh is exactly 1 in double precision."""


class Majority(nn.Module):
    """A GRU cell that sums each expert's hits, and a weighted vote by these sums."""

    def __init__(self, n_experts: int, log_gamma: float, decay: float) -> None:
        super().__init__()
        width = 2 * n_experts + 1
        self.decay = decay
        self.cell = nn.GRUCell(n_experts + 1, width, dtype=torch.float64)
        self.weigh = nn.Linear(width, n_experts, bias=False, dtype=torch.float64)
        experts = torch.eye(n_experts, dtype=torch.float64)
        rounds = torch.ones(n_experts, 1)
        # PyTorch stacks the rows of weight_ih and bias_ih: reset gate, update gate, new state.
        both_1 = slice(2 * width, 2 * width + n_experts)
        both_0 = slice(2 * width + n_experts, 3 * width - 1)
        with torch.no_grad():
            for parameter in self.cell.parameters():
                parameter.zero_()
            _, update, new = self.cell.bias_ih.split(width)
            update.fill_(torch.tensor(decay, dtype=torch.float64).logit())
            # In units of _SURE, the two weights of a unit add 2 if expert and truth both have its
            # label, and otherwise 0 or -2. With the bias of -1 its new state is 1 or -1. The last
            # unit has no weights, so that its new state is always 1.
            new[:-1] = -_SURE
            new[-1] = _SURE
            agreement = _SURE * torch.cat([experts, rounds], 1)
            self.cell.weight_ih[both_1] = agreement
            self.cell.weight_ih[both_0] = -agreement
            hits = torch.cat([experts, experts, 2 * rounds], 1)
            self.weigh.weight.copy_(log_gamma / (2 * (1 - decay)) * hits)

    def votes(self, carried: Tensor, advice: Tensor) -> Tensor:
        """Return the probability of each label, ``[batch, 2]``, from the state and the experts'
        advice (0 or 1).
        """
        weights = self.weigh(carried).softmax(-1)
        p_one = (weights * advice).sum(-1)
        return torch.stack([1 - p_one, p_one], -1)


def majority(
    n_experts: int = 4, log_gamma: float = 0.5, decay: float = KEPT, name: str = "handmade"
) -> AdaptedMachine:
    """Return the handmade GRU as a machine.

    Its state is the experts' log-weights ``[..., n_experts]``, and its hook points are the cell's
    gates.

    Args:
        n_experts: number of experts.
        log_gamma: what a hit adds to a log-weight.
        decay: factor by which a hit fades per round.
        name: name of the machine.
    """
    width = 2 * n_experts + 1
    advice_places = slice(3, 3 + 2 * n_experts, 2)  # <w> <z> e_1 p_1 ... p? y w?

    def step(
        module: Majority, carried: dict[str, Tensor], fed: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        h = carried["h"]
        advice = (fed.tokens[:, advice_places] - 3).to(h)
        truth = (fed.tokens[:, -2:-1] - 3).to(h)
        signs = 2 * torch.cat([advice, truth], 1) - 1
        return module.votes(h, advice), {"h": module.cell(signs, h)}

    module = Majority(n_experts, log_gamma, decay)
    return adapt(
        module,
        "experts",
        sizes={"n_experts": n_experts},
        step=step,
        channels=[Channel("h", (width,))],
        points={"update": "cell.update", "new": "cell.new", "weigh": "weigh"},
        read=lambda carried: module.weigh(carried["h"]),
        output="probability",
        name=name,
        algorithm=algorithm(log_gamma, decay),
    )


def algorithm(log_gamma: float = 0.5, decay: float = KEPT) -> Algorithm:
    """Return the algorithm that the machine computes."""
    return fading_majority(log_gamma, decay=decay)
