"""Verify a handwired model against its algorithm: outputs, state, and every intermediate variable.

The model runs over sampled episodes, its own state carried from round to round; at every round every location of every
variable (``circuit.sites``) is read in the forward pass and compared with ``circuit.algorithm``, run on the same
episodes. Errors are maxima over all episodes, rounds and elements. A pass means that *this* construction computes the
algorithm to rounding on these episodes; it is no evidence about a learned model. What to run on, and what error is
promised, is the machine's own :class:`~circuits.plan.VerificationPlan`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import interp.tasks
from circuits.circuit import Circuit
from circuits.compiler import compile_circuit, require_dtype
from circuits.location import Location
from circuits.plan import Size, VerificationPlan
from circuits.registry import DTYPES, CircuitRecord, build, handwired, with_defaults
from interp.algorithm import NEXT
from interp.errors import require, unknown_name
from interp.model.rollout import rollout
from interp.provenance import provenance

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Check:
    """One comparison: a variable at a location, or an output, for one size and dtype.

    Attributes:
        size: of the task, in the order of its sizes: one number, or several.
        where: hook and positions.
        error: largest absolute difference from the algorithm.
        relative: largest ``|difference| / max(1, |reference|)``.
        tolerance: what ``error`` may be at most, or ``relative`` where that is promised (``by``).
        by: "error" or "relative".
    """

    size: Size
    dtype: str
    variable: str
    where: str
    error: float
    relative: float
    tolerance: float
    by: str = "error"

    @property
    def passed(self) -> bool:
        return (self.error if self.by == "error" else self.relative) <= self.tolerance


@dataclass(frozen=True)
class VerificationResult:
    """Every check, and how to make them again.

    Attributes:
        name: of the model.
        checks: one per size, dtype, variable and location.
        settings: rounds and episodes that were run, seed, arguments, versions, git revision.
    """

    name: str
    checks: tuple[Check, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def failures(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if not check.passed)

    def to_frame(self) -> pd.DataFrame:
        """One row a check."""
        import pandas as pd

        names = ("size", "dtype", "variable", "where", "error", "relative", "tolerance", "passed")
        return pd.DataFrame([{name: getattr(check, name) for name in names} for check in self.checks])

    def summary(self) -> pd.DataFrame:
        """One row per size, dtype and variable: the worst of its locations."""
        frame = self.to_frame()
        keys = ["size", "dtype", "variable"]
        worst = frame.groupby(keys, sort=False, dropna=False)
        table = worst.agg(error=("error", "max"), relative=("relative", "max"), tolerance=("tolerance", "min"))
        return table.assign(passed=worst["passed"].all()).reset_index()


def verify(
    name: str,
    sizes: Iterable[Size] | None = None,
    n_rounds: int = 1000,
    n_episodes: int = 20,
    dtype: str | Sequence[str] = DTYPES,
    seed: int = 0,
    **arguments: Any,
) -> VerificationResult:
    """Check a handwired model against its algorithm.

    Args:
        name: "wma-handwired", ...
        sizes: of the task, such as numbers of experts, or (states, actions) pairs; those promised when None.
        n_rounds, n_episodes: to run at every size; a machine may run fewer, and the result says how many.
        dtype: "float64", "float32" or both.
        seed: of the episodes.
        arguments: further arguments of the circuit, the same at every size.

    Raises:
        InputError: an unknown model, dtype or argument, sizes of another task, a size or count that is not positive, or
            float32 where the circuit needs float64.
    """
    record = handwired(name)
    plan = record.plan
    dtypes = (dtype,) if isinstance(dtype, str) else tuple(dtype)
    for given in dtypes:
        if given not in DTYPES:
            raise unknown_name("dtype", given, DTYPES)
    for label, count in (("n_rounds", n_rounds), ("n_episodes", n_episodes)):
        require(isinstance(count, int) and count >= 1, f"{label} must be an integer >= 1, got {count!r}")
    cases = [
        (size, given, build(name, **with_defaults(name, given, {**arguments, **size_arguments(record, size)})))
        for size in (plan.sizes if sizes is None else map(_alone, sizes))
        for given in dtypes
    ]
    for _, given, circuit in cases:
        require_dtype(circuit, given)
    require(bool(cases), "no sizes were given; give at least one, or None for the default sizes")
    checks: list[Check] = []
    ran: list[tuple[int, int]] = []
    for size, given, circuit in cases:
        episodes = plan.episodes(circuit, n_rounds, n_episodes, seed)
        ran.append((episodes.n_rounds, len(episodes)))
        checks += check(circuit, episodes, size, given, plan)
    settings = provenance(
        rounds=_span(n for n, _ in ran),
        episodes=_span(n for _, n in ran),
        seed=seed,
        arguments=arguments,
    )
    return VerificationResult(name, tuple(checks), settings)


def _span(counts: Iterable[int]) -> int | str:
    """A count, or from the smallest to the largest where sizes were run for different ones."""
    every = sorted(set(counts))
    return every[0] if len(every) == 1 else f"{every[0]} to {every[-1]}"


def _alone(size: Size) -> Size:
    """A size of one number as that number."""
    return size[0] if isinstance(size, tuple) and len(size) == 1 else size


def size_arguments(record: CircuitRecord, size: Size) -> dict[str, int]:
    """The arguments of a circuit that make a size of its task.

    >>> size_arguments(handwired("qlearning-handwired"), (4, 3))
    {'n_states': 4, 'n_actions': 3}

    Raises:
        InputError: more numbers, or fewer, than the task has sizes.
    """
    names = [size.name for size in interp.tasks.get(record.task).sizes]
    numbers = size if isinstance(size, tuple) else (size,)
    require(
        len(numbers) == len(names),
        f"a size of {record.key!r} is {len(names)} number{'s' * (len(names) > 1)} ({', '.join(names)}), got {size!r}",
    )
    return dict(zip(names, numbers, strict=True))


def check(circuit: Circuit, episodes: Any, size: Size, dtype: str, plan: VerificationPlan) -> list[Check]:
    """Every variable at every location, the prediction and the state of one circuit on given episodes."""
    model = compile_circuit(circuit, getattr(torch, dtype))
    values = circuit.algorithm.run(episodes)
    truths = {key: circuit.truth(values, key) for key in circuit.sites}
    for key, mask in plan.undecided(circuit, values, dtype).items():
        truths[key][mask] = np.nan
    meters = [
        _Meter(key, location, truths[key], circuit)
        for key, locations in circuit.sites.items()
        for location in locations
    ]
    hooks = {t: [(meter.location.hook, meter.hook(t)) for meter in meters] for t in range(episodes.n_rounds)}
    run = rollout(model, episodes, fwd_hooks=hooks)
    memory = circuit.algorithm.memory
    carried = np.concatenate([values[memory][:, :1], values[NEXT + memory]], axis=1)
    measured = [(meter.key, _where(meter.location), meter.error, meter.relative) for meter in meters]
    for key, where, value, truth in (
        (plan.output, "output", run.predictions, truths[plan.output]),
        ("carried_state", "latents", model.read_state(run.latents), carried),
    ):
        measured.append((key, where, *_errors(value.reshape(truth.shape), torch.from_numpy(truth))))
    return [Check(size, dtype, *entry, *plan.tolerance(entry[0], dtype)) for entry in measured]


class _Meter:
    """Largest difference between a variable at a location and its true value, round after round."""

    def __init__(self, key: str, location: Location, truth: np.ndarray, circuit: Circuit) -> None:
        self.key, self.location = key, location
        self.truth, self.read = torch.from_numpy(truth), location.reader(circuit)
        self.by_round: dict[int, tuple[float, float]] = {}

    def hook(self, t: int) -> Callable[[Tensor, Any], None]:
        def compare(activation: Tensor, hook: Any) -> None:
            self.by_round[t] = _errors(self.read(activation), self.truth[:, t])

        return compare

    @property
    def error(self) -> float:
        return max(error for error, _ in self.by_round.values())

    @property
    def relative(self) -> float:
        return max(relative for _, relative in self.by_round.values())


def _errors(value: Tensor, truth: Tensor) -> tuple[float, float]:
    """Largest absolute and relative difference; NaN is an infinite error, NaN in the truth is not compared."""
    difference = (value.double() - truth).abs().nan_to_num(nan=float("inf")).masked_fill(truth.isnan(), 0.0)
    truth = truth.nan_to_num()
    return float(difference.max()), float((difference / truth.abs().clamp(min=1)).max())


def _where(location: Location) -> str:
    labels = list(dict.fromkeys(location.labels))
    return f"{location.hook} at {labels[0]}" + (f" ... {labels[-1]}" if len(labels) > 1 else "")
