"""The regimes of prediction with expert advice: how the experts' accuracies are drawn, and how they move.

A regime is data: an interval for each slot (``first``, then ``rest`` for every further expert; an interval of width
zero is a fixed accuracy) and at most one way to leave the independent fixed-accuracy model (switching, drift or
shared predictions). The paper states most regimes for 4 experts. Experts are permuted after their slots are drawn.
Sources: the paper's section 3.1 and its appendices on training, on robustness and on LLM experiments, and its code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from interp.support.checks import check_fields, checked, integer
from interp.support.errors import require, require_known
from interp.support.files import read_rows

Bounds = tuple[float, float]


@dataclass(frozen=True)
class ExpertRegime:
    """How expert accuracies are drawn.

    Args:
        first: an interval (low, high) for each of the leading experts, accuracy uniform in it.
        rest: the interval of every further expert.
        min_experts: fewer experts are refused: the regime would lose its point.
        switch_every: every so many rounds the accuracies move to a new best expert.
        drift_std: standard deviation of a Gaussian step added to each accuracy each round.
        drift_bounds: drifting accuracies are clipped to this interval after each step.
        correlation: probability that, in a round, all experts share one prediction, right with the mean accuracy.

    To run a variant, derive it and pass the record itself:

    >>> from dataclasses import replace
    >>> from interp.tasks.experts import sample
    >>> fast = replace(REGIMES["switch-10"], name="switch-5", switch_every=5)
    >>> sample(2, 20, 4, regime=fast).regime
    'switch-5'
    """

    name: str
    description: str
    rest: Bounds
    first: tuple[Bounds, ...] = ()
    min_experts: int = 1
    switch_every: int | None = None
    drift_std: float | None = None
    drift_bounds: Bounds = (0.2, 0.95)
    correlation: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        for low, high in (*self.first, self.rest, self.drift_bounds):
            require(
                0 <= low <= high <= 1,
                f"regime {self.name!r}: ({low}, {high}) is not an interval in [0, 1]",
            )
        require(
            0 <= self.correlation <= 1,
            f"regime {self.name!r}: correlation {self.correlation} is not in [0, 1]",
        )
        departures = [
            self.switch_every is not None,
            self.drift_std is not None,
            self.correlation > 0,
        ]
        require(
            sum(departures) <= 1,
            f"regime {self.name!r}: give only one of switch_every, drift_std and correlation",
        )
        if self.switch_every is not None:
            require(
                self.switch_every >= 1,
                f"regime {self.name!r}: switch_every {self.switch_every} must be >= 1",
            )
            require(
                self.min_experts >= 2, f"regime {self.name!r}: switching needs min_experts >= 2"
            )
        if self.drift_std is not None:
            require(
                self.drift_std > 0, f"regime {self.name!r}: drift_std {self.drift_std} must be > 0"
            )

    @checked
    def slots(self, n_experts: int) -> tuple[Bounds, ...]:
        """The accuracy interval of each of ``n_experts`` slots, before identities are permuted."""
        integer("n_experts", n_experts, most=1_000_000)
        require(
            n_experts >= self.min_experts,
            f"regime {self.name!r} needs n_experts >= {self.min_experts}, got {n_experts}",
        )
        return (*self.first, *(self.rest,) * n_experts)[:n_experts]

    @property
    def params(self) -> dict[str, Any]:
        """The parameters that are in use, as JSON values."""
        values = {
            "first": [list(b) for b in self.first],
            "rest": list(self.rest),
            "switch_every": self.switch_every,
        }
        values |= {
            "drift_std": self.drift_std,
            "drift_bounds": self.drift_std and list(self.drift_bounds),
        }
        values["correlation"] = self.correlation
        return {name: value for name, value in values.items() if value or name == "first"}


_KINDS: Mapping[str, Any] = {
    "rest": lambda text: tuple(map(float, text.split())),
    "first": lambda text: tuple(tuple(map(float, part.split())) for part in text.split(";")),
    **dict.fromkeys(("min_experts", "switch_every"), int),
    **dict.fromkeys(("drift_std", "correlation"), float),
}
_REGIMES = (
    ExpertRegime(
        **{name: _KINDS.get(name, str)(text) for name, text in row.items() if text}
    )  # empty: not given
    for row in read_rows(Path(__file__).with_name("regimes.csv"))
)
REGIMES: Mapping[str, ExpertRegime] = MappingProxyType({regime.name: regime for regime in _REGIMES})


@checked
def get_regime(name: str | ExpertRegime) -> ExpertRegime:
    """The regime called ``name``; a record is returned as it is."""
    if isinstance(name, ExpertRegime):
        return name
    require_known("regime", name, REGIMES, limit=len(REGIMES))
    return REGIMES[name]
