"""Verify a handwired model against its algorithm: outputs, state, and every intermediate variable.

The model runs over sampled episodes and carries its state from round to round. Every location of
every variable is compared with the algorithm (:mod:`circuits.exactness`). A pass means that *this*
construction computes the algorithm to rounding on these episodes; it is no evidence about a learned
model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import pandas as pd
import torch

import interp.tasks
from circuits.circuit import Size, unpack_single_size
from circuits.compiler import require_dtype
from circuits.exactness import Check, check, check_exits, check_horizon
from circuits.registry import DTYPES, CircuitRecord, build, get_record, with_defaults
from interp.core.algorithm import Algorithm
from interp.core.machine import Machine
from interp.results.measure import Measure, Measured, join_words
from interp.support.checks import checked, checked_result, find_device, integer
from interp.support.errors import require, require_known
from interp.support.provenance import provenance
from interp.support.workers import bar, one_thread

_COLUMNS = [
    "size",
    "dtype",
    "variable",
    "where",
    "error",
    "relative",
    "tolerance",
    "undecided",
    "passed",
    "allowance",
]


@dataclass(frozen=True, repr=False)
@checked_result
class VerificationResult(Measured):
    """The result of a verification: every comparison of a model with its algorithm (check), and one
    measure per variable of the algorithm.

    A variable is checked at every location of the activations that stores it, for every task size
    and dtype. Its measure reports the worst of these checks: the one with the largest error divided
    by its tolerance. docs/method/ground-truth.md says why a measure has no control.

    Attributes:
        model, algorithm: names of the model and of the algorithm.
        checks: all checks.
        settings: {name: value} of rounds, episodes, seed and other provenance.
    """

    model: str
    algorithm: str
    checks: tuple[Check, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    measures: tuple[Measure, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Make one measure per variable: that of its check with the largest error / tolerance."""
        # A variable's checks overwrite each other, and the worst comes last.
        worst = {
            check.variable: check
            for check in sorted(self.checks, key=attrgetter("error_over_tolerance"))
        }
        variables = dict.fromkeys(check.variable for check in self.checks)
        # The only way to set a field of a frozen dataclass.
        object.__setattr__(self, "measures", tuple(worst[key].measure() for key in variables))

    @property
    def passed(self) -> bool:
        """True if every check passed."""
        return not self.failures

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that did not pass."""
        return tuple(check for check in self.checks if not check.passed)

    @property
    def sentence(self) -> str:
        """A sentence that says whether the model computes the algorithm exactly, or up to the errors
        of softmax heads and, if not, which variables or checks fail.
        """
        n = len(self.measures)
        wrong = [measure.key for measure in self.measures if measure.verdict != "yes"]
        if not wrong:
            finding = f"exactly: all {n} checks agree to float precision"
            if any(check.allowance for check in self.checks):
                finding = (
                    f"up to the errors of softmax heads: all {n} checks are within their bounds"
                )
            return f"{self.model} is {self.algorithm} {finding}."
        fail = "fails" if len(wrong) == 1 else "fail"
        finding = f"{len(wrong)} of {n} checks {fail}: {join_words(wrong)}"
        verdicts = {measure.verdict for measure in self.measures}
        is_not = "is not" if "no" in verdicts else "may not be"
        return f"{self.model} {is_not} {self.algorithm}: {finding}."

    def table(self) -> pd.DataFrame:
        """Return a table with one row per check.

        The columns are the fields of :class:`Check`: size and dtype of the model; variable (its
        key) and where (the location); error and relative (largest absolute and relative difference
        from the algorithm); tolerance (the allowed error); undecided (share of rounds that were not
        compared because of ties); passed; and allowance (the part of the tolerance that is due to
        softmax heads).
        """
        rows = [[getattr(check, name) for name in _COLUMNS] for check in self.checks]
        return pd.DataFrame(rows, columns=_COLUMNS)

    def summary(self) -> pd.DataFrame:
        """Return a table with one row per size, dtype and variable.

        Besides these three, the columns are error and relative (largest absolute and relative
        difference from the algorithm); undecided (share of rounds that were not compared because of
        ties); tolerance (the allowed error); and passed (True if all checks passed). A variable can
        be stored at several locations: error, relative and undecided are the largest over them, and
        tolerance is the smallest.
        """
        by_variable = self.table().groupby(["size", "dtype", "variable"], sort=False, dropna=False)
        table = by_variable.agg(
            {"error": "max", "relative": "max", "tolerance": "min", "undecided": "max"}
        )
        return table.assign(passed=by_variable["passed"].all()).reset_index()


@checked
@one_thread()
def verify(
    name: str,
    sizes: Iterable[Size] | None = None,
    n_rounds: int = 200,
    n_episodes: int = 20,
    dtype: str | Sequence[str] = DTYPES,
    seed: int = 0,
    circuit_seed: int | None = None,
    device: str | torch.device = "cpu",
    **arguments: Any,
) -> VerificationResult:
    """Check whether a handwired model computes its algorithm up to rounding errors. Every variable
    of the algorithm is compared at every location of the activations that stores it.

    Args:
        name: name of the handwired model.
        sizes: task sizes to check: numbers of experts, or (states, actions) pairs. None checks all
            sizes for which the model is promised to be exact.
        n_rounds: number of rounds to run at every size. A task may need fewer; ``result.settings``
            says how many ran.
        n_episodes: number of episodes at every size.
        dtype: "float64", "float32" or both.
        seed: seed of the episodes.
        circuit_seed: seed of the circuit's random position codes; None for its default.
        device: device that the model runs on.
        **arguments: further arguments of the circuit, the same at every size.

    Returns:
        One measure per variable, and all checks; ``result.passed`` is True if all checks passed.
    """
    record, device = get_record(name), find_device(device)
    if circuit_seed is not None:
        arguments["seed"] = circuit_seed
    for task_size in interp.tasks.get(record.task).sizes:
        require(
            task_size.name not in arguments,
            f"{task_size.name} is a size of the task: give it in sizes (--{task_size.option} on the command line)",
        )
    plan = record.plan
    dtypes = (dtype,) if isinstance(dtype, str) else tuple(dtype)
    for precision in dtypes:
        require_known("dtype", precision, DTYPES)
    integer("n_rounds", n_rounds, 1)
    integer("n_episodes", n_episodes, 1)
    # Every circuit is built before the first one runs, so that a wrong argument is refused at once.
    cases = []
    for size in plan.sizes if sizes is None else map(unpack_single_size, sizes):
        for precision in dtypes:
            build_arguments = {**arguments, **_size_arguments(record, size)}
            circuit = build(name, **with_defaults(name, precision, build_arguments))
            require_dtype(circuit, precision)
            cases.append((size, precision, circuit))
    require(cases, "no sizes were given; give at least one, or None for the default sizes")
    first_size, _, first_circuit = cases[0]
    checks: list[Check] = []
    rounds: list[int] = []  # that ran; a plan may reduce them
    n_of_episodes: list[int] = []
    with bar(f"verifying {name}", len(cases)) as done:
        for size, precision, circuit in cases:
            episodes = plan.episodes(circuit, n_rounds, n_episodes, seed)
            rounds.append(episodes.n_rounds)
            n_of_episodes.append(len(episodes))
            checks += check(circuit, episodes, size=size, dtype=precision, plan=plan, device=device)
            if size == first_size:  # one size, since the check runs for twice the rounds
                checks += check_horizon(
                    circuit,
                    size,
                    dtype=precision,
                    plan=plan,
                    n_rounds=n_rounds,
                    seed=seed,
                    device=device,
                )
            done(1)
    settings = provenance(
        rounds=_describe_range(rounds),
        episodes=_describe_range(n_of_episodes),
        seed=seed,
        device=str(device),
        arguments=arguments,
    )
    return VerificationResult(
        model=name, algorithm=first_circuit.algorithm.name, checks=tuple(checks), settings=settings
    )


@checked
@one_thread()
def verify_machine(
    machine: Machine,
    algorithm: Algorithm | None = None,
    *,
    n_rounds: int = 100,
    n_episodes: int = 20,
    seed: int = 0,
    tolerance: float | None = None,
) -> VerificationResult:
    """Compare a machine's predictions and its carried state with an algorithm.

    The machine must have a function that reads its state exactly; its circuit need not be known.

    Args:
        machine: a handwired machine, or one that ``interp.adapt(..., read=...)`` returned. The
            check uses the machine's task sizes and dtype.
        algorithm: the algorithm that the machine should compute; None for the one that the task
            assigns to this machine.
        n_rounds: number of rounds, reduced to the task's maximum if it has one.
        n_episodes: number of episodes.
        seed: seed of the episodes.
        tolerance: largest allowed error. An error is divided by the algorithm's absolute value, or
            by 1 if this value is below 1. None means 1e-9 in float64 and 1e-5 in float32.

    Returns:
        The checks of the predicted distribution and, if the algorithm carries a state, of the
        state; ``result.passed`` is True if all checks passed.

    >>> import interp
    >>> verify_machine(interp.load("wma-handwired", n_experts=2), n_rounds=5, n_episodes=2).passed
    True
    """
    # Of a machine that was adapted with read=, is_handwired is true, too.
    require(
        machine.is_handwired,
        f"{machine.name!r} is learned: no function reads its state exactly. Adapt it with read= where one does, or "
        "compare it by fitted maps: circuits.compare.machines(machine, reference)",
    )
    integer("n_rounds", n_rounds, 1)
    integer("n_episodes", n_episodes, 1)
    task = interp.tasks.of(machine)
    algorithm = task.explains(machine) if algorithm is None else algorithm
    if tolerance is None:
        tolerance = 1e-9 if machine.dtype == torch.float64 else 1e-5
    require(tolerance >= 0, f"tolerance must be a number >= 0, got {tolerance}")
    episodes = task.sample_for(machine, n_episodes, task.cap_rounds(n_rounds), seed)
    checks = check_exits(machine, algorithm, episodes, tolerance)
    settings = provenance(
        machine,
        rounds=episodes.n_rounds,
        episodes=len(episodes),
        seed=seed,
        device=str(machine.device),
        arguments={"algorithm": algorithm.key, **algorithm.parameters},
    )
    return VerificationResult(
        model=machine.name, algorithm=algorithm.name, checks=tuple(checks), settings=settings
    )


def _describe_range(counts: Sequence[int]) -> int | str:
    """Return the number that all counts equal, or a text such as "5 to 8" (smallest to largest) if
    they differ.
    """
    smallest, largest = min(counts), max(counts)
    return smallest if smallest == largest else f"{smallest} to {largest}"


def _size_arguments(record: CircuitRecord, size: Size) -> dict[str, int]:
    """Return a task size as the keyword arguments that the circuit's builder takes, by name.

    Args:
        record: registry entry of the handwired model.
        size: one number, or several, in the order of the task's sizes.

    >>> _size_arguments(get_record("qlearning-handwired"), (4, 3))
    {'n_states': 4, 'n_actions': 3}
    """
    names = [task_size.name for task_size in interp.tasks.get(record.task).sizes]
    numbers = size if isinstance(size, tuple) else (size,)
    what = "1 number" if len(names) == 1 else f"{len(names)} numbers"
    words = ", ".join(names)
    require(
        len(numbers) == len(names),
        f"a size of {record.key!r} is {what} ({words}), got {size!r}",
    )
    return dict(zip(names, numbers, strict=True))
