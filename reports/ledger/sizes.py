"""How much the ledger measures, and a measurement that both tasks share."""

from __future__ import annotations

from dataclasses import dataclass

from circuits.verification import verify_machine
from interp.core.machine import Machine
from interp.results.measure import Measure
from interp.stats.intervals import Interval
from interp.support.checks import checked_fields
from interp.support.errors import require


@dataclass(frozen=True)
@checked_fields
class Sizes:
    """How many episodes and rounds are used to measure each claim of the paper on a model.

    Attributes:
        n_episodes: episodes per regime.
        n_exact_rounds: number of rounds for which handwired machines are compared with their
            algorithm.
        seed: seed of the sampled episodes, and of the random draws in bootstraps and controls.
    """

    n_episodes: int = 256
    n_exact_rounds: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("n_episodes", "n_exact_rounds"):
            value = getattr(self, name)
            require(value >= 16, f"{name} must be 16 or more, got {value}")

    @classmethod
    def quick(cls, seed: int = 0) -> Sizes:
        """Return sizes for a quick run of a few minutes."""
        return cls(n_episodes=48, n_exact_rounds=100, seed=seed)


def measure_exactness(model: Machine, sizes: Sizes, key: str) -> list[Measure]:
    """Measure by how much a handwired machine's predictions and carried state differ from those of
    its algorithm, over all rounds of 5 episodes.

    Args:
        model: a handwired machine.
        sizes: number of rounds and the seed.
        key: key of the measure.

    Returns:
        A list with one measure. Its number is the largest absolute difference of any predicted or
        carried number, and its verdict "yes" if this is at most 1e-9.
    """
    result = verify_machine(model, n_rounds=sizes.n_exact_rounds, n_episodes=5, seed=sizes.seed)
    largest = float(result.summary()["error"].max(skipna=False))
    measure = Measure(
        key=key,
        claim="Its predictions and its state are the algorithm's in every round",
        number=Interval(largest, largest, largest),
        threshold=1e-9,
        side="below",
        unit=f"largest error over {sizes.n_exact_rounds} rounds",
        is_share=False,
        needs_control=False,
        about=model.name,
    )
    return [measure]
