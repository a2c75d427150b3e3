"""What the parts of the Q-learning circuit share: its residual basis, its sizes, its rates, and the variant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from circuits.basis import Basis, Direction
from circuits.heads import Term, copy
from interp.checks import checked
from interp.errors import InputError, require


@dataclass(frozen=True)
class Wiring:
    """One variant and its parameters; arguments as in :func:`~circuits.q_learning.q_learning`, ``bound`` is M."""

    basis: Basis
    n_states: int
    n_actions: int
    variant: str
    alpha: float
    gamma: float
    bound: float
    signed: bool
    tau: float
    beta: float | None
    hardness: float | None

    @property
    def states(self) -> tuple[str, ...]:
        """The labels of the states, ``s_1, s_2, ...``."""
        return tuple(f"s_{i}" for i in range(1, self.n_states + 1))

    @property
    def actions(self) -> tuple[str, ...]:
        """The labels of the actions, ``a_1, a_2, ...``."""
        return tuple(f"a_{i}" for i in range(1, self.n_actions + 1))

    @property
    def sink(self) -> Direction:
        """The direction of the first token, which heads attend to when they have nothing to do."""
        return self.basis["id"]["BOS"]

    @property
    def acting(self) -> Direction:
        """id[A]: is it an action?"""
        return self.basis["id"].sum(self.actions)

    def move(self, labels: Sequence[str], source: str, target: str, scale: float = 1.0) -> tuple[Term, ...]:
        """Terms that copy ``labels`` from block ``source`` to block ``target``, times ``scale``."""
        return copy(self.basis, labels, source, target, scale)


@checked
def value_bound(rewards: Sequence[float], gamma: float) -> float:
    """M: the smallest power of two that is at least ``max |r| / (1 - gamma)``, hence bounds |Q|; 1 for no reward.

    >>> value_bound((0.0, 1.0), 0.9)
    16.0
    """
    message = f"rewards must be (lowest, highest), two finite numbers in order, got {rewards!r}"
    try:
        values = [float(reward) for reward in rewards]
    except (TypeError, ValueError):
        raise InputError(message) from None
    require(len(values) == 2 and all(map(math.isfinite, values)) and values[0] <= values[1], message)
    largest = max(map(abs, values)) / (1 - gamma)
    return 2.0 ** math.ceil(math.log2(largest)) if largest > 0 else 1.0
