"""Regimes of prediction with expert advice: how the experts' accuracies are drawn, and how they
change over rounds.

A regime has an interval for each expert: the intervals in ``first`` for the first experts, and
``rest`` for every further expert. An accuracy is uniform in its interval; an interval of width zero
is a fixed accuracy. A regime may also have one departure from fixed accuracies and independent
experts: switching, drift or shared predictions. Experts are permuted after their accuracies are
drawn. The paper states most regimes for 4 experts. Sources: the paper's section 3.1, its appendices
on training, on robustness and on LLM experiments, and its code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from interp.support.checks import checked, checked_fields, integer
from interp.support.errors import require, require_known

Bounds = tuple[float, float]
_PARAMETERS = ("first", "rest", "switch_every", "drift_std", "drift_bounds", "correlation")
"""Keys that :attr:`ExpertRegime.params` may have."""


@dataclass(frozen=True)
@checked_fields
class ExpertRegime:
    """A regime: the distribution from which experts' accuracies are drawn, and how accuracies
    change over rounds. At most one of ``switch_every``, ``drift_std`` and ``correlation`` has an
    effect in a regime.

    Args:
        name: name of the regime.
        description: one line about it.
        rest: interval (low, high) from which the accuracies of all experts that have no interval in
            ``first`` are drawn.
        first: intervals (low, high) for the first experts, one each; empty if all experts have the
            interval ``rest``.
        min_experts: smallest allowed number of experts.
        switch_every: number of rounds after which accuracies rotate among the experts by a random
            number of places, so that the best expert changes; None for never.
        drift_std: standard deviation of a Gaussian step that is added to each accuracy in each
            round; None for no drift.
        drift_bounds: interval to which drifting accuracies are clipped.
        correlation: probability, in each round, that all experts give the same advice. This advice
            is right with a probability equal to the mean accuracy of the experts.

    To use a variant of a regime, make a changed copy and pass it in place of a name:

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
        """Refuse bounds and rates out of range, and more than one of ``switch_every``, ``drift_std``
        and ``correlation``.
        """
        regime = f"regime {self.name!r}"
        switch_every, drift_std = self.switch_every, self.drift_std
        correlation = self.correlation
        # `first` has an interval for each of the first experts, `rest` is that of all others.
        for low, high in (*self.first, self.rest, self.drift_bounds):
            require(
                0 <= low <= high <= 1, f"{regime}: ({low}, {high}) is not an interval in [0, 1]"
            )
        require(
            0 <= correlation <= 1,
            f"{regime}: correlation {correlation} is not in [0, 1]",
        )
        # The ways to depart from experts with constant accuracies who err independently.
        departures = [switch_every, drift_std, correlation or None]  # a correlation of 0 is none
        require(
            departures.count(None) >= 2,  # of the three, at most one has an effect
            f"{regime}: give only one of switch_every, drift_std and correlation",
        )
        if switch_every is not None:
            require(switch_every >= 1, f"{regime}: switch_every {switch_every} must be >= 1")
            require(self.min_experts >= 2, f"{regime}: switching needs min_experts >= 2")
        require(
            drift_std is None or drift_std > 0,
            f"{regime}: drift_std {drift_std} must be > 0",
        )

    @checked
    def list_intervals(self, n_experts: int) -> tuple[Bounds, ...]:
        """Return the intervals (low, high) from which the accuracies of ``n_experts`` experts are
        drawn: those in the field ``first``, then the field ``rest`` for every further expert. The
        order says nothing, because the sampler permutes the experts.
        """
        integer("n_experts", n_experts, most=1_000_000)
        require(
            n_experts >= self.min_experts,
            f"regime {self.name!r} needs n_experts >= {self.min_experts}, got {n_experts}",
        )
        slots = self.first + (self.rest,) * n_experts  # at least as many as experts
        return slots[:n_experts]

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of this regime that have an effect, {name: value that JSON can store}."""
        params: dict[str, Any] = {
            "first": [list(bounds) for bounds in self.first],
            "rest": list(self.rest),
        }
        if self.switch_every is not None:
            params["switch_every"] = self.switch_every
        if self.drift_std is not None:
            params |= {"drift_std": self.drift_std, "drift_bounds": list(self.drift_bounds)}
        if self.correlation:
            params["correlation"] = self.correlation
        return params

    @classmethod
    @checked
    def from_params(cls, name: str, params: Mapping[str, Any]) -> ExpertRegime:
        """Make a regime from its parameters.

        Args:
            name: name of the regime.
            params: the parameters, {name: value}, such as ``{"rest": [0.3, 0.9]}``; the property
                :attr:`params` of a regime returns them.
        """
        for parameter in params:
            require_known("parameter of a regime", parameter, _PARAMETERS)
        require(
            "rest" in params,
            f"the parameters of regime {name!r} must hold 'rest', the interval (low, high) of every further expert's "
            f"accuracy, got {sorted(params)}; take the `params` of a regime",
        )
        min_experts = 2 if "switch_every" in params else 1
        return cls(name, "", min_experts=min_experts, **params)


_FIXED_REGIMES = (
    ExpertRegime("uniform", "all U[.3, .9]: the training distribution", rest=(0.3, 0.9)),
    ExpertRegime("wide", "all U[0, 1]: no prior knowledge", rest=(0.0, 1.0)),
    ExpertRegime(
        "stratified",
        "U[.9, 1], U[.65, .8], U[.55, .7], then U[.45, .6] for every further expert",
        rest=(0.45, 0.6),
        first=((0.9, 1.0), (0.65, 0.8), (0.55, 0.7)),
    ),
    ExpertRegime(
        "flat", "one U[.6, .7], the others U[.4, .6]", rest=(0.4, 0.6), first=((0.6, 0.7),)
    ),
    ExpertRegime(
        "anti-signal",
        "one U[.6, .7], one U[0, .1] that is nearly always wrong, the others U[.4, .6]",
        rest=(0.4, 0.6),
        first=((0.6, 0.7), (0.0, 0.1)),
        min_experts=2,
    ),
    ExpertRegime(
        "1-real", "1 U[.6, .85], the others exactly .5", rest=(0.5, 0.5), first=((0.6, 0.85),)
    ),
    ExpertRegime(
        "2-real",
        "2 U[.6, .85], the others exactly .5",
        rest=(0.5, 0.5),
        first=((0.6, 0.85), (0.6, 0.85)),
        min_experts=2,
    ),
    ExpertRegime(
        "3-real",
        "3 U[.6, .85], the others exactly .5",
        rest=(0.5, 0.5),
        first=((0.6, 0.85), (0.6, 0.85), (0.6, 0.85)),
        min_experts=3,
    ),
    ExpertRegime(
        "4-real",
        "4 U[.6, .85], the others exactly .5",
        rest=(0.5, 0.5),
        first=((0.6, 0.85), (0.6, 0.85), (0.6, 0.85), (0.6, 0.85)),
        min_experts=4,
    ),
    ExpertRegime(
        "dominant", "one exactly .9, the others U[.35, .5]", rest=(0.35, 0.5), first=((0.9, 0.9),)
    ),
    ExpertRegime("close", "all U[.55, .65]", rest=(0.55, 0.65)),
)
"""Regimes with fixed, independent accuracies."""
_CHANGING_REGIMES = (
    ExpertRegime(
        "switch-10",
        "every 10 rounds a new best expert (.85), the others .4",
        rest=(0.4, 0.4),
        first=((0.85, 0.85),),
        min_experts=2,
        switch_every=10,
    ),
    ExpertRegime(
        "switch-25",
        "every 25 rounds a new best expert (.85), the others .4",
        rest=(0.4, 0.4),
        first=((0.85, 0.85),),
        min_experts=2,
        switch_every=25,
    ),
    ExpertRegime(
        "switch-50",
        "every 50 rounds a new best expert (.85), the others .4",
        rest=(0.4, 0.4),
        first=((0.85, 0.85),),
        min_experts=2,
        switch_every=50,
    ),
    ExpertRegime(
        "drift",
        "all U[.4, .8] at first, + N(0, .02) each round, clipped to [.2, .95]",
        rest=(0.4, 0.8),
        drift_std=0.02,
    ),
    ExpertRegime(
        "correlated-0.3",
        "all U[.4, .8]; with probability 0.3 all share one prediction, right with the mean accuracy",
        rest=(0.4, 0.8),
        correlation=0.3,
    ),
    ExpertRegime(
        "correlated-0.7",
        "all U[.4, .8]; with probability 0.7 all share one prediction, right with the mean accuracy",
        rest=(0.4, 0.8),
        correlation=0.7,
    ),
    ExpertRegime(
        "correlated-0.9",
        "all U[.4, .8]; with probability 0.9 all share one prediction, right with the mean accuracy",
        rest=(0.4, 0.8),
        correlation=0.9,
    ),
)
"""Regimes with changing accuracies, or with correlated experts."""
_GOOD_EXPERT_REGIMES = (
    ExpertRegime(
        "1-high-quality", "1 U[.9, 1], the others U[.3, .9]", rest=(0.3, 0.9), first=((0.9, 1.0),)
    ),
    ExpertRegime(
        "2-high-quality",
        "2 U[.9, 1], the others U[.3, .9]",
        rest=(0.3, 0.9),
        first=((0.9, 1.0), (0.9, 1.0)),
        min_experts=2,
    ),
    ExpertRegime(
        "3-high-quality",
        "3 U[.9, 1], the others U[.3, .9]",
        rest=(0.3, 0.9),
        first=((0.9, 1.0), (0.9, 1.0), (0.9, 1.0)),
        min_experts=3,
    ),
    ExpertRegime(
        "4-high-quality",
        "4 U[.9, 1], the others U[.3, .9]",
        rest=(0.3, 0.9),
        first=((0.9, 1.0), (0.9, 1.0), (0.9, 1.0), (0.9, 1.0)),
        min_experts=4,
    ),
)
_REGIMES = (*_FIXED_REGIMES, *_CHANGING_REGIMES, *_GOOD_EXPERT_REGIMES)
REGIMES: Mapping[str, ExpertRegime] = MappingProxyType({regime.name: regime for regime in _REGIMES})


@checked
def get_regime(name: str | ExpertRegime) -> ExpertRegime:
    """Return the regime called ``name``; if ``name`` is an :class:`ExpertRegime`, return it
    unchanged.
    """
    if isinstance(name, ExpertRegime):
        return name
    require_known("regime", name, REGIMES, limit=len(REGIMES))
    return REGIMES[name]
