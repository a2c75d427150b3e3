"""What the parts of the Q-learning circuit share: its residual basis, its sizes, its rates, and the variant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from circuits.basis import Basis, Direction
from circuits.heads import Term, copy


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
        return tuple(f"s_{i}" for i in range(1, self.n_states + 1))

    @property
    def actions(self) -> tuple[str, ...]:
        return tuple(f"a_{i}" for i in range(1, self.n_actions + 1))

    @property
    def sink(self) -> Direction:
        return self.basis["id"]["BOS"]

    @property
    def acting(self) -> Direction:
        """id[A]: is it an action?"""
        return self.basis["id"].sum(self.actions)

    def move(self, labels: Sequence[str], source: str, target: str, scale: float = 1.0) -> tuple[Term, ...]:
        return copy(self.basis, labels, source, target, scale)
