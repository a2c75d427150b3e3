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
from circuits.compiler import compile, require_dtype
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
        tolerance: (variable, dtype) -> largest error allowed, and whether "error" or "relative" is meant.
        undecided: (circuit, episodes, dtype) -> variable -> where it hangs on a tie closer than rounding: not compared.
    """

    sizes: tuple[Size, ...]
    arguments: Callable[[Any], dict[str, Any]]
    episodes: Callable[[Circuit, Any, int, int, int], Any]
    state: Callable[[Circuit, Any], np.ndarray]
    output: str
    tolerance: Callable[[str, str], tuple[float, str]]
    undecided: Callable[[Circuit, Any, str], dict[str, np.ndarray]] = lambda circuit, episodes, dtype: {}


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
        InputError: an unknown model, dtype or argument, a size or count that is not positive, or float32 where the
            circuit needs float64.
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
    for _, given, circuit in cases:
        require_dtype(circuit, given)
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
    for variable, mask in subject.undecided(circuit, episodes, dtype).items():
        truths[variable][mask] = np.nan
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
        ("carried_state", "latents", model.read_state(run.latents), subject.state(circuit, episodes)),
    ):
        found.append((variable, where, *_errors(value.reshape(truth.shape), torch.from_numpy(truth))))
    return [Check(size, dtype, *entry, *subject.tolerance(entry[0], dtype)) for entry in found]


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
    """Largest absolute and relative difference; NaN is an infinite error, NaN in the truth is not compared."""
    difference = (found.double() - truth).abs().nan_to_num(nan=float("inf")).masked_fill(truth.isnan(), 0.0)
    truth = truth.nan_to_num()
    return float(difference.max()), float((difference / truth.abs().clamp(min=1)).max())


def _where(site: Site) -> str:
    labels = list(dict.fromkeys(site.labels))
    return f"{site.hook} at {labels[0]}" + (f" ... {labels[-1]}" if len(labels) > 1 else "")


# What is verified.


def _subject(name: str) -> Subject:
    return {"wma-handwired": _experts, "qlearning-handwired": _q_learning}[name]()


def _experts() -> Subject:
    from interp.tasks.experts import predictors as algorithms
    from interp.tasks import experts

    def tolerance(variable: str, dtype: str) -> tuple[float, str]:
        if dtype == "float32":
            return 1e-5, "relative"
        return (1e-9 if "log_weights" in variable or variable in ("carried_state", "match") else 1e-12), "error"

    return Subject(
        sizes=(2, 4, 8, 32),
        arguments=lambda size: {"n_experts": size},
        episodes=lambda circuit, size, rounds, episodes, seed: experts.sample(episodes, rounds, size, seed=seed),
        state=lambda circuit, episodes: algorithms.log_weights(episodes, eta=circuit.arguments["log_gamma"]),
        output="prediction",
        tolerance=tolerance,
    )


def _q_learning() -> Subject:
    from circuits.q_truth import Truth
    from interp.tasks.qlearning import tabular
    from interp.tasks import mdp
    from interp.tasks.qlearning.episodes import MDPEpisodes, MDPs

    kinds = ("grid", "deterministic", "sparse")

    def truth(circuit: Circuit) -> Truth:
        return Truth(*(circuit.arguments[name] for name in ("alpha", "gamma", "tau", "beta")))

    def episodes(circuit: Circuit, size: tuple[int, int], rounds: int, n: int, seed: int) -> MDPEpisodes:
        """Equal shares of the grid, of deterministic transitions and of sparse rewards, in the circuit's range."""
        shares = [len(range(k, n, len(kinds))) for k in range(len(kinds))]
        parts = [
            mdp.sample_mdps(share, *size, seed=seed, regime=kind)
            for share, kind in zip(shares, kinds, strict=True)
            if share
        ]
        low, high = circuit.arguments["rewards"]
        rewards = np.concatenate([part.rewards for part in parts])
        mdps = MDPs(np.concatenate([part.transitions for part in parts]), low + (high - low) * rewards)
        rates = {name: circuit.arguments[name] for name in ("alpha", "gamma")}
        return tabular.run(tabular.QLearner(epsilon=0.5, **rates), mdps, rounds, seed)

    def undecided(circuit: Circuit, episodes: MDPEpisodes, dtype: str) -> dict[str, np.ndarray]:
        """Choices that float32 cannot decide: values within 1e-4 of each other, but for rows that are all zero."""
        if dtype == "float64" or circuit.arguments["beta"] is not None or episodes.n_actions == 1:
            return {}
        values = truth(circuit).next_row(episodes)
        best = np.sort(values, axis=-1)
        close = (best[..., -1] - best[..., -2] < 1e-4) & values.any(-1)
        return {"policy": close, "best_column": close} if circuit.arguments["variant"] == "lin" else {"policy": close}

    return Subject(
        sizes=tuple((n_states, n_actions) for n_states in (2, 4, 8, 16) for n_actions in (2, 3, 4, 8)),
        arguments=lambda size: {"n_states": size[0], "n_actions": size[1]},
        episodes=episodes,
        state=lambda circuit, made: truth(circuit).tables(made),
        output="policy",
        tolerance=lambda variable, dtype: (1e-10 if dtype == "float64" else 1e-4, "error"),
        undecided=undecided,
    )
