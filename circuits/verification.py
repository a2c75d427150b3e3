"""Verify a handwired model against the reference algorithm: outputs, state, and every intermediate variable.

The model runs over sampled episodes, its own state carried from round to round; at every round every site of every
causal variable (``circuit.variables``) is read in the forward pass and compared with the NumPy algorithm
(``interp.algorithms``). Errors are maxima over all episodes, rounds and elements. A pass means that *this* construction
computes the algorithm to rounding on these episodes; it is no evidence about a learned model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from circuits.circuit import Circuit, Site, Variable
from circuits.compiler import compile
from circuits.registry import DTYPES, RECORDS, build, with_defaults
from interp.errors import require, unknown_name
from interp.model.rollout import rollout
from interp.provenance import provenance

if TYPE_CHECKING:
    import pandas as pd

Size = int | tuple[int, int]
"""Number of experts, or of (states, actions)."""


@dataclass(frozen=True)
class Check:
    """One comparison: a variable at a site, or an output, for one size and dtype.

    Attributes:
        error: largest absolute difference from the reference.
        relative: largest ``|difference| / max(1, |reference|)``.
        tolerance: what ``relative`` (float32) or ``error`` (float64) may be at most.
    """

    size: Size
    dtype: str
    variable: str
    where: str
    error: float
    relative: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return (self.error if self.dtype == "float64" else self.relative) <= self.tolerance


@dataclass(frozen=True)
class VerificationResult:
    """Every check, and how to make them again.

    Attributes:
        name: of the model.
        checks: one per size, dtype, variable and site.
        settings: rounds, episodes, seed, arguments, versions, git revision.
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
        """One row per size, dtype and variable: the worst of its sites."""
        frame = self.to_frame()
        keys = ["size", "dtype", "variable"]
        worst = frame.groupby(keys, sort=False, dropna=False)
        table = worst.agg(error=("error", "max"), relative=("relative", "max"), tolerance=("tolerance", "min"))
        return table.assign(passed=worst["passed"].all()).reset_index()


@dataclass(frozen=True)
class Subject:
    """What :func:`verify` needs to know of a task.

    Attributes:
        sizes: the default sizes.
        arguments: size -> arguments of the circuit.
        episodes: (circuit, size, rounds, episodes, seed) -> episodes to run on.
        state: (circuit, episodes) -> the reference's state, ``[episode, round + 1, ...]``.
        outputs: the variable that the model's prediction must equal.
        tolerance: (variable, dtype) -> largest error allowed.
    """

    sizes: tuple[Size, ...]
    arguments: Callable[[Any], dict[str, Any]]
    episodes: Callable[[Circuit, Any, int, int, int], Any]
    state: Callable[[Circuit, Any], np.ndarray]
    output: str
    tolerance: Callable[[str, str], float]


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
        sizes: numbers of experts, or (states, actions) pairs; the sizes that the project promises when None.
        n_rounds, n_episodes: to run at every size.
        dtype: "float64", "float32" or both.
        seed: of the episodes.
        arguments: further arguments of the circuit, the same at every size.

    Raises:
        InputError: an unknown model, dtype or argument, or a size or count that is not positive.
    """
    if name not in RECORDS:
        raise unknown_name("handwired model", name, RECORDS)
    subject = _subject(name)
    dtypes = (dtype,) if isinstance(dtype, str) else tuple(dtype)
    for given in dtypes:
        if given not in DTYPES:
            raise unknown_name("dtype", given, DTYPES)
    for label, count in (("n_rounds", n_rounds), ("n_episodes", n_episodes)):
        require(isinstance(count, int) and count >= 1, f"{label} must be an integer >= 1, got {count!r}")
    cases = [
        (size, given, build(name, **with_defaults(name, given, {**arguments, **subject.arguments(size)})))
        for size in (subject.sizes if sizes is None else tuple(sizes))
        for given in dtypes
    ]
    require(bool(cases), "no sizes were given; give at least one, or None for the default sizes")
    checks: list[Check] = []
    for size, given, circuit in cases:
        episodes = subject.episodes(circuit, size, n_rounds, n_episodes, seed)
        checks += check(circuit, episodes, size, given, subject)
    settings = provenance(rounds=n_rounds, episodes=n_episodes, seed=seed, arguments=arguments)
    return VerificationResult(name, tuple(checks), settings)


def check(circuit: Circuit, episodes: Any, size: Size, dtype: str, subject: Subject) -> list[Check]:
    """Every variable, the prediction and the state of one circuit on given episodes."""
    model = compile(circuit, getattr(torch, dtype))
    truths = {v.name: _flat(v.value(episodes)) for v in circuit.variables}
    meters = [
        _Meter(variable, site, truths[variable.name], circuit)
        for variable in circuit.variables
        for site in variable.sites
    ]
    hooks = {t: [(meter.site.hook, meter.hook(t)) for meter in meters] for t in range(episodes.n_rounds)}
    run = rollout(model, episodes, fwd_hooks=hooks)
    found = [(meter.variable.name, _where(meter.site), meter.error, meter.relative) for meter in meters]
    for variable, where, value, truth in (
        (subject.output, "output", run.predictions, truths[subject.output]),
        ("state", "latents", model.read_state(run.latents), subject.state(circuit, episodes)),
    ):
        found.append((variable, where, *_errors(value.reshape(truth.shape), torch.from_numpy(truth))))
    return [Check(size, dtype, *entry, subject.tolerance(entry[0], dtype)) for entry in found]


class _Meter:
    """Largest difference between a variable at a site and its true value, round after round."""

    def __init__(self, variable: Variable, site: Site, truth: np.ndarray, circuit: Circuit) -> None:
        self.variable, self.site = variable, site
        self.truth, self.read = torch.from_numpy(truth), site.reader(circuit)
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


def _flat(value: np.ndarray) -> np.ndarray:
    """``[episode, round, ...]`` to ``[episode, round, element]``."""
    return value.reshape(*value.shape[:2], -1).astype(np.float64)


def _errors(found: Tensor, truth: Tensor) -> tuple[float, float]:
    """Largest absolute and relative difference; a value that is not finite is an infinite error."""
    difference = (found.double() - truth).abs().nan_to_num(nan=float("inf"))
    return float(difference.max()), float((difference / truth.abs().clamp(min=1)).max())


def _where(site: Site) -> str:
    labels = list(dict.fromkeys(site.labels))
    return f"{site.hook} at {labels[0]}" + (f" ... {labels[-1]}" if len(labels) > 1 else "")


# What is verified.


def _subject(name: str) -> Subject:
    return {"wma-handwired": _experts}[name]()


def _experts() -> Subject:
    from interp.algorithms import experts as algorithms
    from interp.tasks import experts

    def tolerance(variable: str, dtype: str) -> float:
        if dtype == "float32":
            return 1e-5
        return 1e-9 if "log_weights" in variable or variable in ("state", "match") else 1e-12

    return Subject(
        sizes=(2, 4, 8, 32),
        arguments=lambda size: {"n_experts": size},
        episodes=lambda circuit, size, rounds, episodes, seed: experts.sample(episodes, rounds, size, seed=seed),
        state=lambda circuit, episodes: algorithms.log_weights(episodes, eta=circuit.arguments["log_gamma"]),
        output="prediction",
        tolerance=tolerance,
    )
